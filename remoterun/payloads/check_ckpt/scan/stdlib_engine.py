"""Looking at numbers with the standard library alone: cheap screens first, exact counts where they hit."""

from __future__ import annotations

import collections
import functools
import math
import operator
import struct
from typing import TYPE_CHECKING, List, Optional, Sequence, Tuple

from ..records import Record
from .engine import Blocks, Counts, Engine, Look, add_counts

if TYPE_CHECKING:
    from ..dtypes import Dtype
    from .engine import Buffer

# A big integer of this many bytes stays in the first-level cache.
_BLOCK = 8192
# Larger pieces of memory are asked of the system each time, which costs more than to fill them.
_SLICE = 256 * 1024
_SINGLE = struct.Struct("<f")
_BY_LANE = {2: struct.Struct("<e"), 4: _SINGLE, 8: struct.Struct("<d")}
_LARGEST_SINGLE = 3.4028234663852886e38


class StdlibEngine(Engine):
    """Use slices, searches and big integers: about 5 GB/s for float32 on one core; statistics take far longer."""

    name = "stdlib"
    most = 1_000_000

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
        """Look for NaN and infinities; take statistics where they cost little, and all of them when thorough."""
        if dtype.kind == "clean":
            return Look()
        if thorough:
            return look_at_values(dtype, buffer[start:stop], blocks)
        signed = dtype.kind == "ieee" or dtype.fraction > 0
        if signed and not any(buffer[start : min(stop, start + 64)]) and buffer[start:stop] == bytes(stop - start):
            elements = (stop - start) // dtype.size
            return Look(zeros=elements, subnormals=0, low=0.0, high=0.0, squares=0.0, negative=False)
        negative: Optional[bool] = False
        for at in range(start, stop, _SLICE):
            # The highest byte of each lane tells whether it can be non-finite, and which sign it has.
            tops = buffer[at + dtype.lane - 1 : min(stop, at + _SLICE) : dtype.lane]
            if any(top in tops for top in dtype.tops):
                return Look(count(dtype, buffer[start:stop]))
            if signed and not negative:
                found = _negative(dtype, tops)
                negative = None if found is False and negative is None else found
        return Look(negative=negative)

    def compare(
        self, first: bytes, second: bytes, factor: float, granted: float, most: float
    ) -> Tuple[int, float, int]:
        """Hold sums of the first moment's squares against those of the second moment, one by one."""
        number, worst, place = 0, 0.0, -1
        halves = [struct.unpack("<%df" % (len(sums) // 4), sums) for sums in (first, second)]
        for index, (one, other) in enumerate(zip(*halves)):
            if factor * (other + granted) < one <= most:
                number += 1
                worst = max(worst, one / (factor * other) if other > 0 else math.inf)
                place = index if place < 0 else place
        return number, worst, place


def _negative(dtype: Dtype, tops: bytes) -> Optional[bool]:
    """Tell from the highest bytes whether an element is below zero, None when there may be one or a negative zero."""
    if tops.isascii():
        return False
    return None if dtype.kind == "codes" or tops.replace(b"\x80", b"").isascii() else True


def look_at_values(dtype: Dtype, data: bytes, blocks: Optional[Blocks] = None) -> Look:
    """Look at every element by itself: exact, and slow."""
    counts = count(dtype, data)
    if dtype.kind == "codes":
        found = collections.Counter(data)
        return look_at_codes(dtype, [found[code] for code in range(256)], counts)
    values = _numbers(dtype, data)
    sums = _block_sums(values, blocks) if blocks else b""
    if counts.first >= 0:
        values = _finite(values, dtype.parts)
    if not values:
        return Look(counts, 0, 0, negative=False, blocks=sums)
    zeros, subnormals = _count_small(values, dtype)
    low = min(values)
    squares = sum(map(operator.mul, values, values))
    return Look(counts, zeros, subnormals, low + 0.0, max(values) + 0.0, squares, low < 0, sums)


def look_at_codes(dtype: Dtype, often: Sequence[int], counts: Counts) -> Look:
    """Tell all of one-byte numbers from how often each byte occurs."""
    codes = _codes(dtype)
    there = [code for code in codes.ascending if often[code]]
    if not there:
        return Look(counts, 0, 0, negative=False)
    zeros = sum(often[code] for code in codes.zeros)
    subnormals = sum(often[code] for code in codes.subnormals)
    squares = sum(codes.values[code] ** 2 * often[code] for code in there)
    low, high = codes.values[there[0]], codes.values[there[-1]]
    return Look(counts, zeros, subnormals, low + 0.0, high + 0.0, squares, low < 0)


class _Codes(Record):
    values: List[float]
    ascending: List[int]
    zeros: List[int]
    subnormals: List[int]


@functools.lru_cache(maxsize=8)
def _codes(dtype: Dtype) -> _Codes:
    values = [dtype.value(code) for code in range(256)]
    finite = sorted((code for code in range(256) if code not in dtype.odd), key=values.__getitem__)
    zeros = [code for code in finite if not values[code]]
    return _Codes(values, finite, zeros, [code for code in finite if dtype.subnormal(code)])


def _count_small(values: Sequence[float], dtype: Dtype) -> Tuple[int, int]:
    """Count zeros and subnormal numbers."""
    normal = dtype.smallest
    if dtype.parts == 1:
        small = [value for value in values if -normal < value < normal]
        zeros = small.count(0.0)
        return zeros, len(small) - zeros
    zeros = sum(not real and not imaginary for real, imaginary in zip(values[::2], values[1::2]))
    small = [0 < abs(part) < normal for part in values]
    return zeros, sum(map(operator.or_, small[::2], small[1::2]))


def _numbers(dtype: Dtype, data: bytes) -> Sequence[float]:
    if dtype.name == "bfloat16":
        wide = bytearray(2 * len(data))
        wide[2::4], wide[3::4] = data[::2], data[1::2]
        return struct.unpack("<%df" % (len(data) // 2), wide)
    return struct.unpack("<%d%s" % (len(data) // dtype.lane, _BY_LANE[dtype.lane].format[-1]), data)


def _finite(values: Sequence[float], parts: int) -> List[float]:
    """Leave out all parts of an element that has one which is not finite."""
    if parts == 1:
        return [value for value in values if math.isfinite(value)]
    pairs = zip(values[::2], values[1::2])
    return [part for pair in pairs if math.isfinite(pair[0]) and math.isfinite(pair[1]) for part in pair]


def number_of(dtype: Dtype, pattern: int) -> float:
    """Return the finite number of a lane's pattern; zero for a negative zero."""
    if dtype.name == "bfloat16":
        return float(_SINGLE.unpack((pattern << 16).to_bytes(4, "little"))[0]) + 0.0
    return float(_BY_LANE[dtype.lane].unpack(pattern.to_bytes(dtype.lane, "little"))[0]) + 0.0


def _block_sums(values: Sequence[float], blocks: Blocks) -> bytes:
    edges = range(-blocks.phase, len(values), blocks.width)
    runs = [values[max(0, edge) : edge + blocks.width] for edge in edges]
    sums = [sum(map(operator.mul, run, run)) if blocks.squares else sum(run) for run in runs]
    return struct.pack(
        "<%df" % len(sums), *(value if abs(value) < _LARGEST_SINGLE else value * math.inf for value in sums)
    )


def count(dtype: Dtype, data: bytes) -> Counts:
    """Count NaN and infinities exactly, block by block."""
    if dtype.kind == "codes":
        return count_codes(dtype, data)
    found = Counts()
    for start in range(0, len(data), _BLOCK):
        block = data[start : start + _BLOCK]
        found = add_counts(found, _lanes(dtype, len(block)).count(block), start // dtype.size)
    return found


def count_codes(dtype: Dtype, data: bytes) -> Counts:
    """Count one-byte numbers by their listed patterns."""
    places = [place for place in (data.find(code) for code in dtype.tops) if place >= 0]
    negative = sum(map(data.count, dtype.negative_inf))
    positive = sum(map(data.count, dtype.inf))
    return Counts(sum(map(data.count, dtype.nan)), positive + negative, negative, min(places, default=-1))


class _Lanes:
    """Count in many lanes at once, in one big integer: no step carries from a lane into the next.

    Adding the exponent's lowest bit to an exponent of all ones sets the lane's highest bit; adding the mantissa mask
    to a mantissa that is not zero sets the exponent's lowest bit.
    """

    def __init__(self, dtype: Dtype, size: int) -> None:
        bits = 8 * dtype.lane
        ones = _repeated(dtype.lane, size)
        self.sign = ones << (bits - 1)
        self.exponent = ones * dtype.exponent
        self.mantissa = ones * dtype.mantissa
        self.low = ones * (dtype.mantissa + 1)
        self.lift = bits - 1 - dtype.mantissa.bit_length()
        self.element = _repeated(dtype.size, size) << (bits - 1)
        self.other_lane = bits if dtype.parts == 2 else 0
        self.bits = dtype.bits

    def count(self, data: bytes) -> Counts:
        """Count in a block of the size that this was made for."""
        lanes = int.from_bytes(data, "little")
        odd = ((lanes & self.exponent) + self.low) & self.sign
        if not odd:
            return Counts()
        nan = odd & ((((lanes & self.mantissa) + self.mantissa) & self.low) << self.lift)
        inf = odd ^ nan
        negative = inf & lanes
        if self.other_lane:
            # An element of two lanes counts once, at its first lane.
            nan = (nan | nan >> self.other_lane) & self.element
            inf = (inf | inf >> self.other_lane) & self.element
            odd, negative = nan | inf, 0
        first = ((odd & -odd).bit_length() - 1) // self.bits
        return Counts(_ones(nan), _ones(inf), _ones(negative), first)


@functools.lru_cache(maxsize=32)
def _lanes(dtype: Dtype, size: int) -> _Lanes:
    return _Lanes(dtype, size)


def _repeated(width: int, size: int) -> int:
    """Return a 1 in the lowest bit of every `width` bytes of `size`."""
    return int.from_bytes((b"\x01" + bytes(width - 1)) * (size // width), "little")


def _ones(number: int) -> int:
    # int.bit_count needs Python 3.10.
    return bin(number).count("1") if number else 0
