"""The records of a torch zip whose end is missing: a walk from local header to local header."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Callable, List, NamedTuple, Optional

from .archive import LOCAL, Entry

if TYPE_CHECKING:
    from ..source import Source

_DESCRIPTOR = b"PK\x07\x08"
_BLOCK = 1024 * 1024
_LONGEST_DESCRIPTOR = 24
# Records of unknown size are the pickle and a few of some bytes.
_MAX_SEARCH = 256 * 1024 * 1024


class Salvaged(NamedTuple):
    """Hold the complete records of the front part, and the name of the first that is not ("" when all are)."""

    entries: List[Entry]
    damaged: str


def walk(source: Source, expected_size: Callable[[List[Entry], str], Optional[int]]) -> Salvaged:
    """Follow the records from the front.

    Local headers hold no sizes: torch writes them behind the data, in a descriptor. `expected_size` is asked for the
    size of a record, given those found so far; where it answers None, the descriptor is searched for.
    """
    entries: List[Entry] = []
    at = 0
    while True:
        header = source.read(at, 30)
        if len(header) < 30 or not header.startswith(LOCAL):
            return Salvaged(entries, "")
        name_size, extra_size = struct.unpack_from("<HH", header, 26)
        raw = source.read(at + 30, name_size + extra_size)
        name = raw[:name_size].decode("utf-8", "replace")
        offset = at + 30 + name_size + extra_size
        size = expected_size(entries, name)
        entry = _complete(source, Entry(name, at, offset, 0, 0), size)
        if entry is None:
            return Salvaged(entries, name)
        entries.append(entry)
        at = entry.offset + entry.size + _descriptor_size(source, entry)


def _complete(source: Source, entry: Entry, size: Optional[int]) -> Optional[Entry]:
    """Return the record with size and CRC-32 if its descriptor stands behind its data."""
    if size is not None:
        return _described(entry, source.read(entry.offset + size, _LONGEST_DESCRIPTOR), size)
    at = entry.offset
    while at < min(source.size, entry.offset + _MAX_SEARCH):
        block = source.read(at, _BLOCK + _LONGEST_DESCRIPTOR)
        place = block.find(_DESCRIPTOR)
        while 0 <= place < _BLOCK:
            found = _described(entry, block[place : place + _LONGEST_DESCRIPTOR], at + place - entry.offset)
            if found is not None:
                return found
            place = block.find(_DESCRIPTOR, place + 1)
        at += _BLOCK
    return None


def _described(entry: Entry, descriptor: bytes, size: int) -> Optional[Entry]:
    if not descriptor.startswith(_DESCRIPTOR):
        return None
    short = descriptor[:16] if len(descriptor) >= 16 else b""
    if short and struct.unpack_from("<II", short, 8) == (size, size):
        return entry._replace(size=size, crc=struct.unpack_from("<I", short, 4)[0])
    if len(descriptor) >= 24 and struct.unpack_from("<QQ", descriptor, 8) == (size, size):
        return entry._replace(size=size, crc=struct.unpack_from("<I", descriptor, 4)[0])
    return None


def _descriptor_size(source: Source, entry: Entry) -> int:
    sizes = source.read(entry.offset + entry.size + 8, 8)
    return 16 if sizes == struct.pack("<II", entry.size, entry.size) else 24
