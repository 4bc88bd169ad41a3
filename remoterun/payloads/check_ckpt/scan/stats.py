"""What one pass over the bytes tells of a tensor."""

from __future__ import annotations

from typing import Optional, Tuple

from ..records import Record


class Stats(Record):
    """Sum up the elements of one tensor that belong to it alone.

    `minimum`, `maximum` and `squares` (the sum of squares, to about six digits) are over finite elements, `negative`
    tells whether any is below zero; for complex numbers, over their parts. An element is zero when all its parts are,
    subnormal when one is; `subnormals` excludes zeros. None stands where an engine did not look, where there was
    nothing to look at, and for squares whose sum has no room in a double.
    `digest` is over the bytes, in the tensor's order: two tensors of equal bytes have the same, wherever they lie; 0
    means none. `zero_runs` are the first few runs of zero bytes that fill whole pages of the file, as offsets in the
    file; `zero_pages` counts all such pages, `pages` all that lie wholly inside the tensor. `sample` are the bytes that
    were asked for.
    """

    elements: int = 0
    zeros: Optional[int] = None
    subnormals: Optional[int] = None
    minimum: Optional[float] = None
    maximum: Optional[float] = None
    squares: Optional[float] = None
    digest: int = 0
    pages: int = 0
    zero_pages: int = 0
    zero_runs: Tuple[Tuple[int, int], ...] = ()
    negative: Optional[bool] = None
    sample: bytes = b""


class Pair(Record):
    """Ask for the moments of one parameter to be held against each other: |first| <= `factor` * sqrt(second).

    `first` and `second` are tensors by their index, equal in shape and number format.
    """

    first: int
    second: int
    factor: float


class Broken(Record):
    """Say where the bound of a pair does not hold: in how many `blocks` of how many, how far, and where first.

    Both sides are summed over blocks of `width` elements: sum(first ** 2) <= factor ** 2 * sum(second). `ratio` is the
    worst square root of the left over the right, which some element of that block reaches or passes, infinity where
    the second is zero; `offset` is the place of the first such block of `first` in its file.
    """

    pair: Pair
    blocks: int
    of_blocks: int
    ratio: float
    offset: int
    width: int = 0
