"""A pickle machine that imports nothing, calls nothing and can't be made to use much memory."""

from __future__ import annotations

import struct
from _compat_pickle import IMPORT_MAPPING
from typing import TYPE_CHECKING, Any, Dict, List, Sequence, Tuple

from .nodes import (
    INNER,
    LATER,
    PASSED_OVER,
    Blob,
    BombError,
    Call,
    CutOffError,
    Decoded,
    Global,
    Pairs,
    Persistent,
    PickleError,
    TooLargeError,
)
from .opcodes import HANDLERS
from .policy import is_known
from .saved import MOST_STORAGES, REBUILD, Shortcut

if TYPE_CHECKING:
    from ..source import Source

# Estimated bytes that one pickle's objects may take; 60,000 tensors, those of the optimizer among them, take 65 MB. It
# also bounds the time, since every opcode costs something, and what makes nothing more than it would have to.
BUDGET = 128 * 1024 * 1024
_MAX_GLOBALS = 5_000
_MAX_LINE = 4096
_MAX_TEXT_LINE = 1024 * 1024
# The budget is looked at once per block, so what a block can ask for must be little.
_BLOCK = 256 * 1024
# An opcode with an argument of eight bytes.
_LONGEST = 9
# Bytes that may hold more than a label.
_LARGE = 1024
# These call what they are given, in this place.
_CALLING = {
    "numpy.random._pickle.__bit_generator_ctor": 0,
    "torch._tensor._rebuild_from_type_v2": 0,
    "torch._tensor._rebuild_from_type": 0,
    "numpy.random._pickle.__randomstate_ctor": 1,
    "numpy.random._pickle.__generator_ctor": 1,
    "builtins.reduce": 0,
    "functools.reduce": 0,
    "_functools.reduce": 0,
}
# These make bound methods, types such as int | None and Optional[int], and iterators over lists, or reach, make and
# call anything.
_EITHER = ("getattr", "type", "reduce", "getitem", "iter")
# What these return, or load, nobody looks at where others call them.
_UNSEEN = (*_EITHER, "_load_from_bytes")
# These find what others use, too.
_FINDING = ("getattr", "getitem", "reduce", "getLogger")
_SPECIAL = frozenset(("OrderedDict", "_load_from_bytes", *(path.rpartition(".")[2] for path in _CALLING), *_EITHER))
# These make an object of the class that they are given; the first has its base do it.
_MAKING = frozenset(("_reconstructor", "__newobj__", "__newobj_ex__"))
# NEWOBJ and NEWOBJ_EX, which have a class make an object and not initialise it.
_NEW = (0x81, 0x92)
_FEW = 9
# What these make of an object, they ask its methods for; of pairs, of each of them.
_PAIRING = ("dict", "OrderedDict", "defaultdict")
_READING = ("builtins", "__builtin__", "collections", "itertools", "array", "torch", "numpy", "uuid", "fractions")


class Machine:
    """Run the opcodes of one pickle inside a file, from `start` on and not beyond `end`.

    `uses` maps each global met so far to the ways it was used ("named", "called", "built", "called indirectly");
    `oddities` are opcodes that no checkpoint has. `stack`, `marks`, `memo` are the unpickler's; `left` is what remains
    of the budget.
    """

    def __init__(self, source: Source, start: int, end: int, budget: int = BUDGET) -> None:
        self._source = source
        self._start = start
        self._end = end
        self._budget = budget
        self._base = start
        self._refill_at = 0
        self.buffer = b""
        self.at = 0
        self.left = budget
        self.result: List[Any] = []
        self.stack: List[Any] = []
        self.marks: List[List[Any]] = []
        self.memo: List[Any] = []
        self.persistent: List[Persistent] = []
        self.uses: Dict[Global, List[str]] = {}
        self.oddities: List[str] = []
        self._blobs: List[Blob] = []
        # Objects that have their state, and how many items they had then.
        self._built: List[Tuple[Call, int]] = []
        self.shortcut = Shortcut()

    def decode(self) -> Decoded:
        """Return what the pickle describes.

        Raises:
            PickleError: for anything that is not a whole, sound pickle.
        """
        handlers, result = HANDLERS, self.result
        try:
            while not result:
                if self.at >= self._refill_at:
                    self._top_up()
                at = self.at
                self.at = at + 1
                handlers[self.buffer[at]](self)
        except PickleError as error:
            raise type(error)("at byte %d: %s" % (self.done, error)) from None
        except (IndexError, ValueError, TypeError, struct.error) as error:
            # What an opcode finds missing or of another kind than it needs.
            kind = CutOffError if self._base + self.at >= self._end else PickleError
            raise kind("at byte %d: %s" % (self.done, str(error) or type(error).__name__)) from error
        finally:
            # Picklers write the state last. Items set later are set by whatever the state says.
            for built, items in self._built:
                if len(built.flat) + len(built.elements) != items:
                    self._use(built, "")
        return Decoded(result[0], self.persistent, self._base + self.at, self._blobs, self.shortcut.saved)

    @property
    def done(self) -> int:
        """Count the bytes that were read."""
        return self._base + self.at - self._start

    # --- reading -----------------------------------------------------------------------------------------------------

    def _top_up(self) -> None:
        """Have the longest opcode with a fixed argument in the buffer, unless the pickle ends before."""
        position = self._base + self.at
        if position >= self._end:
            raise CutOffError("it is cut off")
        if position + _LONGEST > self._base + len(self.buffer) < self._end:
            self._load(0)

    def _load(self, size: int) -> None:
        """Fill the buffer from the next byte on, with `size` bytes at least, unless the budget is spent."""
        if self.left < 16 * len(self.memo):
            raise TooLargeError("its objects would take more than %d MB" % (self._budget >> 20))
        position = self._base + self.at
        if position + size > self._end:
            raise CutOffError("it is cut off")
        self.buffer = self._source.read(position, min(max(size, _BLOCK), self._end - position))
        self._base, self.at = position, 0
        last = position + len(self.buffer) >= self._end
        self._refill_at = len(self.buffer) if last else len(self.buffer) - _LONGEST
        if len(self.buffer) < size:
            raise CutOffError("it is cut off")

    def number(self, size: int) -> int:
        """Read an argument of at most eight bytes, which are in the buffer."""
        at = self.at
        self.at = at + size
        return int.from_bytes(self.buffer[at : at + size], "little")

    def take(self, size: int) -> bytes:
        """Read bytes."""
        stop = self.at + size
        if stop > len(self.buffer):
            self._load(size)
            stop = size
        data = self.buffer[self.at : stop]
        self.at = stop
        return data

    def line(self) -> bytes:
        """Read up to the end of a line, a short one."""
        if len(self.buffer) - self.at < _MAX_LINE and self._base + len(self.buffer) < self._end:
            self._load(0)
        stop = self.buffer.find(b"\n", self.at, self.at + _MAX_LINE)
        if stop < 0:
            raise CutOffError("a line does not end")
        line = self.buffer[self.at : stop]
        self.at = stop + 1
        return line

    def text_line(self) -> bytes:
        """Read up to the end of a line that may be long: arrays are text in protocols 0 and 1."""
        stop = self.buffer.find(b"\n", self.at, self.at + _MAX_LINE)
        if stop >= 0:
            line = self.buffer[self.at : stop]
            self.at = stop + 1
            return line
        position = self._base + self.at
        data = self._source.read(position, min(_MAX_TEXT_LINE, self._end - position))
        line, end, _ = data.partition(b"\n")
        if not end:
            whole = position + len(data) >= self._end
            raise CutOffError("it is cut off") if whole else TooLargeError("a line of more than %d bytes" % len(data))
        self._go_on(position + len(line) + 1)
        return line

    def _go_on(self, position: int) -> None:
        """Have what follows read anew."""
        self.buffer, self._base, self.at, self._refill_at = b"", position, 0, 0

    def leave(self, size: int, *, text: bool) -> Blob:
        """Step over a string that stays in the file."""
        position = self._base + self.at
        if position + size > self._end:
            raise CutOffError("it is cut off")
        if self.at + size <= len(self.buffer):
            self.at += size
        else:
            self._go_on(position + size)
        blob = Blob(position, size, text)
        if size >= _LARGE and not text:
            self._blobs.append(blob)
        return blob

    # --- making ------------------------------------------------------------------------------------------------------

    def push(self, value: Any, cost: int) -> None:
        """Put a value of so many bytes on the stack."""
        self.left -= cost
        self.stack.append(value)

    def remember(self, index: int) -> None:
        """Note the topmost value under a number."""
        memo = self.memo
        if index == len(memo):
            memo.append(self.stack[-1])
        elif 0 <= index < len(memo):
            memo[index] = self.stack[-1]
            self.left -= 32
            self.shortcut.forget()
        elif index > self.done or index < 0:
            # Picklers number in order, so no index exceeds the bytes read so far; memory for more must not be asked
            # for.
            raise BombError("the memo number %d after %d bytes" % (index, self.done))
        else:
            memo.extend([PASSED_OVER] * (index - len(memo)))
            memo.append(self.stack[-1])

    def recall(self, index: int) -> None:
        """Put what was noted under a number on the stack."""
        value = self.memo[index] if index >= 0 else PASSED_OVER
        if value is PASSED_OVER:
            raise PickleError("the memo number %d was never set" % index)
        if value is LATER:
            value = self.shortcut.recall(index, self)
        self.left -= 24
        self.stack.append(value)

    def find(self, module: Any, name: Any) -> None:
        """Put a global on the stack."""
        if not isinstance(module, str) or not isinstance(name, str):
            raise PickleError("a global is named by a %s" % type(name).__name__)
        # Protocols below 3 name modules as Python 2 did. The policy knows both names of these two.
        if module not in ("__builtin__", "copy_reg"):
            module = IMPORT_MAPPING.get(module, module)
        found = Global(module, name)
        if found == REBUILD:
            found = REBUILD
        self._use(found, "named")
        self.push(found, 240)

    def call(self, func: Any, args: Any) -> None:
        """Put what calling a global would have returned on the stack."""
        if not isinstance(args, tuple):
            raise PickleError("arguments in a %s" % type(args).__name__)
        if isinstance(func, Global):
            if func.name in _SPECIAL and self._call_special(func, args):
                return
            self._use(func, "called")
            self._look_at(func, args)
            self.push(Call(func, args, func), 100)
        else:
            self._use(func, "called")
            self.push(Call(func, args, func.origin), 100)

    def _can_look_at(self, data: Any) -> bool:
        """Tell whether bytes are written as such, in torch's old format, which is what storages in a pickle have."""
        if isinstance(data, Call) and data.path == "_codecs.encode" and data.args[1:] in (("latin1",), ("latin-1",)):
            data = data.args[0]
        if isinstance(data, Blob):
            return self._source.read(data.offset, 4) != b"PK\3\4"
        return isinstance(data, str) and not data.startswith("PK\3\4")

    def _charge(self, looks: int) -> None:
        """Charge for looking at values, which a few bytes can ask for over and over."""
        self.left -= 8 * looks
        if self.left < 0:
            raise TooLargeError("its objects would take more than %d MB" % (self._budget >> 20))

    def _look_at(self, func: Global, args: Tuple[Any, ...]) -> None:
        """Note what a call does with what it is given."""
        name = func.name
        self._charge(len(args))
        if name in _MAKING and func.module in ("copyreg", "copy_reg"):
            self._note_made(args, based=name == "_reconstructor")
        elif self.buffer[self.at - 1] in _NEW:
            self._note_new(func, args[0] if self.buffer[self.at - 1] == _NEW[1] else args)
        elif _is_class(func) and not all(map(_is_simple, args)):
            self._use(func, "initialised")
        if name == "getattr" and args:
            self._note_object(args[0], "bound")
        elif name not in ("getattr", "partial", "type"):
            if is_known(func):
                self._hand(args)
            for value in args if func.module in _READING else ():
                parts = value if name in _PAIRING and type(value) in (list, tuple) else (value,)
                self._charge(len(parts))
                for each in parts:
                    self._note_object(each, "read")

    def _note_made(self, args: Tuple[Any, ...], *, based: bool) -> None:
        for made in args[: 1 + based]:
            self._use(made, "called")
            self._note_new(made, args[1] if args[1:] and isinstance(args[1], tuple) else args[1:])
        if based and len(args) > 1:
            self._use(args[1], "initialised")

    def _note_new(self, made: Any, args: Any) -> None:
        # A class of classes makes one of a name, bases and a body.
        if isinstance(args, tuple) and len(args) == 3 and isinstance(args[0], str) and isinstance(args[1], tuple):
            self._use(made, "initialised")

    def _note_object(self, value: Any, how: str) -> None:
        if isinstance(value, Call):
            self._use(value.origin, how)

    def _hand(self, values: Sequence[Any]) -> None:
        """Note what may be called by those who are given it."""
        for value in values:
            nested = value.flat if isinstance(value, Pairs) else value
            parts: Sequence[Any] = nested if type(nested) in (list, tuple) else (nested,)
            self._charge(len(parts))
            for each in parts:
                if isinstance(each, (Global, Call)):
                    self._hand_one(each)

    def _hand_one(self, value: Any) -> None:
        while isinstance(value, Call) and value.origin.name == "partial" and value.args:
            value = value.args[0]
            self._charge(1)
        if isinstance(value, Global):
            self._use(value, "handed")

    def _call_special(self, func: Global, args: Tuple[Any, ...]) -> bool:
        """Take care of the calls that make something else than an object; False for all others."""
        path = func.path
        if path == "builtins.getattr" and _names_inner(args):
            # Protocols below 4 name a nested class by looking it up in the outer one.
            self.find(args[0].module, "%s.%s" % (args[0].name, args[1]))
            return True
        for called in args[_CALLING[path] :][:1] if path in _CALLING else ():
            if isinstance(called, (Global, Call)):
                self._use(called, "called")
                if isinstance(called, Global) and len(args) > 1:
                    self._use(called, "called indirectly" if called.name in _UNSEEN else "initialised")
        if func.name in _EITHER and not _makes_data(func.name, args):
            self._use(func, "called indirectly")
        if path == "collections.OrderedDict":
            self._use(func, "called")
            self._look_at(func, args)
            self.push(_ordered(args), 120)
            return True
        if path == "torch.storage._load_from_bytes" and args:
            self._use(func, "called" if self._can_look_at(args[0]) else "called indirectly")
            self.refer((INNER, args[0]))
            return True
        return False

    def note_call(self, func: Global) -> None:
        """Note that a global is called."""
        self._use(func, "called")

    def refer(self, pid: Any) -> None:
        """Put an object outside the pickle on the stack."""
        if isinstance(pid, tuple) and len(pid) > 1 and pid[0] == "module" and isinstance(pid[1], Global):
            # torch's old format says so of the first mention of a class, to add its source.
            self.push(pid[1], 16)
            return
        if len(self.persistent) + len(self.shortcut.saved) >= MOST_STORAGES:
            raise TooLargeError("it refers to more than %d storages" % MOST_STORAGES)
        node = Persistent(pid)
        self.persistent.append(node)
        self.push(node, 160)

    def build(self, target: Any, state: Any) -> None:
        """Give an object its state; of plain mappings it is of no interest."""
        self.left -= 96
        if isinstance(target, Global):
            # A class or function that is changed itself, for all who use it later.
            self._use(target, "changed")
        elif isinstance(target, Call):
            self._note_state(target, state)
            self._built.append((target, len(target.flat) + len(target.elements)))
            self.left -= 100
            target.build(state)

    def _note_state(self, target: Call, state: Any) -> None:
        origin = target.origin
        if origin.name in _FINDING:
            # Nobody made it for this pickle alone.
            self._use(origin, "changed")
        # One state is all that a pickler gives; an object may call what the first holds for the second.
        self._use(origin, "called indirectly" if target.state else "built")
        if origin.name == "partial":
            for func, given in zip(state if isinstance(state, tuple) else (), target.args):
                # Deep values take forever to compare.
                if func is not given and not (isinstance(func, Global) and func == given):
                    self._use(target, "")
                break
        elif is_known(origin):
            self._hand(state if type(state) is tuple else (state,))

    def _use(self, target: Any, how: str) -> None:
        """Note how a global is used; what a call made counts for the global that was called."""
        if isinstance(target, Call):
            target, how = target.origin, "called indirectly"
        if not isinstance(target, Global):
            raise PickleError("a %s is called" % type(target).__name__)
        ways = self.uses.setdefault(target, [])
        if how not in ways:
            ways.append(how)
            self.left -= 200
        if len(self.uses) > _MAX_GLOBALS:
            raise BombError("more than %d different globals" % _MAX_GLOBALS)


def _is_class(found: Global) -> bool:
    return found.name.rpartition(".")[2].lstrip("_")[:1].isupper()


def _is_simple(value: object) -> bool:
    """Tell whether an argument is one of those by which enumerations name their members."""
    few = value if type(value) is tuple and len(value) < _FEW else (value,)
    return all(each is None or isinstance(each, int) for each in few)


def _names_inner(args: Tuple[Any, ...]) -> bool:
    return len(args) == 2 and isinstance(args[0], Global) and isinstance(args[1], str)


def _makes_data(name: str, args: Tuple[Any, ...]) -> bool:
    """Tell whether one of these functions does no more than methods, types and iterators ask of it.

    What else they return, or call, could be anything: with the attributes of attributes, and those that all objects
    have, every function there is can be reached, and a new class can have it called.
    """
    first = args[0] if args else None
    if name in ("iter", "type"):
        return len(args) == 1
    if name == "getattr":
        inner = isinstance(first, Call) and first.origin.name == name
        return len(args) == 2 and isinstance(args[1], str) and not (inner or args[1].startswith("__"))
    if name == "getitem":
        return isinstance(first, Global) and _is_class(first)
    return isinstance(first, Global) and first.path in ("operator.or_", "_operator.or_")


def _ordered(args: Tuple[Any, ...]) -> Pairs:
    pairs = Pairs()
    for pair in args[0] if args and isinstance(args[0], (list, tuple)) else ():
        if isinstance(pair, (list, tuple)) and len(pair) == 2:
            pairs.flat.extend(pair)
    return pairs
