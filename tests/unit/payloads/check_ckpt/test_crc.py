"""CRC-32: the fast implementations agree with zlib, and parts can be joined."""

from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from remoterun.payloads.check_ckpt.scan.crc import best_checksum, combine

CHECKSUM = best_checksum()


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=6))
def test_joined_parts_are_the_crc_of_the_whole(parts: list[bytes]) -> None:
    assert combine([(zlib.crc32(part), len(part)) for part in parts]) == zlib.crc32(b"".join(parts))


@given(seed=st.binary(min_size=1, max_size=40), size=st.integers(0, 20_000), cut=st.integers(0, 20_000))
def test_the_fastest_at_hand_agrees_with_zlib_and_leaves_the_data_alone(seed: bytes, size: int, cut: int) -> None:
    data = bytearray((seed * (size // len(seed) + 1))[:size])
    kept = bytes(data)
    cut = min(cut, size)
    crc = CHECKSUM.update(memoryview(data)[:cut], 0)
    assert crc == zlib.crc32(kept[:cut])
    assert CHECKSUM.update(memoryview(data)[cut:], crc) == zlib.crc32(kept)
    assert data == kept


def test_a_large_gap_is_joined_in_time() -> None:
    """The work grows with the length's logarithm."""
    assert combine([(1, 1), (2, 1 << 60)]) == combine([(1, 1), (0, 1 << 59), (2, 1 << 59)])
