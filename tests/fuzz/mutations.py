"""Ways to damage bytes: by chance, where formats keep their lengths, and with parts of other files."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable, Sequence

_MOST = 6
# Lengths and counts that overflow, wrap around or ask for much.
_NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, 1 << 63)
_BYTES = (0x00, 0x01, 0x7F, 0x80, 0xFF, 0x28, 0x2E, 0x52, 0x68, 0x72, 0x74, 0x75, 0x81, 0x93, 0x94)
# What a format is held together by.
_JOINTS = re.compile(rb"PK|GGUF|ustar|torch|storage|data_offsets|shape|[{}\[\]]|\x80[\x02-\x05]|\d+", re.DOTALL)


def mutated(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """Return bytes that were damaged in a few ways."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, _MOST))):
        chance.choice(_WAYS)(changed, others, chance)
    return bytes(changed)


def _place(data: bytearray, chance: random.Random) -> int:
    """Choose a place, in half of the cases near a joint."""
    if data and chance.random() < 0.5:
        start = chance.randrange(len(data))
        joint = _JOINTS.search(data, start) or _JOINTS.search(data)
        if joint is not None:
            return max(0, min(len(data) - 1, joint.start() + chance.randint(-4, 48)))
    return chance.randrange(len(data)) if data else 0


def _flip(data: bytearray, _: Sequence[bytes], chance: random.Random) -> None:
    if data:
        data[_place(data, chance)] ^= 1 << chance.randrange(8)


def _set(data: bytearray, _: Sequence[bytes], chance: random.Random) -> None:
    if data:
        data[_place(data, chance)] = chance.choice(_BYTES)


def _count(data: bytearray, _: Sequence[bytes], chance: random.Random) -> None:
    """Write a number where a length may be, little-endian, or as a decimal where there is one."""
    at = _place(data, chance)
    number = chance.choice((*_NUMBERS, len(data), len(data) + 1, len(data) - 1, chance.getrandbits(16)))
    digits = re.compile(rb"\d+").match(data, at)
    if digits is not None and chance.random() < 0.7:
        data[at : digits.end()] = b"%d" % number
    else:
        form = chance.choice("BHIQ")
        size = struct.calcsize(form)
        data[at : at + size] = struct.pack("<" + form, max(0, number) & ((1 << 8 * size) - 1))


def _cut(data: bytearray, _: Sequence[bytes], chance: random.Random) -> None:
    del data[_place(data, chance) :]


def _remove(data: bytearray, _: Sequence[bytes], chance: random.Random) -> None:
    at = _place(data, chance)
    del data[at : at + chance.randint(1, 64)]


def _repeat(data: bytearray, _: Sequence[bytes], chance: random.Random) -> None:
    at, size = _place(data, chance), chance.randint(1, 64)
    data[at:at] = data[at : at + size] * chance.choice((1, 2, 50))


def _blank(data: bytearray, _: Sequence[bytes], chance: random.Random) -> None:
    at, size = _place(data, chance), chance.choice((8, 64, 512, 4096))
    data[at : at + size] = bytes(len(data[at : at + size]))


def _splice(data: bytearray, others: Sequence[bytes], chance: random.Random) -> None:
    """Lay a part of another file over this one, or push it in."""
    other = chance.choice(others)
    start, size = chance.randrange(len(other)), chance.choice((16, 256, 4096))
    part, at = other[start : start + size], _place(data, chance)
    data[at : at + (len(part) if chance.random() < 0.5 else 0)] = part


_WAYS: tuple[Callable[[bytearray, Sequence[bytes], random.Random], None], ...] = (
    _flip,
    _set,
    _set,
    _count,
    _count,
    _count,
    _cut,
    _remove,
    _repeat,
    _blank,
    _splice,
)
