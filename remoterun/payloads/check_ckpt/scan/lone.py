"""Single second moments of zero: looked for where sums over blocks hide them, once the counts say there may be some."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Dict, Iterator, List, Optional, Sequence

from .elements import Elements
from .pairs import GRANTED
from .spans import pieces
from .stats import Broken, Pair, Stats
from .stdlib_engine import number_of

if TYPE_CHECKING:
    from ..model import Checkpoint
    from .scanner import Scanned

# Elements that are read at a time, and of one checkpoint in all.
_ELEMENTS = 32 * 1024
_MOST_ELEMENTS = 8 * 1024 * 1024
_CODES = {2: "H", 4: "I", 8: "Q"}


def lone_zeros(checkpoint: Checkpoint, scanned: Scanned, pairs: Sequence[Pair], elements: Elements) -> Iterator[Broken]:
    """Yield the pairs in which elements break the bound whose second moment is zero, with a `width` of 1.

    Only where the second moments have more zeros than the first, which sound ones hardly ever have; the smallest first,
    as far as what may be read goes.

    Raises:
        ShrunkError: when a file got shorter.
        OSError: when a file can't be read.
    """
    told = {*(broken.pair for broken in scanned.broken), *scanned.unpaired}
    left = _MOST_ELEMENTS
    for numel, pair in sorted((checkpoint.tensors[pair.first].numel, pair) for pair in pairs if pair not in told):
        halves = [checkpoint.tensors[index] for index in (pair.first, pair.second)]
        if not _more_zeros(scanned.stats, pair) or not all(len(pieces(half, 1)) == 1 for half in halves):
            continue
        left -= numel
        if left < 0:
            return
        found = _broken(checkpoint, pair, elements)
        if found is not None:
            yield found


def _more_zeros(stats: Dict[int, Stats], pair: Pair) -> bool:
    one, other = (stats[index].zeros if index in stats else None for index in (pair.first, pair.second))
    return one is not None and other is not None and other > one


def _broken(checkpoint: Checkpoint, pair: Pair, elements: Elements) -> Optional[Broken]:
    """Return what single elements of a pair break, None when they break nothing."""
    first, second = checkpoint.tensors[pair.first], checkpoint.tensors[pair.second]
    dtype, numel = first.dtype, first.numel
    # What blocks are granted, too, for one element.
    least = pair.factor * math.sqrt(GRANTED * dtype.smallest)
    odd: List[int] = []
    for at in range(0, numel, _ELEMENTS):
        length = min(_ELEMENTS, numel - at)
        pattern = "<%d%s" % (length, _CODES[dtype.size])
        ones = struct.unpack(pattern, elements.read(first, at, length))
        others = struct.unpack(pattern, elements.read(second, at, length))
        alone = [index for index, other in enumerate(others) if not other and ones[index]]
        odd += [at + index for index in alone if least < abs(number_of(dtype, ones[index])) < math.inf]
    return Broken(pair, len(odd), numel, math.inf, elements.place(first, odd[0]), 1) if odd else None
