"""The reader of what torch.save writes since torch 1.6: a zip of a pickle and a record for each storage."""

from __future__ import annotations

import itertools
import operator
from typing import TYPE_CHECKING, Dict, Iterable, List, Optional

from ..model import Checkpoint, FlawedError, Found, Region, clean_text, count_of
from ..patterns import pattern
from ..pickles.machine import BUDGET
from ..pickles.rebuild import storages_of
from .absence import tell_zeros
from .archive import Directory, Entry, read_directory
from .torch_objects import Loaded, Objects, decode_pickle

if TYPE_CHECKING:
    from ..pickles.nodes import Decoded
    from ..source import Source

# What is made of every record takes half the time so.
_new = tuple.__new__
_PICKLE = "data.pkl"
# Of a TorchScript program; what torch.jit.freeze makes of parameters is there, too.
_CONSTANTS = "constants.pkl"
_MAX_PICKLES = 8
_LONGEST_NAME = 200
# What pickles beside the main one may take; they hold next to nothing.
_SIDE_BUDGET = 16 * 1024 * 1024
# How pickles begin: with their protocol, or with the name of a module.
_HIDDEN = pattern(rb"\x80[\x02-\x05]|c[\w.]{3}|\(c")
_MAX_HIDDEN = 64
_HIDDEN_BUDGET = 1024 * 1024


def read_torch_zip(source: Source) -> Optional[Loaded]:
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
    damaged = (str((each.data or {}).get("record")) for each in directory.found)
    if not any(map(_is_pickle, itertools.chain((entry.name for entry in directory.entries), damaged))):
        return None
    return _Reader(source).whole(directory)


def _is_pickle(name: str) -> bool:
    return name.rpartition("/")[2] == _PICKLE


class _Reader:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._checkpoint = Checkpoint("torch-zip", source.size)
        self._decoded: Optional[Decoded] = None
        self._constants: Optional[Decoded] = None
        self._storages: Optional[Dict[str, int]] = None
        # By the keys of storages, and by the names of all other records.
        self._data: Dict[str, int] = {}
        self._regions: Dict[str, int] = {}
        self._prefix = ""
        self._looked = False
        self._big_endian = False

    def whole(self, directory: Directory) -> Loaded:
        """Read a file that has its directory."""
        checkpoint = self._checkpoint
        checkpoint.found += directory.found
        self._decode(directory.entries)
        if directory.packed and checkpoint.format != "torchscript":
            text = "%s compressed, which torch does only with the sources of programs"
            checkpoint.add("CK102", text % count_of(directory.packed, "record"))
        if directory.overlaps:
            return Loaded(checkpoint, self._decoded, Objects(self._source, checkpoint, {}).number)
        self._add_regions(directory.entries)
        self._judge_checksums()
        return self._place()

    def salvaged(self, cause: Optional[Found] = None) -> Loaded:
        """Read what is left of a file without its end, or with a damaged directory (the cause)."""
        from .salvage import walk

        checkpoint = self._checkpoint
        checkpoint.truncated = True
        left = walk(self._source, self._expected_size)
        if self._decoded is None:
            checkpoint.found.clear()  # it is found again, with what stands behind the first storage
            self._decode(left.entries)
        self._add_regions(left.entries)
        self._judge_checksums()
        storages = self._sizes()
        loaded = self._place()
        rule, lead = ("CK025", cause.message) if cause else ("CK020", "the file has no end")
        intact = sum(key in self._data for key in storages)
        message = "%s: %s" % (lead, self._tell_left(intact, len(storages), left.damaged))
        checkpoint.add(rule, message, intact=intact, storages=len(storages))
        return loaded

    def _expected_size(self, entries: List[Entry], name: str) -> Optional[int]:
        """Tell the size of a storage from the pickle, which stands in front of them."""
        if "/data/" not in name:
            return None
        if not self._looked:
            self._looked = True
            self._decode(entries)
        return self._sizes().get(name.rpartition("/data/")[2])

    def _sizes(self) -> Dict[str, int]:
        """Return the bytes that each storage has by the pickle."""
        if self._decoded is None:
            return {}
        if self._storages is None:
            self._storages = {key: storage.held for key, storage in storages_of(self._decoded).items()}
        return self._storages

    def _tell_left(self, intact: int, storages: int, damaged: str) -> str:
        ending = tell_zeros(self._source)
        if self._decoded is None:
            return "the map of its tensors (data.pkl) is not whole, so nothing in it can be used%s" % ending
        text = "%d of %s intact" % (intact, count_of(storages, "storage"))
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
        if len(pickles) > _MAX_PICKLES:
            text = "%s, where torch writes one: only %d were looked at"
            checkpoint.add("CK102", text % (count_of(len(pickles), "pickle"), _MAX_PICKLES))
        self._prefix = main.name[: -len(_PICKLE)] if main is not None else ""
        for entry in pickles[:_MAX_PICKLES]:
            self._decode_one(entry, is_main=entry is main)
        self._look_for_hidden(entries)
        if main is not None:
            self._note_order(entries)

    def _decode_one(self, entry: Entry, *, is_main: bool) -> None:
        name, end = clean_text(entry.name, 100), entry.offset + entry.size
        budget = BUDGET if is_main else _SIDE_BUDGET
        decoded = decode_pickle(self._source, entry.offset, end, self._checkpoint, name, budget=budget)
        if is_main:
            self._decoded = decoded
        elif entry.name == self._prefix + _CONSTANTS:
            self._checkpoint.format = "torchscript"
            self._constants = decoded

    def _look_for_hidden(self, entries: List[Entry]) -> None:
        """Find pickles under other names: torch does not load them, but who looks for .pkl does not see them."""
        begun = (entry for entry in entries if entry.head.startswith((b"\x80", b"c", b"(")))
        suspects = [entry for entry in begun if _HIDDEN.match(entry.head) and not entry.name.endswith(".pkl")]
        for entry in suspects[:_MAX_HIDDEN]:
            name, end = clean_text(entry.name, 100), entry.offset + entry.size
            scratch = Checkpoint("", entry.size)
            decoded = decode_pickle(self._source, entry.offset, end, scratch, name, budget=_HIDDEN_BUDGET)
            harm = [each for each in scratch.found if each.rule in ("CK100", "CK101")]
            # TorchScript lays one of its own beside each source.
            if harm or (decoded is not None and not entry.name.endswith(".debug_pkl")):
                level = None if harm else "info"
                self._checkpoint.add("CK102", "record %s holds a pickle of its own" % name, severity=level, record=name)
                self._checkpoint.found += harm

    def _note_order(self, entries: List[Entry]) -> None:
        order = next((entry for entry in entries if entry.name == self._prefix + "byteorder"), None)
        self._big_endian = order is not None and self._source.read(order.offset, min(order.size, 16)) == b"big"
        if self._big_endian:
            text = "it was written on a big-endian machine, and so are the bytes of its numbers"
            self._checkpoint.add("CK124", text)

    # --- records -----------------------------------------------------------------------------------------------------

    def _add_regions(self, entries: List[Entry]) -> None:
        """Take the records over; many take much memory, so they are given up for their regions."""
        entries.sort(key=operator.attrgetter("offset"))
        names, _, offsets, sizes, crcs, _ = zip(*entries) if entries else ((),) * 6
        entries.clear()
        # Texts are fit to be shown when all of them in a row are.
        listed = "".join(names)
        if clean_text(listed, len(listed)) != listed or max(map(len, names), default=0) > _LONGEST_NAME:
            shown: Iterable[str] = [clean_text(name, _LONGEST_NAME) for name in names]
        else:
            shown = names
        front = self._prefix + "data/"
        for index, name in enumerate(names, len(self._checkpoint.regions)):
            if name.startswith(front):
                self._data[name[len(front) :]] = index
            else:
                self._regions[name] = index
        places = map(self._source.base.__add__, offsets)
        fields = zip(itertools.repeat(0), places, sizes, shown, crcs, itertools.repeat(None))
        self._checkpoint.regions += map(_new, itertools.repeat(Region), fields)

    def _place(self) -> Loaded:
        objects = Objects(self._source, self._checkpoint, self._data, big_endian=self._big_endian)
        if self._decoded is not None:
            objects.add(self._decoded)
        if self._constants is not None:
            front = self._prefix + "constants/"
            own = {name[len(front) :]: index for name, index in self._regions.items() if name.startswith(front)}
            constants = Objects(self._source, self._checkpoint, own, big_endian=self._big_endian)
            constants.add_constants(self._constants)
        return Loaded(self._checkpoint, self._decoded, objects.number)

    def _judge_checksums(self) -> None:
        """Tell checksums that were never written from wrong ones."""
        checkpoint = self._checkpoint
        full = [index for index in self._data.values() if checkpoint.regions[index].size]
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
