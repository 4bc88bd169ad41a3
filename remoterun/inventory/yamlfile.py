"""YAML files as plain JSON values that remember their lines. Imports PyYAML: load this module lazily.

Built from PyYAML's events, so that nothing a file says is constructed, no nesting recurses, and the rules are stricter
than PyYAML's own: scalars by the core schema of YAML 1.2 (``yes``, ``on``, ``1:30`` and dates are text), every key is
text as it is written (``200:`` and ``"200":`` are one key), a key given twice is a problem, tags and merge keys are
refused, and depth, size and what aliases repeat are bounded.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias

import yaml

from remoterun.errors import ConfigError, Problem, show
from remoterun.store import read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from remoterun.model import Json

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

MOST_NODES: Final = 500_000
MOST_DEPTH: Final = 32
_MOST_DIGITS: Final = 300

_UNPRINTABLE: Final = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_INT: Final = re.compile(r"[-+]?(0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_TEXT_TAGS: Final = ("!", "tag:yaml.org,2002:str")
_PLAIN_PART: Final = re.compile(r"[A-Za-z0-9_-]{1,60}")

Part: TypeAlias = str | int
Container: TypeAlias = "dict[str, Json] | list[Json]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Hold a parsed file: its value, what is wrong with it as YAML, and where everything stands.

    `lines` maps the id() of each container in `root` to the line of each of its keys or items; `refused` has the places
    whose values were dropped.
    """

    file: str
    root: Json
    problems: tuple[Problem, ...] = ()
    lines: dict[int, dict[Part, int]] = field(default_factory=dict, repr=False)
    refused: tuple[tuple[Part, ...], ...] = ()

    def locate(self, path: Iterable[Part]) -> tuple[tuple[Part, ...], int | None]:
        """Follow a path through the document, leaving out the parts that it does not have; return it with its line."""
        here, known, line = self.root, [], None
        for part in path:
            at = self.lines.get(id(here), {}) if isinstance(here, (dict, list)) else {}
            if part not in at:
                continue
            line = at[part]
            known.append(part)
            here = here[part]  # type: ignore[index]  # `part` is a key or index of it, as `at` has it
        return tuple(known), line

    def problem(
        self, path: Iterable[Part], message: str, *, nearest: tuple[str, ...] = (), missing: str | None = None
    ) -> Problem:
        """Put a problem at its place; `missing` names a key that should have stood under `path`."""
        known, line = self.locate(path)
        parts = (*known, missing) if missing is not None else known
        return Problem(message=message, file=self.file, line=line, path=dotted(parts) or None, nearest=nearest)


def dotted(path: Iterable[Part]) -> str:
    """Write a path as ``hosts.kpro6.guests.200``; a part that is no plain word stands in quotes."""
    texts = (str(part) for part in path)
    return ".".join(text if _PLAIN_PART.fullmatch(text) else json.dumps(text[:60]) for text in texts)


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Sort the problems of one file by line; those of the whole file come last."""
    return sorted(problems, key=lambda problem: math.inf if problem.line is None else problem.line)


def read(path: Path) -> Document:
    """Read and parse a file.

    Raises:
        ConfigError: it cannot be read, is not UTF-8, not YAML, or beyond the bounds.
    """
    return parse(read_bytes(path), str(path))


def parse(data: bytes, file: str) -> Document:
    """Parse YAML; an empty file is an empty mapping.

    Raises:
        ConfigError: not UTF-8, not YAML, or beyond the bounds. Lesser problems are in the document's own list.
    """
    builder = _Builder(file)
    text = _decode(data, file)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.feed(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = ", ".join(said for said in (error.context, error.problem) if said)
        if mark and _begins_with_tab(text.splitlines()[mark.line :]):
            what = "a tab stands at the beginning of the line, where YAML takes spaces only"
        raise ConfigError(
            [*builder.problems, Problem(file=file, line=mark.line + 1 if mark else None, message=f"not YAML: {what}")]
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError([*builder.problems, Problem(file=file, message=f"not YAML: {error}")]) from error
    return builder.document()


def _begins_with_tab(lines: list[str]) -> bool:
    return bool(lines) and "\t" in lines[0][: len(lines[0]) - len(lines[0].lstrip())]


def _decode(data: bytes, file: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(Problem(file=file, line=line, message="is not UTF-8 text: save it as UTF-8")) from error
    if found := _UNPRINTABLE.search(text):
        line = text.count("\n", 0, found.start()) + 1
        message = (
            f"holds the character {show(found[0])}, which YAML does not allow: write it as an escape in double quotes"
        )
        raise ConfigError(Problem(file=file, line=line, message=message))
    return text


@dataclass(slots=True)
class _Open:
    """Hold a container that is being filled."""

    into: Container
    line: int
    anchor: str | None
    before: int
    has_key: bool = False
    key: str | None = None  # None while has_key is true: the key was refused, and its value is dropped


class _Builder:
    """Build values from YAML events, iteratively."""

    def __init__(self, file: str) -> None:
        self.problems: list[Problem] = []
        self._file = file
        self._root: Json = None
        self._has_root = False
        self._open: list[_Open] = []
        self._lines: dict[int, dict[Part, int]] = {}
        self._anchors: dict[str, tuple[Json, int]] = {}
        self._nodes = 0
        self._places: list[tuple[Part, ...]] = []
        self._refused: list[Json] = []  # kept alive: `_lines` is keyed by id()

    def document(self) -> Document:
        root: Json = {} if self._root is None else self._root
        problems, refused = tuple(self.problems), tuple(self._places)
        return Document(file=self._file, root=root, problems=problems, lines=self._lines, refused=refused)

    def feed(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.DocumentStartEvent):
            if self._has_root:
                self._fail(event, "holds a second document (`---`): only one is read")
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event)
        elif isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event)
            self._count(event, 1)
            self._anchor(event.anchor, value, 1)
            self._add(value, _line(event), key=_key_text(event, value))
        elif isinstance(event, yaml.CollectionStartEvent):
            self._start(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            done = self._open.pop()
            self._anchor(done.anchor, done.into, self._nodes - done.before)
            self._add(done.into, done.line, key=None)

    def _start(self, event: yaml.CollectionStartEvent) -> None:
        if event.tag not in (None, "!"):
            self._problem(event, f"has the tag {show(event.tag)}: tags are not used here")
        if len(self._open) >= MOST_DEPTH:
            self._fail(event, f"is nested more than {MOST_DEPTH} levels deep")
        into: Container = {} if isinstance(event, yaml.MappingStartEvent) else []
        self._lines[id(into)] = {}
        self._open.append(_Open(into=into, line=_line(event), anchor=event.anchor, before=self._nodes))
        self._count(event, 1)

    def _alias(self, event: yaml.AliasEvent) -> None:
        if event.anchor not in self._anchors:
            self._fail(event, f"the alias *{event.anchor} has no anchor &{event.anchor} complete before it")
        value, size = self._anchors[event.anchor]
        self._count(event, size)
        self._add(value, _line(event), key=None)

    def _anchor(self, name: str | None, value: Json, size: int) -> None:
        if name is not None:
            self._anchors[name] = (value, size)

    def _count(self, event: yaml.Event, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > MOST_NODES:
            self._fail(event, f"holds more than {MOST_NODES} values, those repeated by aliases included")

    def _add(self, value: Json, line: int, *, key: str | None) -> None:
        if not self._open:
            self._root, self._has_root = value, True
            return
        top = self._open[-1]
        if isinstance(top.into, list):
            self._lines[id(top.into)][len(top.into)] = line
            top.into.append(value)
        elif not top.has_key:
            top.has_key, top.key = True, self._key(top, value, line, key=key)
        else:
            if top.key is None:
                self._refused.append(value)
            else:
                top.into[top.key] = value
            top.has_key = False

    def _key(self, top: _Open, value: Json, line: int, *, key: str | None) -> str | None:
        """Note where a key stands; return None when it is refused."""
        at = self._lines[id(top.into)]
        if key is None:
            self._refused.append(value)
            self._refuse_key(line, (), f"the key {show(value)} is not text: put it in quotes")
        elif key in at:
            self._refuse_key(line, (key,), f"is given twice (first on line {at[key]}): keep one")
        elif key == "<<":
            self._refuse_key(line, (key,), "merge keys are not supported: use defaults or groups")
        else:
            at[key] = line
            return key
        return None

    def _refuse_key(self, line: int, key: tuple[str, ...], message: str) -> None:
        place = (*self._path(self._open[:-1]), *key)
        self._places.append(place)
        self.problems.append(self._at(line, place, message))

    def _path(self, frames: Iterable[_Open]) -> tuple[Part, ...]:
        """Return the path of what is being filled in, inside the innermost of some open containers."""
        return tuple(len(frame.into) if isinstance(frame.into, list) else frame.key or "?" for frame in frames)

    def _scalar(self, event: yaml.ScalarEvent) -> Json:
        text: str = event.value
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            self._problem(event, "holds half of a surrogate pair, which is no character")
            return ""
        if event.tag is not None and event.tag not in _TEXT_TAGS:
            self._problem(event, f"has the tag {show(event.tag)}: tags are not used here")
            return text
        if event.tag is not None or not event.implicit[0]:
            return text
        return self._plain(event, text)

    def _plain(self, event: yaml.ScalarEvent, text: str) -> Json:
        """Read an unquoted scalar by the core schema of YAML 1.2; digits after a leading zero stay text."""
        if text in _WORDS:
            return _WORDS[text]
        if len(text) <= _MOST_DIGITS and _INT.fullmatch(text):
            return int(text, 0)
        number = float(text) if len(text) <= _MOST_DIGITS and _FLOAT.fullmatch(text) else None
        if _NOT_FINITE.fullmatch(text) or (number is not None and not math.isfinite(number)):
            self._problem(event, f"{text} is not a finite number: put it in quotes if it is meant as text")
            return 0
        return text if number is None else number

    def _problem(self, event: yaml.Event, message: str) -> None:
        top = self._open[-1] if self._open else None
        at_a_key = top is not None and isinstance(top.into, dict) and not top.has_key
        frames = self._open[:-1] if at_a_key else self._open
        self.problems.append(self._at(_line(event), self._path(frames), message))

    def _at(self, line: int, path: tuple[Part, ...], message: str) -> Problem:
        return Problem(file=self._file, line=line, path=dotted(path) or None, message=message)

    def _fail(self, event: yaml.Event, message: str) -> NoReturn:
        raise ConfigError([*self.problems, self._at(_line(event), (), message)])


def _key_text(event: yaml.ScalarEvent, value: Json) -> str | None:
    """Return a key as it is written; None for a word that means true, false or nothing, or a fraction."""
    if isinstance(value, str):
        return value
    return event.value if type(value) is int else None


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1
