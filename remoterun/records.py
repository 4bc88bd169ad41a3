"""Frozen records at a fraction of what the standard library's cost at import.

`dataclasses` compiles up to eight functions for each frozen class and makes the class anew for its slots: half a
millisecond a class, of which a run meets a hundred. Here `__init__` is compiled when the first instance is made; the
other methods are shared. For type checkers it is `dataclasses.dataclass` itself.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["dataclass"]

_MISSING = dataclasses.MISSING
_set = object.__setattr__

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(*, frozen: bool, slots: bool, kw_only: bool = False):
        """Make a class a frozen record with slots, as `dataclasses.dataclass` does with the same words."""
        if not (frozen and slots):
            raise TypeError("a record is frozen and has slots")

        def make(cls: type) -> type:
            # What it makes of the annotations is enough for `fields`, `replace` and the like.
            made = _with_slots(dataclasses.dataclass(init=False, eq=False, repr=False, kw_only=kw_only)(cls))
            items = dataclasses.fields(made)
            names = tuple(item.name for item in items)
            for name, method in (
                ("__init__", _first_init(made)),
                ("__eq__", _equality(made, tuple(item.name for item in items if item.compare))),
                ("__hash__", _hashing(tuple(item.name for item in items if item.compare))),
                ("__repr__", _showing(tuple(item.name for item in items if item.repr))),
            ):
                if name not in vars(cls) or vars(cls)[name] is None:
                    setattr(made, name, method)
            made.__setattr__ = made.__delattr__ = _refuse
            made.__getstate__ = _state(names)
            made.__setstate__ = _restoring(names)
            return made

        return make


def _with_slots(cls: type) -> type:
    """Return a class once more, with slots for the fields that its parents have not."""
    inherited = {name for base in cls.__mro__[1:] for name in getattr(base, "__slots__", ())}
    names = [item.name for item in dataclasses.fields(cls) if item.name not in inherited]
    left_out = {*names, "__dict__", "__weakref__"}
    namespace = {name: value for name, value in vars(cls).items() if name not in left_out}
    return type(cls)(cls.__name__, cls.__bases__, {**namespace, "__slots__": tuple(names)})


def _first_init(made: Any) -> Callable[..., None]:
    """Return what makes the first instance, and has the others made by a function compiled for it."""

    def init(self: object, *values: object, **named: object) -> None:
        made.__init__ = _compiled_init(made)
        made.__init__(self, *values, **named)

    init.__name__, init.__qualname__ = "__init__", f"{made.__qualname__}.__init__"
    return init


def _compiled_init(made: Any) -> Callable[..., None]:
    """Compile a function that takes the fields, and sets each once."""
    items = [item for item in dataclasses.fields(made) if item.init]
    ordered = [item for item in items if not item.kw_only]
    named = [item for item in items if item.kw_only]
    words = [*map(_parameter, ordered), *(["*", *map(_parameter, named)] if named else [])]
    lines = [f"def __init__(_self, {', '.join(words)}):"]
    known: dict[str, Any] = {"_set": _set, "_MISSING": _MISSING}
    for item in dataclasses.fields(made):
        known |= {f"_default_{item.name}": item.default, f"_make_{item.name}": item.default_factory}
        value = item.name if item.init else "_MISSING"
        if item.default_factory is not _MISSING:
            value = f"_make_{item.name}() if {value} is _MISSING else {value}"
        elif not item.init:
            value = f"_default_{item.name}"
        lines.append(f" _set(_self, {item.name!r}, {value})")
    if hasattr(made, "__post_init__"):
        lines.append(" _self.__post_init__()")
    exec("\n".join(lines) if items else "def __init__(_self): pass", known)  # noqa: S102  # names of fields alone
    init: Callable[..., None] = known["__init__"]
    init.__qualname__ = f"{made.__qualname__}.__init__"
    return init


def _parameter(item: dataclasses.Field[Any]) -> str:
    if item.default is not _MISSING:
        return f"{item.name}=_default_{item.name}"
    return f"{item.name}=_MISSING" if item.default_factory is not _MISSING else item.name


def _equality(made: type, names: tuple[str, ...]) -> Any:
    def equal(self: object, other: object) -> object:
        if type(other) is not made:
            return NotImplemented
        return self is other or all(getattr(self, name) == getattr(other, name) for name in names)

    return equal


def _hashing(names: tuple[str, ...]) -> Any:
    def hashed(self: object) -> int:
        return hash(tuple(getattr(self, name) for name in names))

    return hashed


def _showing(names: tuple[str, ...]) -> Any:
    def shown(self: object) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return shown


def _refuse(self: object, name: str, *_value: object) -> None:
    """Refuse to set or to delete a field."""
    raise dataclasses.FrozenInstanceError(f"cannot change field {name!r}: a record stays as it was made")


def _state(names: tuple[str, ...]) -> Any:
    def state(self: object) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in names)

    return state


def _restoring(names: tuple[str, ...]) -> Any:
    def restore(self: object, state: tuple[object, ...]) -> None:
        for name, value in zip(names, state, strict=True):
            _set(self, name, value)

    return restore
