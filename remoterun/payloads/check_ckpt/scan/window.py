"""Reading files through fixed buffers, at a bounded rate."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Sequence

from .cache import Reader

if TYPE_CHECKING:
    from ..source import Source
    from .scanner import Pace

PAGE = 4096
# Elements are 1, 2, 4, 8 or 16 bytes wide and lie at multiples of that from their region's start, so none is cut; nor
# is a block of 256 of them, where a tensor begins with its region.
ALIGN = 2048
_LEAST = 4096


class Window:
    """Read a file through a fixed buffer, or through several by turns.

    A buffer is anonymous memory: it begins at a page and holds file pages whole, without which the kernel copies
    several times slower.
    """

    def __init__(self, sources: Sequence[Source], pace: Pace, size: int, buffers: int) -> None:
        self.buffers = [mmap.mmap(-1, size) for _ in range(buffers)]
        self._size = size
        self._turn(0)
        self._sources = sources
        self._pace = pace
        self._reader = Reader()
        self._file = -1
        self.base = 0
        self._ready = 0

    def cover(self, file: int, offset: int, stop: int, limit: int) -> int:
        """Make bytes from `offset` on present and return where they end: at `stop`, or a multiple of `ALIGN` on.

        The whole page that the offset lies in is present, too. Nothing beyond `limit` is read.
        """
        if file != self._file or offset < self.base or self._ready < min(stop, offset + _LEAST):
            self._file = -1
            self.base = offset - offset % PAGE
            size = min(self._size, limit - self.base)
            self._pace.spend(size)
            self._turn(self._turned + 1)
            self._reader.read(self._sources[file], self.view, self.base, size, limit)
            self._file, self._ready = file, self.base + size
        return self._end(offset, stop)

    def hold(self, data: bytes, start: int, offset: int, stop: int) -> int:
        """Do so with bytes that are in memory and stand for those of a file from `start` on."""
        self._file = -1
        self.base = offset - offset % PAGE
        lead = offset - self.base
        size = min(self._size - lead, stop - offset)
        self._turn(self._turned + 1)
        self.view[lead : lead + size] = data[offset - start : offset - start + size]
        self._ready = offset + size
        return self._end(offset, stop)

    def _end(self, offset: int, stop: int) -> int:
        """Return where what is ready ends."""
        if self._ready >= stop:
            return stop
        return offset + (self._ready - offset) // ALIGN * ALIGN

    def _turn(self, number: int) -> None:
        self._turned = number % len(self.buffers)
        self.buffer = self.buffers[self._turned]
        self.view = memoryview(self.buffer)

    def close(self) -> None:
        """Leave the page cache as it was found."""
        self._reader.finish()
