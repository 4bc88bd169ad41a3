"""What an engine tells of a stretch of floating-point elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Optional, Protocol, Tuple, Union

if TYPE_CHECKING:
    import mmap

    from ..dtypes import Dtype

Buffer = Union[bytes, "mmap.mmap"]


class Counts(NamedTuple):
    """Count elements: `inf` has both signs, `negative_inf` those below zero (not told for complex numbers).

    `first` is the index of the first of all these elements, -1 when there is none.
    """

    nan: int = 0
    inf: int = 0
    negative_inf: int = 0
    first: int = -1


class Blocks(NamedTuple):
    """Ask for sums over blocks of `width` elements, of the squares or of the elements themselves.

    `phase` is the place of the first element in its block.
    """

    squares: bool
    width: int
    phase: int


class Look(NamedTuple):
    """Tell what was seen; the fields are those of `Stats`. `blocks` are sums in single precision, little endian.

    The first and the last of them may be of parts of blocks.
    """

    counts: Counts = Counts()
    zeros: Optional[int] = None
    subnormals: Optional[int] = None
    low: Optional[float] = None
    high: Optional[float] = None
    squares: Optional[float] = None
    negative: Optional[bool] = None
    blocks: bytes = b""


class Engine(Protocol):
    """Look at the bytes of floating-point elements.

    `most` is how many elements of one checkpoint it has the time to look at thoroughly, None when all.
    """

    name: str
    most: Optional[int]

    def look(
        self,
        dtype: Dtype,
        buffer: Buffer,
        start: int,
        stop: int,
        *,
        thorough: bool = True,
        blocks: Optional[Blocks] = None,
    ) -> Look:
        """Count NaN and infinities exactly in any case, and take the statistics when it is to be thorough."""
        ...

    def compare(
        self, first: bytes, second: bytes, factor: float, granted: float, most: float
    ) -> Tuple[int, float, int]:
        """Tell how many sums of `first` are above `factor` times those of `second`, to which something is `granted`.

        Those above `most` don't count. Beside the number comes the greatest first / (factor * second) and the index of
        the first of them.
        """
        ...


def add_counts(one: Counts, other: Counts, shift: int = 0) -> Counts:
    """Add the counts of a stretch that begins `shift` elements after the first's beginning."""
    first = one.first if one.first >= 0 or other.first < 0 else other.first + shift
    return Counts(one.nan + other.nan, one.inf + other.inf, one.negative_inf + other.negative_inf, first)
