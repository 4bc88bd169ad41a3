"""A flipped bit is found by the difference of two sums alone."""

from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from remoterun.payloads.check_ckpt.scan.bitflip import MOST, flipped_bit


@given(st.binary(min_size=1, max_size=2000), st.data())
def test_the_flipped_bit_is_named(data: bytes, draws: st.DataObject) -> None:
    at, bit = draws.draw(st.integers(0, len(data) - 1)), draws.draw(st.integers(0, 7))
    changed = bytearray(data)
    changed[at] ^= 1 << bit
    assert flipped_bit(zlib.crc32(data), zlib.crc32(changed), len(data)) == (at, bit)


def test_a_bit_far_from_the_end_is_found() -> None:
    changed = bytearray(3_000_000)
    before = zlib.crc32(changed)
    changed[70_000] = 0x20
    assert flipped_bit(before, zlib.crc32(changed), len(changed)) == (70_000, 5)


@given(st.binary(min_size=100, max_size=200), st.binary(min_size=100, max_size=200))
def test_more_than_one_bit_is_not_taken_for_one(one: bytes, other: bytes) -> None:
    """Sums of bytes that differ in many places look like any number: a few hundred of 2^32 would be mistaken."""
    other = other[: len(one)].ljust(len(one), b"\xa5")
    flips = sum(bin(a ^ b).count("1") for a, b in zip(one, other, strict=True))
    found = flipped_bit(zlib.crc32(one), zlib.crc32(other), len(one))
    assert (found is None) == (flips != 1)


def test_no_guess_is_made_about_long_records() -> None:
    assert flipped_bit(1, 2, MOST + 1) is None
    assert flipped_bit(5, 5, 100) is None
