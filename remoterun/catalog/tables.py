"""Typed reading of TOML tables, which notes every problem instead of stopping at the first."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, TypeVar

from remoterun.errors import Problem, nearest
from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

T = TypeVar("T")

_WORDS: Mapping[type, str] = {str: "a string", bool: "true or false", list: "a list", dict: "a table"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Read one table of a file; `path` is its dotted place in it, empty for the top."""

    raw: Mapping[str, object]
    file: str
    problems: list[Problem]
    path: str = ""

    def note(self, key: str, message: str, near: tuple[str, ...] = ()) -> None:
        """Note a problem with one key."""
        self.problems.append(Problem(message=message, file=self.file, path=self.place(key), nearest=near))

    def place(self, key: str) -> str:
        """Return the dotted place of a key."""
        return f"{self.path}.{key}" if self.path else key

    def take(self, key: str, default: T) -> T:
        """Return the value of a key that has the type of `default`, else `default`."""
        value = self.raw.get(key, default)
        # Exactly the type: to Python, true is an int.
        if type(value) is type(default):
            return value
        self.note(key, f"expected {_WORDS[type(default)]}, got {type(value).__name__}")
        return default

    def need(self, key: str) -> str:
        """Return a string that must be there and not be empty; a missing one is noted and read as empty."""
        if key not in self.raw:
            self.note(key, "is required")
        elif self.raw[key] == "":
            self.note(key, "is empty")
        return self.take(key, "")

    def words(self, key: str) -> tuple[str, ...]:
        """Return a list of strings; what is no string is noted and left out."""
        values = self.take(key, list[object]())
        for at, value in enumerate(values):
            if not isinstance(value, str) or not value:
                self.note(f"{key}[{at}]", "expected a string that is not empty")
        return tuple(value for value in values if isinstance(value, str) and value)

    def table(self, key: str) -> Table:
        """Return the table of a key, empty when there is none."""
        return Table(
            raw=self.take(key, dict[str, object]()), file=self.file, problems=self.problems, path=self.place(key)
        )

    def only(self, known: Collection[str]) -> None:
        """Note every key that is not known."""
        for key in self.raw:
            if key not in known:
                self.note(key, "unknown key", nearest(key, known))


def parse_toml(text: str, *, file: str, first_line: int, problems: list[Problem]) -> Table | None:
    """Read TOML that starts at `first_line` of its file; None, with a problem noted, when it is not TOML."""
    try:
        raw: Mapping[str, object] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # Beside TOMLDecodeError: a plain ValueError for an int of thousands of digits, RecursionError for deep nesting.
        at = re.search(r"at line (\d+)", str(error))
        line = first_line + int(at[1]) - 1 if at else None
        problems.append(Problem(message=f"is not TOML: {error}", file=file, line=line))
        return None
    return Table(raw=raw, file=file, problems=problems)
