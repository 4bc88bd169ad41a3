"""From a pickle that torch wrote to what it holds: tensors among a container's regions, plain numbers, and progress."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Dict, FrozenSet, Optional, Set, Tuple, Type, Union

from ..model import MODEL, OTHER, UNKNOWN_FORMAT, Checkpoint, Region, Tensor, Unchecked, clean_text, count_of, product
from ..pickles import policy
from ..pickles.layout import settled, survey
from ..pickles.machine import BUDGET, Machine
from ..pickles.nodes import (
    INNER,
    Blob,
    BombError,
    Call,
    CutOffError,
    Decoded,
    Persistent,
    PickleError,
    TooLargeError,
    string_items,
)
from ..pickles.opaque import opaque
from ..pickles.rebuild import (
    UNDESCRIBED,
    Array,
    Bare,
    Broken,
    Stored,
    common,
    encoded,
    numpy_dtype,
    others,
    reach,
    read_saved,
    rebuild,
)
from ..pickles.saved import Saved
from ..pickles.training import learn
from ..records import Record
from ..source import Held, Near

if TYPE_CHECKING:
    from ..model import Number
    from ..pickles.layout import ReadNumber
    from ..pickles.rebuild import Rebuilt
    from ..source import Source


# What is made of every tensor takes half the time so.
_new = tuple.__new__
# The pickles in front of a storage take less.
_MOST_TEXT = 1024 * 1024
# Of a pickle, so many bytes of arrays that are written as text are looked at: they have to be held in memory.
_MOST_HELD = 4 * 1024 * 1024
# Beyond so many tensors of storages that others show, too, those that show the same in the same role are passed over.
_MOST_SHARED = 10_000
# Tensors that are wrong are reported one by one, as far as anybody would read it.
_MOST_FAULTS = 1_000


class Loaded(Record):
    """Hold what was read of a file.

    `decoded` is None when it holds no pickle, or none that can be decoded. `number` reads a plain number, a numpy
    scalar or a tensor of one element of it, while the file is open; None for anything else.
    """

    checkpoint: Checkpoint
    decoded: Optional[Decoded]
    number: ReadNumber

    @property
    def entries(self) -> Dict[str, Any]:
        """Return what the object has under text keys."""
        return dict(string_items(self.decoded.root)) if self.decoded is not None else {}


def bare(source: Source, checkpoint: Checkpoint) -> Loaded:
    """Return a checkpoint that has no pickle, or none that can be decoded."""
    return Loaded(checkpoint, None, Objects(source, checkpoint, {}).number)


def decode_pickle(
    source: Source,
    start: int,
    end: int,
    checkpoint: Checkpoint,
    record: str,
    *,
    plain: FrozenSet[str] = frozenset(),
    budget: int = BUDGET,
    kind: Type[Machine] = Machine,
) -> Optional[Decoded]:
    """Decode one pickle and note what loading it would do; None when it can't be decoded.

    `plain` are the dotted paths of classes that are nothing special in it, `budget` is the memory that it may take,
    `kind` the machine that decodes it.
    """
    machine = kind(source, start, end, budget)
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
        cut = isinstance(error, CutOffError) and end == source.size
        if any(found.module == "joblib.numpy_pickle" for found in machine.uses) and not cut:
            checkpoint.unsupported = "joblib wrote it, with arrays between its opcodes, which can't be audited yet"
        else:
            checkpoint.truncated = checkpoint.truncated or cut
            checkpoint.add("CK020" if cut else "CK025", "%s can't be decoded: %s" % (record, error), record=record)
    # What stands before an error runs before it, too.
    uses = {found: ways for found, ways in machine.uses.items() if found.path not in plain}
    checkpoint.found += policy.judge(uses, machine.oddities, record)
    return decoded


class Objects:
    """Place what a pickle describes in a checkpoint.

    `regions` says for the key of a storage which region of the checkpoint holds its bytes; they are big-endian all
    together or not at all. `tensors` has, by the `id` of the node that describes it, the index of each placed tensor.
    """

    def __init__(
        self, source: Source, checkpoint: Checkpoint, regions: Dict[str, int], *, big_endian: bool = False
    ) -> None:
        self._source = source
        self._checkpoint = checkpoint
        self._regions = dict(regions)
        self._big_endian = big_endian
        self._faults = 0
        self._textual: Set[str] = set()
        self._room = _MOST_HELD
        self._decoded: Set[int] = set()
        self._near = Near(source)
        self.tensors: Dict[int, int] = {}

    def add(self, decoded: Decoded) -> None:
        """Place every tensor, storages that no tensor shows included, and read how far training was."""
        checkpoint = self._checkpoint
        checkpoint.decoded = True
        self._open_inner(decoded)
        known = self._add_tensors(decoded.root)
        for storage in others(decoded, known):
            if storage.dtype is None or storage.dtype.kind != "clean":
                self._place_stored(storage, "storage %s" % clean_text(storage.key, 50), OTHER, "", None)
        self._sum_faults()
        learn(checkpoint, decoded.root, self.number, self.tensors)
        self._note_opaque(decoded)

    def _add_tensors(self, root: object) -> Set[str]:
        """Place every tensor of an object; return the keys of the storages that they show."""
        checkpoint, places = self._checkpoint, self._regions
        regions, tensors = checkpoint.regions, checkpoint.tensors
        first = len(tensors)
        known: Set[str] = set()
        roles: Set[str] = set()
        views: Set[Tuple[Any, ...]] = set()
        usual = not (self._big_endian or self._textual)
        for number, (name, role, key, tensor, node) in enumerate(survey(root)):
            roles.add(role)
            if tensor is None and usual and number - len(known) <= _MOST_SHARED:
                like = node.like
                _, most, held, size, dtype, _, shape, stride = like.meaning or common(like)
                index, begin = places.get(node.key), node.offset * size
                # Of most tensors, there is nothing to be said.
                if index is not None and begin <= most and regions[index].size == held:
                    known.add(node.key)
                    self.tensors[id(node)] = len(tensors)
                    tensors.append(_new(Tensor, (name, role, dtype, shape, stride, index, begin, key, None)))
                    continue
            stored = tensor or read_saved(node)
            if isinstance(stored, Stored):
                known.add(stored.key)
                if number - len(known) > _MOST_SHARED:
                    # A number format takes long to be hashed.
                    view = (role, stored.key, stored.dtype_name, stored.offset, stored.shape, stored.stride)
                    if view in views:
                        continue
                    views.add(view)
            self._place(stored, name, role, key, node)
        changed = settled(roles)
        for index in range(first, len(tensors)) if not roles.isdisjoint(changed) else ():
            placed = tensors[index]
            if placed.role in changed:
                tensors[index] = placed._replace(role=changed[placed.role])
        return known

    def add_constants(self, decoded: Decoded) -> None:
        """Place the tensors that a program holds beside its modules; they are its weights where those have none."""
        role = OTHER if self._checkpoint.tensors else MODEL
        for name, _, key, tensor, node in survey(decoded.root):
            self._place(tensor or read_saved(node), "constants.%s" % name, role, key, node)
        self._sum_faults()

    def _fault(self, message: str, name: str) -> None:
        self._faults += 1
        if self._faults <= _MOST_FAULTS:
            self._checkpoint.add("CK025", message, tensor=name)

    def _sum_faults(self) -> None:
        more = self._faults - _MOST_FAULTS
        if more > 0:
            self._checkpoint.add("CK025", "%s more of which the like is true" % count_of(more, "tensor"))

    def _note_opaque(self, decoded: Decoded) -> None:
        checkpoint = self._checkpoint
        sizes = opaque(decoded, self._decoded)
        for path, size in sizes.items():
            name = clean_text(path, 200)
            checkpoint.unchecked.append(Unchecked(name, "bytes", size, "state of a class that is not known"))
        if sizes:
            text = "%s belong to objects that only their own classes can read: %s"
            names = [clean_text(path, 200) for path in sizes]
            checkpoint.add("CK106", text % (count_of(sum(sizes.values()), "byte"), ", ".join(names[:3])), classes=names)

    def _open_inner(self, decoded: Decoded) -> None:
        """Find the storages that lie inside the pickle, each in a small file of its own."""
        known: Dict[Any, Union[Stored, Broken]] = {}
        for node in decoded.persistent:
            if isinstance(node.id, tuple) and len(node.id) == 2 and node.id[0] == INNER:
                data = node.id[1]
                mark = data if isinstance(data, (Blob, str)) else id(data)
                if mark not in known:
                    known[mark] = self._inner(data)
                node.meaning = known[mark]

    def _inner(self, data: Any) -> Union[Stored, Broken]:
        from .old_pickles import find_storage

        checkpoint = self._checkpoint
        source = _opened(self._source, data)
        if isinstance(data, Blob):
            self._decoded.add(data.offset)
        found = find_storage(source, checkpoint) if source is not None else None
        if source is None or found is None:
            return UNDESCRIBED
        stored, begin = found[0]._replace(key="%s inside the pickle" % found[0].key), found[1]
        held = source.read(begin, stored.held) if isinstance(source, Held) else None
        if held is not None and len(held) < stored.held:
            self._textual.add(stored.key)
            return stored
        if begin + stored.held != source.size:
            sizes = count_of(stored.held, "byte"), count_of(source.size - begin, "byte")
            return Broken("its storage of %s lies in %s" % sizes)
        self._add_region(stored.key, source.base + begin, stored.held, held)
        return stored

    def _add_region(self, key: str, offset: int, size: int, data: Optional[bytes] = None) -> None:
        regions = self._checkpoint.regions
        self._regions[key] = len(regions)
        regions.append(Region(0, offset, size, "storage %s" % key, None, data))

    def _place(self, tensor: Rebuilt, name: str, role: str, key: str, node: object) -> None:
        if isinstance(tensor, Stored):
            self._place_stored(tensor, name, role, key, node)
        elif isinstance(tensor, Bare):
            self._checkpoint.empty.append(name)
        elif isinstance(tensor, Array):
            self._place_array(tensor, name, role, key, node)
        else:
            self._fault("tensor %s can't be rebuilt: %s" % (name, tensor.reason), name)

    def _place_stored(self, stored: Stored, name: str, role: str, key: str, node: object) -> None:
        checkpoint, regions = self._checkpoint, self._checkpoint.regions
        storage, held, dtype, _, offset, shape, stride = stored
        if dtype is None or not dtype.size or dtype.kind == "opaque" or self._big_endian or storage in self._textual:
            unreadable = self._unreadable(stored)
            if dtype is None or unreadable:
                self._pass_over(name, stored, unreadable)
                return
        index = self._regions.get(storage)
        if index is None:
            self._pass_over(name, stored, "cut off" if checkpoint.truncated else "its storage is missing")
            if not checkpoint.truncated:
                message = "tensor %s has no data: storage data/%s is missing" % (name, clean_text(storage, 50))
                self._fault(message, name)
            return
        size = regions[index].size
        if held != size:
            message = "%s should have %s, but its record %s has %s"
            sizes = count_of(held, "byte"), regions[index].name, count_of(size, "byte")
            self._fault(message % (name, *sizes), name)
        begin = offset * dtype.size
        end = begin + reach(shape, stride) * dtype.size
        if end > size or end > held:
            message = "tensor %s reaches beyond its storage: to byte %s of %s"
            self._fault(message % (name, format(end, ","), format(size, ",")), name)
            self._pass_over(name, stored, "reaches beyond its storage")
            return
        if node is not None:
            self.tensors[id(node)] = len(checkpoint.tensors)
        checkpoint.tensors.append(_new(Tensor, (name, role, dtype, shape, stride, index, begin, key, None)))

    def _unreadable(self, stored: Stored) -> str:
        """Say why the values of a tensor can't be looked at, wherever they are; nothing when they can."""
        dtype = stored.dtype
        if dtype is None or not dtype.size:
            return UNKNOWN_FORMAT
        if dtype.kind == "opaque":
            return "codes without a value of their own"
        if self._big_endian and dtype.floating and dtype.lane > 1:
            return "big-endian"
        return "written as text" if stored.key in self._textual else ""

    def _pass_over(self, name: str, stored: Stored, reason: str) -> None:
        dtype = stored.dtype.name if stored.dtype is not None else clean_text(stored.dtype_name, 50)
        self._checkpoint.unchecked.append(Unchecked(name, dtype, stored.held, reason, stored.key))

    def _place_array(self, array: Array, name: str, role: str, key: str, node: object) -> None:
        checkpoint, dtype, data = self._checkpoint, array.dtype, array.data
        if isinstance(data, Blob):
            self._decoded.add(data.offset)
        if dtype is not None and not dtype.floating:
            return
        size = product(array.shape) * dtype.size if dtype is not None else data.size if isinstance(data, Blob) else 0
        region = self._find_array(data, name) if dtype is not None else None
        if dtype is None or region is None:
            # Text, dates and whole numbers have nothing to check; V is a record of several fields.
            if dtype is not None or array.dtype_name.lstrip("<>|=").startswith(("f", "c", "g", "V")):
                reason = "numpy array of a number format not known" if dtype is None else "numpy array written as text"
                checkpoint.unchecked.append(Unchecked(name, clean_text(array.dtype_name, 50), size, reason))
            return
        if size != region.size:
            message = "array %s should have %s, but has %s"
            message %= (name, count_of(size, "byte"), count_of(region.size, "byte"))
            self._fault(message, name)
            return
        self.tensors[id(node)] = len(checkpoint.tensors)
        tensor = Tensor(name, role, dtype, array.shape, array.stride, len(checkpoint.regions), 0, key)
        checkpoint.regions.append(region)
        checkpoint.tensors.append(tensor)

    def _find_array(self, data: Union[Blob, str, None], name: str) -> Optional[Region]:
        """Return where the bytes of an array are; None when they can't be had, or not at a bearable price."""
        base = self._source.base
        if isinstance(data, Blob) and not data.text:
            return Region(0, base + data.offset, data.size, name)
        if data is None or (len(data) if isinstance(data, str) else data.size) > 2 * self._room:
            return None
        try:
            held = _text(self._source, data, "strict").encode("latin-1")
        except UnicodeError:
            return None
        self._room -= len(held)
        offset = data.offset if isinstance(data, Blob) else 0
        return Region(0, base + offset, len(held), name, None, held)

    # --- numbers -----------------------------------------------------------------------------------------------------

    def number(self, node: object) -> Optional[Number]:
        """Read a plain number, a numpy scalar or a tensor of one element."""
        if isinstance(node, (int, float)):
            return plain_number(node)
        if type(node) is Saved and id(node) in self.tensors:
            return self._only_element(self._checkpoint.tensors[self.tensors[id(node)]])
        if isinstance(node, Call) and node.path.endswith(".multiarray.scalar") and len(node.args) == 2:
            return self._scalar(numpy_dtype(node.args[0]), node.args[1])
        stored = rebuild(node) if isinstance(node, (Call, Persistent)) else None
        if not isinstance(stored, Stored) or stored.dtype is None:
            return None
        index, start = self._regions.get(stored.key), stored.offset * stored.dtype.size
        if index is None or start + stored.dtype.size > self._checkpoint.regions[index].size:
            return None
        return self._only_element(Tensor("", OTHER, stored.dtype, stored.shape, stored.stride, index, start))

    def _only_element(self, tensor: Tensor) -> Optional[Number]:
        if self._big_endian or tensor.numel != 1:
            return None
        region, size = self._checkpoint.regions[tensor.region], tensor.dtype.size
        if region.data is not None:
            return unpacked(tensor.dtype.name, region.read(self._source, tensor.start, size))
        data, at = self._near.read(region.offset - self._source.base + tensor.start, size)
        return unpacked(tensor.dtype.name, data[at : at + size])

    def _scalar(self, dtype: str, data: Any) -> Optional[Number]:
        if isinstance(data, Blob) and data.size <= 16:
            return unpacked(dtype, self._source.read(data.offset, data.size))
        text = encoded(data)
        return unpacked(dtype, text.encode("latin-1", "replace")) if isinstance(text, str) else None


def plain_number(node: object) -> Optional[Number]:
    """Return a number as it is; None for anything else, and for what no counter and no rate can be."""
    known = isinstance(node, (int, float)) and not isinstance(node, bool) and not abs(node) > 1 << 62
    return node if known else None  # type: ignore[return-value]


_CODES = {
    "float64": struct.Struct("<d"),
    "float32": struct.Struct("<f"),
    "float16": struct.Struct("<e"),
    "int64": struct.Struct("<q"),
    "int32": struct.Struct("<i"),
    "int16": struct.Struct("<h"),
    "int8": struct.Struct("<b"),
    "uint64": struct.Struct("<Q"),
    "uint32": struct.Struct("<I"),
    "uint16": struct.Struct("<H"),
    "uint8": struct.Struct("<B"),
}


def unpacked(dtype: str, data: bytes) -> Optional[Number]:
    """Read one number of a format by its name; None when it has no such name or size."""
    if dtype == "bfloat16":
        dtype, data = "float32", b"\x00\x00" + data
    code = _CODES.get(dtype)
    if code is None or code.size != len(data):
        return None
    number: Number = code.unpack(data)[0]
    return number


def _opened(source: Source, data: Any) -> Optional[Source]:
    """Return bytes of a pickle as a file: in their place, or what matters of them when they are written as text."""
    data = encoded(data)
    if isinstance(data, Blob) and not data.text:
        return source.window(data.offset, data.size)
    if isinstance(data, Blob):
        data = data._replace(size=min(data.size, _MOST_TEXT))
    return Held(_text(source, data, "replace").encode("latin-1", "replace")) if isinstance(data, (Blob, str)) else None


def _text(source: Source, text: Union[Blob, str], errors: str) -> str:
    return text if isinstance(text, str) else source.read(text.offset, text.size).decode("utf-8", errors)
