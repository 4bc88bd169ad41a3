"""One pass over the bytes: checksums, counts and statistics together, while a chunk is in the cache."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from ..model import Region
from ..records import Record
from .crc import Checksum, combine
from .engine import Counts
from .pairs import Pairs
from .passing import Pass
from .spans import Place, View, places_of
from .stats import Broken, Pair, Stats
from .tally import Tally
from .workers import share

if TYPE_CHECKING:
    from ..source import Source
    from .engine import Engine

# For less, starting workers costs more than they save.
_WORTH_WORKERS = 8 * 1024 * 1024
# What is held back comes in pieces of so many seconds, of which none is smaller than this.
_EVENLY_S = 0.05
_LEAST = 64 * 1024


class Scanned(Record):
    """Hold what a scan saw: the CRC-32 of every region, and the counts of every tensor that has any.

    The CRC-32 of a region that nobody asked for is 0. The `first` of the counts is the place of the first non-finite
    element as an offset in its file. `stats` are of every floating-point tensor that has bytes of its own, `broken` of
    the pairs that do not hold; pairs that could not be looked at are in `unpaired`, and the tensors that the engine had
    no time for, beyond what is not finite, in `skimmed`.
    """

    crcs: Dict[int, int]
    counts: Dict[int, Counts]
    stats: Dict[int, Stats]
    broken: List[Broken]
    unpaired: Sequence[Pair] = ()
    skimmed: Sequence[int] = ()


class Pace:
    """Hold reading back to a number of bytes per second."""

    def __init__(self, bytes_per_s: Optional[float]) -> None:
        self._rate = bytes_per_s
        self._due = time.monotonic()

    def share(self, workers: int) -> Pace:
        """Return what one of several workers may read at."""
        return Pace(None if self._rate is None else self._rate / workers)

    def at_once(self, size: int) -> int:
        """Return how many of so many bytes to read in one go, so that a slow pace is an even one."""
        if self._rate is None:
            return size
        return min(size, max(_LEAST, int(self._rate * _EVENLY_S) // _LEAST * _LEAST))

    def spend(self, size: int) -> None:
        """Wait until so many bytes may be read."""
        if self._rate is None:
            return
        now = time.monotonic()
        wait = self._due - now
        self._due = max(self._due, now) + size / self._rate
        if wait > 0:
            time.sleep(wait)


class Scanner:
    """Scan the regions of one checkpoint."""

    def __init__(
        self,
        sources: Sequence[Source],
        regions: Sequence[Region],
        views: Dict[int, List[View]],
        *,
        engine: Engine,
        checksum: Checksum,
        pace: Pace,
        on_bytes: Callable[[int], None],
        pairs: Sequence[Pair] = (),
        samples: Optional[Dict[int, Tuple[int, int]]] = None,
    ) -> None:
        """Prepare to look at all tensors, and to keep of some the bytes from one place in them to another."""
        self._places = places_of(views, regions)
        thorough = _smallest(self._places, engine.most)
        known = {index: place for index, place in self._places.items() if thorough is None or index in thorough}
        self._pairs = Pairs(pairs, known, engine)
        more: Dict[str, Any] = {"pace": pace, "thorough": thorough, "pairs": self._pairs, "samples": samples or {}}
        self._pass = Pass(sources, regions, views, engine, checksum, **more)
        self._engine = engine
        self._sources = sources
        self._regions = regions
        self._on_bytes = on_bytes
        self._scanned = Scanned({}, {}, {}, self._pairs.broken)
        self._skimmed: List[int] = []
        # What is not complete yet: parts of regions and of tensors. Of many small ones, there may be no room for more.
        self._crcs: Dict[int, List[Tuple[int, int, int]]] = {}
        self._tallies: Dict[int, List[Tuple[Any, ...]]] = {}

    def run(self, workers: int) -> Scanned:
        """Read everything, in the order of the files.

        Raises:
            ShrunkError, ChangedError: when a file did not hold still.
            OSError: when a file can't be read.
            WorkerError: when a worker failed.
        """
        if self._engine.workers is not None:
            workers = self._engine.workers
        elif self._pass.size < _WORTH_WORKERS:
            workers = 1
        self._pass.pace = self._pass.pace.share(workers)
        # What the files were when they were opened has to be known here, wherever they are read.
        for file in sorted({region.file for region in self._regions}):
            self._sources[file]
        share(self._pass, workers, self._take)
        for region, parts in self._crcs.items():
            self._scanned.crcs[region] = combine([part[1:] for part in sorted(parts)])
        for tensor in list(self._tallies):
            # Each begins with its position.
            first, *rest = sorted(self._tallies.pop(tensor))
            tally = Tally.unpack(first)
            for other in rest:
                tally.join(Tally.unpack(other))
            self._finish(tensor, tally)
        return self._scanned._replace(unpaired=self._pairs.unpaired, skimmed=self._skimmed)

    def _take(self, result: Tuple[int, List[Tuple[int, int, int, int]], List[Tuple[int, Tuple[Any, ...]]]]) -> None:
        """Take what one piece of work brought."""
        size, crcs, tallies = result
        for region, start, crc, length in crcs:
            if length == self._regions[region].size:
                self._scanned.crcs[region] = crc
            else:
                self._crcs.setdefault(region, []).append((start, crc, length))
        for tensor, packed in tallies:
            tally = Tally.unpack(packed)
            if tensor in self._pairs:
                self._pairs.take(tensor, tally.size, tally.blocks, finite=tally.first < 0)
            if tally.size == self._places[tensor].size:
                self._finish(tensor, tally)
            else:
                # The sums of blocks, which are last, are not kept.
                self._tallies.setdefault(tensor, []).append((*packed[:-1], []))
        self._on_bytes(size)

    def _finish(self, tensor: int, tally: Tally) -> None:
        """Note what was seen of a tensor that is complete, and so is its region where it has one to itself."""
        found, scanned, place = tally.counts(), self._scanned, self._places[tensor]
        if found is not None:
            scanned.counts[tensor] = found
        if not tally.looked:
            self._skimmed.append(tensor)
        crc = scanned.crcs.get(self._pass.alone.get(tensor, -1))
        scanned.stats[tensor] = tally.stats(tally.size * 8 // place.dtype.bits, place.pages, crc)


def _smallest(places: Dict[int, Place], most: Optional[int]) -> Optional[Set[int]]:
    """Return the tensors to be looked at thoroughly: the small ones, of so many elements at most; None means all."""
    if most is None:
        return None
    chosen = set()
    for elements, index in sorted((place.elements, index) for index, place in places.items()):
        most -= elements
        if most < 0:
            break
        chosen.add(index)
    return chosen
