"""Looking for NaN and infinity with the standard library alone: a cheap screen, then an exact count where it hits."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple, Protocol, Union

if TYPE_CHECKING:
    import mmap

    from ..dtypes import Dtype

Buffer = Union[bytes, bytearray, "mmap.mmap"]

# A big integer of this many bytes stays in the first-level cache.
_BLOCK = 8192


class Counts(NamedTuple):
    """Count elements: `inf` has both signs, `negative_inf` those below zero (not told for complex numbers).

    `first` is the index of the first of all these elements, -1 when there is none.
    """

    nan: int = 0
    inf: int = 0
    negative_inf: int = 0
    first: int = -1


class Engine(Protocol):
    """Look at the bytes of floating-point elements; one that is `parallel` lets other threads run meanwhile."""

    name: str
    parallel: bool

    def screen(self, dtype: Dtype, buffer: Buffer, start: int, stop: int) -> bool:
        """Tell whether a closer look is needed; False is a proof that all elements are finite."""
        ...

    def count(self, dtype: Dtype, data: bytes) -> Counts:
        """Count exactly."""
        ...


class StdlibEngine:
    """Use slices, searches and big integers: about 6 GB/s for float32 on one core, with the GIL held."""

    name = "stdlib"
    parallel = False

    def screen(self, dtype: Dtype, buffer: Buffer, start: int, stop: int) -> bool:
        """Tell whether the highest byte of any lane can belong to a non-finite number."""
        tops = buffer[start + dtype.lane - 1 : stop : dtype.lane]
        return any(top in tops for top in dtype.tops)

    def count(self, dtype: Dtype, data: bytes) -> Counts:
        """Count exactly, block by block."""
        if dtype.kind == "codes":
            return count_codes(dtype, data)
        found = Counts()
        for start in range(0, len(data), _BLOCK):
            block = data[start : start + _BLOCK]
            found = add_counts(found, _lanes(dtype, len(block)).count(block), start // dtype.size)
        return found


def add_counts(one: Counts, other: Counts, shift: int = 0) -> Counts:
    """Add the counts of a stretch that begins `shift` elements after the first's beginning."""
    first = one.first if one.first >= 0 or other.first < 0 else other.first + shift
    return Counts(one.nan + other.nan, one.inf + other.inf, one.negative_inf + other.negative_inf, first)


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
