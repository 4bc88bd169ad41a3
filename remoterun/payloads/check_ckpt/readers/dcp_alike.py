"""A shortcut through the items of a distributed checkpoint, of which most differ in their data and in nothing else.

An item whose bytes are those of one that was read in full, but for its data and what follows from them, is not read
again: it comes to the same, which is all that is taken for granted.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Dict, Iterator, List, Optional, Tuple

from ..model import Region, Tensor
from ..pickles.layout import THE_WHOLE
from ..records import Record

if TYPE_CHECKING:
    from ..model import Checkpoint
    from ..source import Source

# Bytes of an item that are not its data: torch writes 1,500, and what aligns them.
_AROUND = 4 << 10
# What differs in more is read in full: items of one length in number format and shape, and lengths.
_MOST_FORMS, _MOST_LENGTHS = 4, 256
# A hash of the data's, beside them.
_ID = ".data/serialization_id"
_CENTRAL = struct.Struct("<4s24xHHH12x")
_DESCRIPTOR = b"PK\x07\x08"
_BEGUN = (b"\x80", b"c", b"(")


class Alike(Record):
    """Hold what an item is: a tensor in its region, or else the plain value `root`; `pickled` counts bytes."""

    tensor: Optional[Tensor]
    region: Optional[Region]
    root: object
    pickled: int


class _Form(Record):
    """Know the bytes before and after an item's data, which reach from `begin` to `end`, but for the `blanks`.

    `crc` is where the CRC-32 of the data is written, `named` where that of the hash is, and the hash itself.
    """

    item: Alike
    begin: int
    end: int
    head: bytes
    tail: bytearray
    blanks: List[Tuple[int, int]]
    crc: int
    named: Tuple[int, int, int]


class Forms:
    """Remember forms by the length of their items, those that were met last in front."""

    def __init__(self) -> None:
        self._forms: Dict[int, List[_Form]] = {}

    def match(self, source: Source) -> Optional[Alike]:
        """Return what an item is; None when there was none like it."""
        forms = self._forms.get(source.size, [])
        for number, form in enumerate(forms):
            item = _matched(form, source)
            if item is not None:
                if number:
                    forms.insert(0, forms.pop(number))
                return item
        return None

    def learn(self, source: Source, read: Checkpoint, root: object) -> None:
        """Remember an item that was read in full, all of its records, unless there is more to it."""
        tensor = read.tensors[0] if len(read.tensors) == 1 else None
        more = (read.found, read.holes, read.unchecked, read.empty, read.optimizers, read.schedulers, read.scalers)
        plain = _is_plain(root) if not read.tensors else tensor is not None and tensor.name == THE_WHOLE
        if any(more) or not plain or not read.decoded or read.truncated:
            return
        room = source.size in self._forms or len(self._forms) < _MOST_LENGTHS
        form = _form(source, read, tensor, root) if room else None
        if form is not None:
            forms = self._forms.setdefault(source.size, [])
            forms.insert(0, form)
            del forms[_MOST_FORMS:]


def _is_plain(root: object) -> bool:
    return root is None or type(root) in (bool, float, str) or (type(root) is int and abs(root) < 1 << 62)


def _form(source: Source, read: Checkpoint, tensor: Optional[Tensor], root: object) -> Optional[_Form]:
    data = None if tensor is None else read.regions[tensor.region]
    begin = 0 if data is None else data.offset - source.base
    end = 0 if data is None else begin + data.size
    hashed = next((each for each in read.regions if each.name.endswith(_ID)), None)
    if source.size - end + begin > _AROUND or hashed is None:
        return None
    head, tail = source.read(0, begin), source.read(end, source.size - end)
    crcs = dict(_checksums(tail, end))
    at = hashed.offset - source.base - end
    rest = [each for each in read.regions if each is not data]
    sound = all(zlib.crc32(source.read(each.offset - source.base, each.size)) == each.crc for each in rest)
    if not sound or at < 0 or hashed.name not in crcs or (data is not None and data.name not in crcs):
        return None
    blanks = [(at, hashed.size), (crcs[hashed.name], 4)]
    # A second copy of their CRC-32, which nobody reads.
    ends = [at + hashed.size] if data is None else [at + hashed.size, 0]
    blanks += [(end + 4, 4) for end in ends if tail[end : end + 4] == _DESCRIPTOR]
    blanks += [] if data is None else [(crcs[data.name], 4)]
    item = Alike(
        tensor and tensor._replace(region=0), data, root, sum(each.size for each in rest if each.name.endswith(".pkl"))
    )
    crc = -1 if data is None else crcs[data.name]
    return _Form(item, begin, end, head, _blanked(tail, blanks), blanks, crc, (at, hashed.size, crcs[hashed.name]))


def _checksums(tail: bytes, start: int) -> Iterator[Tuple[str, int]]:
    """Yield the names in an archive's directory, and where in its last bytes, from `start` on, their CRC-32 are."""
    at = int.from_bytes(tail[-6:-2], "little") - start
    while 0 <= at <= len(tail) - _CENTRAL.size:
        mark, name, extra, comment = _CENTRAL.unpack_from(tail, at)
        if mark != b"PK\x01\x02":
            return
        yield tail[at + 46 : at + 46 + name].decode("utf-8", "replace"), at + 16
        at += 46 + name + extra + comment


def _blanked(tail: bytes, blanks: List[Tuple[int, int]]) -> bytearray:
    blanked = bytearray(tail)
    for at, size in blanks:
        blanked[at : at + size] = bytes(size)
    return blanked


def _matched(form: _Form, source: Source) -> Optional[Alike]:
    item, begin, end, head, tail, blanks, crc, (at, size, named) = form
    front, rest = source.read(0, begin + 1), source.read(end, source.size - end)
    # What begins as a pickle does is looked at by who reads all.
    if front[:begin] != head or front[begin:] in _BEGUN or rest[at : at + 1] in _BEGUN:
        return None
    if _blanked(rest, blanks) != tail or zlib.crc32(rest[at : at + size]) != _number(rest, named):
        return None
    if item.region is None:
        return item
    checksum = _number(rest, crc)
    return item._replace(region=item.region._replace(offset=source.base + begin, crc=checksum)) if checksum else None


def _number(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")
