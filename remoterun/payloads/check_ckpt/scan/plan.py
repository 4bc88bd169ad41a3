"""The order of reading: regions cut and put together to what one worker reads in one go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator, List, Sequence

from ..records import Record
from .window import ALIGN

if TYPE_CHECKING:
    from ..model import Region

# What one worker takes at a time: small enough that workers stay close together in the file.
TASK = 16 * 1024 * 1024
# What is known of so many tensors is told at a time.
_MOST_PARTS = 4096
# Pieces further apart than this are not read as one.
_GAP = 64 * 1024


class Part(Record):
    """Name the bytes from `start` to `stop` of a region."""

    region: int
    start: int
    stop: int


def tasks(regions: Sequence[Region], least: int = TASK) -> Iterator[List[Part]]:
    """Cut regions into parts and put together what one worker reads in one go, in the order of the files.

    What was added up over parts has to be joined, so only regions longer than that are cut.
    """
    task: List[Part] = []
    file, reached, size = -1, 0, 0
    order = sorted(range(len(regions)), key=lambda index: (regions[index].file, regions[index].offset))
    for index in order:
        region = regions[index]
        start = 0
        while start < region.size:
            apart = region.file != file or not 0 <= region.offset + start - reached <= _GAP
            full = size >= least or region.size <= least < size + region.size or len(task) >= _MOST_PARTS
            if task and (apart or full):
                yield task
                task, size = [], 0
            stop = min(region.size, start + least - size)
            if stop < region.size:
                stop = max(start + ALIGN, stop - stop % ALIGN)
                stop = min(stop, region.size)
            task.append(Part(index, start, stop))
            file, reached, size = region.file, region.offset + stop, size + stop - start
            start = stop
    if task:
        yield task
