"""One pass over the bytes: CRC-32 and non-finite numbers together, while a chunk is in the cache."""

from __future__ import annotations

import mmap
import threading
import time
import zlib
from typing import TYPE_CHECKING, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ..model import Region
from .crc import Checksum, combine
from .engine import Counts, add_counts
from .spans import View, overlapping
from .stats import Broken, Stats

if TYPE_CHECKING:
    from ..source import Source
    from .engine import Engine

# Measured on 512 KiB and 1 MiB second-level caches: 128 to 512 KiB are equally fast, larger chunks fall out of the
# cache.
CHUNK = 256 * 1024
# What one worker takes at a time: small enough that workers stay close together in the file.
TASK = 16 * 1024 * 1024
# Pieces further apart than this are not read as one.
_GAP = 64 * 1024
_PAGE = 4096
# Elements are 1, 2, 4, 8 or 16 bytes wide and lie at multiples of that from their region's start, so none is cut.
_ALIGN = 64
_SMALL = 4096


class Part(NamedTuple):
    """Name the bytes from `start` to `stop` of a region."""

    region: int
    start: int
    stop: int


class Scanned(NamedTuple):
    """Hold what a scan saw: the CRC-32 of every region, and the counts of every tensor that has any.

    The `first` of the counts is the place of the first non-finite element as an offset in its file. `stats` are of
    every floating-point tensor that was looked at, `broken` of the pairs that do not hold.
    """

    crcs: Dict[int, int]
    counts: Dict[int, Counts]
    stats: Dict[int, Stats]
    broken: List[Broken]


class Pace:
    """Hold reading back to a number of bytes per second, over all workers."""

    def __init__(self, bytes_per_s: Optional[float]) -> None:
        self._rate = bytes_per_s
        self._due = time.monotonic()
        self._lock = threading.Lock()

    def spend(self, size: int) -> None:
        """Wait until so many bytes may be read."""
        if self._rate is None:
            return
        with self._lock:
            now = time.monotonic()
            wait = self._due - now
            self._due = max(self._due, now) + size / self._rate
        if wait > 0:
            time.sleep(wait)


class Window:
    """Read a file through one fixed buffer.

    The buffer is anonymous memory: it begins at a page and holds file pages whole, without which the kernel copies
    several times slower.
    """

    def __init__(self, sources: Sequence[Source], pace: Pace) -> None:
        self.buffer = mmap.mmap(-1, CHUNK)
        self.view = memoryview(self.buffer)
        self._sources = sources
        self._pace = pace
        self._file = -1
        self.base = 0
        self._ready = 0

    def cover(self, file: int, offset: int, stop: int, limit: int) -> int:
        """Make bytes from `offset` on present and return where they end: at `stop`, or a multiple of 64 bytes on.

        Nothing beyond `limit` is read.
        """
        if file != self._file or offset < self.base or self._ready < min(stop, offset + _SMALL):
            self._file = -1
            self.base = offset - offset % _PAGE
            size = min(CHUNK, limit - self.base)
            self._pace.spend(size)
            self._sources[file].read_into(self.view[:size], self.base)
            self._file, self._ready = file, self.base + size
        if self._ready >= stop:
            return stop
        return offset + (self._ready - offset) // _ALIGN * _ALIGN


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
    ) -> None:
        self._sources = sources
        self._regions = regions
        self._views = views
        self._engine = engine
        self._update = checksum.update
        self._pace = pace
        self._on_bytes = on_bytes
        self._lock = threading.Lock()
        self._tasks = tasks(regions)
        self._crcs: Dict[int, List[Tuple[int, int, int]]] = {}
        self._counts: Dict[int, Counts] = {}
        self._error: Optional[BaseException] = None

    def run(self, workers: int) -> Scanned:
        """Read everything, in the order of the file.

        Raises:
            ShrunkError: when a file got shorter.
            OSError: when a file can't be read.
        """
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(workers - 1)]
        for thread in threads:
            thread.start()
        self._work()
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error
        crcs = {region: combine([part[1:] for part in sorted(parts)]) for region, parts in self._crcs.items()}
        return Scanned(crcs, self._counts, {}, [])

    def _work(self) -> None:
        window = Window(self._sources, self._pace)
        while True:
            with self._lock:
                task = next(self._tasks, None) if self._error is None else None
            if task is None:
                return
            try:
                done = self._scan(task, window)
            except BaseException as error:  # handed to the caller of run()
                self._error = error
                return
            with self._lock:
                self._on_bytes(done)

    def _scan(self, task: List[Part], window: Window) -> int:
        last = task[-1]
        limit = self._regions[last.region].offset + last.stop
        crcs = [self._scan_part(part, window, limit) for part in task]
        with self._lock:
            for part, crc in zip(task, crcs):
                self._crcs.setdefault(part.region, []).append((part.start, crc, part.stop - part.start))
        return sum(part.stop - part.start for part in task)

    def _scan_part(self, part: Part, window: Window, limit: int) -> int:
        region = self._regions[part.region]
        views = self._views.get(part.region, ())
        offset, end = region.offset + part.start, region.offset + part.stop
        crc = 0
        while offset < end:
            stop = window.cover(region.file, offset, end, limit)
            low, high = offset - window.base, stop - window.base
            if region.crc is not None:
                update = self._update if high - low >= _SMALL else zlib.crc32
                crc = update(window.view[low:high], crc)
            for view in views:
                if self._engine.screen(view.dtype, window.buffer, low, high):
                    self._count(view, region, offset, window.buffer[low:high])
            offset = stop
        return crc

    def _count(self, view: View, region: Region, offset: int, data: bytes) -> None:
        """Count what belongs to tensors in a chunk that the screen did not clear."""
        begin = offset - region.offset
        for start, stop, tensor in overlapping(view.spans, begin, begin + len(data)):
            counts = self._engine.count(view.dtype, data[start - begin : stop - begin])
            if counts.first < 0:
                continue
            place = region.offset + start + counts.first * view.dtype.size
            counts = counts._replace(first=place)
            with self._lock:
                known = self._counts.get(tensor)
                self._counts[tensor] = counts if known is None else _joined(known, counts)


def _joined(one: Counts, other: Counts) -> Counts:
    return add_counts(one, other)._replace(first=min(one.first, other.first))


def tasks(regions: Sequence[Region]) -> Iterator[List[Part]]:
    """Cut regions into parts and put together what one worker reads in one go, in the order of the files."""
    task: List[Part] = []
    file, reached, size = -1, 0, 0
    order = sorted(range(len(regions)), key=lambda index: (regions[index].file, regions[index].offset))
    for index in order:
        region = regions[index]
        start = 0
        while start < region.size:
            apart = region.file != file or not 0 <= region.offset + start - reached <= _GAP
            if task and (apart or size >= TASK):
                yield task
                task, size = [], 0
            stop = min(region.size, start + TASK - size)
            if stop < region.size:
                stop = max(start + _ALIGN, stop - stop % _ALIGN)
                stop = min(stop, region.size)
            task.append(Part(index, start, stop))
            file, reached, size = region.file, region.offset + stop, size + stop - start
            start = stop
    if task:
        yield task
