"""Damaged files of every kind, by chance: the audit has a verdict for each, and never ok for one that is cut."""

from __future__ import annotations

import functools
import io
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save as save_safetensors

from tests.unit.payloads.check_ckpt.support import ENGINES, Heard, audit, write

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch

KINDS = ("zip", "zip4", "legacy", "safetensors")


@functools.cache
def whole(kind: str) -> bytes:
    """Make a small file of a kind."""
    weights = {"a": torch.ones(40), "b": torch.ones(3).bfloat16(), "c": torch.arange(3)}
    if kind == "safetensors":
        return save_safetensors(weights)
    state = {"model": weights, "optimizer": {"state": {0: {"exp_avg": torch.ones(5)}}, "param_groups": []}, "step": 4}
    buffer = io.BytesIO()
    options = {"zip4": {"pickle_protocol": 4}, "legacy": {"_use_new_zipfile_serialization": False}}.get(kind, {})
    torch.save(state, buffer, **options)  # type: ignore[arg-type]
    return buffer.getvalue()


def judged(path: Path, data: bytes, engine: str) -> Heard:
    """Audit bytes, and see that it was the file and not the audit that failed."""
    heard = audit(write(path, data), engine=engine)
    assert "the audit itself failed" not in str(heard.findings)
    assert heard.record["verdict"] in {"ok", "bad", "suspect", "unsupported"}
    return heard


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_bytes(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    changed = bytearray(whole(kind))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at : at + 1] = data.draw(st.binary(max_size=8))
    judged(tmp_path / "c.pt", bytes(changed), data.draw(st.sampled_from(ENGINES)))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_cut_files(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    size = data.draw(st.integers(0, len(whole(kind)) - 1))
    assert judged(tmp_path / "c.pt", whole(kind)[:size], "stdlib").record["verdict"] != "ok"


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_files_laid_over_each_other(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    other = whole(data.draw(st.sampled_from(KINDS)))
    mixed = bytearray(whole(kind))
    start, at = data.draw(st.integers(0, len(mixed))), data.draw(st.integers(0, len(other)))
    length = data.draw(st.integers(0, 2000))
    mixed[start : start + length] = other[at : at + length]
    judged(tmp_path / "c.pt", bytes(mixed), "stdlib")


@pytest.mark.parametrize("kind", ["zip", "zip4"])
def test_every_single_bit_of_the_data_counts(tmp_path: Path, kind: str) -> None:
    """One bit in any record that torch reads is noticed: there are checksums."""
    good = whole(kind)
    start = good.find(b"PK\x03\x04", 4)  # behind the pickle, the bytes of tensors stand between padding
    noticed = 0
    for at in range(start, len(good), 7):
        changed = bytearray(good)
        changed[at] ^= 0x10
        noticed += judged(tmp_path / "c.pt", bytes(changed), "stdlib").record["verdict"] == "bad"
    assert noticed > 50
