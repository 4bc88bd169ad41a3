"""The pass itself: what is done with every chunk of every region, in whatever process."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from ..readers.folder import ChangedError
from .plan import TASK, Part, tasks
from .spans import PAGE, Span, View, overlapping
from .tally import Tally
from .window import Window
from .workers import Job

if TYPE_CHECKING:
    from ..dtypes import Dtype
    from ..model import Region
    from ..source import Source
    from .crc import Checksum
    from .engine import Answer, Buffer, Engine, Look
    from .pairs import Pairs
    from .scanner import Pace

# Below this, a call of another library costs more than the bytes.
_SMALL = 4096
_Run = Tuple[int, int, Span]
# Where a region begins in its file, what of it was looked at, and the number of the first block in that.
_Where = Tuple[int, List[_Run], int]


class Pass(Job):
    """Read and look at the bytes of one checkpoint, in numbered pieces.

    `alone` names for tensors that have a region to themselves that region, whose CRC-32 is theirs, too.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        regions: Sequence[Region],
        views: Dict[int, List[View]],
        engine: Engine,
        checksum: Checksum,
        *,
        pace: Pace,
        thorough: Optional[Set[int]],
        pairs: Pairs,
        samples: Dict[int, Tuple[int, int]],
    ) -> None:
        self._sources = sources
        self._regions = regions
        self._views = views
        self._engine = engine
        self._update = checksum.update
        self._thorough = thorough
        self._pairs = pairs
        self._samples = samples
        self._tasks = list(tasks(regions, max(TASK, 4 * engine.chunk)))
        self._tallies: Dict[int, Tally] = {}
        self.pace = pace
        self._asked: List[Tuple[Tally, Answer, Dtype, _Where]] = []
        self.pieces = len(self._tasks)
        self.apart = engine.workers is not None
        self.size = sum(region.size for region in regions)
        self.alone = {
            found[0].spans[0].tensor: region
            for region, found in views.items()
            if len(found) == 1 and found[0].spans[0][:2] == (0, regions[region].size)
        }
        self._owned = set(self.alone.values())

    def begin(self, worker: int) -> None:
        """Make ready to read."""
        size = self.pace.at_once(self._engine.chunk)
        self._window = Window(self._sources, self.pace, size, 2 if self._engine.late else 1)
        self._engine.start(worker, self._window.buffers)

    def end(self) -> None:
        """Leave the page cache as it was found."""
        self._window.close()

    def do(self, number: int) -> Any:
        """Scan one piece; return its size, the CRC-32 of each part of a region, and what was seen of each tensor.

        Raises:
            ShrunkError, ChangedError: when a file did not hold still.
            OSError: when a file can't be read.
        """
        task = self._tasks[number]
        last = self._regions[task[-1].region]
        limit = last.offset + task[-1].stop
        crcs = [(part.region, part.start, self._scan(part, limit), part.stop - part.start) for part in task]
        self._settle()
        source = self._sources[last.file]
        changed = source.changes()
        if changed:
            raise ChangedError(source.path, changed)
        seen = [(tensor, tally.pack()) for tensor, tally in self._tallies.items()]
        self._tallies.clear()
        return sum(part.stop - part.start for part in task), crcs, seen

    def _scan(self, part: Part, limit: int) -> int:
        region, window = self._regions[part.region], self._window
        views = self._views.get(part.region, ())
        checked = region.crc is not None or part.region in self._owned
        offset, end = region.offset + part.start, region.offset + part.stop
        crc = 0
        while offset < end:
            if region.data is not None:
                stop = window.hold(region.data, region.offset, offset, end)
            else:
                stop = window.cover(region.file, offset, end, limit)
            if self._asked:
                self._settle()
            if checked:
                chunk = window.view[offset - window.base : stop - window.base]
                crc = self._update(chunk, crc) if stop - offset >= _SMALL else zlib.crc32(chunk, crc)
            for view in views:
                for runs in _by_tensor(overlapping(view.spans, offset - region.offset, stop - region.offset)):
                    self._look(view, region, runs)
            offset = stop
        return crc

    def _look(self, view: View, region: Region, runs: List[_Run]) -> None:
        """Look at what one tensor has in a chunk."""
        window, tensor = self._window, runs[0][2].tensor
        shift = region.offset - window.base
        start, stop, span = runs[0]
        position = span.before + start - span.start
        if len(runs) == 1:
            buffer: Buffer = window.buffer
            low, high = start + shift, stop + shift
            data = window.view[low:high]
        else:
            buffer = b"".join([window.buffer[start + shift : stop + shift] for start, stop, _ in runs])
            low, high = 0, len(buffer)
            data = memoryview(bytearray(buffer))
        tally = self._tallies.get(tensor)
        if tally is None:
            tally = self._tallies[tensor] = Tally(position, own_crc=tensor not in self.alone)
        blocks = self._pairs.wanted(tensor, position)
        thorough = self._thorough is None or tensor in self._thorough
        if tensor in self._samples:
            tally.keep(data, *self._samples[tensor])
        # Before anybody else may read the bytes: some ways to reckon a checksum change them meanwhile.
        tally.digest(data, self._update)
        where = region.offset, runs, self._pairs.number(tensor, position) if blocks else 0
        if self._engine.late:
            answer = self._engine.ask(view.dtype, buffer, low, high, thorough=thorough, blocks=blocks)
            self._asked.append((tally, answer, view.dtype, where))
        else:
            look = self._engine.look(view.dtype, buffer, low, high, thorough=thorough, blocks=blocks)
            _see(tally, look, view.dtype, where)
        for start, stop, span in runs:
            first_page = max(-(-(region.offset + span.start) // PAGE), (region.offset + start) // PAGE) * PAGE
            last_page = (region.offset + stop) // PAGE * PAGE
            if first_page < last_page:
                low, high = first_page - window.base, last_page - window.base
                tally.find_zero_pages(window.buffer, low, high, first_page)

    def _settle(self) -> None:
        """Take the answers that the engine owes."""
        for tally, answer, dtype, where in self._asked:
            _see(tally, answer(), dtype, where)
        self._asked.clear()


def _see(tally: Tally, look: Look, dtype: Dtype, where: _Where) -> None:
    """Note what an engine saw."""
    offset, runs, number = where
    first = look.counts.first
    tally.see(look, -1 if first < 0 else offset + _place(runs, first * dtype.size))
    if look.blocks:
        tally.blocks.append((number, look.blocks))


def _by_tensor(runs: Iterator[_Run]) -> Iterator[List[_Run]]:
    """Put together the runs of each tensor."""
    found = list(runs)
    if len(found) == 1:
        return iter([found])
    grouped: Dict[int, List[_Run]] = {}
    for run in found:
        grouped.setdefault(run[2].tensor, []).append(run)
    return iter(grouped.values())


def _place(runs: List[_Run], position: int) -> int:
    """Return where in the region the byte is that has so many before it in the runs."""
    for start, stop, _ in runs:
        if position < stop - start:
            return start + position
        position -= stop - start
    raise IndexError(position)
