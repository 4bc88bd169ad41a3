"""The items of a distributed checkpoint: each a torch file of its own, or many in one run of safetensors."""

from __future__ import annotations

import collections
import gc
import itertools
import zlib
from typing import TYPE_CHECKING, Any, Counter, Dict, List, Optional, Tuple

from ..dtypes import DTYPES
from ..model import MASTER, MODEL, OPTIMIZER, Checkpoint, Found, Piece, Unchecked, clean_text, count_of, product
from ..pickles.layout import THE_WHOLE
from ..pickles.nodes import Pairs, Persistent, string_items
from ..pickles.training import learn
from ..records import Record
from ..rules.catalogue import severity
from ..rules.rule import BAD, INFO, SUSPECT
from .absence import note_absence
from .dcp_alike import Forms
from .flattened import Leaves, slot
from .reader import read_torch_file
from .torch_objects import plain_number, unpacked

if TYPE_CHECKING:
    from ..model import Number, Region
    from ..source import Source
    from .dcp_alike import Alike
    from .dcp_metadata import Item, Whole
    from .flattened import Names
    from .folder import Folder
    from .torch_objects import Loaded

# Records that only describe an item; it has six, and to keep them all would take more memory than the tensors do.
_SMALL = 4096
# Bytes of a tensor's item that are not the tensor: 1,500, and what aligns it.
_AROUND = 16 << 10
# Bytes that the pickles of all other items may have beyond their first KB. What is in more is told unchecked: it is the
# state of a data loader at most, and to look into all of it could take hours.
_PICKLED, _EACH = 512 << 10, 1 << 10
# What pickles describe may hold itself, and nobody collects such garbage while an audit runs.
_COLLECT_AFTER = 128 << 10
# Of an object's plain values; those that tell of the training are few.
_MOST_ENTRIES = 100
# What is said of bytes that are no torch file, or not the whole of one.
_UNREADABLE = ("CK020", "CK021", "CK025")


class _Said(Record):
    found: Found
    items: List[str]


class Items:
    """Read items into a checkpoint, and put together again what was taken apart into them."""

    def __init__(self, folder: Folder, checkpoint: Checkpoint, names: Names, tensors: Dict[str, Whole]) -> None:
        self._folder = folder
        self._checkpoint = checkpoint
        self._names = names
        self._tensors = tensors
        self._leaves = Leaves(names)
        # A leaf is known by its `id` as long as it lives.
        self._kept: List[Persistent] = []
        self._indices: Dict[int, int] = {}
        self._numbers: Dict[int, Number] = {}
        # By file, then by what was said: the items of which it is true.
        self._said: Dict[str, Dict[Tuple[str, str, Optional[str]], _Said]] = {}
        self._items: Counter[str] = collections.Counter()
        self._misplaced: Dict[str, List[str]] = {}
        self._transforms: Dict[str, int] = {}
        self._left = _PICKLED
        self._forms = Forms()

    def read(self, path: str, items: List[Item]) -> None:
        """Read the items of one file, which lie inside it."""
        self._items[path] += len(items)
        ordered = sorted(items, key=lambda item: (item.offset, item.length))
        runs = [list(run) for _, run in itertools.groupby(ordered, lambda item: item.offset)]
        ends = [run[0].offset for run in runs[1:]]
        reached = left_out = 0
        shared = []
        with self._folder.open(path) as source:
            for run, end in zip(runs, [*ends, source.size]):
                offset = run[0].offset
                many = source.read(offset + 8, 1) == b"{"
                if offset < reached or (len(run) > 1 and not many):
                    shared += run
                    continue
                left_out += offset - reached
                reached = end if many else max(item.offset + item.length for item in run)
                if any(item.transforms for item in run):
                    self._pass_over_packed(run)
                elif self._left < 0 and not self._is_plain(run[0]):
                    self._lose(run, "there is too much to be decoded")
                elif many:
                    self._read_run(source.window(offset, end - offset), run)
                else:
                    self._read_item(source, run[0])
            left_out += source.size - reached
        if shared:
            message = "%s of %s with bytes that others have, too, first: %s"
            shown = count_of(len(shared), "item"), clean_text(path), clean_text(shared[0].name, 200)
            self._checkpoint.add("CK025", message % shown, file=self._file(path))
            self._lose(shared, "its place is another's, too")
        if left_out:
            unchecked = Unchecked(clean_text(path), "?", left_out, "belongs to no item", "%s between" % path)
            self._checkpoint.unchecked.append(unchecked)

    def finish(self) -> None:
        """Report what was found in items, and learn what they tell of the training together."""
        checkpoint = self._checkpoint
        for path in self._items:
            checkpoint.found += self._found(path, list(self._said.get(path, {}).values()))
        if self._transforms:
            count, kinds = sum(self._transforms.values()), ", ".join(sorted(self._transforms))
            checkpoint.unsupported = "%s compressed (%s): only what describes them was checked" % (
                count_of(count, "item"),
                kinds,
            )
        learn(checkpoint, self._leaves.root(), self._number, self._indices)

    def _found(self, path: str, said: List[_Said]) -> List[Found]:
        """Tell what is wrong with a file's items; once, where most of them are none: it is of another save."""
        file, shown, misplaced = self._file(path), clean_text(path), self._misplaced.get(path, [])
        unreadable = [each for each in said if each.found.rule in _UNREADABLE and severity(each.found) == BAD]
        items = list(dict.fromkeys([*misplaced, *(item for each in unreadable for item in each.items)]))
        message = "%s of %s not where .metadata says that they are, first: %s"
        count = count_of(len(misplaced), "item")
        if len(unreadable) > 1 and 2 * len(items) > self._items[path]:
            message = "%s of %s can't be read where .metadata has them, first: %s"
            count = "%s of %s" % (format(len(items), ","), count_of(self._items[path], "item"))
            misplaced, said = items, [each for each in said if each not in unreadable]
        told = [_told(file, each) for each in said]
        if misplaced:
            text = message % (count, shown, misplaced[0])
            told.insert(0, Found("CK064", text, {"file": file, "items": misplaced[:20]}))
        return told

    # --- reading -----------------------------------------------------------------------------------------------------

    def _read_item(self, source: Source, item: Item) -> None:
        window, shown = source.window(item.offset, item.length), clean_text(item.name)
        alike = self._forms.match(window)
        if alike is None or (alike.tensor is None) != (item.offsets is None):
            inner, pickled = self._read_whole(source, window, item)
        else:
            inner, pickled = self._read_alike(window, alike, item), alike.pickled
        if item.offsets is not None and len(inner.tensors) == 1:
            self._take_tensor(inner, 0, item, source)
        else:
            role = self._names.role(item.name)
            inner.tensors = [each._replace(name=_below(shown, each.name), role=role) for each in inner.tensors]
        inner.unchecked = [
            each._replace(name=_below(shown, each.name), place="%d/%s" % (item.offset, each.place or each.name))
            for each in inner.unchecked
        ]
        inner.empty = [_below(shown, name) for name in inner.empty]
        if not inner.decoded or not (item.offsets is None or inner.tensors or inner.unchecked or inner.empty):
            self._lose([item], "it can't be read")
            if all(severity(each) == INFO for each in inner.found):
                inner.add("CK025", "it is not what torch writes: %s" % (inner.unsupported or "no tensor is in it"))
        self._absorb(inner, item, clean_text(item.name, 200))
        self._spend(pickled if inner.decoded else item.length)

    def _read_whole(self, source: Source, window: Source, item: Item) -> Tuple[Checkpoint, int]:
        """Read an item of which there was no like; count the bytes of its pickles."""
        loaded = read_torch_file(window)
        inner = loaded.checkpoint
        if loaded.decoded is not None:
            self._forms.learn(window, inner, loaded.decoded.root)
            if item.offsets is None:
                self._take_object(item.name, loaded.decoded.root, loaded)
        pickled = sum(each.size for each in inner.regions if each.name.endswith(".pkl"))
        _thin_out(inner, source)
        return inner, pickled

    def _read_alike(self, window: Source, alike: Alike, item: Item) -> Checkpoint:
        """Return what reading all of it would come to."""
        inner = Checkpoint("torch-zip", window.size)
        inner.decoded = True
        if alike.tensor is not None and alike.region is not None:
            inner.tensors, inner.regions = [alike.tensor], [alike.region]
        else:
            self._leaves.add(item.name, alike.root)
        note_absence(window, inner)
        return inner

    def _read_run(self, source: Source, run: List[Item]) -> None:
        """Read safetensors that hold several items; their names tell which is which."""
        inner = read_torch_file(source).checkpoint
        places = {each.name: index for index, each in enumerate(inner.tensors)}
        others = {each.name for each in inner.unchecked}
        lost = []
        for item in run:
            name = clean_text(item.name)
            if name in places:
                self._take_tensor(inner, places[name], item, source)
            elif name not in others:
                lost.append(item)
        inner.unchecked = [each._replace(place="%d/%s" % (source.base, each.name)) for each in inner.unchecked]
        if lost:
            self._misplaced.setdefault(run[0].path, []).extend(clean_text(item.name, 200) for item in lost)
            self._lose(lost, "it is not where it should be")
        self._absorb(inner, run[0], clean_text(run[0].path))

    def _file(self, path: str) -> str:
        return clean_text(self._folder.locate(path), 1000)

    def _absorb(self, inner: Checkpoint, item: Item, shown: str) -> None:
        """Take over what was found in an item, but for what only its surroundings can tell."""
        for found in inner.found:
            key = found.rule, found.message, found.severity
            said = self._said.setdefault(item.path, {})
            said.setdefault(key, _Said(found, [])).items.append(shown)
        inner.found, inner.progress = [], []
        inner.parts.discard(MODEL)
        self._checkpoint.truncated = self._checkpoint.truncated or inner.truncated
        self._checkpoint.absorb(inner, self._folder.number(item.path))

    def _spend(self, size: int) -> None:
        """Account for a pickle of so many bytes."""
        before = self._left
        self._left -= max(0, size - _EACH)
        if before // _COLLECT_AFTER > self._left // _COLLECT_AFTER:
            gc.collect()

    def _is_plain(self, item: Item) -> bool:
        """Tell whether an item has little more than the bytes of the tensor that it is listed as."""
        whole = self._tensors.get(item.name)
        dtype = DTYPES.get(whole.dtype) if whole is not None else None
        if dtype is None or item.sizes is None:
            return False
        return item.length <= product(item.sizes) * dtype.bits // 8 + _AROUND

    def _pass_over_packed(self, run: List[Item]) -> None:
        for item in run:
            kind = clean_text(", ".join(item.transforms), 100) or "?"
            self._transforms[kind] = self._transforms.get(kind, 0) + 1
        self._lose(run, "compressed")

    def _lose(self, items: List[Item], reason: str) -> None:
        """Say of which items the values can't be looked at."""
        for item in items:
            whole = self._tensors.get(item.name)
            dtype = whole.dtype if whole is not None and whole.dtype else "?"
            place = "%d:%d" % (self._folder.number(item.path), item.offset)
            name = clean_text(item.name)
            self._checkpoint.unchecked.append(Unchecked(name, dtype, item.length, reason, place))

    # --- what belongs together ---------------------------------------------------------------------------------------

    def _take_tensor(self, inner: Checkpoint, index: int, item: Item, source: Source) -> None:
        """Give a tensor the name that it has in the whole, and hold it against what is said of it there."""
        tensor, whole = inner.tensors[index], self._tensors.get(item.name)
        name, role = clean_text(item.name), self._names.role(item.name)
        kept = slot(item.name) if role in (OPTIMIZER, MASTER) else None
        key = kept.key if kept is not None else item.name.rpartition(".")[2]
        piece = None
        if whole is not None and item.sizes is not None and item.offsets is not None:
            listed, held = (product(item.sizes), whole.dtype or tensor.dtype.name), (tensor.numel, tensor.dtype.name)
            if listed != held:
                message = "%s is listed with %s of %s, but its item in %s has %s of %s"
                numbers = [(count_of(count, "element"), dtype) for count, dtype in (listed, held)]
                text = message % (name, *numbers[0], clean_text(item.path), *numbers[1])
                level = None if listed[0] != held[0] else SUSPECT
                self._checkpoint.add("CK064", text, severity=level, tensor=name, file=self._file(item.path))
            if item.sizes != whole.size:
                piece = Piece(item.offsets, whole.size)
        inner.tensors[index] = tensor._replace(name=name, role=role, key=clean_text(key, 100), piece=piece)
        if role in (OPTIMIZER, MASTER) or tensor.numel == 1:
            leaf = Persistent(None)
            self._kept.append(leaf)
            self._leaves.add(item.name, leaf, str(list(item.offsets)) if item.offsets and any(item.offsets) else "")
            self._indices[id(leaf)] = len(self._checkpoint.tensors) + index
            region = inner.regions[tensor.region]
            data = region.read(source, tensor.start, tensor.dtype.size) if tensor.numel == 1 else b""
            number = unpacked(tensor.dtype.name, data)
            if number is not None:
                self._numbers[id(leaf)] = number

    def _take_object(self, name: str, root: Any, loaded: Loaded) -> None:
        """Keep the plain value of an object; what one with a state of its own tells was learnt from it alone."""
        if isinstance(root, list) and len(root) == 1 and isinstance(root[0], Pairs):
            root = root[0]  # Megatron-LM's objects are lists, for what the other ranks have
        inner, number = loaded.checkpoint, loaded.number(root)
        if number is not None or root is None or isinstance(root, (bool, str)):
            self._leaves.add(name, root if number is None else number)
        elif isinstance(root, (tuple, list)):
            self._leaves.add(name, [each for each in root if isinstance(each, (int, float, str))])
        elif not (inner.optimizers or inner.schedulers or inner.scalers):
            read = [(key, loaded.number(value)) for key, value in itertools.islice(string_items(root), _MOST_ENTRIES)]
            self._leaves.add(name, Pairs([part for pair in read for part in pair]))

    def _number(self, node: object) -> Optional[Number]:
        if isinstance(node, Persistent):
            return self._numbers.get(id(node))
        return plain_number(node)


def _thin_out(inner: Checkpoint, source: Source) -> None:
    """Check the CRC-32 of small records that hold no tensor here and now, and forget those that are sound."""
    used = {tensor.region for tensor in inner.tensors}
    moved: Dict[int, int] = {}
    kept: List[Region] = []
    for index, region in enumerate(inner.regions):
        small = index not in used and region.crc is not None and region.size <= _SMALL
        if not small or zlib.crc32(source.read(region.offset, region.size)) != region.crc:
            moved[index] = len(kept)
            kept.append(region)
    inner.regions = kept
    inner.tensors = [tensor._replace(region=moved[tensor.region]) for tensor in inner.tensors]


def _told(file: str, said: _Said) -> Found:
    """Name the items of which something is true."""
    more = "" if len(said.items) == 1 else " and %s more" % format(len(said.items) - 1, ",")
    message = "%s%s: %s" % (said.items[0], more, said.found.message)
    return said.found._replace(
        message=message, data={"file": file, "items": said.items[:20], **(said.found.data or {})}
    )


def _below(name: str, inner: str) -> str:
    return name if inner == THE_WHOLE else clean_text("%s.%s" % (name, inner))
