"""What was seen of a tensor, added up over chunks, and over pieces of work wherever they were done."""

from __future__ import annotations

import math
import operator
import zlib
from typing import TYPE_CHECKING, Any, List, Optional, Tuple

from .crc import combine, join_adler
from .engine import Counts
from .spans import PAGE
from .stats import Stats

if TYPE_CHECKING:
    from .crc import Crc
    from .engine import Buffer, Look

_ZEROS = bytes(PAGE)
_MOST_RUNS = 8
# The lower half of a digest is over the first bytes of every stretch only, which costs next to nothing: the CRC-32 in
# the upper half misses no difference of a few bytes in one place, and one that is everywhere is in these, too.
_STRETCH = 256 * 1024
_SAMPLE = 8 * 1024
# Below this, a call of another library costs more than the bytes.
_SMALL = 4096


class Tally:
    """Add up what is seen of a tensor's bytes, from byte `position` of it on.

    `first` is the place of the first non-finite element in its file, -1 when there is none; `looked` tells whether all
    statistics were taken of everything. `crc` is None where that of the region stands for it. `runs` are the ranges of
    the file that are whole pages of zeros, `blocks` are sums with the number of the first block.
    """

    __slots__ = (
        *("position", "size", "crc", "adler", "nan", "inf", "negative_inf", "first", "looked", "zeros"),
        *("subnormals", "low", "high", "squares", "negative", "zero_pages", "runs", "sample", "blocks"),
    )

    def __init__(self, position: int, *, own_crc: bool) -> None:
        self.position = position
        self.size = 0
        self.crc: Optional[int] = 0 if own_crc else None
        self.adler = 1
        self.nan = self.inf = self.negative_inf = 0
        self.first = -1
        self.looked = True
        self.zeros = self.subnormals = 0
        self.low: Optional[float] = None
        self.high: Optional[float] = None
        self.squares = 0.0
        self.negative: Optional[bool] = False
        self.zero_pages = 0
        self.runs: List[Tuple[int, int]] = []
        self.sample = b""
        self.blocks: List[Tuple[int, bytes]] = []

    def pack(self) -> Tuple[Any, ...]:
        """Return it as what marshal can write."""
        return _fields(self)

    @classmethod
    def unpack(cls, packed: Tuple[Any, ...]) -> Tally:
        """Return what was packed."""
        tally = cls(0, own_crc=True)
        for name, value in zip(cls.__slots__, packed):
            setattr(tally, name, value)
        return tally

    # --- the bytes of a chunk ---------------------------------------------------------------------------------------

    def keep(self, view: memoryview, start: int, stop: int) -> None:
        """Keep what the next bytes have of those from one place in the tensor to another, before they are taken in."""
        before = self.position + self.size
        if start < before + len(view) and before < stop:
            self.sample += view[max(0, start - before) : stop - before]

    def digest(self, view: memoryview, update: Crc) -> None:
        """Take in the next bytes."""
        size = len(view)
        if self.crc is not None:
            self.crc = update(view, self.crc) if size >= _SMALL else zlib.crc32(view, self.crc)
        at = -((self.position + self.size) % _STRETCH)
        while at < size:
            if at + _SAMPLE > 0:
                self.adler = zlib.adler32(view[max(0, at) : at + _SAMPLE], self.adler)
            at += _STRETCH
        self.size += size

    def see(self, look: Look, first: int) -> None:
        """Take in what an engine saw; `first` is the place of the first non-finite element, -1 when there is none."""
        self._count(look.counts, first)
        self._add(look.zeros is not None, look.zeros or 0, look.subnormals or 0, look.squares or 0.0)
        self._widen(look.low, look.high, look.negative)

    def find_zero_pages(self, buffer: Buffer, start: int, stop: int, place: int) -> None:
        """Look for zeros in whole pages that lie in a buffer, and from a place on in the file."""
        firsts = buffer[start:stop:PAGE]
        page = firsts.find(0)
        while page >= 0:
            at = page * PAGE
            if buffer[start + at : start + at + PAGE] == _ZEROS:
                self.zero_pages += 1
                self._add_run(place + at, place + at + PAGE)
            page = firsts.find(0, page + 1)

    # --- what was added up elsewhere --------------------------------------------------------------------------------

    def join(self, other: Tally) -> None:
        """Take in the bytes that come directly after these."""
        if self.crc is not None and other.crc is not None:
            self.crc = combine([(self.crc, self.size), (other.crc, other.size)])
        length = _sampled(other.position + other.size) - _sampled(other.position)
        self.adler = join_adler(self.adler, other.adler, length)
        self.size += other.size
        self._count(Counts(other.nan, other.inf, other.negative_inf), other.first)
        self._add(other.looked, other.zeros, other.subnormals, other.squares)
        self._widen(other.low, other.high, other.negative)
        self.zero_pages += other.zero_pages
        for start, stop in other.runs:
            self._add_run(start, stop)
        self.sample += other.sample

    def _count(self, counts: Counts, first: int) -> None:
        if first >= 0:
            self.nan += counts.nan
            self.inf += counts.inf
            self.negative_inf += counts.negative_inf
            self.first = first if self.first < 0 else min(self.first, first)

    def _add(self, looked: bool, zeros: int, subnormals: int, squares: float) -> None:
        self.looked = self.looked and looked
        self.zeros += zeros
        self.subnormals += subnormals
        self.squares += squares

    def _widen(self, low: Optional[float], high: Optional[float], negative: Optional[bool]) -> None:
        if low is not None and (self.low is None or low < self.low):
            self.low = low
        if high is not None and (self.high is None or high > self.high):
            self.high = high
        if not self.negative:
            self.negative = negative if negative or self.negative is not None else None

    def _add_run(self, start: int, stop: int) -> None:
        if self.runs and self.runs[-1][1] == start:
            self.runs[-1] = (self.runs[-1][0], stop)
        elif len(self.runs) <= _MOST_RUNS:
            # One more than are told, since it may turn out to belong to the one before.
            self.runs.append((start, stop))

    # --- the whole --------------------------------------------------------------------------------------------------

    def counts(self) -> Optional[Counts]:
        """Return the counts, None when all elements are finite."""
        return Counts(self.nan, self.inf, self.negative_inf, self.first) if self.first >= 0 else None

    def stats(self, elements: int, pages: int, crc: Optional[int]) -> Stats:
        """Return the statistics of a tensor that is complete; `crc` is that of its region where it has none."""
        digest = (self.crc if self.crc is not None else crc or 0) << 32 | self.adler
        runs = tuple([(start, stop) for start, stop in self.runs[:_MOST_RUNS]])
        found = digest, pages, self.zero_pages, runs, self.negative, self.sample
        if not self.looked:
            return Stats(elements, None, None, None, None, None, *found)
        squares = self.squares if self.low is not None and math.isfinite(self.squares) else None
        return Stats(elements, self.zeros, self.subnormals, self.low, self.high, squares, *found)


# All fields at once; there may be very many small tensors.
_fields = operator.attrgetter(*Tally.__slots__)


def _sampled(position: int) -> int:
    """Count the bytes of the digest's sample before a place."""
    return position // _STRETCH * _SAMPLE + min(position % _STRETCH, _SAMPLE)
