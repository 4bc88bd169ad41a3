"""What an engine tells of a stretch of floating-point elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Optional, Sequence, Tuple, Union

from ..records import Record

if TYPE_CHECKING:
    import mmap

    from ..dtypes import Dtype

    Buffer = Union[bytes, mmap.mmap]
    Answer = Callable[[], "Look"]


class Counts(Record):
    """Count elements: `inf` has both signs, `negative_inf` those below zero (not told for complex numbers).

    `first` is the index of the first of all these elements, -1 when there is none.
    """

    nan: int = 0
    inf: int = 0
    negative_inf: int = 0
    first: int = -1


class Blocks(Record):
    """Ask for sums over blocks of `width` elements, of the squares or of the elements themselves.

    `phase` is the place of the first element in its block.
    """

    squares: bool
    width: int
    phase: int


class Look(Record):
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


class Engine:
    """Look at the bytes of floating-point elements.

    `most` is how many elements of one checkpoint it has the time to look at thoroughly, None when all. It wants to be
    shown `chunk` bytes at a time. One that is `late` is asked, and answers while the next bytes are read. `workers` is
    how many it needs, each a process of its own; None leaves it to others. `instead` is who does the work if it fails.
    """

    name = ""
    most: Optional[int] = None
    # Measured on 512 KiB of second-level cache: what smaller chunks save there they cost in calls.
    chunk = 2 << 20
    late = False
    workers: Optional[int] = None
    instead: Optional[Engine] = None

    def start(self, worker: int, buffers: Sequence[Buffer]) -> None:
        """Make ready in the process of a worker, to look at what will be in these buffers."""

    def ask(
        self,
        dtype: Dtype,
        buffer: Buffer,
        start: int,
        stop: int,
        *,
        thorough: bool = True,
        blocks: Optional[Blocks] = None,
    ) -> Answer:
        """Begin to look; until the answer is taken, the buffer stays as it is."""
        look = self.look(dtype, buffer, start, stop, thorough=thorough, blocks=blocks)
        return lambda: look

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
        raise NotImplementedError

    def compare(
        self, first: bytes, second: bytes, factor: float, granted: float, most: float
    ) -> Tuple[int, float, int]:
        """Tell how many sums of `first` are above `factor` times those of `second`, to which something is `granted`.

        Those above `most` don't count. Beside the number comes the greatest first / (factor * second) and the index of
        the first of them.
        """
        raise NotImplementedError


def add_counts(one: Counts, other: Counts, shift: int = 0) -> Counts:
    """Add the counts of a stretch that begins `shift` elements after the first's beginning."""
    first = one.first if one.first >= 0 or other.first < 0 else other.first + shift
    return Counts(one.nan + other.nan, one.inf + other.inf, one.negative_inf + other.negative_inf, first)
