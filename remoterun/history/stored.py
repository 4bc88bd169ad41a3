"""Records of a run as they lie in the database: read at once where they are few, else when they are asked for."""

from __future__ import annotations

import json
import sqlite3
import zlib
from contextlib import closing
from typing import TYPE_CHECKING, Final

from remoterun.history.database import NewerHistoryError, connect, reading, trouble
from remoterun.history.values import unpack_json
from remoterun.model import Records

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from remoterun.model import Json

# Memory for the records of one run, of which a list or an object takes some hundred bytes.
_IN_MEMORY: Final = 16 << 20
_CONTAINER_BYTES: Final = 200
# No reader may keep others from writing, however long it takes: it holds no transaction between two batches.
_BATCH: Final = 64

_SELECT: Final = "SELECT body FROM records WHERE run = ? AND job = ? AND record >= ? ORDER BY record LIMIT ?"


def stored_records(database: sqlite3.Connection, folder: Path, run: int) -> dict[int, Sequence[Mapping[str, Json]]]:
    """Return the records of a run by job, in memory as far as there is room for them."""
    left = _IN_MEMORY
    found: dict[int, Sequence[Mapping[str, Json]]] = {}
    counts = database.execute(
        "SELECT job, count(*), sum(length(body)) FROM records WHERE run = ? GROUP BY job", (run,)
    ).fetchall()
    for job, count, size in counts:
        read, left = _read_whole(database, (run, job, 0, count), left) if size < left else (None, left)
        found[job] = StoredRecords(folder, run, job, count) if read is None else read
    return found


def _read_whole(
    database: sqlite3.Connection, place: tuple[int, ...], room: int
) -> tuple[tuple[Mapping[str, Json], ...] | None, int]:
    """Read the records of a job if there is room for them, and return what room is left."""
    texts, left = [], room
    with reading():
        for (body,) in database.execute(_SELECT, place):
            text = zlib.decompress(body)
            left -= len(text) + _CONTAINER_BYTES * (text.count(b"[") + text.count(b"{"))
            if left < 0:
                return None, room
            texts.append(text)
        # All at once: most are small, and each call takes its time.
        records = json.loads(b"[" + b",".join(texts) + b"]")
        if len(records) != len(texts):
            raise ValueError("a record is none")
    return tuple(records), left


class StoredRecords(Records):
    """Read the records of one job over a connection of its own; they may be forgotten meanwhile."""

    __slots__ = ("_count", "_folder", "_job", "_run")

    def __init__(self, folder: Path, run: int, job: int, count: int) -> None:
        self._folder = folder
        self._run = run
        self._job = job
        self._count = count

    def __len__(self) -> int:
        return self._count

    def read(self, start: int) -> Iterator[Mapping[str, Json]]:
        """Read the records from one on, some at a time."""
        try:
            with closing(connect(self._folder, create=False)) as database:
                while start < self._count:
                    size = min(_BATCH, self._count - start)
                    bodies = database.execute(_SELECT, (self._run, self._job, start, size)).fetchall()
                    if not bodies:
                        raise OSError(f"records of this run are no longer in the history in {self._folder}")
                    for (body,) in bodies:
                        with reading():
                            record = unpack_json(body)
                        yield record
                    start += len(bodies)
        except (sqlite3.Error, NewerHistoryError) as error:
            raise OSError(trouble(self._folder, "read", error)) from error
