"""A shortcut through the thirty opcodes that torch.save writes for nearly every tensor.

It comes to what they would come to one by one, and is not taken where anything differs from the usual.
"""

from __future__ import annotations

import bisect
import functools
import re
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from ..patterns import pattern
from ..records import Record
from .nodes import LATER, Call, Global, Pairs, Persistent

if TYPE_CHECKING:
    from re import Match

    from .machine import Machine

REBUILD = Global("torch._utils", "_rebuild_tensor_v2")
_ORDERED = "collections.OrderedDict"
_INTEGER = rb"K.|M..|J...[\0-\x7f]"
_WIDTHS = {ord("K"): 1, ord("M"): 2, ord("J"): 4}
_TENSOR = pattern(
    # ((storage, class, key, location, elements) as a persistent id, offset; the old format says None of a view, too;
    # the key is known already where another tensor shows the same storage,
    rb"\(\(%(get)s%(get)s(?:X(.)\0\0\0([0-9]{1,20})%(put)s|%(get)s)%(get)s(%(int)s)(N?)t%(put)sQ(%(int)s)"
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
# Groups of the pattern: the storage's key, what is put into the memo, and the rest.
_KEY, _KNOWN, _OFFSET = 4, 6, 11
_PUTS = (5, 10, 15, 19, 22, 23, 24)
_COMMON = (1, 2, 3, 6, 7, 8, 9, *range(12, 15), *range(16, 19), 20, 21)
_MOST_FORMS, _MOST_EXPECTED = 1_000, 4
_LONGEST_LABEL = 200
(_BINPUT,) = b"q"
# No opcode is this.
_NO_LEAD = b"\xff"


class Described(Record):
    """Hold what a pickle says of a tensor, but for its storage's key and its place there.

    `kind` is the class of the storage; `known` tells that its key was noted before.
    """

    kind: Global
    location: str
    elements: int
    known: bool
    old: bool
    shape: Tuple[int, ...]
    stride: Tuple[int, ...]
    grad: bool


class Like:
    """Say what tensors have in common; `meaning` is what their reader made of it."""

    __slots__ = ("described", "meaning")

    def __init__(self, described: Described) -> None:
        self.described = described
        self.meaning: Any = None


class Saved(Call):
    """Stand for a tensor as torch.save writes it; what it is made of is put together only where somebody asks.

    `key` names its storage, in which it begins at element number `offset`.
    """

    __slots__ = ("_made", "key", "like", "offset")

    func = REBUILD
    origin = REBUILD

    def __init__(self, like: Like, key: str, offset: int) -> None:
        self.like = like
        self.key = key
        self.offset = offset
        self.state = self.flat = self.elements = ()
        self._made: Optional[Tuple[Any, ...]] = None

    @property
    def args(self) -> Tuple[Any, ...]:  # type: ignore[override]
        """Return what the opcodes would have given to the call."""
        if self._made is None:
            kind, location, count, _, old, *rest = self.like.described
            storage: Tuple[Any, ...] = "storage", kind, self.key, location, count
            self._made = (Persistent((*storage, None) if old else storage), self.offset, *rest, Pairs())
        return self._made

    def noted(self) -> List[Any]:
        """Return what the opcodes would have noted in the memo before the tensor itself."""
        storage, _, shape, stride, _, ordered = self.args
        key = () if self.like.described.known else (self.key,)
        return [*key, storage.id, *((shape, stride) if shape else ()), ordered, self.args]


# What is known of the opcodes of tensors that are like each other, to the byte, each number of the memo in four, or
# all in one: they are `size` bytes. Taken as one number, they are `fixed`, and `step` more for each thing in the memo
# before them, until the last one, with which they end, does not fit any more; `mask` leaves out the key, which stands
# from `begin` to `end` unless it is `known`, and the offset, from `first` to `last`, unless it has one byte. Then come
# what they are like, what is noted of them, and the number of the form.
_Form = Tuple[int, int, int, int, int, int, str, int, int, Like, Tuple[object, ...], int]
# A label, how many things are noted of it, where the tensor's own opcodes begin, and what those of the label charge.
_Label = Tuple[str, int, int, int]


def _form(like: Like, match: Match[bytes], number: int, known: str) -> _Form:
    """Make a form of the opcodes of one tensor."""
    start, codes = match.start(), bytearray(match.group())
    size = len(codes)
    begin, end = (0, 0) if known else (match.start(_KEY) - start, match.end(_KEY) - start)
    mask, step = bytearray(b"\xff") * size, bytearray(size)
    mask[begin:end] = codes[begin:end] = bytes(end - begin)
    first, last = match.start(_OFFSET) - start + 1, match.end(_OFFSET) - start
    if last - first > 1:
        mask[first:last] = codes[first:last] = bytes(last - first)
        if last - first > 2:
            mask[last - 1] = 0x80  # of a signed number
    puts = [put - start for put in map(match.start, _PUTS) if put >= 0]
    width = 4 if codes[puts[0] : puts[0] + 1] == b"r" else 1
    for index, put in enumerate(puts):
        codes[put + 1 : put + 1 + width] = index.to_bytes(width, "little")
        step[put + 1] = 1
    masked, fixed, steps = (int.from_bytes(each, "little") for each in (mask, codes, step))
    return size, masked, fixed, steps, begin, end, known, first, last, like, _noted(like), number


class Shortcut:
    """Take the shortcut for one machine, which it does not hold, lest neither is ever freed."""

    def __init__(self) -> None:
        # The class and the location of storages, by the opcodes that recall what all of a number format have in common.
        self._known: Dict[Tuple[bytes, ...], Tuple[Global, str]] = {}
        # What tensors were like, by all of their opcodes that do not differ from one to the next; and their forms.
        self._likes: Dict[Tuple[Any, ...], Like] = {}
        self._forms: Dict[Tuple[Any, ...], _Form] = {}
        # The forms that have followed on each, by its number; those that have on the last, the latest first.
        self._after: List[List[_Form]] = []
        self._expected: List[_Form] = []
        # What makes tensors by its number in the memo, and how their opcodes begin; before it is known, what none has.
        self._lead = _NO_LEAD
        self._firsts: List[int] = []
        self.saved: List[Saved] = []

    def forget(self) -> None:
        """Take nothing for granted of what the memo holds."""
        self._known.clear()
        self._likes.clear()
        self._forms.clear()
        self._after, self._expected = [], []
        self._lead = _NO_LEAD

    def take(self, machine: Machine) -> bool:
        """Run the opcodes of a tensor, the first of which was read; False when they are not the usual ones.

        Those of the entries after it in its mapping are run, too, as far as they are as expected.
        """
        room = MOST_STORAGES - len(self.saved) - len(machine.persistent)
        return room > 0 and (self._take_expected(machine, room) or self._take_unexpected(machine))

    def _take_expected(self, machine: Machine, room: int) -> bool:
        buffer, memo = machine.buffer, machine.memo
        taken: List[Any] = []
        label: Optional[_Label] = ("", 0, machine.at - 1, 0)
        while label is not None and len(taken) < 2 * room:
            text, noting, at, cost = label
            following = len(memo) + noting
            for form in self._expected:
                size, mask, fixed, step, begin, end, known, first, last, like, noted, number = form
                codes = buffer[at : at + size]
                if int.from_bytes(codes, "little") & mask == fixed + following * step and len(codes) == size:
                    key = codes[begin:end]
                    if known or key.isdigit():
                        break
            else:
                break
            self._expected = self._after[number]
            node = Saved(like, known or str(key, "ascii"), int.from_bytes(codes[first:last], "little"))
            self._firsts.append(following)
            self.saved.append(node)
            if noting:
                memo.append(text)
            memo += noted
            memo.append(node)
            taken += text, node
            machine.left -= _COST + cost
            machine.at = at + size
            label = self._label(buffer, machine.at, memo)
        machine.stack[-1:] = taken[1:] or machine.stack[-1:]
        return bool(taken)

    def _label(self, buffer: bytes, at: int, memo: List[Any]) -> Optional[_Label]:
        """Read what is between a tensor and the next one in a mapping: its label, and what makes tensors."""
        code, lead = buffer[at : at + 1], self._lead
        if code == b"j" and buffer.startswith(lead, at + 5):
            number, begin = int.from_bytes(buffer[at + 1 : at + 5], "little"), at + 7
        elif code == b"h" and buffer.startswith(lead, at + 2):
            number, begin = buffer[at + 1], at + 4
        elif code == b"X":
            end = at + 5 + int.from_bytes(buffer[at + 1 : at + 5], "little")
            put = b"r" + len(memo).to_bytes(4, "little") if len(memo) > 0xFF else bytes((_BINPUT, len(memo)))
            follows = buffer.startswith(put + lead, end)
            text = buffer[at + 5 : end] if follows and end - at < _LONGEST_LABEL else b"\xff"
            return (str(text, "ascii"), 1, end + len(put) + 2, 88 + 4 * len(text)) if text.isascii() else None
        else:
            return None
        known = memo[number] if number < len(memo) else None
        return (known, 0, begin, 48) if type(known) is str else None

    def _take_unexpected(self, machine: Machine) -> bool:
        match = _TENSOR.match(machine.buffer, machine.at - 1)
        if match is None:
            return False
        puts = [put for put in match.group(*_PUTS) if put is not None]
        said = match.group(_KEY)
        known = "" if said is not None else self._known_key(match.group(_KNOWN), machine)
        sound = known if said is None else match.group(3)[0] == len(said)
        if not sound or not _follow(puts, machine.memo):
            return False
        offset = match.group(_OFFSET)
        codes = (offset if len(offset) == 2 else offset[:1], *match.group(*_COMMON))
        like = self._likes.get(codes) or self._like(match, machine)
        if like is None:
            return False
        if len(self._likes) < _MOST_FORMS:
            self._likes[codes] = like
        widths = tuple(map(len, puts))
        form = self._forms.get((widths, codes))
        if form is None and min(widths) == max(widths) and len(self._forms) < _MOST_FORMS:
            form = self._forms[widths, codes] = _form(like, match, len(self._after), known)
            self._after.append([])
        if form is not None:
            self._expected.insert(0, form)
            del self._expected[_MOST_EXPECTED:]
        self._expected = self._after[form[-1]] if form is not None else []
        node = Saved(like, known or said.decode("ascii"), int.from_bytes(offset[1:], "little"))
        memo = machine.memo
        self._firsts.append(len(memo))
        memo += _noted(like)
        memo.append(node)
        self.saved.append(node)
        machine.stack[-1] = node
        machine.left -= _COST
        at, machine.at = machine.at - 1, match.end()
        if machine.buffer[at - 2 : at - 1] == b"h" and memo[machine.buffer[at - 1]] is REBUILD:
            self._lead = machine.buffer[at - 2 : at] + b"(("
        return True

    def _known_key(self, code: bytes, machine: Machine) -> str:
        """Look up the key of a storage that was met before; "" when it is none."""
        number = int.from_bytes(code[1:], "little")
        key = machine.memo[number] if number < len(machine.memo) else None
        if key is LATER:
            key = self.recall(number, machine)
        return key if isinstance(key, str) and key.isascii() and key.isdigit() else ""

    def _like(self, match: Match[bytes], machine: Machine) -> Optional[Like]:
        """Read what a tensor may have in common with others; None when it is not described in the usual way."""
        count, old, grad = match.group(8, 9, 20)
        shape, stride = _numbers(*match.group(12, 13, 14)), _numbers(*match.group(16, 17, 18))
        codes, known = match.group(1, 2, 7, 21), match.group(_KEY) is None
        if shape is None or stride is None or not (codes in self._known or self._know(codes, machine)):
            return None
        elements = int.from_bytes(count[1:], "little")
        return Like(Described(*self._known[codes], elements, known, bool(old), shape, stride, grad == b"\x88"))

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


def _noted(like: Like) -> Tuple[object, ...]:
    """Return what is noted in the memo before a tensor itself; its shape and stride only where it has dimensions."""
    return (LATER,) * ((6 if like.described.shape else 4) - like.described.known)


def _follow(puts: List[bytes], memo: List[Any]) -> bool:
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
