"""Text for people: cleaned of everything a terminal would obey, measured in cells, wrapped, coloured, humanised."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, Literal, TypeAlias

from remoterun.errors import clean
from remoterun.model import Captured, Json, Severity, Status
from remoterun.records import dataclass

Style: TypeAlias = Literal["plain", "bold", "dim", "good", "warn", "bad", "odd", "hint"]

_SGR: Final[dict[str, str]] = {
    "bold": "1",
    "dim": "2",
    "good": "32",
    "warn": "33",
    "bad": "1;31",
    "odd": "35",
    "hint": "36",
}

STATUS_STYLE: Final[dict[Status, Style]] = {
    Status.OK: "good",
    Status.FINDINGS: "warn",
    Status.FAILED: "bad",
    Status.TIMEOUT: "bad",
    Status.UNREACHABLE: "odd",
    Status.LOST: "odd",
    Status.CANCELLED: "dim",
    Status.NOT_STARTED: "dim",
    Status.RUNNING: "hint",
}

SEVERITY_STYLE: Final[dict[Severity, Style]] = {Severity.INFO: "dim", Severity.SUSPECT: "warn", Severity.BAD: "bad"}

MAX_LINE: Final = 4000
_AT_ONCE: Final = 500
"""Lines that a page hands on at once."""


def last_lines(captured: Captured, count: int) -> tuple[list[str], int]:
    """Return the last lines of a captured stream, cleaned and without blank ends, and how many stood before them.

    Of a line that was overwritten by carriage returns (a progress bar), what would be seen last is kept.
    """
    text = captured.data.decode("utf-8", "replace").rstrip()
    lines = text.split("\n") if text else []
    kept = lines[-count:] if count < len(lines) else lines
    return [clean(line.rstrip("\r").rpartition("\r")[2]).rstrip() for line in kept], len(lines) - len(kept)


# --- measuring ------------------------------------------------------------------------------------


def cells(text: str) -> int:
    """Count the terminal cells of a clean text: wide characters two, combining ones none."""
    return len(text) if text.isascii() else sum(_char_cells(char) for char in text)


def _char_cells(char: str) -> int:
    if unicodedata.category(char) in {"Mn", "Me"}:
        return 0
    return 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1


def pad(text: str, width: int) -> str:
    """Fill a clean text with spaces up to a width in cells."""
    return text + " " * (width - cells(text))


def clip(text: str, width: int, mark: str = "...") -> str:
    """Shorten a clean text to a width in cells, with a mark where something was left out."""
    if cells(text) <= width:
        return text
    if width <= len(mark):
        return mark[: max(width, 0)]
    return _split_at(text, width - len(mark))[0] + mark


def clip_start(text: str, width: int) -> str:
    """Shorten a clean text in the same way at its beginning: for names that differ at their end."""
    return clip(text[::-1], width)[::-1]


def _split_at(text: str, width: int) -> tuple[str, str]:
    """Split a text so that the first part fills at most `width` cells."""
    used = 0
    for index, char in enumerate(text):
        used += _char_cells(char)
        if used > width:
            return text[:index], text[index:]
    return text, ""


# --- spans and pages ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Span:
    """Hold a piece of a line in one style; a solid one is not broken at its blanks.

    A command is not broken at all, also where it is wider than a line: it is there to be copied. The text is cleaned
    here, so nothing unclean can reach a page.
    """

    text: str
    style: Style = "plain"
    solid: bool = False
    command: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", clean(self.text))


Line: TypeAlias = Sequence[Span]


def width_of(line: Line) -> int:
    """Count the cells of a line."""
    return sum(cells(span.text) for span in line)


def render(line: Line, *, color: bool) -> str:
    """Write a line as text; this is the one place where escape sequences are made."""
    if not color:
        return "".join(span.text for span in line)
    return "".join(
        f"\x1b[{_SGR[span.style]}m{span.text}\x1b[0m" if span.style in _SGR and span.text else span.text
        for span in line
    )


def wrap(line: Line, width: int, *, hang: int = 0) -> Iterator[Line]:
    """Break a line at blanks into lines of at most `width` cells, all but the first indented by `hang`.

    A word wider than a whole line is broken inside, unless it has a command. Lines become wider where `hang` leaves no
    room for a character.
    """
    width = max(width, hang + 2)
    text = "".join(span.text for span in line)
    if text and text[-1] != " " and cells(text) <= width:
        yield line
        return
    row: list[Span] = []
    gap: list[Span] = []
    start = 0
    for word in _words(line):
        if word[0].text.isspace():
            gap = word
            continue
        if width_of(row) + width_of(gap) + width_of(word) > width and width_of(row) > start:
            yield row
            row, gap, start = [Span(" " * hang)], [], hang
        row, gap, rest = [*row, *gap], [], word
        while width_of(row) + width_of(rest) > width and not any(span.command for span in rest):
            head, rest = _cut(rest, width - width_of(row))
            yield [*row, *head]
            row, start = [Span(" " * hang)], hang
        row += rest
    if width_of(row) > start:
        yield row


def _words(line: Line) -> Iterator[list[Span]]:
    """Group a line into words and the blanks between them; a word may change its style inside."""
    group: list[Span] = []
    for span in line:
        whole = span.solid or span.command
        for text in [span.text] if whole and span.text else re.findall(" +|[^ ]+", span.text):
            if group and text.isspace() != group[-1].text.isspace():
                yield group
                group = []
            group.append(Span(text, span.style, command=span.command))
    if group:
        yield group


def _cut(word: list[Span], width: int) -> tuple[list[Span], list[Span]]:
    """Split a word so that the first part fills at most `width` cells."""
    head: list[Span] = []
    for index, span in enumerate(word):
        left, right = _split_at(span.text, width - width_of(head))
        head.append(Span(left, span.style))
        if right:
            return head, [Span(right, span.style), *word[index + 1 :]]
    return head, []


def _bounded(line: Line) -> Iterator[Span]:
    room = MAX_LINE
    for span in line:
        yield replace(span, text=span.text[:room])
        room = max(room - len(span.text), 0)
    left_out = sum(len(span.text) for span in line) - MAX_LINE
    if left_out > 0:
        yield Span(f" [... {left_out} characters left out]", "dim")


class Page:
    """Gather wrapped lines into one text, or hand them on to `out` some at a time."""

    def __init__(self, width: int, *, color: bool, out: Callable[[str], object] | None = None) -> None:
        self.width = max(width, 40)
        self._color = color
        self._out = out
        self._lines: list[str] = []
        self._last = ""

    def line(self, *spans: Span, indent: int = 0, hang: int = 0) -> None:
        """Add one line, wrapped; what follows the first row is indented by `hang` more.

        A line of more than `MAX_LINE` characters is cut, and says so: it may come from a hostile target.
        """
        for row in wrap([Span(" " * indent), *_bounded(spans)], self.width, hang=indent + hang):
            self._add(render(row, color=self._color))

    @property
    def height(self) -> int:
        """Count the lines that have not been handed on yet."""
        return len(self._lines)

    def gap(self) -> None:
        """Add an empty line, unless the page is empty or ends with one."""
        if self._last:
            self._add("")

    def _add(self, line: str) -> None:
        self._lines.append(line)
        self._last = line
        if self._out is not None and len(self._lines) >= _AT_ONCE:
            self.hand_on()

    def hand_on(self) -> None:
        """Give to `out` what it has not got yet."""
        if self._out is not None and self._lines:
            self._out(self.text())
            self._lines.clear()

    def text(self) -> str:
        """Return the page, each line ended by a newline; of one with an `out`, what that has not got yet."""
        return "".join(f"{line}\n" for line in self._lines)


# --- values for people ----------------------------------------------------------------------------


def number(value: float) -> float:
    """Bring any number, also one that a hostile target made up, into the range that arithmetic survives; NaN is 0."""
    bounded = float(max(min(value, _HUGE), -_HUGE))
    return 0.0 if math.isnan(bounded) else bounded


_HUGE: Final = 1e30


def human_bytes(count: float) -> str:
    """Write a number of bytes in decimal units: ``66.2 GB``."""
    count = number(count)
    if abs(count) < 1000:
        return f"{count:.0f} B"
    unit, size = next(((unit, size) for unit, size in _BYTE_UNITS if abs(count) < 999.95 * size), _BYTE_UNITS[-1])
    return f"{count / size:.1f} {unit}"


_BYTE_UNITS: Final = (("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12), ("PB", 1e15))


def human_count(count: float) -> str:
    """Write a number of parameters: ``5518.2M``, in millions also above a milliard, as people compare checkpoints."""
    count = number(count)
    if abs(count) >= 1e6:
        return f"{count / 1e6:.1f}M"
    return f"{count / 1e3:.1f}K" if abs(count) >= 1e4 else f"{count:g}"


def human_seconds(seconds: float) -> str:
    """Write a measured time: ``0.21 s``, ``33.1 s``, ``12m 05s``, ``2h 03m``."""
    seconds = number(seconds)
    if seconds < 9.995:
        return f"{seconds:.2f} s" if seconds < 0.995 else f"{seconds:.1f} s"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m {rest:02}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02}m"


def scalar(value: Json, key: str = "") -> str:
    """Write a value for people, in one line; what is nested in it is only counted."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int() if "bytes" in key.split("_"):
            return human_bytes(value)
        case int():
            return str(value)
        case float():
            return human_seconds(value) if key == "seconds" or key.endswith(("_seconds", "_s")) else f"{value:.6g}"
        case str():
            return value
        case list():
            flat = not any(isinstance(item, (list, dict)) for item in value)
            return (", ".join(scalar(item) for item in value) or "none") if flat else f"[{len(value)}]"
        case dict():
            return f"{{{len(value)}}}" if value else "none"


def shown_target(target: str, name: str | None) -> tuple[str, str]:
    """Return what a target is called, and its name beside that; a path on this machine is called as it was written."""
    return (name, "") if name and target.startswith("/") else (target, name or "")


def without_place(message: str, target: str) -> str:
    """Return the message of a target without that or its host in front of it, for where it stands already."""
    host = target.partition("/")[0]
    return message.removeprefix(f"{target}: ").removeprefix(f"{host}: ")


def plural(count: int, noun: str, many: str | None = None) -> str:
    """Write a count with its noun: ``1 record``, ``2 records``; `many` for a plural that is not made by an s."""
    return f"{count} {noun if count == 1 else many or noun + 's'}"
