"""Members of archives that torch did not write: weights among them are looked at, or told unchecked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save as to_safetensors

from tests.unit.payloads.check_ckpt.support import audit, network, stored_zip, write
from tests.unit.payloads.check_ckpt.test_tar import saved, tar

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.payloads.check_ckpt.support import Heard

pytestmark = pytest.mark.torch

PARAMS = 4 * (64 * 64 + 64)


def members(*, nan: bool = False) -> dict[str, bytes]:
    """Return a model as safetensors, and its optimizer as torch saves it."""
    model, optimizer = network()
    weights = dict(model.state_dict())
    if nan:
        weights["2.weight"][1, 2] = float("nan")
    return {
        "model.safetensors": to_safetensors(weights, {"format": "pt"}),
        "optimizer.pt": saved(optimizer.state_dict()),
        "notes.txt": b"none",
    }


def heard_of(path: Path, held: dict[str, bytes]) -> Heard:
    if path.suffix == ".zip":
        held = {"_stable_baselines3_version": b"2.9.2", **held}
    return audit(write(path, tar(list(held.items())) if path.suffix == ".ckpt" else stored_zip(held)))


@pytest.mark.parametrize("name", ["c.ckpt", "c.pt"])
def test_safetensors_inside_are_audited(tmp_path: Path, name: str) -> None:
    heard = heard_of(tmp_path / name, members())
    record = heard.record
    assert (record["verdict"], record["params"], record["bytes_checked"]) == ("ok", PARAMS, record["bytes"])
    heard = heard_of(tmp_path / name, members(nan=True))
    assert (heard.record["verdict"], heard.record["nan_weights"]) == ("bad", 1)
    start, stop = heard.of("CK001")["data"]["range"]
    held = torch.frombuffer(bytearray((tmp_path / name).read_bytes()[start:stop]), dtype=torch.float32)
    assert held.numel() == 64 * 64
    assert held.isnan().sum() == 1


@pytest.mark.parametrize("name", ["c.ckpt", "c.pt"])
@pytest.mark.parametrize("member", ["model.safetensors", "weights/model.bin", "./model.gguf"])
def test_what_can_not_be_read_inside_is_not_called_checked(tmp_path: Path, name: str, member: str) -> None:
    held = {member: bytes(range(256)) * 40, "optimizer.pt": members()["optimizer.pt"]}
    heard = heard_of(tmp_path / name, held)
    record = heard.record
    # Of what is not supported as a whole, no value is looked at.
    assert record["bytes_checked"] == (0 if name == "c.pt" else record["bytes"] - 256 * 40)
    assert [(each["tensor"], each["bytes"]) for each in record["unchecked"]] == [(member, 256 * 40)]
    # What calls itself safetensors is to be some; of a zip archive all is to be read.
    broken = "safetensors" in member
    assert record["verdict"] == ("bad" if broken else "ok" if name == "c.ckpt" else "unsupported")
    assert {"CK126", "CK025"} & heard.rules() == ({"CK126", "CK025"} if broken else {"CK126"})
