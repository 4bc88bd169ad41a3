"""What takes bytes of two places, or the whole of a file, and so is looked at after the one pass over all bytes."""

from __future__ import annotations

import functools
import hashlib
import struct
from typing import TYPE_CHECKING, Dict, Iterator, List, Sequence, Tuple

from ..model import Found, clean_text, count_of
from ..records import Record
from .elements import Elements

if TYPE_CHECKING:
    from ..model import Checkpoint, Rounded
    from ..source import Source
    from .scanner import Pace

_BLOCK = 1024 * 1024
# Elements that are compared at a time, and of one checkpoint in all. A torn save shows in the first of them.
_ELEMENTS = 32 * 1024
_MOST_ELEMENTS = 16 * 1024 * 1024
# Tensors that differ are named one by one.
_MOST_NAMED = 20


def second_look(checkpoint: Checkpoint, sources: Sequence[Source], pace: Pace) -> Iterator[Found]:
    """Hold files against the digests they ought to have, and rounded weights against the exact ones.

    Raises:
        ShrunkError: when a file got shorter.
        OSError: when a file can't be read.
    """
    for number, digest in sorted(checkpoint.digests.items()):
        found = _sha256(sources[number], pace)
        if found != digest:
            name = clean_text(sources[number].path, 1000)
            message = "%s has another SHA-256 than is noted for it: it was changed or damaged since"
            evidence: Dict[str, object] = {"sha256": found, "saved_sha256": digest}
            shown = clean_text(sources[number].path.rpartition("/")[2])
            yield Found("CK029", message % shown, {"file": name}, evidence=evidence)
    if checkpoint.rounded:
        yield from _Comparison(checkpoint, sources, pace).found()


def _sha256(source: Source, pace: Pace) -> str:
    digest, at = hashlib.sha256(), 0
    while at < source.size:
        block = source.read(at, _BLOCK)
        if not block:
            break
        pace.spend(len(block))
        digest.update(block)
        at += len(block)
    return digest.hexdigest()


class _Unequal(Record):
    name: str
    compared: int
    unequal: int
    first: int


class _Comparison:
    """Compare weights in half precision with the float32 ones that they are rounded from."""

    def __init__(self, checkpoint: Checkpoint, sources: Sequence[Source], pace: Pace) -> None:
        self._tensors = checkpoint.tensors
        self._rounded = checkpoint.rounded
        self._elements = Elements(checkpoint.regions, sources, pace)

    def found(self) -> Iterator[Found]:
        """Yield one finding for all that differ."""
        share = max(_ELEMENTS, _MOST_ELEMENTS // max(1, len(self._rounded)))
        results = [self._compare(each, share) for each in self._rounded]
        odd = [each for each in results if each.unequal]
        if not odd:
            return
        compared, unequal = sum(each.compared for each in results), sum(each.unequal for each in odd)
        message = "the model is not its float32 weights rounded: %s of %s that were compared differ, in %s, first in %s"
        told = format(unequal, ","), count_of(compared, "element"), count_of(len(odd), "tensor"), odd[0].name
        data: Dict[str, object] = {"tensors": [each.name for each in odd[:_MOST_NAMED]]}
        evidence: Dict[str, object] = {
            "unequal": unequal,
            "compared": compared,
            "tensors": len(odd),
            "first": odd[0].first,
        }
        yield Found("CK042", message % told, data, evidence=evidence)

    def _compare(self, each: Rounded, share: int) -> _Unequal:
        copy, exact = self._tensors[each.copy], self._tensors[each.exact]
        compared = unequal = 0
        first = -1
        for at, length in _parts(exact.numel, share):
            rounded = self._elements.read(copy, each.first + at, length)
            odd = _unequal(copy.dtype.name, rounded, self._elements.read(exact, at, length))
            compared += length
            unequal += len(odd)
            first = each.first + at + odd[0] if first < 0 and odd else first
        return _Unequal(copy.name, compared, unequal, first)


def _parts(elements: int, share: int) -> Iterator[Tuple[int, int]]:
    """Yield what is compared of so many elements, as (first, length): all, or a share that lies evenly in them."""
    blocks = -(-elements // _ELEMENTS)
    wanted = max(1, min(blocks, share // _ELEMENTS))
    for number in range(wanted):
        at = number * blocks // wanted * _ELEMENTS
        yield at, min(_ELEMENTS, elements - at)


def _unequal(name: str, rounded: bytes, exact: bytes) -> List[int]:
    """Return which elements differ from those that they should be the rounded form of."""
    if name == "bfloat16":
        if _rounds_to_bfloat16(exact, rounded):
            return []
        wanted = b"".join(map(_bfloat16, struct.unpack("<%dI" % (len(exact) // 4), exact)))
    else:
        wanted = _float16(exact)
        if wanted == rounded:
            return []
    odd = []
    for index in range(len(rounded) // 2):
        one, other = rounded[2 * index : 2 * index + 2], wanted[2 * index : 2 * index + 2]
        if one != other and not _is_nan(name, one, other):
            odd.append(index)
    return odd


def _rounds_to_bfloat16(exact: bytes, rounded: bytes) -> bool:
    """Tell whether all numbers round to others, to the nearest and if there are two to the even one: all at once.

    Each float32 is a lane of one big integer. No finite number carries into the next lane.
    """
    ones, half, top = _masks(len(exact) // 4)
    lanes = int.from_bytes(exact, "little")
    lanes += half + (lanes >> 16 & ones)
    wide = bytearray(len(exact))
    wide[2::4], wide[3::4] = rounded[0::2], rounded[1::2]
    return lanes & top == int.from_bytes(wide, "little")


@functools.lru_cache(maxsize=4)
def _masks(count: int) -> Tuple[int, int, int]:
    """Return, for so many lanes of 32 bits, a 1 in each, almost half of what is rounded away, and what is kept."""
    ones = int.from_bytes(b"\1\0\0\0" * count, "little")
    return ones, 0x7FFF * ones, 0xFFFF0000 * ones


def _bfloat16(bits: int) -> bytes:
    if bits & 0x7FFFFFFF > 0x7F800000:
        return struct.pack("<H", bits >> 16 | 0x40)
    return struct.pack("<H", bits + 0x7FFF + (bits >> 16 & 1) >> 16 & 0xFFFF)


def _float16(exact: bytes) -> bytes:
    numbers = struct.unpack("<%df" % (len(exact) // 4), exact)
    try:
        return struct.pack("<%de" % len(numbers), *numbers)
    except OverflowError:
        return b"".join(map(_one_float16, numbers))


def _one_float16(number: float) -> bytes:
    try:
        return struct.pack("<e", number)
    except OverflowError:
        return struct.pack("<e", float("inf") if number > 0 else float("-inf"))


def _is_nan(name: str, one: bytes, other: bytes) -> bool:
    """Tell whether two numbers are NaN, of which there are many."""
    top = 0x7F80 if name == "bfloat16" else 0x7C00
    return all(int.from_bytes(each, "little") & 0x7FFF > top for each in (one, other))
