"""Records beyond memory: they read as they came, nobody else finds them, and a lack of room is told."""

from __future__ import annotations

import gc
import json
import os
import pickle
import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoterun.model import Json, Outcome, Phase, Records, Status
from remoterun.runner.keep import Room
from remoterun.runner.spool import Shelf, Spool
from tests.support.runs import values

BLOCK = 64 << 10


def _filled(folder: Path, records: Sequence[Mapping[str, Json]], in_memory: int = 0) -> Sequence[Mapping[str, Json]]:
    shelf = Shelf(Spool([str(folder)]))
    for record in records[:in_memory]:
        shelf.keep(record)
    for record in records[in_memory:]:
        shelf.put_away(json.dumps(record, indent=1).encode())
    return shelf.records()


def _many(count: int = 1000) -> tuple[dict[str, Json], ...]:
    return tuple({"n": number, "text": f"{number:0500}"} for number in range(count))


def _descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


@given(
    st.lists(
        st.dictionaries(st.text(max_size=3), values(), max_size=3)
        | st.integers(0, BLOCK).map(lambda size: {"x": "y" * size}),
        max_size=12,
    ),
    st.integers(0, 12),
    st.slices(12),
)
def test_records_read_as_they_came(
    tmp_path_factory: pytest.TempPathFactory, came: list[Mapping[str, Json]], in_memory: int, part: slice
) -> None:
    # As the wire has them, without what JSON has no word for.
    records = [json.loads(json.dumps(record).replace("NaN", "0").replace("Infinity", "0")) for record in came]
    found = _filled(tmp_path_factory.getbasetemp(), records, in_memory)
    assert len(found) == len(records)
    assert list(found) == records
    assert found[part] == tuple(records[part])
    assert [found[number] for number in range(-len(records), len(records))] == records * 2
    assert found == tuple(records)
    assert isinstance(found, Records) == (in_memory < len(records))


def test_they_are_as_good_as_a_tuple(tmp_path: Path) -> None:
    records = _many()
    found = _filled(tmp_path, records, 10)
    assert isinstance(found, Records)
    assert found == records
    assert records == found
    assert found != records[:-1]
    assert found != (*records[:-1], {})
    assert list(reversed(found)) == list(reversed(records))
    assert {"n": 999, "text": f"{999:0500}"} in found
    assert repr(found) == "<1000 records>"
    with pytest.raises(IndexError):
        found[1000]
    outcome = Outcome(target="a", name=None, step=0, status=Status.OK, phase=Phase.RUN, records=found)
    assert replace(outcome, connections=1).records is found
    again = pickle.loads(pickle.dumps(outcome))
    assert again == outcome
    assert type(again.records) is tuple


def test_nobody_else_finds_the_file_and_it_is_gone_with_its_last_reader(tmp_path: Path) -> None:
    before = _descriptors()
    found = _filled(tmp_path, _many())
    assert list(tmp_path.iterdir()) == []
    assert _descriptors() == before + 1
    reading = iter(found)
    assert next(reading)["n"] == 0
    del found
    assert sum(1 for _ in reading) == 999
    del reading
    assert _descriptors() == before


def test_it_takes_little_of_the_disk(tmp_path: Path) -> None:
    spool = Spool([str(tmp_path)])
    shelf = Shelf(spool)
    for record in _many(10_000):
        shelf.put_away(json.dumps(record).encode())
    assert spool.append(b"")[1] < 500_000


@contextmanager
def _no_file_above(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _noise(number: int) -> dict[str, Json]:
    return {"n": number, "noise": os.urandom(30_000).hex()}


def test_where_one_folder_has_no_room_the_next_is_taken(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    spool = Spool([str(tmp_path / "missing"), str(tmp_path / "one"), "/proc", str(tmp_path / "two")])
    records = [_noise(number) for number in range(12)]
    shelf = Shelf(spool)
    # Each folder takes what is less than three of them.
    with _no_file_above(80_000):
        for record in records[:4]:
            shelf.put_away(json.dumps(record).encode())
    for record in records[4:]:
        shelf.put_away(json.dumps(record).encode())
    assert list(shelf.records()) == records


def test_where_there_is_no_room_at_all_that_is_told_and_what_came_before_is_kept(tmp_path: Path) -> None:
    records = [_noise(number) for number in range(20)]
    shelf = Shelf(Spool([str(tmp_path / "missing"), "/proc", str(tmp_path)]))

    def put_all_away() -> None:
        for record in records:
            shelf.put_away(json.dumps(record).encode())

    with _no_file_above(80_000), pytest.raises(OSError, match=r"missing: No such .*; /proc: .*; .*: File too large"):
        put_all_away()
    kept = list(shelf.records())
    assert len(kept) >= 3
    assert kept == records[: len(kept)]


@given(
    st.integers(0, 1000),
    st.integers(1, 20),
    st.lists(st.tuples(st.integers(0, 19), st.integers(0, 200)), max_size=60),
)
def test_memory_is_shared_out(size: int, jobs: int, wishes: list[tuple[int, int]]) -> None:
    room, had = Room(size, jobs), [0] * jobs
    for who, more in wishes:
        job = who % jobs
        taken = room.take(had[job], more)
        # Nobody is refused what is within the own share, whatever all others had.
        assert taken or had[job] + more > size // 2 // jobs
        had[job] += more if taken else 0
    assert sum(had) <= size
