"""Zip archives of torch files, as Stable-Baselines3 saves agents: what lies in them is audited in its place."""

from __future__ import annotations

import io
import json
import zipfile
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tests.unit.payloads.check_ckpt.support import ENGINES, audit, network, overwrite, stored_zip, write

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.unit.payloads.check_ckpt.support import Heard

pytestmark = pytest.mark.torch


def saved(value: object) -> bytes:
    """Save with torch."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def agent(*, nan: str = "") -> dict[str, bytes]:
    """Return the members of an agent of two networks, as Stable-Baselines3 2.9 names and orders them."""
    model, optimizer = network(1, width=16)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    state, moments = model.state_dict(), optimizer.state_dict()
    if nan == "policy":
        state["0.weight"][1, 1] = float("nan")
    if nan == "optimizer":
        moments["state"][0]["exp_avg"][2, 2] = float("inf")
    settings = json.dumps({"policy_class": {":type:": "<class 'abc.ABCMeta'>"}, "num_timesteps": 128_000}, indent=4)
    return {
        "data": settings.encode(),
        "pytorch_variables.pth": saved({}),
        "policy.pth": saved(state),
        "policy.optimizer.pth": saved(moments),
        "_stable_baselines3_version": b"2.9.2",
        "system_info.txt": b"- OS: Linux\n",
    }


def heard_of(members: Mapping[str, bytes], folder: Path, engine: str = "numpy") -> Heard:
    """Audit the folder of an archive."""
    write(folder / "rl_model_128000_steps.zip", stored_zip(members))
    return audit(folder, engine=engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_agent_is_found_and_sound(tmp_path: Path, engine: str) -> None:
    heard = heard_of(agent(), tmp_path, engine)
    record = heard.record
    assert (record["format"], record["verdict"], record["step"]) == ("stable-baselines3", "ok", 128_000)
    assert heard.rules() == set()
    assert record["params"] == sum(parameter.numel() for parameter in network(1, width=16)[0].parameters())
    assert record["unchecked"] == []


@pytest.mark.parametrize(("where", "field"), [("policy", "nan_weights"), ("optimizer", "inf_optimizer")])
def test_values_in_its_members_are_counted(tmp_path: Path, where: str, field: str) -> None:
    record = heard_of(agent(nan=where), tmp_path).record
    assert (record["verdict"], record[field]) == ("bad", 1)
    assert sum(record[each] or 0 for each in record if each.startswith(("nan_", "inf_"))) == 1


def test_a_flipped_bit_in_a_member_is_found(tmp_path: Path) -> None:
    path = write(tmp_path / "agent.zip", stored_zip(agent()))
    data = path.read_bytes()
    at = data.index(b"data/0", data.index(b"policy.pth")) + 200
    overwrite(path, at, bytes([data[at] ^ 0x40]))
    assert "CK022" in audit(path).rules()


def test_a_step_that_disagrees_with_the_name_is_told(tmp_path: Path) -> None:
    write(tmp_path / "rl_model_64000_steps.zip", stored_zip(agent()))
    assert "CK047" in audit(tmp_path).rules()


def test_a_cut_archive_is_no_sound_one(tmp_path: Path) -> None:
    data = stored_zip(agent())
    for share in (0.3, 0.6, 0.95):
        path = write(tmp_path / f"{share}.zip", data[: int(share * len(data))])
        assert audit(path).record["verdict"] == "bad"


def test_compressed_members_are_not_called_ok(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in agent().items():
            archive.writestr(name, member)
    assert audit(write(tmp_path / "agent.zip", buffer.getvalue())).record["verdict"] in ("unsupported", "bad")


def test_more_members_than_are_read_are_not_called_ok(tmp_path: Path) -> None:
    members = {f"{number}.pth": saved({"w": torch.ones(3)}) for number in range(30)}
    record = heard_of({**members, **agent()}, tmp_path).record
    assert record["verdict"] == "unsupported"


def test_other_archives_are_passed_over_without_a_word(tmp_path: Path) -> None:
    write(tmp_path / "data.zip", stored_zip({"images/1.png": b"\x89PNG", "readme": b"x" * 2000}))
    heard = heard_of(agent(), tmp_path)
    assert ([each["name"] for each in heard.records], heard.summary["skipped"]) == (["rl_model_128000_steps.zip"], [])


def test_arrays_of_numpy_are_not_called_damaged(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", a=np.ones(3))
    np.save(tmp_path / "w.npy", np.ones(3))
    for name in ("w.npz", "w.npy"):
        heard = audit(tmp_path / name)
        assert (heard.record["verdict"], heard.rules()) == ("unsupported", {"CK128"})
