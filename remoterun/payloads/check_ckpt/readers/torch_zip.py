"""The reader of what torch.save writes since torch 1.6: a zip of a pickle and a record for each storage."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from ..model import (
    OTHER,
    UNKNOWN_FORMAT,
    Checkpoint,
    FlawedError,
    Found,
    Region,
    Tensor,
    Unchecked,
    clean_text,
    count_of,
)
from ..pickles import policy
from ..pickles.layout import progress, survey
from ..pickles.machine import Machine
from ..pickles.nodes import Blob, BombError, Call, Decoded, Persistent, PickleError, TooLargeError
from ..pickles.rebuild import Array, Bare, Broken, Stored, numpy_dtype, rebuild, storage_of
from ..scan.spans import pieces
from .archive import Directory, Entry, read_directory

if TYPE_CHECKING:
    from ..model import Number
    from ..pickles.layout import Placed
    from ..source import Source

_PICKLE = "data.pkl"
_MAX_PICKLES = 8
# Fewer zeros at the end may be anybody's data.
_TELLING_ZEROS = 512


def read_torch_zip(source: Source) -> Optional[Checkpoint]:
    """Read a torch file; None when it is a zip, but none of torch's.

    Raises:
        FlawedError: when its directory is made to deceive or to exhaust.
    """
    try:
        directory = read_directory(source)
    except FlawedError as error:
        if error.found.rule != "CK025":
            raise
        return _Reader(source).salvaged(error.found)
    if directory is None:
        return _Reader(source).salvaged()
    names = [entry.name for entry in directory.entries] + [
        str((each.data or {}).get("record")) for each in directory.found
    ]
    if not any(map(_is_pickle, names)):
        return None
    return _Reader(source).whole(directory)


def _is_pickle(name: str) -> bool:
    return name.rpartition("/")[2] == _PICKLE


class _Reader:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._checkpoint = Checkpoint("torch-zip", source.size)
        self._decoded: Optional[Decoded] = None
        self._storages: Dict[str, int] = {}
        self._regions: Dict[str, int] = {}
        self._prefix = ""
        self._big_endian = False

    def whole(self, directory: Directory) -> Checkpoint:
        """Read a file that has its directory."""
        checkpoint = self._checkpoint
        checkpoint.found += directory.found
        self._decode(directory.entries)
        if directory.overlaps:
            checkpoint.decoded = False
            return checkpoint
        self._add_regions(directory.entries)
        self._judge_checksums()
        self._add_tensors()
        return checkpoint

    def salvaged(self, cause: Optional[Found] = None) -> Checkpoint:
        """Read what is left of a file without its end, or with a damaged directory (the cause)."""
        from .salvage import walk

        checkpoint = self._checkpoint
        checkpoint.truncated = True
        left = walk(self._source, self._expected_size)
        if self._decoded is None:
            self._decode(left.entries)
        self._add_regions(left.entries)
        self._judge_checksums()
        self._add_tensors()
        rule, lead = ("CK025", cause.message) if cause else ("CK020", "the file has no end")
        intact = sum(self._region(key) is not None for key in self._storages)
        message = "%s: %s" % (lead, self._tell_left(intact, left.damaged))
        checkpoint.add(rule, message, intact=intact, storages=len(self._storages))
        return checkpoint

    def _expected_size(self, entries: List[Entry], name: str) -> Optional[int]:
        """Tell the size of a storage from the pickle, which stands in front of them."""
        if "/data/" not in name:
            return None
        if self._decoded is None and not self._checkpoint.found:
            self._decode(entries)
        return self._storages.get(name.rpartition("/data/")[2])

    def _tell_left(self, intact: int, damaged: str) -> str:
        zeros = _zeros_at_end(self._source)
        ending = "; its last %s are zero" % count_of(zeros, "byte") if zeros >= _TELLING_ZEROS else ""
        if self._decoded is None:
            return "the map of its tensors (data.pkl) is not whole, so nothing in it can be used%s" % ending
        text = "%d of %s intact" % (intact, count_of(len(self._storages), "storage"))
        if damaged:
            key = damaged.rpartition("/data/")[2]
            name = next((" (%s)" % each.name for each in self._checkpoint.unchecked if each.place == key), "")
            text += ", first damaged: %s%s" % (clean_text(damaged, 100), name)
        return text + ending

    # --- the pickle --------------------------------------------------------------------------------------------------

    def _decode(self, entries: List[Entry]) -> None:
        """Decode the pickle that torch would load, and look at what others would do."""
        pickles = [entry for entry in entries if entry.name.endswith(".pkl")]
        main = next((entry for entry in pickles if _is_pickle(entry.name)), None)
        checkpoint = self._checkpoint
        if sum(_is_pickle(entry.name) for entry in pickles) > 1:
            checkpoint.add("CK102", "more than one data.pkl, so readers may load different ones")
        if main is None:
            return
        self._prefix = main.name[: -len(_PICKLE)]
        if any(entry.name == self._prefix + "constants.pkl" for entry in entries):
            checkpoint.format = "torchscript"
        for entry in pickles[:_MAX_PICKLES]:
            decoded = decode_pickle(
                self._source, entry.offset, entry.offset + entry.size, checkpoint, clean_text(entry.name, 100)
            )
            if entry is main and decoded is not None:
                self._decoded = decoded
                stored = [storage_of(node) for node in decoded.persistent]
                self._storages = {storage.key: storage.held for storage in stored if storage is not None}
        if checkpoint.format == "torchscript":
            self._note_constants(entries)
        order = next((entry for entry in entries if entry.name == self._prefix + "byteorder"), None)
        self._big_endian = order is not None and self._source.read(order.offset, min(order.size, 16)) == b"big"

    def _note_constants(self, entries: List[Entry]) -> None:
        for entry in entries:
            if entry.name.startswith(self._prefix + "constants/"):
                name = clean_text(entry.name, 200)
                self._checkpoint.unchecked.append(Unchecked(name, "?", entry.size, "a constant of the program", name))

    # --- records -----------------------------------------------------------------------------------------------------

    def _add_regions(self, entries: List[Entry]) -> None:
        for entry in sorted(entries, key=lambda entry: entry.offset):
            self._regions[entry.name] = len(self._checkpoint.regions)
            self._checkpoint.regions.append(Region(0, entry.offset, entry.size, clean_text(entry.name, 200), entry.crc))

    def _region(self, key: str) -> Optional[int]:
        return self._regions.get("%sdata/%s" % (self._prefix, key))

    def _judge_checksums(self) -> None:
        """Tell checksums that were never written from wrong ones."""
        checkpoint = self._checkpoint
        data = [index for name, index in self._regions.items() if name.startswith(self._prefix + "data/")]
        full = [index for index in data if checkpoint.regions[index].size]
        pickled = self._regions.get(self._prefix + _PICKLE)
        if not full or pickled is None or any(checkpoint.regions[index].crc for index in full):
            return
        if checkpoint.regions[pickled].crc:
            checkpoint.add(
                "CK027",
                "none of %s was ever filled in: the file was written under skip_data" % count_of(len(full), "storage"),
                storages=len(full),
            )
        else:
            checkpoint.add(
                "CK028", "the file was saved without checksums, so damaged bytes can't be told from good ones"
            )
        for index, region in enumerate(checkpoint.regions):
            checkpoint.regions[index] = region._replace(crc=region.crc or None)

    # --- tensors -----------------------------------------------------------------------------------------------------

    def _add_tensors(self) -> None:
        decoded, checkpoint = self._decoded, self._checkpoint
        if decoded is None:
            return
        checkpoint.decoded = True
        placed = survey(decoded.root)
        for item in placed:
            self._place(item)
        known = {item.tensor.key for item in placed if isinstance(item.tensor, Stored)}
        for node in decoded.persistent:
            storage = storage_of(node)
            if (
                storage is not None
                and storage.key not in known
                and (storage.dtype is None or storage.dtype.kind != "clean")
            ):
                known.add(storage.key)
                self._place_stored(storage, "storage %s" % clean_text(storage.key, 50), OTHER, "")
        checkpoint.step, checkpoint.epoch = progress(decoded.root, self._number)

    def _place(self, item: Placed) -> None:
        tensor, name = item.tensor, item.name
        if isinstance(tensor, Stored):
            self._place_stored(tensor, name, item.role, item.key)
        elif isinstance(tensor, Bare):
            self._checkpoint.empty.append(name)
        elif isinstance(tensor, Array):
            self._place_array(tensor, name, item.role, item.key)
        else:
            self._malformed(name, tensor)

    def _malformed(self, name: str, broken: Broken) -> None:
        self._checkpoint.add("CK025", "tensor %s can't be rebuilt: %s" % (name, broken.reason), tensor=name)

    def _place_stored(self, stored: Stored, name: str, role: str, key: str) -> None:
        checkpoint = self._checkpoint
        dtype = stored.dtype
        if dtype is None or dtype.kind == "opaque" or self._big_endian:
            known = "big-endian" if self._big_endian else "codes without a value of their own"
            self._pass_over(name, stored, known if dtype is not None else UNKNOWN_FORMAT)
            return
        index = self._region(stored.key)
        if index is None:
            self._pass_over(name, stored, "cut off" if checkpoint.truncated else "its record is missing")
            if not checkpoint.truncated:
                message = "tensor %s has no data: record data/%s is missing" % (name, clean_text(stored.key, 50))
                checkpoint.add("CK025", message, tensor=name)
            return
        region = checkpoint.regions[index]
        if stored.held != region.size:
            message = "%s should have %s, but its record %s has %s"
            sizes = count_of(stored.held, "byte"), region.name, count_of(region.size, "byte")
            checkpoint.add("CK025", message % (name, *sizes), tensor=name)
        tensor = Tensor(name, role, dtype, stored.shape, stored.stride, index, stored.offset * dtype.size, key)
        runs = pieces(tensor, 1)
        if runs and runs[-1][1] > min(region.size, stored.held):
            message = "tensor %s reaches beyond its storage: to byte %s of %s"
            checkpoint.add("CK025", message % (name, format(runs[-1][1], ","), format(region.size, ",")), tensor=name)
            self._pass_over(name, stored, "reaches beyond its storage")
            return
        checkpoint.tensors.append(tensor)

    def _pass_over(self, name: str, stored: Stored, reason: str) -> None:
        dtype = stored.dtype.name if stored.dtype is not None else clean_text(stored.dtype_name, 50)
        self._checkpoint.unchecked.append(Unchecked(name, dtype, stored.held, reason, stored.key))

    def _place_array(self, array: Array, name: str, role: str, key: str) -> None:
        dtype, data = array.dtype, array.data
        if dtype is not None and not dtype.floating:
            return
        size = data.size if data is not None else 0
        if dtype is None or data is None:
            if dtype is None and not array.dtype_name.lstrip("<>|=").startswith(("f", "c", "g")):
                return
            reason = "numpy array of a number format not known" if dtype is None else "numpy array written as text"
            self._checkpoint.unchecked.append(Unchecked(name, clean_text(array.dtype_name, 50), size, reason))
            return
        count = data.size // dtype.size
        self._checkpoint.regions.append(Region(0, data.offset, count * dtype.size, name))
        tensor = Tensor(name, role, dtype, (count,), (1,), len(self._checkpoint.regions) - 1, 0, key)
        self._checkpoint.tensors.append(tensor)

    # --- numbers -----------------------------------------------------------------------------------------------------

    def _number(self, node: object) -> Optional[Number]:
        """Read a plain number, a numpy scalar or a tensor of one element."""
        if isinstance(node, (int, float)):
            return None if isinstance(node, bool) or abs(node) > 1 << 62 else node
        if isinstance(node, Call) and node.path.endswith(".multiarray.scalar") and len(node.args) == 2:
            return self._scalar(numpy_dtype(node.args[0]), node.args[1])
        tensor = rebuild(node) if isinstance(node, (Call, Persistent)) else None
        if not isinstance(tensor, Stored) or tensor.dtype is None or any(size != 1 for size in tensor.shape):
            return None
        index = self._region(tensor.key)
        if index is None or self._big_endian:
            return None
        region = self._checkpoint.regions[index]
        start = tensor.offset * tensor.dtype.size
        if start + tensor.dtype.size > region.size:
            return None
        return _unpacked(tensor.dtype.name, self._source.read(region.offset + start, tensor.dtype.size))

    def _scalar(self, dtype: str, data: Any) -> Optional[Number]:
        if isinstance(data, Blob) and data.size <= 16:
            return _unpacked(dtype, self._source.read(data.offset, data.size))
        # Protocol 2 has no bytes: numpy's come as text and the name of an encoding.
        if isinstance(data, Call) and data.path == "_codecs.encode" and data.args and isinstance(data.args[0], str):
            return _unpacked(dtype, data.args[0].encode("latin-1", "replace"))
        return None


_CODES = {
    "float64": "<d",
    "float32": "<f",
    "float16": "<e",
    "int64": "<q",
    "int32": "<i",
    "int16": "<h",
    "int8": "<b",
    "uint64": "<Q",
    "uint32": "<I",
    "uint16": "<H",
    "uint8": "<B",
}


def _unpacked(dtype: str, data: bytes) -> Optional[Number]:
    if dtype == "bfloat16":
        dtype, data = "float32", b"\x00\x00" + data
    code = _CODES.get(dtype)
    if code is None or struct.calcsize(code) != len(data):
        return None
    number: Number = struct.unpack(code, data)[0]
    return number


def _zeros_at_end(source: Source) -> int:
    """Count the zero bytes at the end, no more than the last MiB's."""
    size = min(source.size, 1 << 20)
    tail = source.read(source.size - size, size)
    return len(tail) - len(tail.rstrip(b"\0"))


def decode_pickle(source: Source, start: int, end: int, checkpoint: Checkpoint, record: str) -> Optional[Decoded]:
    """Decode one pickle and note what loading it would do; None when it can't be decoded."""
    machine = Machine(source, start, end)
    decoded = None
    try:
        decoded = machine.decode()
    except BombError as error:
        checkpoint.add("CK103", "%s is built to exhaust its reader: %s" % (record, error), record=record)
    except TooLargeError as error:
        checkpoint.add(
            "CK103", "%s is too large to be decoded: %s" % (record, error), severity="suspect", record=record
        )
    except PickleError as error:
        checkpoint.add("CK025", "%s can't be decoded: %s" % (record, error), record=record)
    # What stands before an error runs before it, too.
    checkpoint.found += policy.judge(machine.uses, machine.oddities, record)
    return decoded
