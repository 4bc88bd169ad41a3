"""What a checkpoint of torch.distributed.checkpoint says of itself: its .metadata, decoded and held against itself."""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence, Tuple

from ..model import FlawedError, clean_text, count_of, product
from ..pickles.nodes import Call, Global, Pairs, string_items
from ..pickles.rebuild import shape_of
from ..records import Record
from ..rules.rule import SUSPECT
from .dcp_pickle import Chunk, Compact, chunk_of, index_of, place_of
from .torch_objects import decode_pickle

if TYPE_CHECKING:
    from ..model import Checkpoint
    from ..source import Source

# What every .metadata is made of. It is read by plain pickle, so that what torch.load would need is no question here.
_OWN = frozenset(
    "torch.distributed.checkpoint.%s" % name
    for name in (
        "metadata.Metadata",
        "metadata.MetadataIndex",
        "metadata.TensorStorageMetadata",
        "metadata.BytesStorageMetadata",
        "metadata.ChunkStorageMetadata",
        "metadata.TensorProperties",
        "metadata._MEM_FORMAT_ENCODING",
        "metadata.StorageMeta",
        "filesystem._StorageInfo",
    )
) | frozenset(
    (
        "torch.distributed._shard.sharded_tensor.metadata.TensorProperties",
        "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
        "pathlib.PosixPath",
        "pathlib._local.PosixPath",
    )
)
# Corners of chunks that are followed for one tensor: enough for 250,000 chunks of a tensor that is cut in two ways.
_MOST_CORNERS = 1_000_000


class Whole(Record):
    """Describe a tensor that may lie in chunks; `dtype` is torch's name of its number format, "" when it has none."""

    dtype: str
    size: Tuple[int, ...]
    chunks: List[Chunk]


class Item(Record):
    """Place what was written in one go: an object, or a chunk of a tensor, with its sizes where it is listed."""

    name: str
    offsets: Optional[Tuple[int, ...]]
    path: str
    offset: int
    length: int
    transforms: Tuple[str, ...]
    sizes: Optional[Tuple[int, ...]] = None


class Metadata(Record):
    """Hold what was said: tensors and objects by name, where their items lie, and their keys before flattening."""

    tensors: Dict[str, Whole]
    objects: List[str]
    items: List[Item]
    paths: Dict[str, Tuple[str, ...]]


def read_metadata(source: Source, checkpoint: Checkpoint, record: str) -> Optional[Metadata]:
    """Decode the pickle of a .metadata file; None when that can't be done, which is then among the findings."""
    if not source.read(0, 4096).strip(b"\0"):
        checkpoint.add("CK021", "%s is empty or holds nothing but zeros" % record, record=record)
        return None
    decoded = decode_pickle(source, 0, source.size, checkpoint, record, plain=_OWN, kind=Compact)
    if decoded is None:
        return None
    try:
        return _Parser(checkpoint, record).metadata(decoded.root)
    except FlawedError as error:
        checkpoint.found.append(error.found)
        return None


class _Parser:
    def __init__(self, checkpoint: Checkpoint, record: str) -> None:
        self._checkpoint = checkpoint
        self._record = record
        self._odd: List[str] = []

    def metadata(self, root: object) -> Metadata:
        fields = dict(string_items(root))
        listed, stored = fields.get("state_dict_metadata"), fields.get("storage_data")
        if not isinstance(root, Call) or not isinstance(listed, Pairs) or not isinstance(stored, Pairs):
            raise FlawedError("CK025", "%s does not describe a checkpoint" % self._record, record=self._record)
        tensors: Dict[str, Whole] = {}
        objects: List[str] = []
        for name, value in self._named(listed):
            whole = _whole(value)
            if whole is not None:
                tensors[name] = whole
            elif isinstance(value, Call) and "chunks" not in dict(string_items(value)):
                objects.append(name)
            else:
                self._odd.append(clean_text(name))
        items = list(self._items(stored))
        if self._odd:
            message = "%s of %s can't be understood, first: %s"
            shown = count_of(len(self._odd), "item"), self._record, self._odd[0]
            self._checkpoint.add("CK025", message % shown, record=self._record)
        return Metadata(tensors, objects, items, _paths(fields.get("planner_data")))

    def _named(self, pairs: Pairs) -> Iterator[Tuple[str, Any]]:
        for name, value in pairs.items():
            if isinstance(name, str):
                yield name, value
            else:
                self._odd.append("a name that is no text")

    def _items(self, stored: Pairs) -> Iterator[Item]:
        for key, value in stored.items():
            index, place = index_of(key), place_of(value)
            if index is not None and place is not None:
                yield Item(index.name, index.offsets, place.path, place.offset, place.length, place.transforms)
            else:
                self._odd.append("a place without a name" if index is None else clean_text(index.name))


def _whole(node: object) -> Optional[Whole]:
    fields = dict(string_items(node))
    size, chunks = shape_of(fields.get("size")), fields.get("chunks")
    if size is None or not isinstance(chunks, list):
        return None
    known = [each for each in map(chunk_of, chunks) if each is not None]
    return Whole(_dtype(fields.get("properties")), size, known) if len(known) == len(chunks) else None


def _dtype(properties: object) -> str:
    state = properties.state[-1] if isinstance(properties, Call) and properties.state else None
    first = state[0] if isinstance(state, tuple) and state else None
    return first.name if isinstance(first, Global) and first.module == "torch" else ""


def _paths(planner_data: object) -> Dict[str, Tuple[str, ...]]:
    """Read the keys under which names stood before the state dict was flattened."""
    return {
        name: tuple(key if isinstance(key, str) else str(key) for key in path)
        for name, path in string_items(planner_data)
        if isinstance(path, tuple) and all(isinstance(key, (str, int)) for key in path)
    }


def _packed(numbers: Sequence[int]) -> bytes:
    """Return a key for numbers of a file: of bytes, unlike of tuples, nobody can foresee which will collide."""
    return struct.pack("<%dq" % len(numbers), *numbers)


def _key(name: str, offsets: Optional[Tuple[int, ...]]) -> Tuple[str, Optional[bytes]]:
    return name, None if offsets is None else _packed(offsets)


# --- one part against the other --------------------------------------------------------------------------------------


def matched(metadata: Metadata, checkpoint: Checkpoint) -> List[Item]:
    """Hold what is listed against itself and against what was written; return the items, of chunks with their sizes."""
    items = {_key(item.name, item.offsets): item for item in metadata.items}
    unlisted = set(items)
    unwritten: List[str] = []
    for name, whole in metadata.tensors.items():
        fault = misfit(whole)
        if fault:
            checkpoint.add("CK062", "the chunks of %s %s" % (clean_text(name), fault), tensor=clean_text(name))
        for chunk in whole.chunks:
            key = _key(name, chunk.offsets)
            if key in items:
                unlisted.discard(key)
                items[key] = items[key]._replace(sizes=chunk.sizes)
            elif product(chunk.sizes):
                unwritten.append("%s at %s" % (clean_text(name, 200), list(chunk.offsets)))
    for name in metadata.objects:
        if (name, None) in items:
            unlisted.discard((name, None))
        else:
            unwritten.append(clean_text(name, 200))
    if unwritten:
        message = "%s listed without a place in any file, first: %s"
        checkpoint.add("CK064", message % (count_of(len(unwritten), "item"), unwritten[0]), items=unwritten[:20])
    if unlisted:
        names = sorted(clean_text(name, 200) for name, _ in unlisted)
        message = "%s in the files belong to nothing that is listed, first: %s" % (
            count_of(len(names), "item"),
            names[0],
        )
        checkpoint.add("CK064", message, severity=SUSPECT, items=names[:20])
    return list(items.values())


def misfit(whole: Whole) -> str:
    """Say how the chunks of a tensor fail to fill it, each element once; nothing when they do.

    Every chunk adds its corners with alternating signs. They sum up to the corners of the whole, and nothing else, if
    and only if the chunks lie in it without gap or overlap.
    """
    size, chunks = whole.size, whole.chunks
    if len(chunks) == 1 and chunks[0].sizes == size and not any(chunks[0].offsets):
        return ""
    for offsets, sizes in chunks:
        if len(offsets) != len(size) or len(sizes) != len(size):
            return "have other dimensions than its %d" % len(size)
        if any(start + length > limit for start, length, limit in zip(offsets, sizes, size)):
            return "reach beyond its shape %s" % list(size)
    elements, covered = product(size), sum(product(sizes) for _, sizes in chunks)
    if covered != elements:
        numbers = format(covered, ","), count_of(elements, "element")
        return ("leave a gap: %s of %s" if covered < elements else "overlap: %s for %s") % numbers
    cut = [at for at in range(len(size)) if any(chunk.sizes[at] != size[at] for chunk in chunks)]
    if len(chunks) << len(cut) > _MOST_CORNERS:
        return "are cut in too many dimensions to be followed (%d)" % len(cut)
    corners: Dict[bytes, int] = {}
    for sign, offsets, sizes in [(-1, (0,) * len(size), size), *((1, *chunk) for chunk in chunks)]:
        edges = [((offsets[at], 1), (offsets[at] + sizes[at], -1)) for at in cut]
        for corner in itertools.product(*edges):
            key = _packed([place for place, _ in corner])
            corners[key] = corners.get(key, 0) + sign * product(tuple(turn for _, turn in corner))
    return "overlap, and leave a gap" if any(corners.values()) and elements else ""
