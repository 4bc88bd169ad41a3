"""Give commands the flags that they share: these stand in one record, which a command gets as its argument `flags`."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, fields
from functools import lru_cache, wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Any, ClassVar, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Be the base of records of flags, whose fields are annotated as typer wants it.

    `FIRST` names those that help tells of before a command's own.
    """

    FIRST: ClassVar[frozenset[str]] = frozenset()

    def around(self, given: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Return what a command is run in; `given` are its own arguments."""
        del given
        return nullcontext()


def taking(record: type[Shared], *names: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command flags of a record: all, or those of these names, the others being as if not given."""
    flags = [item for item in fields(record) if not names or item.name in names]
    flag_hints = _hints(record)  # type: ignore[arg-type]  # a class has a hash, whatever its instances have
    extra = [
        Parameter(item.name, Parameter.KEYWORD_ONLY, default=item.default, annotation=flag_hints[item.name])
        for item in flags
    ]

    def give(function: Callable[..., int]) -> Callable[..., int]:
        hints = get_type_hints(function, include_extras=True)
        own = [
            item.replace(annotation=hints[name])
            for name, item in signature(function).parameters.items()
            if name != "flags"
        ]

        arguments = [item for item in own if item.kind is not Parameter.KEYWORD_ONLY]
        first = [item for item in extra if item.name in record.FIRST]
        # Each once, in this order.
        ordered = list({item.name: item for item in (*arguments, *first, *own, *extra)}.values())

        @wraps(function)
        def command(**given: Any) -> int:  # typer hands over what the signature says
            said = record(**{item.name: given.pop(item.name) for item in flags})
            with said.around(given):
                return function(flags=said, **given)

        command.__signature__ = Signature(ordered)  # type: ignore[attr-defined]
        command.__annotations__ = {item.name: item.annotation for item in ordered}
        return command

    return give


@lru_cache
def _hints(record: type[Shared]) -> dict[str, Any]:
    return get_type_hints(record, include_extras=True)
