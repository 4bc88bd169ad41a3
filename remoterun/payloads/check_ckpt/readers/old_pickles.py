"""Files without a zip around them: torch's before 1.6, and plain pickles."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Dict, List, Optional, Tuple

from ..model import Checkpoint, Region, clean_text, count_of
from ..pickles.machine import BUDGET
from ..pickles.nodes import Persistent, string_items
from ..pickles.rebuild import Stored, storage_of, storages_of
from ..records import Record
from ..source import Near
from .absence import is_all_zeros, tell_zeros, zeros_at_end
from .torch_objects import Loaded, Objects, bare, decode_pickle

if TYPE_CHECKING:
    from ..pickles.nodes import Decoded
    from ..source import Source

_MAGIC = 0x1950A86A20F9469CFC6C
# torch wrote these pickles after the magic number, then for each storage its number of elements and its bytes. Those
# are little-endian, whatever the machine was. With each, what its objects may take.
_PARTS = (
    ("protocol number", 1 << 20),
    ("description of the machine", 1 << 20),
    ("object", BUDGET),
    ("list of storages", BUDGET // 4),
)
_COUNT = 8
_unpack_count = struct.Struct("<q").unpack_from
# What is made of every storage takes half the time so.
_new = tuple.__new__


def is_pickle(head: bytes) -> bool:
    """Tell whether a file begins as pickles of protocol 2 and later do."""
    return head[:1] == b"\x80" and b"\x02" <= head[1:2] <= b"\x05"


def may_be_pickle(head: bytes) -> bool:
    """Tell whether a file may be a pickle of protocol 0 or 1: a global, a collection, or torch's magic number."""
    return head[:1] in (b"c", b"(") or head[:2] in (b"}q", b"]q") or head.startswith(b"L%dL" % _MAGIC)


def read_old_pickle(source: Source) -> Loaded:
    """Read a file that begins with a pickle."""
    checkpoint = Checkpoint("pickle", source.size)
    checkpoint.add("CK028", "files of this format hold no checksums, so damaged bytes can't be told from good ones")
    decoded = decode_pickle(source, 0, source.size, checkpoint, "the pickle")
    if decoded is not None and decoded.root == _MAGIC:
        return _read_legacy(source, decoded.stop, checkpoint)
    objects = Objects(source, checkpoint, {})
    if decoded is not None:
        text = "it is a plain pickle, which torch.load refuses as a file with an invalid magic number"
        checkpoint.add("CK024", text, severity="info", next_step="Load it with pickle.load, if you trust who wrote it.")
        objects.add(decoded)
        _tell_rest(source, decoded.stop, checkpoint)
    return Loaded(checkpoint, decoded, objects.number)


def _tell_rest(source: Source, end: int, checkpoint: Checkpoint) -> None:
    if end < source.size:
        rest = "%s after the end of the data" % count_of(source.size - end, "byte")
        checkpoint.add("CK025", rest, severity="info")


def _read_legacy(source: Source, start: int, checkpoint: Checkpoint) -> Loaded:
    checkpoint.format = "torch-legacy"
    checkpoint.add("CK124", "it is of torch's format from before 1.6, which has no checksums and can't be mapped")
    pickles = _pickles(source, start, checkpoint)
    if len(pickles) < len(_PARTS) - 1:
        return bare(source, checkpoint)
    decoded = pickles[2]
    storages = storages_of(decoded)
    located = _locate(source, pickles[3:], storages, checkpoint)
    objects = Objects(source, checkpoint, located.regions)
    objects.add(decoded)
    if located.damaged is not None:
        _tell_left(source, located, len(storages), checkpoint)
    elif not checkpoint.truncated:
        _tell_rest(source, located.end, checkpoint)
    return Loaded(checkpoint, decoded, objects.number)


def _pickles(source: Source, start: int, checkpoint: Checkpoint) -> List[Decoded]:
    """Decode the pickles after the magic number, as far as they are whole."""
    pickles: List[Decoded] = []
    for part, budget in _PARTS:
        decoded = decode_pickle(source, start, source.size, checkpoint, "its %s" % part, budget=budget)
        if decoded is None:
            break
        pickles.append(decoded)
        start = decoded.stop
    if len(pickles) > 1 and dict(string_items(pickles[1].root)).get("little_endian") is False:
        checkpoint.add("CK124", "it was written on a big-endian machine; its numbers are little-endian all the same")
    return pickles


class _Located(Record):
    """Say which regions hold the whole storages, by key, where they end, and which storage is not whole."""

    regions: Dict[str, int]
    end: int
    damaged: Optional[str]


def _locate(source: Source, keys: List[Decoded], storages: Dict[str, Stored], checkpoint: Checkpoint) -> _Located:
    """Follow the storages, which stand in the order of the list of their keys (none when it is cut off)."""
    regions: Dict[str, int] = {}
    if not keys:
        checkpoint.truncated = True
        return _Located(regions, source.size, None)
    listed, at, zeros = keys[0].root, keys[0].stop, zeros_at_end(source)
    counts, base, limit = Near(source), source.base, source.size
    for key in listed if isinstance(listed, list) else ():
        stored = storages.get(key) if isinstance(key, str) else None
        if stored is None or stored.dtype is None or key in regions:
            name = key if isinstance(key, str) else "of a strange name"
            text = "storage %s is listed twice" if name in regions else "nothing says how long storage %s is"
            checkpoint.add("CK025", text % clean_text(name, 50))
            checkpoint.truncated = True
            return _Located(regions, at, name)
        held = stored.held
        data, place = counts.read(at, _COUNT)
        begin = at + _COUNT
        if begin + held > limit or (held and not any(data[place : place + _COUNT]) and is_all_zeros(source, at, zeros)):
            checkpoint.truncated = True
            return _Located(regions, at, key)
        (count,) = _unpack_count(data, place)
        elements = held // stored.dtype.size
        shown = clean_text(key, 50)
        if count != elements:
            message = "storage %s has a count of %d in front of it, and %d in the pickle"
            checkpoint.add("CK025", message % (shown, count, elements))
        regions[key] = len(checkpoint.regions)
        checkpoint.regions.append(_new(Region, (0, base + begin, held, "storage %s" % shown, None, None)))
        at = begin + held
    return _Located(regions, at, None)


def _tell_left(source: Source, located: _Located, storages: int, checkpoint: Checkpoint) -> None:
    damaged = located.damaged
    name = next((" (%s)" % each.name for each in checkpoint.unchecked if each.place == damaged), "")
    intact = len(located.regions)
    message = "the file is cut off: %d of %s intact, first damaged: storage %s%s%s"
    message %= (intact, count_of(storages, "storage"), clean_text(damaged or "", 50), name, tell_zeros(source))
    checkpoint.add("CK020", message, intact=intact, storages=storages)


def find_storage(source: Source, checkpoint: Checkpoint) -> Optional[Tuple[Stored, int]]:
    """Look into a file of the old format that holds one storage and nothing else: return it and where its bytes begin.

    A tensor that was pickled without torch.save has such a file inside.
    """
    magic = decode_pickle(source, 0, source.size, checkpoint, "a storage inside the pickle")
    pickles = _pickles(source, magic.stop, checkpoint) if magic is not None and magic.root == _MAGIC else []
    root = pickles[2].root if len(pickles) == len(_PARTS) else None
    stored = storage_of(root) if isinstance(root, Persistent) else None
    return None if stored is None else (stored, pickles[3].stop + _COUNT)
