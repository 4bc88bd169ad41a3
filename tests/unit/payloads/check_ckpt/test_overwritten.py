"""A checkpoint that is written over the one before: what earlier audits saw in its place is held against it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from tests.unit.payloads.check_ckpt.support import audit, save, settle
from tests.unit.payloads.check_ckpt.test_series_faults import flip, moments, trained

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.unit.payloads.check_ckpt.support import Heard

pytestmark = pytest.mark.torch

_LATER = 10.0


def audited(saved: Iterable[dict[str, Any]], path: Path, **params: object) -> Heard:
    """Save one after the other in the same place, each audited as long after it as it takes to be remembered."""
    heard = None
    for state in saved:
        heard = audit(save(state, path).parent, later=_LATER, **params)
    assert heard is not None
    return heard


@pytest.mark.parametrize("name", ["ckpt.pt", "last.ckpt", "state/latest.pt"])
def test_sound_saves_in_one_place_are_quiet(name: str, tmp_path: Path) -> None:
    heard = audited(trained(), tmp_path / name)
    assert (heard.record["verdict"], heard.record["step"]) == ("ok", 60)
    assert heard.findings == []


def test_weights_of_the_save_before_are_found(tmp_path: Path) -> None:
    saved = trained()
    saved[2]["model"] = saved[1]["model"]
    heard = audited(saved, tmp_path / "ckpt.pt")
    assert heard.record["verdict"] == "bad"
    found = heard.of("CK081")
    assert found["message"] == "all weights are bit-identical to those of ckpt.pt at step 40"
    assert found["data"]["compared_path"] == str(tmp_path / "ckpt.pt")
    again = audit(tmp_path, later=_LATER)
    assert again.record["cached"] is True
    assert [each["message"] for each in again.findings] == [each["message"] for each in heard.findings]


def test_weights_of_a_save_before_that_are_found(tmp_path: Path) -> None:
    saved = trained()
    saved[2]["model"] = saved[0]["model"]
    found = audited(saved, tmp_path / "ckpt.pt").of("CK084")
    assert found["message"] == (
        "all weights are bit-identical to those of ckpt.pt at step 20, though those of ckpt.pt at step 40, in between, "
        "are others"
    )


def test_a_moment_that_stood_still_is_found(tmp_path: Path) -> None:
    saved = trained()
    moments(saved[2], 2, "exp_avg_sq").copy_(moments(saved[1], 2, "exp_avg_sq"))
    assert "CK088" in audited(saved, tmp_path / "ckpt.pt").rules(above_info=True)


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    saved = trained((1e-4,) * 4)
    flip(saved[-1]["model"]["1.weight"], 25)
    found = audited(saved, tmp_path / "ckpt.pt").of("CK082")
    assert "ckpt.pt at step 40" in found["message"]


def _another(seed: int, width: int) -> dict[str, Any]:
    """Train the same network from another beginning, with larger weights, for more steps."""
    torch.manual_seed(seed)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))
    for parameter in model.parameters():
        parameter.data *= 8
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(80):
        optimizer.zero_grad()
        model(torch.randn(16, width)).square().mean().backward()
        optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 80}


@pytest.mark.parametrize("width", [32, 16])
def test_another_training_in_the_same_place_is_not_compared(width: int, tmp_path: Path) -> None:
    saved = trained()
    saved[2] = _another(1, width)
    heard = audited(saved, tmp_path / "ckpt.pt")
    assert (heard.record["verdict"], heard.findings) == ("ok", [])


def _tuned(seed: int, steps: int, labels: int, dtype: torch.dtype) -> dict[str, Any]:
    """Tune the same trained layers below a head of its own."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    torch.manual_seed(seed)
    model = model.append(nn.Linear(64, labels)).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, 64, dtype=dtype)).square().mean().backward()
        optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": steps}


@pytest.mark.parametrize(
    ("labels", "dtype", "rule"),
    [(32, torch.float32, "CK089"), (24, torch.float32, "CK083"), (32, torch.bfloat16, "CK083")],
)
def test_a_second_training_from_the_same_weights_is_no_fault(
    labels: int, dtype: torch.dtype, rule: str, tmp_path: Path
) -> None:
    heard = audited([_tuned(1, 20, 32, torch.float32), _tuned(2, 50, labels, dtype)], tmp_path / "last.ckpt")
    assert heard.record["verdict"] == "ok"
    assert "another training" in heard.of(rule)["next_step"]


def test_matrices_in_each_others_place_are_found(tmp_path: Path) -> None:
    saved = trained((1e-3,) * 6)
    model = saved[2]["model"]
    model["1.weight"], model["2.weight"] = model["2.weight"], model["1.weight"]
    assert "CK089" in audited(saved, tmp_path / "ckpt.pt").rules(above_info=True)


def test_a_training_that_was_begun_anew_is_not_held_against_its_later_self(tmp_path: Path) -> None:
    first, second, third = trained()
    second["model"] = first["model"]
    heard = audited([third, first], tmp_path / "ckpt.pt")
    assert (heard.record["verdict"], heard.findings) == ("ok", [])
    # What was seen of it this time counts, though it has a later past.
    assert "CK081" in audited([third, first, second], tmp_path / "ckpt.pt").rules()


def test_what_has_its_step_in_its_name_is_compared_with_its_like_only(tmp_path: Path) -> None:
    saved = trained()
    saved[2]["model"] = saved[1]["model"]
    assert audited(saved, tmp_path / "epoch_1.pt").findings == []


def test_audits_of_headers_alone_leave_the_past_as_it_is(tmp_path: Path) -> None:
    saved = trained()
    saved[2]["model"] = saved[0]["model"]
    path = tmp_path / "ckpt.pt"
    audited(saved[:1], path)
    for number in range(5):
        audited([{**saved[1], "step": 30 + number}], path, deep=False)
    heard = audited(saved[2:], path)
    assert heard.of("CK081")["message"].endswith("those of ckpt.pt at step 20")
    assert "CK081" in audit(tmp_path, later=_LATER, deep=False).rules()


def test_without_a_memory_there_is_no_past(tmp_path: Path) -> None:
    saved = trained()
    saved[2]["model"] = saved[1]["model"]
    assert audited(saved, tmp_path / "ckpt.pt", cache=False).findings == []


def test_a_memory_that_names_anything_is_not_believed(tmp_path: Path, own_home: Path) -> None:
    saved = trained()
    audited(saved[:2], tmp_path / "ckpt.pt")
    from remoterun.payloads.check_ckpt.series.store import Past, open_store

    store = open_store(lambda text: None)
    past = Past(store)
    path = str(tmp_path / "ckpt.pt")
    (kept,) = [key.name for key in (own_home / ".cache/remoterun/digests").iterdir() if past.of(path)[0] == key.name]
    (index,) = [
        key.name for key in (own_home / ".cache/remoterun/digests").iterdir() if "past" in (store.find(key.name) or {})
    ]
    store.keep(index, {"past": [5, "../../x", "0" * 64, kept]}, [])
    saved[2]["model"] = saved[1]["model"]
    assert "CK081" in audited(saved[2:], tmp_path / "ckpt.pt").rules()
    store.keep(index, {"past": {"a": 1}}, [])
    assert past.of(path) == []


def test_a_folder_that_is_written_over_is_held_against_its_past(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    folder = tmp_path / "out"
    heard = None
    for number, state in enumerate(trained()):
        folder.mkdir(exist_ok=True)
        model = trained()[min(number, 1)]["model"]
        save_file({name: value.contiguous() for name, value in model.items()}, folder / "model.safetensors")
        torch.save(state["optimizer"], folder / "optimizer.pt")
        (folder / "trainer_state.json").write_text(
            f'{{\n  "epoch": 1.0,\n  "global_step": {state["step"]},\n  "log_history": []\n}}'
        )
        for file in folder.iterdir():
            settle(file)
        heard = audit(tmp_path, later=_LATER)
    assert heard is not None
    assert heard.record["step"] == 60
    assert "CK081" in heard.rules()
