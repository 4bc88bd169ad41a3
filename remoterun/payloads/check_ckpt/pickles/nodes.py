"""What a pickle describes, as inert values: nothing of it is ever imported or called."""

from __future__ import annotations

from typing import Any, Iterator, List, Optional, Sequence, Tuple

from ..records import Record


class PickleError(Exception):
    """Say why a pickle can't be read, and where."""


class BombError(PickleError):
    """Say that a pickle asks for what no checkpoint needs."""


class CutOffError(PickleError):
    """Say that a pickle does not end where it has to."""


class TooLargeError(PickleError):
    """Say that a pickle, honest or not, holds more than can be decoded in little memory."""


# What a memo holds at numbers that were passed over.
PASSED_OVER = object()
# What it holds in place of parts of a tensor that nobody has asked for.
LATER = object()


class Global(Record):
    """Name what a pickle asks the unpickler to import."""

    module: str
    name: str

    @property
    def path(self) -> str:
        """Return the dotted path, with Python 2's name of the builtins replaced."""
        return "%s.%s" % ("builtins" if self.module == "__builtin__" else self.module, self.name)


class Blob(Record):
    """Place bytes (or UTF-8 text) that were left in the file."""

    offset: int
    size: int
    text: bool = False


class Pairs:
    """Hold a mapping as the flat list key, value, key, value: hostile keys can't collide in it."""

    __slots__ = ("flat",)

    def __init__(self, flat: Optional[List[Any]] = None) -> None:
        self.flat: List[Any] = [] if flat is None else flat

    def items(self) -> List[Tuple[Any, Any]]:
        """Return keys and values, in the order they were set."""
        return list(pairs(self.flat))


class Call:
    """Stand for the object that calling `func` with `args` would have made.

    `origin` is the global that was called, or that made what was called. `state` is what was given to BUILD, `flat`
    what was set in it as in a mapping, `elements` what was appended.
    """

    __slots__ = ("args", "elements", "flat", "func", "origin", "state")

    def __init__(self, func: Any, args: Tuple[Any, ...], origin: Global) -> None:
        self.func = func
        self.args = args
        self.origin = origin
        # Most calls get none of these, and a list takes more memory than the rest.
        self.state: Sequence[Any] = ()
        self.flat: Sequence[Any] = ()
        self.elements: Sequence[Any] = ()

    def set_items(self, items: List[Any]) -> None:
        """Set entries as in a mapping."""
        self.flat = added(self.flat, items)

    def append_items(self, items: List[Any]) -> None:
        """Append elements as to a list."""
        self.elements = added(self.elements, items)

    def build(self, state: Any) -> None:
        """Take a state."""
        self.state = added(self.state, [state])

    @property
    def path(self) -> str:
        """Return the dotted path of what is called, "" when that is no plain global."""
        return self.func.path if isinstance(self.func, Global) else ""


def added(known: Sequence[Any], more: List[Any]) -> List[Any]:
    """Add to a list, or make one of what is none yet."""
    if isinstance(known, list):
        known.extend(more)
        return known
    return more


# The first part of an id whose second are the bytes of a file inside the pickle.
INNER = "inner"


class Persistent:
    """Stand for an object outside the pickle, in torch files a storage; `meaning` is what its reader made of it."""

    __slots__ = ("id", "meaning")

    def __init__(self, pid: Any) -> None:
        self.id = pid
        self.meaning: Any = None


class Decoded(Record):
    """Hold what a pickle describes: the object, the storages it refers to, and where in the file it ends.

    `blobs` are all bytes of some length that were left in the file, `saved` tensors that refer to a storage each,
    besides those in `persistent`.
    """

    root: Any
    persistent: List[Persistent]
    stop: int
    blobs: Sequence[Blob] = ()
    saved: Sequence[Any] = ()


def pairs(flat: Sequence[Any]) -> Iterator[Tuple[Any, Any]]:
    """Yield keys and values of a flat list, which may be too long for a second of its length."""
    parts = iter(flat)
    return zip(parts, parts)


def string_items(node: object) -> Iterator[Tuple[str, Any]]:
    """Yield the entries with text keys of a mapping, or the attributes of an object."""
    if isinstance(node, Pairs):
        flats: List[Sequence[Any]] = [node.flat]
    elif isinstance(node, Call):
        flats = [node.flat, *(state.flat for state in states(node))]
    else:
        return
    for flat in flats:
        for key, value in pairs(flat):
            if isinstance(key, str):
                yield key, value


def states(call: Call) -> List[Pairs]:
    """Return the mappings among an object's states; classes with slots put two into a tuple."""
    flat: List[Any] = []
    for state in call.state:
        flat.extend(state if isinstance(state, tuple) else [state])
    return [state for state in flat if isinstance(state, Pairs)]
