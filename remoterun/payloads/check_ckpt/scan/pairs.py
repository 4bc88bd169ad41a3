"""The moments of an optimizer held against each other, block by block, as soon as both are complete."""

from __future__ import annotations

import math
import sys
from array import array
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Set, Tuple

from .engine import Blocks
from .stats import Broken, Pair

if TYPE_CHECKING:
    from .engine import Engine
    from .spans import Place

# Elements in a block: fewer than a page has, unless the sums that wait for their other half would take more than so
# many bytes.
_WIDTH = 256
_MOST_BYTES = 16 << 20
# An average of squares loses what its number format is too coarse for near zero. So many of the smallest normal numbers
# are granted to each element: of a square, only about a thousandth is added at a step.
GRANTED = 1024.0


class Pairs:
    """Ask for the sums of blocks that all pairs need, take them as they come, and compare."""

    def __init__(self, pairs: Sequence[Pair], places: Dict[int, Place], engine: Engine) -> None:
        self._engine = engine
        self._places = places
        self._pairs: Dict[int, Pair] = {}
        self.broken: List[Broken] = []
        self._unpaired = dict.fromkeys(pairs)
        for pair in pairs:
            if pair.first not in self._pairs and pair.second not in self._pairs and self._fit(pair):
                self._pairs[pair.first] = self._pairs[pair.second] = pair
        self._width = self._choose_width()
        self._sums: Dict[int, List[Tuple[int, bytes]]] = {index: [] for index in self._pairs}
        self._odd: Set[int] = set()
        self._missing = {index: places[index].size for index in self._pairs}

    def __contains__(self, tensor: object) -> bool:
        return tensor in self._pairs

    @property
    def unpaired(self) -> List[Pair]:
        """Return the pairs that were not compared."""
        return list(self._unpaired)

    def wanted(self, tensor: int, position: int) -> Optional[Blocks]:
        """Return what is needed of a tensor's elements from byte `position` on, None when nothing is."""
        pair = self._pairs.get(tensor)
        if pair is None:
            return None
        return Blocks(tensor == pair.first, self._width, position // self._places[tensor].dtype.size % self._width)

    def number(self, tensor: int, position: int) -> int:
        """Return the number of the block that a byte of a tensor belongs to."""
        return position // (self._places[tensor].dtype.size * self._width)

    def take(self, tensor: int, size: int, sums: Sequence[Tuple[int, bytes]], *, finite: bool) -> None:
        """Take sums over so many bytes of a tensor that is in a pair, each with the number of its first block.

        Where not all elements are `finite`, sums that are not finite tell nothing.
        """
        pair = self._pairs[tensor]
        if not finite:
            self._odd.add(tensor)
        self._sums[tensor] += sums
        self._missing[tensor] -= size
        if not self._missing[pair.first] and not self._missing[pair.second]:
            self._compare(pair)

    def _fit(self, pair: Pair) -> bool:
        """Tell whether the elements of both halves lie in the same order."""
        one, other = self._places.get(pair.first), self._places.get(pair.second)
        if one is None or other is None or pair.first == pair.second:
            return False
        lengths = [[span.stop - span.start for span in place.spans] for place in (one, other)]
        return (
            one.dtype == other.dtype and one.dtype.kind == "ieee" and one.dtype.parts == 1 and lengths[0] == lengths[1]
        )

    def _choose_width(self) -> int:
        """Choose how long blocks are so that what waits at a time fits the memory."""
        events: List[Tuple[int, int, int]] = []
        for pair in set(self._pairs.values()):
            halves = self._places[pair.first], self._places[pair.second]
            elements = sum(half.elements for half in halves)
            begins = [(half.file, half.offset + half.spans[0].start) for half in halves]
            ends = [(half.file, half.offset + half.spans[-1].stop) for half in halves]
            events += [(*min(begins), elements), (*max(ends), -elements)]
        waiting = most = 0
        for _, _, elements in sorted(events):
            waiting += elements
            most = max(most, waiting)
        width = _WIDTH
        while most * 4 // width > _MOST_BYTES:
            width *= 2
        return width

    def _compare(self, pair: Pair) -> None:
        del self._unpaired[pair]
        place = self._places[pair.first]
        blocks = -(-place.size // (place.dtype.size * self._width))
        halves = [_joined(sorted(self._sums.pop(index)), blocks) for index in (pair.first, pair.second)]
        granted = self._width * GRANTED * place.dtype.smallest
        most = sys.float_info.max if pair.first in self._odd else math.inf
        number, ratio, first = self._engine.compare(halves[0], halves[1], pair.factor**2, granted, most)
        if number:
            offset = place.locate(first * self._width * place.dtype.size)
            self.broken.append(Broken(pair, number, blocks, math.sqrt(ratio), offset, self._width))


def _joined(parts: Sequence[Tuple[int, bytes]], blocks: int) -> bytes:
    """Put sums together; a block that was cut has one in each part."""
    total = array("f", bytes(4 * blocks))
    for number, data in parts:
        part = array("f", data)
        if sys.byteorder == "big":
            part.byteswap()
        last = number + len(part) - 1
        total[number] += part[0]
        if len(part) > 1:
            total[number + 1 : last] = part[1:-1]
            total[last] += part[-1]
    return total.tobytes()
