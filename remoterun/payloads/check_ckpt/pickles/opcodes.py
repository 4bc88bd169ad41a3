"""The opcodes of pickle, protocols 0 to 5, each as what it does to a machine. What is not listed here is refused."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Tuple

from .nodes import BombError, Call, Pairs, PickleError
from .saved import REBUILD

if TYPE_CHECKING:
    from .machine import Machine

# The C pickler stops at Python's recursion limit of 1000; nesting beyond this is no accident.
_MAX_MARKS = 5_000
# Longer strings stay in the file.
_LONG_TEXT = 64 * 1024
_MAX_INTEGER = 1024
_BININT, _BININT1, _BININT2 = b"JKM"
_BINUNICODE, _LONG_BINPUT = b"Xr"
_SHORT_TEXT = 200
# What follows on a text: LONG_BINPUT, its number, BINUNICODE, the size of the next one.
_unpack_noted = struct.Struct("<BIBI").unpack_from

Handler = Callable[["Machine"], None]

# --- nine tenths of a checkpoint's opcodes are these, so they take no detours ----------------------------------------


def _mark(machine: Machine) -> None:
    stack = machine.stack
    if stack and stack[-1] is REBUILD and machine.shortcut.take(machine):
        return
    if len(machine.marks) >= _MAX_MARKS:
        raise BombError("nested deeper than %d levels" % _MAX_MARKS)
    machine.left -= 80
    machine.marks.append(stack)
    machine.stack = []


def _binput(machine: Machine) -> None:
    at = machine.at
    machine.at = at + 1
    machine.remember(machine.buffer[at])


def _long_binput(machine: Machine) -> None:
    at = machine.at
    machine.at = at + 4
    index = int.from_bytes(machine.buffer[at : at + 4], "little")
    if index == len(machine.memo):
        machine.memo.append(machine.stack[-1])
    else:
        machine.remember(index)


def _binget(machine: Machine) -> None:
    at = machine.at
    machine.at = at + 1
    machine.recall(machine.buffer[at])


def _long_binget(machine: Machine) -> None:
    machine.recall(machine.number(4))


def _binint1(machine: Machine) -> None:
    at = machine.at
    machine.at = at + 1
    machine.left -= 16
    machine.stack.append(machine.buffer[at])
    _integers(machine)


def _binint2(machine: Machine) -> None:
    at = machine.at
    machine.at = at + 2
    machine.left -= 32
    machine.stack.append(int.from_bytes(machine.buffer[at : at + 2], "little"))
    _integers(machine)


def _binint(machine: Machine) -> None:
    at = machine.at
    machine.at = at + 4
    machine.left -= 36
    machine.stack.append(int.from_bytes(machine.buffer[at : at + 4], "little", signed=True))
    _integers(machine)


def _integers(machine: Machine) -> None:
    """Go on with integers that follow, of which tables have many, as long as all of one is in the buffer."""
    buffer, at, stack, cost = machine.buffer, machine.at, machine.stack, 0
    last = len(buffer) - 5
    while at <= last:
        code = buffer[at]
        if code == _BININT1:
            stack.append(buffer[at + 1])
            at += 2
            cost += 16
        elif code == _BININT2:
            stack.append(buffer[at + 1] | buffer[at + 2] << 8)
            at += 3
            cost += 32
        elif code == _BININT:
            stack.append(int.from_bytes(buffer[at + 1 : at + 5], "little", signed=True))
            at += 5
            cost += 36
        else:
            break
    machine.at = at
    machine.left -= cost


def _binunicode(machine: Machine) -> None:
    """Read a text, and go on with those that follow once it is noted, of which lists of keys have many."""
    buffer, stack, memo, at = machine.buffer, machine.stack, machine.memo, machine.at + 4
    size = int.from_bytes(buffer[at - 4 : at], "little")
    last = len(buffer) - 10
    while size <= _SHORT_TEXT and at + size <= len(buffer):
        machine.at = end = at + size
        machine.left -= 64 + 4 * size
        text = str(buffer[at:end], "utf-8", "surrogatepass")
        stack.append(text)
        put, number, code, size = _unpack_noted(buffer, end) if end <= last else (0, 0, 0, 0)
        if put != _LONG_BINPUT or number != len(memo):
            return
        memo.append(text)
        machine.at = end + 5
        if code != _BINUNICODE:
            return
        at = end + 10
    machine.at = at
    _text(machine, size)


def _tuple(machine: Machine) -> None:
    items = machine.stack
    machine.stack = machine.marks.pop()
    machine.left -= 48 + 8 * len(items)
    machine.stack.append(tuple(items))


def _tuples(count: int) -> Handler:
    def handle(machine: Machine) -> None:
        stack = machine.stack
        if len(stack) < count:
            raise PickleError("the stack is too short")
        items = tuple(stack[-count:])
        del stack[-count:]
        machine.left -= 48 + 8 * count
        stack.append(items)

    return handle


def _constant(value: object) -> Handler:
    def handle(machine: Machine) -> None:
        machine.left -= 16
        machine.stack.append(value)

    return handle


def _reduce(machine: Machine) -> None:
    args = machine.stack.pop()
    machine.call(machine.stack.pop(), args)


def _binpersid(machine: Machine) -> None:
    machine.refer(machine.stack.pop())


# --- numbers --------------------------------------------------------------------------------------------------------


def _long1(machine: Machine) -> None:
    at = machine.at + 1
    buffer = machine.buffer
    stop = at + buffer[at - 1]
    machine.at = at
    if stop > len(buffer):
        _integer(machine, stop - at)
        return
    machine.at = stop
    machine.left -= 32 + stop - at
    machine.stack.append(int.from_bytes(buffer[at:stop], "little", signed=True))


def _integer(machine: Machine, size: int) -> None:
    if size > _MAX_INTEGER:
        raise BombError("an integer of %d bytes" % size)
    machine.push(int.from_bytes(machine.take(size), "little", signed=True), 32 + size)


def _decimal(machine: Machine) -> None:
    line = machine.line().rstrip(b"L")
    if line in (b"00", b"01"):
        machine.push(line == b"01", 16)
        return
    if len(line) > 2 * _MAX_INTEGER:
        raise BombError("an integer of %d digits" % len(line))
    machine.push(int(line), 32 + len(line))


def _float(machine: Machine) -> None:
    machine.push(float(machine.line()), 32)


def _binfloat(machine: Machine) -> None:
    machine.push(struct.unpack(">d", machine.take(8))[0], 32)


# --- strings --------------------------------------------------------------------------------------------------------


def _text(machine: Machine, size: int) -> None:
    if size > _LONG_TEXT:
        machine.push(machine.leave(size, text=True), 120)
        return
    text = machine.take(size).decode("utf-8", "surrogatepass")
    machine.push(text, 64 + (len(text) if text.isascii() else 4 * len(text)))


def _bytes(machine: Machine, size: int) -> None:
    machine.push(machine.leave(size, text=False), 120)


def _python2_string(machine: Machine, size: int) -> None:
    """Read what may be either text or bytes."""
    if size > _LONG_TEXT:
        machine.push(machine.leave(size, text=False), 120)
        return
    machine.push(machine.take(size).decode("utf-8", "replace"), 64 + 4 * size)


def _quoted(machine: Machine) -> None:
    line = machine.text_line()
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
        raise PickleError("a string without quotes")
    machine.push(line[1:-1].decode("latin-1"), 64 + len(line))


def _unicode_line(machine: Machine) -> None:
    text = machine.text_line().decode("raw-unicode-escape")
    machine.push(text, 64 + 4 * len(text))


# --- collections ----------------------------------------------------------------------------------------------------


def _popped(machine: Machine) -> List[Any]:
    items = machine.stack
    machine.stack = machine.marks.pop()
    return items


def _new_list(machine: Machine) -> None:
    machine.push([], 88)


def _list(machine: Machine) -> None:
    items = _popped(machine)
    machine.push(items, 88 + 8 * len(items))


def _new_dict(machine: Machine) -> None:
    machine.push(Pairs(), 160)


def _dict(machine: Machine) -> None:
    _new_dict(machine)
    pairs = machine.stack.pop()
    items = _popped(machine)
    machine.stack.append(pairs)
    _set(machine, items)


def _setitem(machine: Machine) -> None:
    value = machine.stack.pop()
    _set(machine, [machine.stack.pop(), value])


def _setitems(machine: Machine) -> None:
    _set(machine, _popped(machine))


def _set(machine: Machine, items: List[Any]) -> None:
    target = machine.stack[-1]
    if len(items) % 2:
        raise PickleError("a key without a value")
    machine.left -= 10 * len(items)
    if isinstance(target, Pairs):
        target.flat.extend(items)
    elif isinstance(target, Call):
        target.set_items(items)
    else:
        raise PickleError("items are set in a %s" % type(target).__name__)


def _append(machine: Machine) -> None:
    _extend(machine, [machine.stack.pop()])


def _appends(machine: Machine) -> None:
    _extend(machine, _popped(machine))


def _extend(machine: Machine, items: List[Any]) -> None:
    target = machine.stack[-1]
    machine.left -= 10 * len(items)
    if isinstance(target, list):
        target.extend(items)
    elif isinstance(target, Call):
        target.append_items(items)
    else:
        raise PickleError("elements are appended to a %s" % type(target).__name__)


# --- globals and objects --------------------------------------------------------------------------------------------


def _global(machine: Machine) -> None:
    module = machine.line().decode("utf-8")
    machine.find(module, machine.line().decode("utf-8"))


def _stack_global(machine: Machine) -> None:
    name = machine.stack.pop()
    machine.find(machine.stack.pop(), name)


def _newobj_ex(machine: Machine) -> None:
    keywords, args, func = machine.stack.pop(), machine.stack.pop(), machine.stack.pop()
    machine.call(func, (args, keywords))


def _inst(machine: Machine) -> None:
    items = _popped(machine)
    _global(machine)
    machine.call(machine.stack.pop(), tuple(items))


def _obj(machine: Machine) -> None:
    items = _popped(machine)
    machine.call(items[0], tuple(items[1:]))


def _build(machine: Machine) -> None:
    state = machine.stack.pop()
    machine.build(machine.stack[-1], state)


def _extension(machine: Machine, width: int) -> None:
    code = machine.number(width)
    _odd(machine, "EXT%d %d" % (width, code))
    machine.find("copyreg.extension", str(code))


def _odd(machine: Machine, what: str) -> None:
    machine.left -= 64
    if len(machine.oddities) < 100:
        machine.oddities.append(what)


def _next_buffer(machine: Machine) -> None:
    _odd(machine, "NEXT_BUFFER")
    machine.push(None, 16)


# --- the rest -------------------------------------------------------------------------------------------------------


def _unknown(machine: Machine) -> None:
    raise PickleError("an unknown opcode")


def _stop(machine: Machine) -> None:
    machine.result.append(machine.stack.pop())


def _pop(machine: Machine) -> None:
    machine.left -= 32
    if machine.stack:
        machine.stack.pop()
    else:
        _popped(machine)


def _pop_mark(machine: Machine) -> None:
    _popped(machine)


def _dup(machine: Machine) -> None:
    machine.push(machine.stack[-1], 16)


def _protocol(machine: Machine) -> None:
    machine.left -= 64
    if machine.number(1) > 5:
        raise PickleError("a protocol later than 5")


def _frame(machine: Machine) -> None:
    machine.left -= 64
    machine.number(8)


def _table() -> Tuple[Handler, ...]:
    table: Dict[bytes, Handler] = {
        b"(": _mark,
        b".": _stop,
        b"0": _pop,
        b"1": _pop_mark,
        b"2": _dup,
        b"F": _float,
        b"I": _decimal,
        b"J": _binint,
        b"K": _binint1,
        b"L": _decimal,
        b"M": _binint2,
        b"N": _constant(None),
        b"P": lambda machine: machine.refer(machine.line().decode("utf-8")),
        b"Q": _binpersid,
        b"R": _reduce,
        b"S": _quoted,
        b"T": lambda machine: _python2_string(machine, machine.number(4)),
        b"U": lambda machine: _python2_string(machine, machine.number(1)),
        b"V": _unicode_line,
        b"X": _binunicode,
        b"a": _append,
        b"b": _build,
        b"c": _global,
        b"d": _dict,
        b"}": _new_dict,
        b"e": _appends,
        b"g": lambda machine: machine.recall(int(machine.line())),
        b"h": _binget,
        b"i": _inst,
        b"j": _long_binget,
        b"l": _list,
        b"]": _new_list,
        b"o": _obj,
        b"p": lambda machine: machine.remember(int(machine.line())),
        b"q": _binput,
        b"r": _long_binput,
        b"s": _setitem,
        b"t": _tuple,
        b")": _constant(()),
        b"u": _setitems,
        b"G": _binfloat,
        b"\x80": _protocol,
        b"\x81": _reduce,  # NEWOBJ takes the same arguments
        b"\x82": lambda machine: _extension(machine, 1),
        b"\x83": lambda machine: _extension(machine, 2),
        b"\x84": lambda machine: _extension(machine, 4),
        b"\x85": _tuples(1),
        b"\x86": _tuples(2),
        b"\x87": _tuples(3),
        b"\x88": _constant(True),
        b"\x89": _constant(False),
        b"\x8a": _long1,
        b"\x8b": lambda machine: _integer(machine, machine.number(4)),
        b"B": lambda machine: _bytes(machine, machine.number(4)),
        b"C": lambda machine: _bytes(machine, machine.number(1)),
        b"\x8c": lambda machine: _text(machine, machine.number(1)),
        b"\x8d": lambda machine: _text(machine, machine.number(8)),
        b"\x8e": lambda machine: _bytes(machine, machine.number(8)),
        b"\x8f": _new_list,
        b"\x90": _appends,
        b"\x91": _list,
        b"\x92": _newobj_ex,
        b"\x93": _stack_global,
        b"\x94": lambda machine: machine.remember(len(machine.memo)),
        b"\x95": _frame,
        b"\x96": lambda machine: _bytes(machine, machine.number(8)),
        b"\x97": _next_buffer,
        b"\x98": lambda machine: _odd(machine, "READONLY_BUFFER"),
    }
    return tuple(table.get(bytes([code]), _unknown) for code in range(256))


HANDLERS: Tuple[Handler, ...] = _table()
