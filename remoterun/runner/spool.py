"""Records of one run that memory is too small for, in files that have no name.

Nobody else finds such a file, a killed process leaves none, and it is gone when the last record in it is let go.
"""

from __future__ import annotations

import json
import os
import weakref
import zlib
from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from remoterun.model import Records

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from remoterun.model import Json

# So much is compressed at once, and read at once by whoever asks for one record.
_BLOCK_BYTES: Final = 64 << 10


def folders() -> tuple[str, ...]:
    """Return where large files without a name may go: where TMPDIR says, else a disk before what may be memory."""
    named = os.environ.get("TMPDIR")
    return tuple(dict.fromkeys([*([named] if named else []), "/var/tmp", "/tmp"]))  # noqa: S108  # none has a name


class _File:
    """Hold a file without a name, for as long as anybody refers to it."""

    def __init__(self, folder: str) -> None:
        import tempfile

        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            self._fd = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._fd)
        self._size = 0

    def append(self, data: bytes) -> int:
        """Write at the end, all or nothing, and return where that began."""
        start = self._size
        left = memoryview(data)
        while left:
            left = left[os.pwrite(self._fd, left, start + len(data) - len(left)) :]
        self._size = start + len(data)
        return start

    def read(self, start: int, size: int) -> bytes:
        """Return bytes that were written."""
        parts = []
        while size:
            part = os.pread(self._fd, size, start)
            if not part:
                raise OSError("a temporary file of this run has been cut")
            parts.append(part)
            start, size = start + len(part), size - len(part)
        return b"".join(parts)


class Spool:
    """Take blocks of bytes, into the first of some folders that has room for them.

    Where none has, `append` raises what each of them said.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = list(folders)
        self._file: _File | None = None
        self._trouble: list[str] = []

    def append(self, data: bytes) -> tuple[_File, int]:
        """Write a block, and return where it is.

        Raises:
            OSError: when no folder has room for it.
        """
        while self._folders:
            try:
                self._file = self._file or _File(self._folders[0])
                return self._file, self._file.append(data)
            except OSError as error:
                self._trouble.append(f"{self._folders.pop(0)}: {error.strerror or error}")
                self._file = None
        raise OSError("; ".join(self._trouble))


class Shelf:
    """Take the records of one job, one after the other: into memory at first, then into a spool."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._head: list[Mapping[str, Json]] = []
        self._blocks = _Blocks()
        self._open: list[bytes] = []
        self._open_bytes = 0

    def keep(self, record: Mapping[str, Json]) -> None:
        """Keep a record in memory; none can be kept there once one was put away."""
        self._head.append(record)

    @property
    def all_in_memory(self) -> bool:
        """Tell whether none was put away so far."""
        return not self._open and not self._blocks.count

    def put_away(self, text: bytes) -> None:
        """Keep a record in the spool, as JSON.

        Raises:
            OSError: when there is no room for it; those before it are kept.
        """
        # Between its parts JSON may have line breaks; inside a string they are always escaped.
        self._open.append(text.replace(b"\n", b" "))
        self._open_bytes += len(text)
        if self._open_bytes >= _BLOCK_BYTES:
            try:
                self._close_block()
            except OSError:
                self._open.pop()
                self._open_bytes -= len(text)
                raise

    def _close_block(self) -> None:
        data = zlib.compress(b"\n".join(self._open), 1)
        file, start = self._spool.append(data)
        self._blocks.add(file, start, len(data), len(self._open))
        self._open, self._open_bytes = [], 0

    def records(self) -> Sequence[Mapping[str, Json]]:
        """Return all records: as a tuple where they lie in memory. None may be added afterwards."""
        if self.all_in_memory:
            return tuple(self._head)
        return _Spooled(tuple(self._head), self._blocks, tuple(self._open))


class _Blocks:
    """Know where the blocks of one job are, in few bytes for each: there may be a thousand for each target."""

    def __init__(self) -> None:
        self.count = 0
        """How many records are in all blocks."""
        self._files: list[_File] = []
        self._file_of = array("B")
        self._start = array("Q")
        self._size = array("Q")
        self._first = array("Q")

    def add(self, file: _File, start: int, size: int, count: int) -> None:
        if file not in self._files:
            self._files.append(file)
        self._file_of.append(self._files.index(file))
        self._start.append(start)
        self._size.append(size)
        self._first.append(self.count)
        self.count += count

    def read(self, number: int) -> Iterator[bytes]:
        """Read the records from one on, as they were put away."""
        for block in range(bisect_right(self._first, number) - 1, len(self._first)):
            data = self._files[self._file_of[block]].read(self._start[block], self._size[block])
            yield from zlib.decompress(data).split(b"\n")[max(0, number - self._first[block]) :]


class _Spooled(Records):
    """Read records from memory, then from the spool, then those that no block was made of."""

    __slots__ = ("_blocks", "_head", "_size", "_tail")

    def __init__(self, head: tuple[Mapping[str, Json], ...], blocks: _Blocks, tail: tuple[bytes, ...]) -> None:
        self._head = head
        self._blocks = blocks
        self._tail = tail
        self._size = len(head) + blocks.count + len(tail)

    def __len__(self) -> int:
        return self._size

    def read(self, start: int) -> Iterator[Mapping[str, Json]]:
        yield from self._head[start:]
        start = max(0, start - len(self._head))
        if start < self._blocks.count:
            yield from map(json.loads, self._blocks.read(start))
        yield from map(json.loads, self._tail[max(0, start - self._blocks.count) :])
