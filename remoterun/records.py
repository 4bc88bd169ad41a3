"""Frozen records at a fraction of what the standard library's cost at import.

`dataclasses` compiles up to eight functions for each frozen class, a millisecond a class, which is most of what
starting this program takes beside its libraries. Here only `__init__` is compiled; the other methods are shared. For
type checkers it is `dataclasses.dataclass` itself.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(*, frozen: bool, slots: bool, kw_only: bool = False):
        """Make a class a frozen record with slots, as `dataclasses.dataclass` does with the same words."""
        if not (frozen and slots):
            raise TypeError("a record is frozen and has slots")

        def make(cls: type) -> type:
            made = dataclasses.dataclass(slots=True, kw_only=kw_only, eq=False, repr=False)(cls)
            compared = tuple(item.name for item in dataclasses.fields(made) if item.compare)
            shown = tuple(item.name for item in dataclasses.fields(made) if item.repr)
            own = vars(cls)
            for name, method in (
                ("__eq__", _equality(made, compared)),
                ("__hash__", _hashing(compared)),
                ("__repr__", _showing(shown)),
            ):
                if name not in own or own[name] is None:
                    setattr(made, name, method)
            made.__setattr__ = _set_once
            made.__delattr__ = _refuse
            made.__getstate__ = _state
            made.__setstate__ = _restore
            return made

        return make


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


def _set_once(self: object, name: str, value: object) -> None:
    """Let `__init__` set each field, and nobody afterwards."""
    try:
        object.__getattribute__(self, name)
    except AttributeError:
        object.__setattr__(self, name, value)
    else:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse(self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> tuple[object, ...]:
    return tuple(getattr(self, item.name) for item in dataclasses.fields(self))


def _restore(self: Any, state: tuple[object, ...]) -> None:
    for item, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, item.name, value)
