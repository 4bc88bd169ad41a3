"""Output of programs on its way to the user: raw for one target, line by line with the target in front for several."""

from __future__ import annotations

import math
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
PATIENCE_S: Final = 0.4
"""So long a line may be under way before what there is of it is shown."""

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
        self._since = 0.0

    def feed(self, data: bytes, now: float = 0.0) -> Iterator[tuple[bytes, bool]]:
        """Yield each finished line without its newline, and whether it continues the piece before."""
        *finished, rest = data.split(b"\n")
        if finished or not self._partial:
            self._since = now
        for line in finished:
            self._partial += line
            yield from self._pieces()
            piece, continued = self._take(len(self._partial), continues=False)
            if piece or not continued:
                yield piece, continued
        self._partial += rest
        yield from self._pieces()

    def waits_since(self, moment: float) -> bool:
        """Tell whether a line has been under way since then; one that is drawn again and again has nothing to show."""
        return bool(self._partial) and self._since <= moment and b"\r" not in self._partial

    def let_go(self) -> Iterator[tuple[bytes, bool]]:
        """Yield what there is of a line that is under way; the rest of it continues that piece."""
        yield self._take(len(self._partial), continues=True)

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


class Tails:
    """Hold back the ends of lines that are under way, of streams that lead to one place: so that lines stay whole."""

    def __init__(self) -> None:
        self._held: dict[str, bytearray] = {}
        self._since: dict[str, float] = {}

    def take(self, stream: str, data: bytes, now: float) -> bytes:
        """Return the whole lines that are there with this, and what is too long to be held."""
        held = self._held.setdefault(stream, bytearray())
        if not held:
            self._since[stream] = now
        held += data
        end = held.rfind(b"\n") + 1
        if len(held) - end > MAX_LINE_BYTES:
            end = len(held)
        ready = bytes(held[:end])
        del held[:end]
        if ready:
            self._since[stream] = now
        return ready

    def let_go(self, before: float = math.inf) -> Iterator[tuple[str, bytes]]:
        """Yield what has waited since then, or longer."""
        for stream in [each for each, held in self._held.items() if held and self._since[each] <= before]:
            yield stream, bytes(self._held.pop(stream))


class Programs:
    """Turn the output of a run's programs into what goes to standard output and standard error.

    `terminals` names the streams that lead to a terminal ("stdout", "stderr"): what goes there is text made safe,
    anything else gets the programs' own bytes. `shared` tells that both lead to one place. Lines stay whole, but for
    those that take longer than `PATIENCE_S`: what there is of them is shown, to somebody who waits for it.
    """

    def __init__(
        self, targets: Sequence[str], *, terminals: Collection[str], color: bool, shared: bool = False
    ) -> None:
        self.raw = len(targets) == 1
        self._terminals = frozenset(terminals)
        self._color = color
        self._order = {target: index for index, target in enumerate(targets)}
        self.width = max((cells(clean(target)) for target in targets), default=0)
        self._lines: dict[tuple[str, int, str], Lines] = {}
        self._filters: dict[str, TerminalFilter] = {}
        self._tails = Tails() if shared and self.raw else None
        self._open: str | None = None
        """Of the streams that share a place, the one whose line stands there without its end."""

    def show(self, event: OutputArrived, now: float = 0.0) -> str | bytes:
        """Return what is to be shown now of some output."""
        if not self.raw:
            lines = self._lines.setdefault((event.target, event.step, event.stream), Lines())
            return self._join(event.target, event.stream, lines.feed(event.data, now))
        if self._tails is None or self._open == event.stream:
            return self._raw(event.stream, event.data)
        return self._raw(event.stream, self._tails.take(event.stream, event.data, now))

    def let_go(self, now: float) -> Iterator[tuple[str, str | bytes]]:
        """Yield what there is of lines that have been under way for too long: stream and text, or bytes."""
        for stream, data in self._tails.let_go(now - PATIENCE_S) if self._tails else ():
            yield stream, self._raw(stream, data)
        for (target, _, stream), lines in self._lines.items():
            if stream in self._terminals and lines.waits_since(now - PATIENCE_S):
                yield stream, self._join(target, stream, lines.let_go())

    def broken_off(self) -> None:
        """Take that somebody else has ended the line that stood there."""
        self._open = None

    def finish(self, target: str, step: int) -> Iterator[tuple[str, str | bytes]]:
        """Yield what is left of a program that ended: stream and text, or bytes."""
        if self.raw:
            yield from self._finish_raw()
        for stream in ("stdout", "stderr"):
            lines = self._lines.pop((target, step, stream), None)
            if lines:
                yield stream, self._join(target, stream, lines.finish())

    def finish_all(self) -> Iterator[tuple[str, str | bytes]]:
        """Yield what is left of every program."""
        yield from self._finish_raw()
        for target, step in {(target, step): None for target, step, _ in self._lines}:
            yield from self.finish(target, step)

    def _finish_raw(self) -> Iterator[tuple[str, str | bytes]]:
        for stream, data in self._tails.let_go() if self._tails else ():
            yield stream, self._raw(stream, data)
        for stream in ("stdout", "stderr"):
            filtered = self._filters.pop(stream, None)
            if filtered:
                yield stream, filtered.finish()

    def _raw(self, stream: str, data: bytes) -> str | bytes:
        """Return the one target's output as it is; on a terminal, no line begins behind another stream's."""
        shown: str | bytes = data
        if stream in self._terminals:
            shown = self._filters.setdefault(stream, TerminalFilter(color=self._color)).feed(data)
        if self._tails is None or not data:
            return shown
        before, self._open = self._open, None if data.endswith(b"\n") else stream
        return f"\n{shown}" if isinstance(shown, str) and before not in (None, stream) else shown

    def _join(self, target: str, stream: str, lines: Iterator[tuple[bytes, bool]]) -> str | bytes:
        name = pad(clean(target), self.width)
        if stream not in self._terminals:
            marks = [f"{name} {mark} ".encode() for mark in "|+"]
            return b"".join(b"%b%b\n" % (marks[continues], line) for line, continues in lines)
        color = _PREFIX_COLORS[self._order.get(target, 0) % len(_PREFIX_COLORS)]
        heads = [f"\x1b[{color}m{name} {mark}{_RESET} " if self._color else f"{name} {mark} " for mark in "|+"]
        return "".join(f"{heads[continues]}{terminal_line(line, color=self._color)}\n" for line, continues in lines)
