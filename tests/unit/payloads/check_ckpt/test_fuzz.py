"""Damaged files of every kind, by chance: the audit has a verdict for each, and never ok for what was lost.

A short cut of the campaign; `python -m tests.fuzz` is the long one.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.seeds import ALONE, READERS, SINGLE, seed
from tests.fuzz.trial import attempt, case
from tests.support.campaign import turns
from tests.unit.payloads.check_ckpt.support import ENGINES, Heard, NothingError, audit, write

if TYPE_CHECKING:
    import random
    from pathlib import Path

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

# Each is an audit. Runs draw others, and there is a campaign of its own.
FEW = settings(max_examples=len(turns(15, 400)), suppress_health_check=[HealthCheck.function_scoped_fixture])
KINDS = ("zip", "zip4", "legacy", "safetensors")


def whole(kind: str) -> bytes:
    """Return a small sound file of a kind."""
    return seed(kind)[ALONE]


def judged(path: Path, data: bytes, engine: str) -> Heard:
    """Audit bytes, and see that it was the file and not the audit that failed."""
    heard = audit(write(path, data), engine=engine)
    assert "the audit itself failed" not in str(heard.findings)
    assert heard.record["verdict"] in {"ok", "bad", "suspect", "unsupported"}
    return heard


@pytest.mark.parametrize("reader", READERS)
@FEW
@given(number=st.integers(0, 2**32))
def test_every_reader_survives_damage(tmp_path: Path, reader: str, number: int) -> None:
    """The number of a case is what `python -m tests.fuzz --reader ... --only` takes."""
    try:
        attempt(case(reader, number), tmp_path / "case")
    except NothingError:
        assert reader not in SINGLE


@pytest.mark.parametrize("reader", READERS)
def test_what_is_damaged_was_sound(tmp_path: Path, reader: str) -> None:
    assert set(attempt(seed(reader), tmp_path / "case").split()) == {"ok"}


@pytest.mark.parametrize("kind", KINDS)
@FEW
@given(data=st.data())
def test_changed_bytes(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    changed = bytearray(whole(kind))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at : at + 1] = data.draw(st.binary(max_size=8))
    judged(tmp_path / "c.pt", bytes(changed), data.draw(st.sampled_from(ENGINES)))


@pytest.mark.parametrize("kind", ["zip", "zip4"])
@FEW
@given(data=st.data())
def test_what_is_ok_is_what_was_saved(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    """torch is asked: a file that is called ok, though it was changed, loads to the same numbers."""
    changed = bytearray(whole(kind))
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at] = data.draw(st.integers(0, 255))
    if judged(tmp_path / "c.pt", bytes(changed), "stdlib").record["verdict"] == "ok":
        assert loads_the_same(bytes(changed), kind)


def loads_the_same(data: bytes, kind: str) -> bool:
    """Ask torch for the numbers of a changed file and of the sound one."""
    loaded, saved = (torch.load(io.BytesIO(each), weights_only=False)["model"] for each in (data, whole(kind)))
    return all(torch.equal(loaded[name], tensor) for name, tensor in saved.items())


def test_what_is_ok_by_its_directory_is_what_was_saved(tmp_path: Path, rng: random.Random) -> None:
    """Every byte of a storage in the directory, and of the end records: torch takes some of them seriously."""
    good = whole("zip")
    name = good.find(b"/data/0", good.find(b"PK\x01\x02"))
    entry, end = good.rfind(b"PK\x01\x02", 0, name), good.rfind(b"PK\x06\x06")
    for at in (*range(entry, entry + 46), *range(end, len(good))):
        changed = bytearray(good)
        changed[at] ^= rng.choice((0x01, 0x10))
        if judged(tmp_path / "c.pt", bytes(changed), "stdlib").record["verdict"] == "ok":
            assert loads_the_same(bytes(changed), "zip")


@pytest.mark.parametrize("kind", KINDS)
@FEW
@given(data=st.data())
def test_cut_files(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    size = data.draw(st.integers(0, len(whole(kind)) - 1))
    assert judged(tmp_path / "c.pt", whole(kind)[:size], "stdlib").record["verdict"] != "ok"


@pytest.mark.parametrize("kind", ["zip", "zip4"])
def test_every_single_bit_of_the_data_counts(tmp_path: Path, kind: str, rng: random.Random) -> None:
    """One bit in any record that torch reads is noticed: there are checksums."""
    good = whole(kind)
    start = good.find(b"PK\x03\x04", 4)  # behind the pickle, the bytes of tensors stand between padding
    noticed = 0
    for at in range(start + rng.randrange(13), len(good), 13):
        changed = bytearray(good)
        changed[at] ^= 0x10
        noticed += judged(tmp_path / "c.pt", bytes(changed), "stdlib").record["verdict"] == "bad"
    assert noticed > 50
