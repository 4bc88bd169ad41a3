"""Records: tuples with named fields, as `typing.NamedTuple` makes them, but only when the first of a kind is needed.

An audit knows about a hundred kinds, of which a run needs a third; making them all takes as long as reading 100 MB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["Record"]

if TYPE_CHECKING:
    from typing import NamedTuple as Record
else:
    from collections import namedtuple

    class _Kind(type):
        """Note the fields of a kind of record."""

        def __new__(mcs, name, bases, namespace):
            fields = tuple(namespace.get("__annotations__", ()))
            defaults = tuple(namespace.pop(field) for field in fields if field in namespace)
            return super().__new__(mcs, name, bases, {**namespace, "__slots__": (), "_kind": (name, fields, defaults)})

    class Record(tuple, metaclass=_Kind):
        """Be the base of all records."""

        def __new__(cls, *values, **named):
            """Make the first of its kind."""
            name, fields, defaults = cls._kind
            made = namedtuple(name, fields, defaults=defaults)
            for member in ("__new__", "__repr__", "_make", "_replace", "_fields", *fields):
                setattr(cls, member, vars(made)[member])
            return cls(*values, **named)

        @classmethod
        def _make(cls, values):
            return cls(*values)
