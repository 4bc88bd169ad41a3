"""Take secrets out of text by their value, however a program has written them down. Pure: no I/O.

A secret is looked for character by character, each in any of the ways that URLs, JSON (nested too), Python, shells and
terminals write it, mixed at will; and in base64, wherever it stands in what was encoded. Of a secret of several lines
each line counts by itself as well.
"""

from __future__ import annotations

import base64
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from remoterun.model import Json

_Forms: TypeAlias = "Mapping[int, tuple[bytes, ...]]"

SHORTEST: Final = 8
"""In bytes. A shorter value stands in too many texts by accident: taking it out would spoil them, and hide nothing."""

# How many backslashes stand before a letter, and before a quote, in JSON texts that are nested in each other.
_BEFORE_LETTER: Final = (1, 2, 4, 8)
_BEFORE_QUOTE: Final = (1, 3, 7, 15)
_LOOK: Final = 3
_LETTERS: Final = {"\b": b"b", "\f": b"f", "\n": b"n", "\r": b"r", "\t": b"t", "/": b"/"}


@dataclass(frozen=True, slots=True)
class _Span:
    """Say where a secret stands."""

    start: int
    end: int
    name: str


@dataclass(frozen=True, slots=True)
class _Pattern:
    """Hold the forms of each character of a text that gives a secret away, by their first byte."""

    name: str
    forms: tuple[_Forms, ...]

    def ends(self, data: bytes, start: int, first: int = 0) -> tuple[int, int]:
        """Return where the longest match ends (-1: there is none), and how many characters reach the end of the data.

        The second is 0 unless more data could still make a match, or a longer one. `first` is the character that the
        match begins with.
        """
        places = [start]
        reached = 0
        for number in range(first, len(self.forms)):
            found: list[int] = []
            for place in places:
                if place == len(data):
                    reached = number
                    continue
                for form in self.forms[number].get(data[place], ()):
                    if data.startswith(form, place):
                        found.append(place + len(form))
                    elif len(form) > len(data) - place and form.startswith(data[place:]):
                        reached = number + 1
            if not found:
                return -1, reached
            places = found if len(found) == 1 else list(set(found))
        return max(places), reached

    def ending_at_start(self, data: bytes) -> int:
        """Return how far the data begins with an end of this text whose beginning is missing."""
        for first in range(1, len(self.forms) - SHORTEST + 1):
            end, _ = self.ends(data, 0, first)
            if end > 0:
                return end
        return 0


class Redactor:
    """Replace each secret by ``[secret NAME]``; without secrets it is false, and changes nothing.

    Args:
        secrets: values by name, each of `SHORTEST` bytes at least.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        texts = {text: name for name, value in secrets.items() for text in _texts(value)}
        patterns = [_Pattern(name, tuple(map(_forms, text))) for text, name in texts.items()]
        self._by_start: dict[int, list[_Pattern]] = {}
        for pattern in patterns:
            for byte in pattern.forms[0]:
                self._by_start.setdefault(byte, []).append(pattern)
        self._start = _starts(pattern.forms for pattern in patterns)
        self._window = max((sum(map(_width, pattern.forms[:_LOOK])) for pattern in patterns), default=0)

    def __bool__(self) -> bool:
        return bool(self._by_start)

    def data(self, data: bytes) -> bytes:
        """Return bytes without secrets; where they end within a secret, its beginning is taken out too."""
        return self.stream().finish(data) if len(data) >= SHORTEST else data

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        if not self:
            return text
        data = text.encode("utf-8", "surrogatepass")
        clean = self.data(data)
        return text if clean == data else clean.decode("utf-8", "surrogatepass")

    def json(self, value: Json) -> Json:
        """Return a JSON value without secrets, in keys and numbers too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key): self.json(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.json(item) for item in value]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            written = repr(value)
            return value if self.text(written) == written else self.text(written)
        return value

    def stream(self) -> RedactedStream:
        """Begin a stream of bytes that comes in pieces."""
        return RedactedStream(self)

    def find(self, data: bytes, *, last: bool) -> tuple[list[_Span], list[_Span]]:
        """Return where secrets stand, in order, and where the end of the data may be the beginning of one.

        The second are candidates: only what follows the data tells. Where that is the `last` of it, only beginnings of
        `SHORTEST` characters count.
        """
        whole: list[_Span] = []
        begun: list[_Span] = []
        for start in self._candidates(data, 0 if last else self._window):
            for pattern in self._by_start[data[start]]:
                end, reached = pattern.ends(data, start)
                if end > 0:
                    whole.append(_Span(start, end, pattern.name))
                if reached:
                    begun.append(_Span(start, len(data) if reached >= SHORTEST else start, pattern.name))
        return whole, begun

    def after_gap(self, data: bytes) -> list[_Span]:
        """Return what the data begins with when that is the end of a secret."""
        patterns = {id(pattern): pattern for found in self._by_start.values() for pattern in found}.values()
        return [_Span(0, pattern.ending_at_start(data), pattern.name) for pattern in patterns]

    def _candidates(self, data: bytes, window: int) -> Iterator[int]:
        """Yield the places at which a secret may begin, in order: in a window at the end nearly every one."""
        last = max(0, len(data) - window)
        match = self._start.search(data)
        while match is not None and match.start() < last:
            yield match.start()
            match = self._start.search(data, match.start() + 1)
        yield from (start for start in range(last, len(data)) if data[start] in self._by_start)


class RedactedStream:
    """Redact a stream that comes in pieces: the result does not depend on where it was cut.

    Only what could be the beginning of a secret is held back, so at most the length of the longest one as written.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = b""
        self._covered = 0
        self.growth = 0
        """How many bytes more have come out than went in; negative when fewer."""

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes, and return those that are certain."""
        if not self._redactor:
            return data
        data = self._held + data
        whole, begun = self._redactor.find(data, last=False)
        return self._pass_on(data, whole, begun[0].start if begun else len(data))

    def finish(self, data: bytes = b"") -> bytes:
        """Take the last bytes of the stream, and return all that is left."""
        if not self._redactor:
            return data
        data = self._held + data
        whole, begun = self._redactor.find(data, last=True)
        return self._pass_on(data, [*whole, *begun], len(data))

    def finish_after_gap(self, data: bytes) -> bytes:
        """Take the last bytes of the stream, between which and those before some may be missing."""
        if not self._redactor:
            return data
        gap = len(self._held)
        _, begun = self._redactor.find(self._held, last=True)
        ends = [_Span(gap, gap + span.end, span.name) for span in self._redactor.after_gap(data)]
        data = self._held + data
        whole, last = self._redactor.find(data, last=True)
        return self._pass_on(data, [*whole, *begun, *ends, *last], len(data))

    def _pass_on(self, data: bytes, spans: Iterable[_Span], certain: int) -> bytes:
        """Return the data up to where it is certain, with a mark for each run of spans that overlap."""
        parts: list[bytes] = []
        covered = at = self._covered
        # Of those that begin at one place the longest is named.
        for span in sorted(spans, key=lambda item: (item.start, -item.end, item.name)):
            if span.start >= certain:
                break
            if span.end <= covered or span.end == span.start:
                continue
            if span.start >= covered:
                parts += (data[at : span.start], b"[secret %s]" % span.name.encode())
            covered = at = span.end
        if at < certain:
            parts.append(data[at:certain])
        clean = b"".join(parts)
        self.growth += len(clean) - certain
        self._held = data[certain:]
        self._covered = max(0, covered - certain)
        return clean


# --- what gives a secret away -----------------------------------------------------------------------------------------


def _texts(value: str) -> Iterator[str]:
    """Yield the texts that give a secret away."""
    yield value
    yield from (line for line in map(str.strip, value.splitlines()) if len(line.encode()) >= SHORTEST)
    yield from _encoded(value.encode())


def _encoded(value: bytes) -> Iterator[str]:
    """Yield what base64 makes of a value in the midst of others: for each place in a group, what it alone decides."""
    for before in range(3):
        text = base64.b64encode(b"\0" * before + value).decode()
        first = (8 * before + 5) // 6
        last = (8 * (before + len(value))) // 6
        core = text[first:last]
        yield core
        yield core.translate(str.maketrans("+/", "-_"))


@lru_cache(maxsize=4096)
def _forms(char: str) -> _Forms:
    """Return every way in which a character is written."""
    raw = char.encode()
    forms = {raw, *_percent(raw), *_escapes(char, raw)}
    if char == " ":
        forms.add(b"+")
    elif char == "\n":
        forms.add(b"\r\n")
    elif char == "\\":
        forms |= {b"\\" * count for count in (2, 4, 8, 16)}
    elif char in "\"'":
        forms |= {b"\\" * count + raw for count in _BEFORE_QUOTE}
    if char == "'":
        forms |= {b"'\\''", b"'\"'\"'"}
    if char in _LETTERS:
        forms |= {b"\\" * count + _LETTERS[char] for count in _BEFORE_LETTER}
    return {byte: tuple(form for form in forms if form[0] == byte) for byte in {form[0] for form in forms}}


def _percent(raw: bytes) -> Iterator[bytes]:
    for sign in (b"%", b"%25"):
        for pattern in (b"%02X", b"%02x"):
            yield b"".join(sign + pattern % byte for byte in raw)


def _escapes(char: str, raw: bytes) -> Iterator[bytes]:
    """Yield the numbered escapes of JSON and Python."""
    units = [int.from_bytes(pair, "big") for pair in _pairs(char.encode("utf-16-be"))]
    for count in _BEFORE_LETTER:
        slashes = b"\\" * count
        for pattern in (b"u%04x", b"u%04X"):
            yield b"".join(slashes + pattern % unit for unit in units)
        yield b"".join(slashes + b"x%02x" % byte for byte in raw)
        yield slashes + (b"x%02x" if ord(char) < 1 << 8 else b"U%08x") % ord(char)


def _pairs(data: bytes) -> Iterator[bytes]:
    return (data[at : at + 2] for at in range(0, len(data), 2))


def _starts(texts: Iterable[tuple[_Forms, ...]]) -> re.Pattern[bytes]:
    """Return a pattern of how texts begin: of `_LOOK` characters where they are plain, as one is in every other text.

    Grouped by the first byte, since `re` tries one branch after the other.
    """
    groups: dict[int, set[bytes]] = {}
    for first, second, *third in (forms[:_LOOK] for forms in texts):
        then = b"".join(map(_any, third))
        after = b"|".join(re.escape(form) + then if len(form) == 1 else re.escape(form[:1]) for form in _all(second))
        for form in _all(first):
            groups.setdefault(form[0], set()).add(re.escape(form[1:]) or b"(?:%s)" % after)
    return re.compile(
        b"|".join(re.escape(bytes([byte])) + b"(?:%s)" % b"|".join(sorted(groups[byte])) for byte in groups)
    )


def _any(forms: _Forms) -> bytes:
    return b"[%s]" % b"".join(re.escape(bytes([byte])) for byte in sorted(forms))


def _all(forms: _Forms) -> list[bytes]:
    return sorted(form for found in forms.values() for form in found)


def _width(forms: _Forms) -> int:
    return max(map(len, _all(forms)))
