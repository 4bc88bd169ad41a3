"""The decoding of a .metadata in little memory: of its many small objects, only what they hold is kept."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Tuple

from ..pickles.machine import BUDGET, Machine
from ..pickles.nodes import PASSED_OVER, Call, Global, Pairs, TooLargeError, string_items
from ..pickles.rebuild import is_count, shape_of
from ..records import Record

if TYPE_CHECKING:
    from ..source import Source

_SIZE = Global("torch", "Size")
# Bytes that its objects may take, as estimated, and by which the process may grow: of a file of half a MB or less, of a
# larger one so many for each of its own, of which a chunk of a tensor has 140 and needs 550.
_PER_BYTE, _MOST = 8, 1 << 30


class Chunk(Record):
    """Say which part of a tensor was written as one: where it begins in each dimension, and its sizes."""

    offsets: Tuple[int, ...]
    sizes: Tuple[int, ...]


class Index(Record):
    """Name what was written: an object, or a tensor's chunk by where it begins."""

    name: str
    offsets: Optional[Tuple[int, ...]]


class Place(Record):
    """Say where something was written."""

    path: str
    offset: int
    length: int
    transforms: Tuple[str, ...]


class Compact(Machine):
    """Keep of a chunk, an index and a place only what they hold, while the pickle is decoded.

    What a pickler notes of them and nobody can refer to later is forgotten: their own dictionaries, and the arguments
    of sizes. They cost nothing of the budget, and memory is bounded by what the process takes.
    """

    def __init__(self, source: Source, start: int, end: int, budget: int = BUDGET) -> None:
        super().__init__(source, start, end, min(max(budget, _PER_BYTE * (end - start)), _MOST))
        # By the `id` of an object that is not built yet, its number in the memo and what was left of the budget.
        self._begun: Dict[int, Tuple[int, int]] = {}
        self._resident = _resident()

    def _top_up(self) -> None:
        super()._top_up()
        if _resident() - self._resident > self._budget:
            raise TooLargeError("its objects take more than %d MB" % (self._budget >> 20))

    def remember(self, index: int) -> None:
        """Note the topmost value under a number, unless it is an object's own dictionary."""
        stack, memo = self.stack, self.memo
        if type(stack[-1]) is Pairs and index == len(memo) and len(stack) > 1 and id(stack[-2]) in self._begun:
            memo.append(PASSED_OVER)
            return
        super().remember(index)
        top = stack[-1]
        if type(top) is Call and type(top.func) is Global and top.func.name in _MAKERS:
            self._begun[id(top)] = index, self.left

    def call(self, func: Any, args: Any) -> None:
        """Put what calling a global would have returned on the stack, of a torch.Size only its numbers."""
        if func != _SIZE or not isinstance(args, tuple) or len(args) != 1 or type(args[0]) is not tuple:
            super().call(func, args)
            return
        self._use(func, "called")
        if self.memo and self.memo[-1] is args:
            self.memo[-1] = PASSED_OVER
        self.push(args[0], 16)

    def build(self, target: Any, state: Any) -> None:
        """Give an object its state, or put what the two come to in its place."""
        index, left = self._begun.pop(id(target), (-1, 0))
        made = _MAKERS[target.func.name](state) if index >= 0 and type(state) is Pairs else None
        if made is None:
            super().build(target, state)
            return
        self._use(target.origin, "built")
        self.stack[-1] = self.memo[index] = made
        self.left = max(self.left, left)


def _resident() -> int:
    """Return the bytes of memory that the process has, 0 where nobody tells."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def chunk_of(node: object) -> Optional[Chunk]:
    """Read a chunk, or what it is made of; None when it makes no sense."""
    if isinstance(node, Chunk):
        return node
    fields = dict(string_items(node))
    offsets, sizes = shape_of(fields.get("offsets")), shape_of(fields.get("sizes"))
    return None if offsets is None or sizes is None else Chunk(offsets, sizes)


def index_of(node: object) -> Optional[Index]:
    """Read an index, or what it is made of; None when it makes no sense."""
    if isinstance(node, Index):
        return node
    fields = dict(string_items(node))
    name, offsets = fields.get("fqn"), fields.get("offset")
    sizes = None if offsets is None else shape_of(offsets)
    return Index(name, sizes) if isinstance(name, str) and (sizes is not None or offsets is None) else None


def place_of(node: object) -> Optional[Place]:
    """Read a place, or what it is made of; None when it makes no sense."""
    if isinstance(node, Place):
        return node
    fields = dict(string_items(node))
    path, offset, length = fields.get("relative_path"), fields.get("offset"), fields.get("length")
    if not isinstance(path, str) or not is_count(offset) or not is_count(length):
        return None
    transforms = fields.get("transform_descriptors") or []
    known = [str(each) for each in transforms] if isinstance(transforms, (list, tuple)) else ["?"]
    return Place(path, offset, length, tuple(known))


_MAKERS: Dict[str, Callable[[object], Optional[Record]]] = {
    "ChunkStorageMetadata": chunk_of,
    "MetadataIndex": index_of,
    "_StorageInfo": place_of,
}
