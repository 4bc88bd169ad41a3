"""Output of programs on its way to the user: raw for one target, line by line with the target in front for several."""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from typing import TYPE_CHECKING, Final

from remoterun.errors import ESCAPES, clean
from remoterun.report.text import cells, pad

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from remoterun.events import OutputArrived

MAX_LINE_BYTES: Final = 1 << 16
"""A longer line is shown in pieces of this size."""

_SGR: Final = re.compile(r"(\x1b\[[0-9;:]*m)")
_RESET: Final = "\x1b[0m"
_PREFIX_COLORS: Final = (36, 33, 32, 35, 34, 31)
# An escape sequence whose end may still be under way.
_TORN: Final = re.compile(
    r"(?:(?:\x1b\[|\x9b)[0-?]*[ -/]*|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\r\n]*\x1b?|\x1b[ -/]*)\Z"
)
_LONGEST_SEQUENCE: Final = 4096


def safe_text(text: str, *, color: bool, keep: str = "\t") -> str:
    """Clean a piece of a line for a terminal: of escapes only colours remain, of control characters those in `keep`."""
    if text.isprintable():
        return text
    parts = _SGR.split(text)
    return "".join(part if index % 2 and color else _plain(part, keep) for index, part in enumerate(parts))


def _plain(text: str, keep: str) -> str:
    text = re.sub(ESCAPES, "", text)
    return "".join(char if char.isprintable() or char in keep else clean(char) for char in text)


class TerminalFilter:
    """Make one program's raw output safe for a terminal while it streams.

    Lines, tabs, carriage returns, backspaces and, where colours are wanted, colours go through; whatever else a
    terminal would obey is taken out, also when it arrives in pieces. Bytes that are not UTF-8 are shown as U+FFFD.
    """

    def __init__(self, *, color: bool) -> None:
        self._color = color
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._coloured = False

    def feed(self, data: bytes) -> str:
        """Return what can be shown so far."""
        text = self._held + self._decoder.decode(data)
        torn = _TORN.search(text, max(len(text) - _LONGEST_SEQUENCE, 0))
        text, self._held = (text[: torn.start()], torn[0]) if torn else (text, "")
        return self._safe(text)

    def finish(self) -> str:
        """Return what was held back, and the end of any colour."""
        text = self._safe(self._held + self._decoder.decode(b"", final=True))
        return text + (_RESET if self._coloured else "")

    def _safe(self, text: str) -> str:
        lines = (safe_text(line, color=self._color, keep="\t\r\b") for line in text.split("\n"))
        safe = "\n".join(lines)
        self._coloured = self._coloured or "\x1b" in safe
        return safe


class Lines:
    """Cut a stream of bytes into lines, none longer than `MAX_LINE_BYTES`."""

    def __init__(self) -> None:
        self._partial = bytearray()
        self._continues = False

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yield each finished line without its newline, and whether it continues the piece before."""
        *finished, rest = data.split(b"\n")
        for line in finished:
            self._partial += line
            yield from self._pieces()
            yield self._take(len(self._partial), continues=False)
        self._partial += rest
        yield from self._pieces()

    def finish(self) -> Iterator[tuple[bytes, bool]]:
        """Yield what is left of a last line without a newline."""
        if self._partial:
            yield self._take(len(self._partial), continues=False)

    def _pieces(self) -> Iterator[tuple[bytes, bool]]:
        while len(self._partial) > MAX_LINE_BYTES:
            yield self._take(MAX_LINE_BYTES, continues=True)

    def _take(self, size: int, *, continues: bool) -> tuple[bytes, bool]:
        piece, continued = bytes(self._partial[:size]), self._continues
        del self._partial[:size]
        self._continues = continues
        return piece, continued


def terminal_line(line: bytes, *, color: bool) -> str:
    """Make one line safe for a terminal; of what carriage returns overwrote, the last remains."""
    text = line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]
    safe = safe_text(text, color=color)
    return safe + _RESET if "\x1b" in safe else safe


class Programs:
    """Turn the output of a run's programs into what goes to standard output and standard error.

    `terminals` names the streams that lead to a terminal ("stdout", "stderr"): what goes there is text made safe,
    anything else gets the programs' own bytes.
    """

    def __init__(self, targets: Sequence[str], *, terminals: Collection[str], color: bool) -> None:
        self.raw = len(targets) == 1
        self._terminals = frozenset(terminals)
        self._color = color
        self._order = {target: index for index, target in enumerate(targets)}
        self._width = max((cells(clean(target)) for target in targets), default=0)
        self._lines: dict[tuple[str, int, str], Lines] = {}
        self._filters: dict[tuple[str, int, str], TerminalFilter] = {}

    def show(self, event: OutputArrived) -> str | bytes:
        """Return what is to be shown now of some output."""
        key = (event.target, event.step, event.stream)
        if not self.raw:
            return self._join(event.target, event.stream, self._lines.setdefault(key, Lines()).feed(event.data))
        if event.stream not in self._terminals:
            return event.data
        if key not in self._filters:
            self._filters[key] = TerminalFilter(color=self._color)
        return self._filters[key].feed(event.data)

    def finish(self, target: str, step: int) -> Iterator[tuple[str, str | bytes]]:
        """Yield what is left of a program that ended: stream and text, or bytes."""
        for stream in ("stdout", "stderr"):
            lines = self._lines.pop((target, step, stream), None)
            filtered = self._filters.pop((target, step, stream), None)
            if lines:
                yield stream, self._join(target, stream, lines.finish())
            if filtered:
                yield stream, filtered.finish()

    def finish_all(self) -> Iterator[tuple[str, str | bytes]]:
        """Yield what is left of every program."""
        for target, step in {(target, step): None for target, step, _ in [*self._lines, *self._filters]}:
            yield from self.finish(target, step)

    def _join(self, target: str, stream: str, lines: Iterator[tuple[bytes, bool]]) -> str | bytes:
        name = pad(clean(target), self._width)
        if stream not in self._terminals:
            marks = [f"{name} {mark} ".encode() for mark in "|+"]
            return b"".join(b"%b%b\n" % (marks[continues], line) for line, continues in lines)
        color = _PREFIX_COLORS[self._order.get(target, 0) % len(_PREFIX_COLORS)]
        heads = [f"\x1b[{color}m{name} {mark}{_RESET} " if self._color else f"{name} {mark} " for mark in "|+"]
        return "".join(f"{heads[continues]}{terminal_line(line, color=self._color)}\n" for line, continues in lines)
