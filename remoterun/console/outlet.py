"""Where bytes leave the program: never raises, and never lets a slow reader hold up the run."""

from __future__ import annotations

import os
import select
import stat
import time
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOK_MS: Final = 1000
_HURRIED_S: Final = 20.0
# POLLOUT promises room for this much in a pipe, so that a write of it does not block (pipe(7)); POSIX's minimum is 512.
_SURE_BYTES: Final = select.PIPE_BUF


class Outlet:
    """Write bytes to a standard stream.

    Whoever reads a pipe may pause for minutes (a pager does): bytes then wait here, as many as `waiting` tells, and go
    on their way with later writes, `pump` or `drain`. A stream that is closed or broken swallows everything, which
    `broken` tells.
    """

    def __init__(self, stream: TextIO, *, on_broken: Callable[[Exception], None] | None = None) -> None:
        self.encoding = getattr(stream, "encoding", None) or "utf-8"
        self.broken = False
        self._on_broken = on_broken
        self._stream = stream
        self.pipe = _pipe_of(stream)
        self._pending = bytearray()

    @property
    def waiting(self) -> int:
        """Tell how many bytes its reader has not made room for yet."""
        return len(self._pending)

    def write(self, data: bytes) -> None:
        """Write bytes, or keep them until the reader of a pipe has room."""
        if self.broken or not data:
            return
        if self.pipe is None:
            self._attempt(lambda: self._write_now(data))
            return
        self._pending += data
        self.pump()

    def text(self, text: str) -> None:
        """Write text in the stream's encoding; what that lacks becomes a question mark."""
        self.write(text.encode(self.encoding, "replace"))

    def pump(self) -> None:
        """Write as much of what is waiting as goes without waiting."""
        self._attempt(lambda: self._send(0))

    def drain(self, hurried: Callable[[], bool] | None = None) -> None:
        """Write everything that is waiting, however long the reader takes.

        Once `hurried` says so, a reader is given up that takes nothing for a second, or not all in twenty.
        """
        self._attempt(lambda: self._drain(hurried))

    def _write_now(self, data: bytes) -> None:
        # A text stream without bytes below it (io.StringIO) takes the text itself.
        buffer = getattr(self._stream, "buffer", None)
        if buffer is None:
            self._stream.write(data.decode(self.encoding, "replace"))
        else:
            self._stream.flush()
            buffer.write(data)
        self._stream.flush()

    def _send(self, patience_ms: int) -> bool:
        """Write what is waiting, as long as the pipe has room, for which it has a time; tell whether anything went."""
        if self.pipe is None:
            return False
        poll = select.poll()
        poll.register(self.pipe, select.POLLOUT)
        sent = 0
        while sent < len(self._pending) and poll.poll(0 if sent else patience_ms):
            sent += os.write(self.pipe, self._pending[sent : sent + _SURE_BYTES])
        del self._pending[:sent]
        return bool(sent)

    def _drain(self, hurried: Callable[[], bool] | None) -> None:
        give_up = float("inf")
        while self._pending:
            moves = self._send(_LOOK_MS)
            if hurried is not None and hurried():
                give_up = min(give_up, time.monotonic() + _HURRIED_S)
                if not moves or time.monotonic() > give_up:
                    raise TimeoutError("its reader takes nothing")

    def _attempt(self, action: Callable[[], object]) -> None:
        if self.broken:
            return
        try:
            action()
        except (OSError, ValueError) as error:  # ValueError: the stream object was closed
            self.broken = True
            self._pending.clear()
            if self._on_broken:
                self._on_broken(error)


def _pipe_of(stream: TextIO) -> int | None:
    """Return the descriptor when a stream is a pipe or a socket: there a reader decides how fast writing goes."""
    try:
        stream.flush()
        descriptor = stream.fileno()
        mode = os.fstat(descriptor).st_mode
    except (OSError, ValueError):
        return None
    return descriptor if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else None


def leads_to_terminal(stream: TextIO) -> bool:
    """Tell whether a stream leads to a terminal; a closed one does not."""
    try:
        return stream.isatty()
    except ValueError:
        return False


def same_place(one: TextIO, other: TextIO) -> bool:
    """Tell whether two streams lead to one terminal, pipe or file."""
    try:
        return os.path.sameopenfile(one.fileno(), other.fileno())
    except (OSError, ValueError):
        return one is other
