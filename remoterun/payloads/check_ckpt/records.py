"""Records: tuples with named fields, as `typing.NamedTuple` makes them, but in a tenth of the time.

An audit knows about a hundred kinds, of which a run needs half; named tuples of those take as long as reading 200 MB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["Record"]

if TYPE_CHECKING:
    from typing import NamedTuple as Record
else:
    import functools
    from collections import _tuplegetter

    class _Kind(type):
        """Give a kind of record its fields."""

        def __new__(mcs, name, bases, namespace):
            fields = tuple(namespace.get("__annotations__", ()))
            defaults = tuple(namespace.pop(field) for field in fields if field in namespace)
            getters = {field: _tuplegetter(index, None) for index, field in enumerate(fields)}
            more = {"__slots__": (), "_fields": fields, "_defaults": defaults}
            return super().__new__(mcs, name, bases, {**namespace, **getters, **more})

    class Record(tuple, metaclass=_Kind):
        """Be the base of all records."""

        def __new__(cls, *values, **named):
            """Make the first of its kind."""
            template = _template(len(cls._fields))
            code = template.__code__.replace(co_name="__new__", co_varnames=("_kind", *cls._fields))
            cls.__new__ = type(template)(code, template.__globals__, "__new__", cls._defaults)
            return cls(*values, **named)

        @classmethod
        def _make(cls, values):
            return cls(*values)

        def _replace(self, **named):
            values = tuple.__new__(type(self), map(named.pop, self._fields, self))
            if named:
                raise ValueError("there are no fields %s" % ", ".join(named))
            return values

        def __repr__(self):
            """Show the fields with their names."""
            return "%s(%s)" % (type(self).__name__, ", ".join(map("%s=%r".__mod__, zip(self._fields, self))))

    @functools.lru_cache(maxsize=None)
    def _template(count):
        """Return a function of so many values that makes a tuple of them, where only their names are to be changed."""
        names = "".join("_%d, " % number for number in range(count))
        return eval("lambda _kind, %s: _new(_kind, (%s))" % (names[:-2], names), {"_new": tuple.__new__})
