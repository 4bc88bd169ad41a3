"""What others can make of a file: prefixes, views, ties and old formats are told, and are no fault."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file

from tests.unit.payloads.check_ckpt.support import Heard, audit, network, save, settle, stored_zip, write

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


def told(path: Path, value: object, **options: Any) -> Heard:
    """Save and audit; nothing of this is worse than information."""
    heard = audit(save(value, path, **options))
    assert heard.record["verdict"] == "ok"
    return heard


# --- CK121 ----------------------------------------------------------------------------------------------------------


def test_a_slice_that_drags_its_storage_along_is_told(tmp_path: Path) -> None:
    base = torch.ones(100_000)
    heard = told(tmp_path / "c.pt", {"model": {"w": base[:2], "v": torch.ones(100_000)}})
    assert heard.record["params"] == 100_002
    found = heard.of("CK121")
    assert found["data"]["tensors"] == ["model.w"]
    assert found["evidence"] == {"bytes": 400_000, "used": 8}


@pytest.mark.parametrize(
    "model",
    [
        {"whole": torch.ones(100_000)},
        {"a": (shared := torch.ones(100_000))[:60_000], "b": shared[60_000:]},
        {"turned": torch.ones(300, 300).t()},
        {"wide": torch.ones(1, 300).expand(300, 300)},
        {"tied": (tied := torch.ones(100_000)), "again": tied},
        {"small": torch.ones(10_000)[:2]},
    ],
)
def test_views_that_waste_nothing_are_not(tmp_path: Path, model: dict[str, torch.Tensor]) -> None:
    assert "CK121" not in told(tmp_path / "c.pt", {"model": model}).rules()


# --- CK122 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("module.", {"module"}),
        ("_orig_mod.", {"_orig_mod"}),
        ("module._orig_mod.", {"module", "_orig_mod"}),
        ("_orig_mod.module.", {"module", "_orig_mod"}),
        ("layers.0._orig_mod.", {"_orig_mod"}),
        ("layers.module.", set()),
    ],
)
@pytest.mark.parametrize("nested", [True, False])
def test_prefixes_of_wrappers_are_told(tmp_path: Path, prefix: str, expected: set[str], nested: bool) -> None:
    state = {prefix + name: value for name, value in network()[0].state_dict().items()}
    heard = told(tmp_path / "c.pt", {"model_state_dict": state} if nested else state)
    found = [each for each in heard.findings if each["rule"] == "CK122"]
    assert {each["data"]["prefix"] for each in found} == expected
    assert all("8 of 8 names" in each["message"] for each in found)


def test_prefixes_in_safetensors_are_told(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"module.w": torch.ones(2), "module.v": torch.ones(3)}, path, metadata={"format": "pt"})
    assert audit(settle(path)).of("CK122")["data"]["prefix"] == "module"


def test_a_state_under_the_key_module_has_no_prefix(tmp_path: Path) -> None:
    assert "CK122" not in told(tmp_path / "c.pt", {"module": network()[0].state_dict(), "step": 5}).rules()


def test_a_submodule_called_module_is_no_prefix(tmp_path: Path) -> None:
    state = {"module.w": torch.ones(2), "head.w": torch.ones(2)}
    assert "CK122" not in told(tmp_path / "c.pt", state).rules()


# --- CK123 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["lm_head.weight", "model.embed_out.weight", "output.weight", "decoder.weight"])
def test_tied_weights_that_are_stored_twice_are_told(tmp_path: Path, head: str) -> None:
    weight = torch.randn(50, 40)
    heard = told(tmp_path / "c.pt", {"model.embed_tokens.weight": weight, head: weight.clone()})
    assert set(heard.of("CK123")["data"]["tensors"]) == {"model.embed_tokens.weight", head}


def test_weights_that_are_tied_or_different_are_not(tmp_path: Path) -> None:
    weight = torch.randn(50, 40)
    other = weight.clone()
    other[3, 3] += 1
    for head in (weight, other, weight.clone().t(), torch.zeros(50, 40)):
        state = {"wte.weight": weight if head.any() else torch.zeros(50, 40), "lm_head.weight": head}
        heard = audit(save(state, tmp_path / "c.pt"))
        assert "CK123" not in heard.rules()


# --- CK124, CK125 ---------------------------------------------------------------------------------------------------


def test_a_big_endian_file_is_told_and_its_values_are_named(tmp_path: Path) -> None:
    path = save({"w": torch.ones(4), "n": torch.arange(3), "step": 5}, tmp_path / "c.pt")
    with zipfile.ZipFile(path) as archive:
        records = {info.filename: archive.read(info) for info in archive.infolist()}
    records["c/byteorder"] = b"big"
    heard = audit(write(path, stored_zip(records)))
    assert (heard.record["verdict"], heard.record["step"]) == ("ok", 5)
    assert heard.rules() == {"CK050", "CK124", "CK126"}
    assert {each["reason"] for each in heard.record["unchecked"]} == {"big-endian"}
    assert [each["tensor"] for each in heard.record["unchecked"]] == ["w"]


@pytest.mark.parametrize(("metadata", "expected"), [(None, True), ({"step": "5"}, True), ({"format": "pt"}, False)])
def test_safetensors_without_a_format_are_told(tmp_path: Path, metadata: dict[str, str] | None, expected: bool) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"w": torch.ones(3)}, path, metadata=metadata)
    heard = audit(settle(path))
    assert heard.record["verdict"] == "ok"
    assert ("CK125" in heard.rules()) == expected
