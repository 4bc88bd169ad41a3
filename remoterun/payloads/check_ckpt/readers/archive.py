"""The directory of a zip file, read strictly: where readers disagree about an archive, damage and attacks hide."""

from __future__ import annotations

import operator
import struct
from typing import TYPE_CHECKING, Dict, Iterator, List, Optional, Tuple, Union

from ..model import FlawedError, Found, clean_text, count_of
from ..records import Record
from ..source import NEAR, Near

if TYPE_CHECKING:
    from ..source import Source

LOCAL = b"PK\x03\x04"
_CENTRAL = b"PK\x01\x02"
_END = b"PK\x05\x06"
_END64 = b"PK\x06\x06"
_LOCATOR64 = b"PK\x06\x07"
# The end record and the longest comment that may follow it.
_TAIL = 22 + 65535
# 120,000 tensors need 9 MB; no more can be decoded.
_MAX_DIRECTORY = 32 * 1024 * 1024
MAX_ENTRIES = 125_000
# Records that are wrong are reported one by one, as far as anybody would read it.
_MAX_FAULTS = 1_000
_ENCRYPTED = 0x0001 | 0x0040 | 0x2000
_U32, _U16 = 0xFFFFFFFF, 0xFFFF
# A symbolic link, in the highest bits of the attributes, and a folder, in the lowest.
_LINK = 0xA
_FOLDER = 0x10
# Up to the first bytes of the data, which torch puts on multiples of 64.
_AHEAD = 128
HEAD = 4
# What is made of every record takes half the time so.
_new = tuple.__new__


class Entry(Record):
    """Place one record: its local header, its data and their CRC-32; `head` are the first bytes of the data."""

    name: str
    header: int
    offset: int
    size: int
    crc: int
    head: bytes = b""


class Directory(Record):
    """Hold the records of an archive in the order of the file; `overlaps` forbids reading them all.

    `packed` counts compressed sources of programs, which are not among the records.
    """

    entries: List[Entry]
    found: List[Found]
    overlaps: bool
    packed: int


class _End(Record):
    offset: int
    entries: int
    size: int
    start: int
    trailing: int


def read_directory(source: Source) -> Optional[Directory]:
    """Read the directory; None when there is none: of a file that starts like a zip, the end is missing.

    Raises:
        FlawedError: when there is one that can't be read.
    """
    end = _find_end(source)
    if end is None:
        return None
    if end.size > _MAX_DIRECTORY or end.entries > MAX_ENTRIES:
        text = "the directory claims %s in %s bytes; no more than %s are looked at"
        sizes = count_of(end.entries, "record"), format(end.size, ","), format(MAX_ENTRIES, ",")
        honest = 46 * end.entries <= end.size <= end.offset - end.start
        raise FlawedError("CK103", text % sizes, severity="suspect" if honest else None)
    if end.start + end.size > end.offset:
        raise FlawedError(
            "CK025", "the directory reaches beyond its own end record: offset %d, size %d" % (end.start, end.size)
        )
    found: List[Found] = []
    if end.trailing:
        found.append(
            Found("CK025", "%s after the end of the archive" % count_of(end.trailing, "byte"), severity="info")
        )
    headers = Near(source)
    entries: List[Entry] = []
    front, packed, faults = source.size, 0, 0
    for central in _central_entries(source.read(end.start, end.size), end.entries):
        located = _located(headers, central, end.start)
        if isinstance(located, Entry):
            entries.append(located)
            continue
        front = min(front, central[4])
        if located is None:
            packed += 1
        elif faults < _MAX_FAULTS:
            found.append(located)
            faults += 1
    overlaps = _check_places(entries, found)
    if entries:
        front = min(front, entries[0].header)
    _check_front(source, front if end.entries else 0, found)
    _check_names(entries, found)
    return Directory(entries, found, overlaps, packed)


def _find_end(source: Source) -> Optional[_End]:
    start = max(0, source.size - _TAIL)
    tail = source.read(start, source.size - start)
    # The last is the one that readers take, whatever it says of a comment behind it.
    at = tail.rfind(_END, 0, max(0, len(tail) - 18))
    if at < 0:
        return None
    disk, first, here, entries, size, offset, comment = struct.unpack_from("<HHHHIIH", tail, at + 4)
    if at + 22 + comment > len(tail):
        raise FlawedError("CK025", "the end record claims a comment of %s" % count_of(comment, "byte"))
    _check_disks(disk, first, here, entries)
    return _widened(source, start + at, (entries, size, offset), len(tail) - at - 22 - comment)


def _widened(source: Source, end: int, short: Tuple[int, int, int], trailing: int) -> _End:
    """Take the numbers from the zip64 end record where there is one; torch always writes one."""
    locator = source.read(end - 20, 20) if end >= 20 else b""
    if not locator.startswith(_LOCATOR64):
        return _End(end, *short, trailing)
    disk, at, disks = struct.unpack_from("<IQI", locator, 4)
    record = source.read(at, 56) if at <= source.size else b""
    if len(record) < 56 or not record.startswith(_END64):
        raise FlawedError("CK025", "the zip64 end record is not where its locator points (byte %d)" % at)
    _check_disks(disk, disks - 1, 0, 0)
    length, disk, first, here, entries, size, offset = struct.unpack_from("<Q4xIIQQQQ", record, 4)
    if length < 44:
        raise FlawedError("CK025", "the zip64 end record claims to have %s" % count_of(length, "byte"))
    for small, large, limit in zip(short, (entries, size, offset), (_U16, _U32, _U32)):
        if small not in (large, limit):
            raise FlawedError(
                "CK102", "the two end records disagree (%d and %d), so readers see different archives" % (small, large)
            )
    _check_disks(disk, first, here, entries)
    return _End(at, entries, size, offset, trailing)


def _check_disks(disk: int, first: int, here: int, entries: int) -> None:
    """Refuse what is, or claims to be, one of several files; torch does."""
    if disk or first or here != entries:
        raise FlawedError("CK025", "the end of the archive says that it is one of several disks")


# What is odd about an entry of the directory: flags, method, disk, attributes.
_Odd = Tuple[int, int, int, int]
# An entry: name, CRC-32, packed size, size, header, and what is odd. Taking a record apart takes several times longer
# than a tuple, and these are all taken apart.
_Central = Tuple[bytes, int, int, int, int, Optional[_Odd]]

# version made by and needed, flags, method, time, date, CRC-32, packed size, size, length of the name, what is mostly
# nothing (lengths of extra and comment, disk, internal attributes, attributes), header, name
_CENTRAL_HEADER = "<4s4xHH4xIIIH12sI%ds"
_NOTHING = bytes(12)
_unpack_local = struct.Struct("<4s2xHH16xHH").unpack_from


def _central_entries(data: bytes, count: int) -> Iterator[_Central]:
    view = memoryview(data)
    at = number = 0
    while at < len(data) and number <= count:
        if len(data) < at + 46 or not data.startswith(_CENTRAL, at):
            raise FlawedError("CK025", "the directory is damaged at its entry number %d" % (number + 1))
        (length,) = struct.unpack_from("<H", data, at + 28)
        size_of_entry = 46 + length
        # Those that follow mostly have names as long as this one, and nothing besides: they are an array.
        alike = max(1, min((len(data) - at) // size_of_entry, count - number + 1))
        rows = view[at : at + alike * size_of_entry]
        if len(rows) < size_of_entry:
            raise FlawedError("CK025", "the directory is cut off at its entry number %d" % (number + 1))
        for start, flags, method, crc, packed, size, same, more, header, name in struct.iter_unpack(
            _CENTRAL_HEADER % length, rows
        ):
            if start != _CENTRAL or same != length:
                break
            number += 1
            at += size_of_entry
            if more != _NOTHING:
                extra, comment, disk, attributes = struct.unpack("<HHH2xI", more)
                if at + extra + comment > len(data):
                    raise FlawedError("CK025", "the directory is cut off at its entry number %d" % number)
                wide, wide_packed, wide_header = _zip64(data[at : at + extra], size, packed, header)
                at += extra + comment
                yield name, crc, wide_packed, wide, wide_header, (flags, method, disk, attributes)
                break
            odd = (flags, method, 0, 0) if method or flags & _ENCRYPTED else None
            yield name, crc, packed, size, header, odd
    if number != count:
        held = "more records than" if number > count else "%s where" % count_of(number, "record")
        raise FlawedError("CK025", "the directory holds %s its end record says: %d" % (held, count))


def _zip64(extra: bytes, size: int, packed: int, header: int) -> Tuple[int, int, int]:
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            held = min(length, len(extra) - at - 4) // 8
            wide = list(struct.unpack_from("<%dQ" % held, extra, at + 4))
            size = wide.pop(0) if size == _U32 and wide else size
            packed = wide.pop(0) if packed == _U32 and wide else packed
            header = wide.pop(0) if header == _U32 and wide else header
            break
        at += 4 + length
    return size, packed, header


def _located(headers: Near, central: _Central, limit: int) -> Union[Entry, Found, None]:
    """Find a record's data behind its local header, and compare the two descriptions; None for one without data."""
    name, crc, packed, size, header, odd = central
    if odd is not None and odd[1] and b"/code/" in name:
        return None  # TorchScript compresses its sources
    data, at = headers.read(header, 30 + len(name) + _AHEAD)
    begin = _agreed(name, data, at)
    # What is wrong is looked for only where something is.
    fault = None if begin and packed == size and odd is None else _fault(central, data, at)
    if fault is None:
        offset = header + begin - at
        if offset + size <= limit:
            head = data[begin : begin + (HEAD if size >= HEAD else size)]
            return _new(Entry, (name.decode("utf-8", "replace"), header, offset, size, crc, head))
        fault = "CK025", "reaches beyond the end of the data"
    shown = clean_text(name.decode("utf-8", "replace"), 100)
    return Found(fault[0], "record %s %s" % (shown, fault[1]), {"record": shown})


def _agreed(name: bytes, data: bytes, at: int) -> int:
    """Return where the data of a record begins; 0 when its local header is not that of one of this name, as it is."""
    if len(data) < at + 30:
        return 0
    start, flags, method, name_size, extra = _unpack_local(data, at)
    begin: int = at + 30 + name_size + extra
    if start != LOCAL or method or flags & _ENCRYPTED or name_size != len(name) or not data.startswith(name, at + 30):
        return 0
    return begin


def _fault(central: _Central, data: bytes, at: int) -> Optional[Tuple[str, str]]:
    """Return the rule and the words for what is wrong with a record."""
    name, _, packed, size, header, odd = central
    flags, method, disk, attributes = odd or (0, 0, 0, 0)
    if flags & _ENCRYPTED:
        return "CK102", "is marked as encrypted, which torch never does"
    if disk:
        return "CK025", "is said to lie on another disk"
    if attributes >> 28 == _LINK:
        return "CK102", "is a symbolic link"
    if attributes & _FOLDER:
        return "CK025", "is marked as a folder, so torch takes whatever is in memory for its data"
    if method or packed != size:
        return "CK102", "is compressed, which torch never does"
    if len(data) < at + 30 or not data.startswith(LOCAL, at):
        return "CK025", "has a damaged header (byte %d)" % header
    if not _agreed(name, data, at):
        return "CK102", "is described differently at its place and in the directory"
    return None


def _check_places(entries: List[Entry], found: List[Found]) -> bool:
    """Put records into the order of the file, and tell whether they share bytes."""
    entries.sort(key=operator.attrgetter("header"))
    for one, following in zip(entries, entries[1:]):
        if one.offset + one.size > following.header:
            names = (clean_text(one.name, 100), clean_text(following.name, 100))
            found.append(Found("CK102", "records %s and %s share bytes: the archive is not what torch writes" % names))
            return True
    return False


def _check_front(source: Source, first: int, found: List[Found]) -> None:
    """Refuse what stands in front of the archive: torch tells a format by the first bytes, zip readers by the last."""
    if any(source.read(0, min(first, NEAR))):
        text = "%s in front of the archive, so readers may see another file" % count_of(first, "byte")
        found.append(Found("CK102", text, {"range": [source.base, source.base + first]}))


def _check_names(entries: List[Entry], found: List[Found]) -> None:
    if len({entry.name for entry in entries}) == len(entries):
        return
    seen: Dict[str, int] = {}
    for entry in entries:
        seen[entry.name] = seen.get(entry.name, 0) + 1
    twice = [name for name, count in seen.items() if count > 1]
    text = "%s more than once, so readers may see different data: %s"
    found.append(Found("CK102", text % (count_of(len(twice), "name"), clean_text(twice[0], 100))))
