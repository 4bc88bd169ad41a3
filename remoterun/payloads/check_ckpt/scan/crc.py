"""CRC-32 as zip files have it, by the fastest library at hand, and the joining of parts."""

from __future__ import annotations

import functools
import importlib
import os
import zlib
from typing import Callable, List, Optional, Tuple

from ..records import Record

POLYNOMIAL = 0xEDB88320
_HIGHEST, _ALL = 1 << 31, (1 << 32) - 1
_ADLER_BASE = 65521
# Below this, the call costs more than the bytes.
_SMALL = 4096

Crc = Callable[[memoryview, int], int]


class Checksum(Record):
    """Name the library behind a CRC-32; `update` takes a writable buffer and the CRC so far."""

    name: str
    update: Crc


def best_checksum() -> Checksum:
    """Return the fastest implementation that agrees with zlib.

    isal and zlib-ng are asked for as Python modules; libgcrypt is on nearly every Debian and Ubuntu (apt and systemd
    link it) and about four times as fast as zlib 1.2 on machines with carry-less multiplication.
    """
    for name, module in (("isal", "isal.isal_zlib"), ("zlib-ng", "zlib_ng.zlib_ng"), ("libgcrypt", "")):
        update = _module(module) if module else _libgcrypt()
        if update is not None and _agrees(update):
            return Checksum(name, update)
    return Checksum("zlib", zlib.crc32)


def _agrees(update: Crc) -> bool:
    sample = bytearray(os.urandom(5000))
    kept = bytes(sample)
    first = update(memoryview(sample)[:4999], 0)
    return (
        first == zlib.crc32(kept[:4999])
        and update(memoryview(sample), first) == zlib.crc32(kept, first)
        and sample == kept
    )


def _module(name: str) -> Optional[Crc]:
    try:
        found: Crc = importlib.import_module(name).crc32
    except (ImportError, AttributeError):
        return None
    return found


def _libgcrypt() -> Optional[Crc]:
    try:
        import ctypes

        library = ctypes.CDLL("libgcrypt.so.20")
        library.gcry_check_version.restype = ctypes.c_char_p
        library.gcry_md_hash_buffer.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        library.gcry_md_hash_buffer.restype = None
    except (ImportError, OSError, AttributeError):
        return None
    crc32 = 302  # GCRY_MD_CRC32, the ISO 3309 one
    handle = ctypes.c_void_p()
    library.gcry_check_version(None)
    library.gcry_control(37, 0)  # GCRYCTL_DISABLE_SECMEM
    library.gcry_control(38, 0)  # GCRYCTL_INITIALIZATION_FINISHED
    # In FIPS mode hashing with CRC-32 aborts the process; opening a handle only fails.
    if library.gcry_md_open(ctypes.byref(handle), crc32, 0):
        return None
    library.gcry_md_close(handle)

    def update(view: memoryview, crc: int) -> int:
        if len(view) < _SMALL:
            return zlib.crc32(view, crc)
        digest = (ctypes.c_ubyte * 4)()
        # Continuing from a CRC is the same as starting anew with that CRC laid over the first four bytes.
        first = bytes(view[:4])
        view[:4] = (int.from_bytes(first, "little") ^ crc).to_bytes(4, "little")
        library.gcry_md_hash_buffer(crc32, digest, ctypes.byref(ctypes.c_char.from_buffer(view)), len(view))
        view[:4] = first
        return int.from_bytes(bytes(digest), "big")

    return update


def combine(parts: List[Tuple[int, int]]) -> int:
    """Return the CRC-32 of bytes that lie one after the other, given as (CRC-32, length) each."""
    crc, rest = parts[0][0], parts[1:]
    for value, length in rest:
        crc = times(x_to(8 * length), crc) ^ value
    return crc


def join_adler(one: int, other: int, length: int) -> int:
    """Return the Adler-32 of bytes after which come others, so many."""
    low = (one & 0xFFFF) + (other & 0xFFFF) - 1
    high = (one >> 16) + (other >> 16) + length * ((one & 0xFFFF) - 1)
    return high % _ADLER_BASE << 16 | low % _ADLER_BASE


def times(left: int, right: int) -> int:
    """Multiply two polynomials over GF(2) modulo the CRC's; the highest bit is x to the power of 0."""
    result = 0
    while left:
        if left & _HIGHEST:
            result ^= right
        left = left << 1 & _ALL
        right = right >> 1 ^ (POLYNOMIAL if right & 1 else 0)
    return result


@functools.lru_cache(maxsize=256)
def x_to(power: int) -> int:
    """Return a power of x modulo the CRC's polynomial."""
    result, bit = _HIGHEST, 0
    while power >> bit:
        if power >> bit & 1:
            result = times(_x_to_two_to(bit), result)
        bit += 1
    return result


@functools.lru_cache(maxsize=64)
def _x_to_two_to(bit: int) -> int:
    """Return x to a power of two."""
    if not bit:
        return 1 << 30
    root = _x_to_two_to(bit - 1)
    return times(root, root)
