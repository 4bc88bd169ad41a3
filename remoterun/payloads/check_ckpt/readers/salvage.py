"""The records of a torch zip whose end is missing: a walk from local header to local header."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Callable, List, Optional

from ..records import Record
from .archive import HEAD, LOCAL, MAX_ENTRIES, Entry

if TYPE_CHECKING:
    from ..source import Source

_DESCRIPTOR = b"PK\x07\x08"
_BLOCK = 1024 * 1024
_FIRST_BLOCK = 16 * 1024
_LONGEST_DESCRIPTOR = 24
# Records of unknown size are the pickle and a few of some bytes.
_MAX_SEARCH = 256 * 1024 * 1024
_MAX_CANDIDATES = 100_000


class Salvaged(Record):
    """Hold the complete records of the front part, and the name of the first that is not ("" when all are)."""

    entries: List[Entry]
    damaged: str


def walk(source: Source, expected_size: Callable[[List[Entry], str], Optional[int]]) -> Salvaged:
    """Follow the records from the front.

    Local headers hold no sizes: torch writes them behind the data, in a descriptor. `expected_size` is asked for the
    size of a record, given those found so far; where it answers None, the descriptor is searched for.
    """
    entries: List[Entry] = []
    search = _Search(source)
    at = 0
    while len(entries) < MAX_ENTRIES:
        header = source.read(at, 30)
        if len(header) < 30 or not header.startswith(LOCAL):
            break
        name_size, extra_size = struct.unpack_from("<HH", header, 26)
        raw = source.read(at + 30, name_size + extra_size)
        name = raw[:name_size].decode("utf-8", "replace")
        begun = Entry(name, at, at + 30 + name_size + extra_size, 0, 0)
        size = expected_size(entries, name)
        entry = search.complete(begun) if size is None else _sized(source, begun, size)
        if entry is None:
            return Salvaged(entries, name)
        entries.append(entry._replace(head=source.read(entry.offset, min(HEAD, entry.size))))
        at = entry.offset + entry.size + _descriptor_size(source, entry)
    return Salvaged(entries, "")


def _sized(source: Source, entry: Entry, size: int) -> Optional[Entry]:
    """Return a record of known size with its CRC-32 if its descriptor stands behind its data."""
    return _described(entry, source.read(entry.offset + size, _LONGEST_DESCRIPTOR), size)


class _Search:
    """Look for descriptors, no longer in one file than a sound one needs."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._bytes = _MAX_SEARCH
        self._candidates = _MAX_CANDIDATES

    def complete(self, entry: Entry) -> Optional[Entry]:
        """Return the record with size and CRC-32 if its descriptor is found."""
        at, size = entry.offset, _FIRST_BLOCK
        while at < self._source.size and self._bytes > 0 and self._candidates > 0:
            block = self._source.read(at, size + _LONGEST_DESCRIPTOR)
            self._bytes -= size
            found = self._find(entry, block, at - entry.offset, size)
            if found is not None:
                return found
            at, size = at + size, _BLOCK
        return None

    def _find(self, entry: Entry, block: bytes, before: int, size: int) -> Optional[Entry]:
        place = block.find(_DESCRIPTOR)
        while 0 <= place < size and self._candidates > 0:
            self._candidates -= 1
            found = _described(entry, block[place : place + _LONGEST_DESCRIPTOR], before + place)
            if found is not None:
                return found
            place = block.find(_DESCRIPTOR, place + 1)
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
