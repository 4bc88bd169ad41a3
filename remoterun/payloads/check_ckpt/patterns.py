"""Regular expressions that are compiled when they are first needed: most runs need few of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, AnyStr

if TYPE_CHECKING:
    from re import Pattern


class _Later:
    def __init__(self, text: Any, flags: int) -> None:
        self._source = text, flags

    def __getattr__(self, name: str) -> Any:
        compiled = re.compile(*self._source)
        for method in ("search", "match", "fullmatch", "findall", "finditer", "split", "sub"):
            setattr(self, method, getattr(compiled, method))
        return getattr(compiled, name)


def pattern(text: AnyStr, flags: int = 0) -> Pattern[AnyStr]:
    """Return what `re.compile` does."""
    later: Pattern[AnyStr] = _Later(text, flags)  # type: ignore[assignment]
    return later
