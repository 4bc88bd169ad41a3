"""Whether one flipped bit explains a wrong CRC-32, and which: the sum's difference is a power of x."""

from __future__ import annotations

from typing import Optional

from ..records import Record
from .crc import POLYNOMIAL, times, x_to

# The powers that are looked up at once.
_STRIDE = 1 << 16
# x to this power is 1: the polynomial is primitive.
_ORDER = (1 << 32) - 1
# x to the power of 31; of 0 is the highest bit.
_LAST = 1
# In longer records, chance explains more than one wrong sum in 32.
MOST = 16 * 1024 * 1024


class Flipped(Record):
    """Name a bit by its byte's offset, and by its number in that byte from the lowest up."""

    offset: int
    bit: int


def flipped_bit(saved: int, found: int, size: int) -> Optional[Flipped]:
    """Return the only bit that would have to be flipped in so many bytes to turn one CRC-32 into the other."""
    if size > MOST or saved == found:
        return None
    powers = {}
    power = _LAST
    for number in range(_STRIDE):
        powers[power] = number
        power = power >> 1 ^ (POLYNOMIAL if power & 1 else 0)
    back = x_to(_ORDER - _STRIDE)
    difference = saved ^ found
    for steps in range(0, 8 * size + 1, _STRIDE):
        count = powers.get(difference)
        if count is not None:
            # The number of steps from this bit to the end of the bytes.
            left = steps + count
            return _placed(left, size) if 0 < left <= 8 * size else None
        difference = times(back, difference)
    return None


def _placed(left: int, size: int) -> Flipped:
    behind, bit = divmod(left - 1, 8)
    return Flipped(size - 1 - behind, 7 - bit)
