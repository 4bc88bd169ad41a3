"""A shortcut through the thirty opcodes that torch.save writes for nearly every tensor.

It comes to what they would come to one by one, and is not taken where anything differs from the usual.
"""

from __future__ import annotations

import bisect
import functools
import re
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from ..patterns import pattern
from .nodes import LATER, Call, Global, Pairs, Persistent

if TYPE_CHECKING:
    from .machine import Machine

REBUILD = Global("torch._utils", "_rebuild_tensor_v2")
_ORDERED = "collections.OrderedDict"
_INTEGER = rb"K.|M..|J...[\0-\x7f]"
_WIDTHS = {ord("K"): 1, ord("M"): 2, ord("J"): 4}
_TENSOR = pattern(
    # ((storage, class, key, location, elements) as a persistent id, offset; the old format says None of a view, too,
    rb"\(\(%(get)s%(get)sX(.)\0\0\0([0-9]{1,20})%(put)s%(get)s(%(int)s)(N?)t%(put)sQ(%(int)s)"
    # shape, stride,
    rb"(?:(\(?)((?:%(int)s){1,8})([t\x85-\x87])%(put)s(\(?)((?:%(int)s){1,8})([t\x85-\x87])%(put)s|\)\))"
    # requires_grad, OrderedDict())
    rb"([\x88\x89])%(get)s\)R%(put)st%(put)sR%(put)s"
    % {b"int": _INTEGER, b"get": rb"(h.|j.{4})", b"put": rb"(q.|r.{4})"},
    re.DOTALL,
)
# What its opcodes would charge, about: at once, and when its parts are asked for.
_COST = 900
_COST_OF_PARTS = 300
# What is made of a storage later takes more than what the pickle says of it.
MOST_STORAGES = 120_000
# How many things of a tensor are noted in the memo: itself last, its shape and stride only where it has dimensions.
_NOTED = {count: (LATER,) * (count - 1) for count in (5, 7)}


class Saved(Call):
    """Stand for a tensor as torch.save writes it; what it is made of is put together only where somebody asks.

    `storage` is the persistent id of its storage.
    """

    __slots__ = ("_made", "grad", "offset", "shape", "storage", "stride")

    func = REBUILD
    origin = REBUILD

    def __init__(
        self,
        storage: Tuple[Any, ...],
        offset: int,
        shape: Tuple[int, ...],
        stride: Tuple[int, ...],
        grad: bool,
    ) -> None:
        self.storage = storage
        self.offset = offset
        self.shape = shape
        self.stride = stride
        self.grad = grad
        self.state = self.flat = self.elements = ()
        self._made: Optional[Tuple[Any, ...]] = None

    @property
    def args(self) -> Tuple[Any, ...]:  # type: ignore[override]
        """Return what the opcodes would have given to the call."""
        if self._made is None:
            self._made = (Persistent(self.storage), self.offset, self.shape, self.stride, self.grad, Pairs())
        return self._made

    def noted(self) -> List[Any]:
        """Return what the opcodes would have noted in the memo before the tensor itself."""
        sizes = (self.shape, self.stride) if self.shape else ()
        return [self.storage[2], self.storage, *sizes, self.args[5], self.args]


class Shortcut:
    """Take the shortcut for one machine, which it does not hold, lest neither is ever freed."""

    def __init__(self) -> None:
        # The class and the location of storages, by the opcodes that recall what all of a number format have in common.
        self._known: Dict[Tuple[bytes, ...], Tuple[Global, str]] = {}
        self._firsts: List[int] = []
        self.saved: List[Saved] = []

    def forget(self) -> None:
        """Take nothing for granted of what the memo holds."""
        self._known.clear()

    def take(self, machine: Machine) -> bool:
        """Run the opcodes of a tensor, the first of which was read; False when they are not the usual ones."""
        match = _TENSOR.match(machine.buffer, machine.at - 1)
        if match is None or len(self.saved) + len(machine.persistent) >= MOST_STORAGES:
            return False
        parts = match.groups()
        word, kind, length, key, put, place, count, view, put_id, offset = parts[:10]
        open_1, sizes, close_1, put_1, open_2, steps, close_2, put_2 = parts[10:18]
        grad, ordered = parts[18:20]
        puts = (put, put_id, *parts[20:]) if sizes is None else (put, put_id, put_1, put_2, *parts[20:])
        shape, stride = _numbers(open_1, sizes, close_1), _numbers(open_2, steps, close_2)
        if shape is None or stride is None or length[0] != len(key) or not _follow(puts, machine.memo):
            return False
        codes = word, kind, place, ordered
        if codes not in self._known and not self._know(codes, machine):
            return False
        found, location = self._known[codes]
        storage: Tuple[Any, ...] = "storage", found, key.decode("ascii"), location, int.from_bytes(count[1:], "little")
        if view:
            storage = (*storage, None)
        node = Saved(storage, int.from_bytes(offset[1:], "little"), shape, stride, grad == b"\x88")
        memo = machine.memo
        self._firsts.append(len(memo))
        memo.extend(_NOTED[len(puts)])
        memo.append(node)
        self.saved.append(node)
        machine.stack[-1] = node
        machine.at = match.end()
        machine.left -= _COST
        return True

    def _know(self, codes: Tuple[bytes, ...], machine: Machine) -> bool:
        """Look up what the opcodes recall, which is the same for all tensors of a number format."""
        memo = machine.memo
        numbers = [int.from_bytes(code[1:], "little") for code in codes]
        if max(numbers) >= len(memo):
            return False
        word, kind, location, ordered = (memo[number] for number in numbers)
        usual = word == "storage" and type(kind) is Global and isinstance(location, str) and type(ordered) is Global
        if not usual or ordered.path != _ORDERED:
            return False
        machine.note_call(machine.stack[-1])
        machine.note_call(ordered)
        self._known[codes] = kind, location
        return True

    def recall(self, number: int, machine: Machine) -> Any:
        """Put what was noted of a tensor in those of its places that were not used anew; return what is in one."""
        memo = machine.memo
        at = bisect.bisect_right(self._firsts, number) - 1
        for place, noted in enumerate(self.saved[at].noted(), self._firsts[at]):
            if memo[place] is LATER:
                memo[place] = noted
        machine.left -= _COST_OF_PARTS
        return memo[number]


def _follow(puts: Tuple[bytes, ...], memo: List[Any]) -> bool:
    """Tell whether numbers of a memo are the next ones."""
    following = len(memo)
    for put in puts:
        if int.from_bytes(put[1:], "little") != following:
            return False
        following += 1
    return True


@functools.lru_cache(maxsize=1024)
def _numbers(begin: Optional[bytes], codes: Optional[bytes], close: bytes) -> Optional[Tuple[int, ...]]:
    """Read a tuple of integers; None when its opcodes make none of just these."""
    if codes is None:
        return ()
    numbers = []
    at = 0
    while at < len(codes):
        end = at + 1 + _WIDTHS[codes[at]]
        numbers.append(int.from_bytes(codes[at + 1 : end], "little"))
        at = end
    right = begin == b"(" if close == b"t" else not begin and len(numbers) == close[0] - 0x84
    return tuple(numbers) if right else None
