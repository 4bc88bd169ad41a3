"""Looking at numbers with numpy: all statistics at several GB/s on one core."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from . import numpy_core
from .engine import Blocks, Counts, Engine, Look
from .stdlib_engine import count_codes, look_at_codes, look_at_values, number_of

if TYPE_CHECKING:
    from ..dtypes import Dtype
    from .engine import Buffer

# For less, the calls cost more than the numbers one by one.
_FEW = 16
# Squares are summed in rows of so many, which keeps them exact to six digits in single precision.
_ROW = 256
# Squares of a smaller mean have left the range in which single precision is exact.
_FAINT = 1e-36
_KINDS = ("u1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f4", "<f8")
# A half, read as a single of the same bits after the exponent's, is too small by this.
_HALF = 2.0**112


class NumpyEngine(Engine):
    """Take all statistics of everything.

    Numbers of a sign and a magnitude have an order as integers, too: as signed ones the greatest is the greatest above
    zero, as unsigned ones the farthest below. So at most four reductions of integers, the fastest that numpy has, tell
    the least, the greatest, the one nearest to zero, and whether any is not finite; only what is there is counted.
    """

    name = "numpy"

    def __init__(self) -> None:
        self._np = numpy_core.load()
        # Sums that overflow are taken once more.
        warnings.filterwarnings("ignore", ".* encountered in ", RuntimeWarning)
        self._dots = getattr(self._np, "vecdot", self._matmul)
        self._buffer: Optional[Buffer] = None
        self._arrays: Dict[str, Any] = {}
        self._scratch: List[Any] = []
        self._ones: Dict[Tuple[str, int], Any] = {}

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
        """Count and measure everything, thorough or not."""
        if dtype.kind == "clean":
            return Look()
        if stop - start <= _FEW * dtype.lane:
            return look_at_values(dtype, buffer[start:stop], blocks)
        if start % dtype.lane:
            buffer, start, stop = buffer[start:stop], 0, stop - start
        if buffer is not self._buffer:
            self._arrays = {kind: self._np.frombuffer(buffer, kind, len(buffer) // int(kind[-1])) for kind in _KINDS}
            self._buffer = buffer
        if dtype.kind == "codes":
            return self._look_at_codes(dtype, buffer, start, stop)
        return self._look_at_lanes(dtype, start // dtype.lane, stop // dtype.lane, blocks)

    def compare(
        self, first: bytes, second: bytes, factor: float, granted: float, most: float
    ) -> Tuple[int, float, int]:
        """Hold sums of the first moment's squares against those of the second moment, all at once."""
        np = self._np
        one, other = np.frombuffer(first, "<f4").astype("<f8"), np.frombuffer(second, "<f4").astype("<f8")
        broken = np.logical_and(np.less(np.multiply(np.add(other, granted), factor), one), np.less_equal(one, most))
        number = int(np.count_nonzero(broken))
        if not number:
            return 0, 0.0, -1
        pairs = zip(one[broken].tolist(), other[broken].tolist())
        worst = max(above / (factor * below) if below > 0 else math.inf for above, below in pairs)
        return number, worst, int(broken.argmax())

    def _look_at_lanes(self, dtype: Dtype, start: int, stop: int, blocks: Optional[Blocks]) -> Look:
        unsigned = self._arrays["<u%d" % dtype.lane][start:stop]
        sign = 1 << (8 * dtype.lane - 1)
        low, high, nearest = self._extremes(unsigned, self._arrays["<i%d" % dtype.lane][start:stop], sign)
        if max(low & ~sign, high & ~sign) >= dtype.exponent:
            return self._look_at_odd(dtype, start, stop, blocks)
        zeros, subnormals = self._count_small(dtype, unsigned) if nearest <= dtype.mantissa else (0, 0)
        floats = self._floats(dtype, start, stop)
        squares, sums = self._sums(floats, blocks)
        bottom, top = number_of(dtype, low), number_of(dtype, high)
        return Look(Counts(), zeros, subnormals, bottom, top, squares, low > sign, sums)

    def _extremes(self, unsigned: Any, signed: Any, sign: int) -> Tuple[int, int, int]:
        """Return the patterns of the least and the greatest number, and the magnitude that is nearest to zero."""
        top, bottom = int(self._np.maximum.reduce(unsigned)), int(self._np.minimum.reduce(unsigned))
        if top < sign:
            return bottom, top, bottom
        if bottom >= sign:
            return top, bottom, bottom ^ sign
        nearest = min(bottom, int(self._np.minimum.reduce(signed)) & ~sign & (2 * sign - 1))
        return top, int(self._np.maximum.reduce(signed)), nearest

    def _look_at_odd(self, dtype: Dtype, start: int, stop: int, blocks: Optional[Blocks]) -> Look:
        """Count what is not finite, and look at the rest."""
        np = self._np
        sums = self._sums(self._floats(dtype, start, stop), blocks)[1] if blocks else b""
        lanes = self._arrays["<u%d" % dtype.lane][start:stop].reshape(-1, dtype.parts)
        odd = np.equal(np.bitwise_and(lanes, dtype.exponent), dtype.exponent)
        nan = np.logical_and(odd, np.not_equal(np.bitwise_and(lanes, dtype.mantissa), 0))
        inf = np.logical_and(odd, np.logical_not(nan))
        below = np.logical_and(inf, np.right_shift(lanes, 8 * dtype.lane - 1))
        nan, inf, odd = (np.logical_or(each[:, 0], each[:, -1]) for each in (nan, inf, odd))
        negative = 0 if dtype.parts == 2 else int(np.count_nonzero(below))
        counts = Counts(int(np.count_nonzero(nan)), int(np.count_nonzero(inf)), negative, int(odd.argmax()))
        rest = lanes[np.logical_not(odd)].tobytes()
        if not rest:
            return Look(counts, 0, 0, negative=False, blocks=sums)
        return self.look(dtype, rest, 0, len(rest))._replace(counts=counts, blocks=sums)

    def _count_small(self, dtype: Dtype, unsigned: Any) -> Tuple[int, int]:
        """Count zeros and subnormal numbers."""
        np = self._np
        magnitudes = np.bitwise_and(unsigned, (1 << (8 * dtype.lane - 1)) - 1)
        if dtype.parts == 1:
            zeros = len(magnitudes) - int(np.count_nonzero(magnitudes))
            return zeros, int(np.count_nonzero(np.less(magnitudes, dtype.mantissa + 1))) - zeros
        none = np.equal(magnitudes, 0)
        small = np.logical_and(np.less(magnitudes, dtype.mantissa + 1), np.logical_not(none))
        zeros = int(np.count_nonzero(np.logical_and(none[::2], none[1::2])))
        return zeros, int(np.count_nonzero(np.logical_or(small[::2], small[1::2])))

    def _floats(self, dtype: Dtype, start: int, stop: int) -> Any:
        """Return the numbers as singles or doubles; the next call overwrites them."""
        if dtype.lane > 2:
            return self._arrays["<f%d" % dtype.lane][start:stop]
        np, size = self._np, stop - start
        if not self._scratch or len(self._scratch[0]) < size:
            self._scratch = [np.empty(size, "<u4")]
        wide = self._scratch[0][:size]
        np.copyto(wide, self._arrays["<u2"][start:stop])
        np.left_shift(wide, 16, out=wide)
        singles = wide.view("<f4")
        if dtype.name != "bfloat16":
            # The sign stays, and three bits of it are cleared to make room for the longer exponent.
            signed = wide.view("<i4")
            np.right_shift(signed, 3, out=signed)
            np.bitwise_and(wide, 0x8FFFFFFF, out=wide)
            np.multiply(singles, singles.dtype.type(_HALF), out=singles)
        return singles

    def _sums(self, floats: Any, blocks: Optional[Blocks]) -> Tuple[float, bytes]:
        """Return the sum of all squares, and sums by block where they are asked for."""
        np, size = self._np, len(floats)
        width = blocks.width if blocks else _ROW
        head = min(size, -blocks.phase % width) if blocks else 0
        tail = (size - head) % width
        if head or tail:
            # The block that was begun before, all whole ones, the one that ends later.
            whole = floats[head : size - tail].reshape(-1, width)
            parts = [each for each in (floats[:head], whole, floats[size - tail :]) if each.size]
        else:
            parts = [floats.reshape(-1, width)]
        squares = [self._dots(each, each) for each in parts]
        total = 0.0
        for each in squares:
            total += float(np.dot(each, self._one(each)) if each.ndim else each)
        if floats.itemsize == 4 and not size * _FAINT < total < math.inf:
            exact = floats.astype("<f8")
            total = float(np.dot(exact, exact))
        if blocks is None:
            return total, b""
        sums = squares if blocks.squares else [np.matmul(part, self._one(part)) for part in parts]
        return total, b"".join([each.astype("<f4").tobytes() for each in sums])

    def _matmul(self, one: Any, other: Any) -> Any:
        """Do what vecdot does, which is new in numpy 2."""
        return self._np.matmul(one[..., None, :], other[..., :, None])[..., 0, 0]

    def _one(self, array: Any) -> Any:
        """Return as many ones as the last dimension of an array has."""
        key = (array.dtype.char, array.shape[-1])
        if key not in self._ones:
            self._ones[key] = self._np.empty(key[1], key[0])
            self._ones[key].fill(1)
        return self._ones[key]

    def _look_at_codes(self, dtype: Dtype, buffer: Buffer, start: int, stop: int) -> Look:
        np = self._np
        if start % 2 or stop - start < 4096:
            histogram = np.bincount(self._arrays["u1"][start:stop], minlength=256)
        else:
            # Two at a time cost as much as one.
            pairs = np.bincount(self._arrays["<u2"][start // 2 : stop // 2], minlength=65536).reshape(256, 256)
            histogram = np.add.reduce(pairs, axis=0) + np.add.reduce(pairs, axis=1)
            if stop % 2:
                histogram[buffer[stop - 1]] += 1
        often = histogram.tolist()
        odd = any(often[code] for code in dtype.odd)
        return look_at_codes(dtype, often, count_codes(dtype, buffer[start:stop]) if odd else Counts())
