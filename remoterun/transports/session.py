"""The seam to a target: one open byte channel, whatever carries it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from remoterun.model import Captured, Phase
from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class OnPhase(Protocol):
    """Be told of each change of phase; `waiting` when it is queued for a slot there."""

    def __call__(self, phase: Phase, /, waiting: bool) -> None:  # noqa: FBT001 - always named in calls
        """Take note."""


READ_BYTES: Final = 65536
"""The most that one `Session.read` returns."""

_PAUSE_BYTES: Final = 4 * READ_BYTES
_RESUME_BYTES: Final = READ_BYTES


class SessionEnded(Exception):  # noqa: N818 - not an error: it says where to look for the verdict
    """Say that the far program takes no more input; reading to the end and `exit` tell why."""


class ConnectionLost(SessionEnded):
    """Say that the connection died under the session."""


class SessionRefused(Exception):  # noqa: N818 - the pool tries elsewhere; only if it cannot is this an error
    """Say that the server opened no session; certainly nothing was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """Tell how the far program ended.

    `signal` has no SIG prefix. `lost`: nobody said how it ended, which is what a dead connection looks like and never a
    success.
    """

    status: int | None = None
    signal: str | None = None
    lost: bool = False


class Session(Protocol):
    """Carry bytes to and from one program on a target."""

    async def write(self, data: bytes) -> None:
        """Write all of `data`, waiting while the far side takes none.

        Raises:
            SessionEnded: the program reads no more.
            ConnectionLost: the connection died.
        """

    async def read(self) -> bytes:
        """Return some bytes of stdout, or b"" at its end; for one reader at a time.

        Raises:
            ConnectionLost: the connection died, or the session was closed here, and all that had come was read.
        """

    @property
    def stderr(self) -> Captured:
        """Return what came on stderr so far; it is drained without being read."""

    async def exit(self) -> Exit:
        """Wait until the program's end is known, which may be before the end of stdout."""

    def entered(self) -> None:
        """Give back the host's slot for entering: the program inside has answered. May be called again."""

    async def close(self) -> None:
        """Close the channel within about a second, whatever the far side does. May be called again."""


class Connection(Protocol):
    """Be one authenticated connection to a host, whoever made it."""

    @property
    def closed(self) -> bool:
        """Tell whether it is gone."""

    async def open_session(self, argv: Sequence[str], entered: Callable[[], None]) -> Session:
        """Start a program. Cancelling leaves no channel behind.

        Raises:
            SessionRefused: the server opens no further session, or is gone; certainly nothing was started.
            ConnectionLost: the connection died.
            TargetError: the server opens sessions but runs no commands in them.
        """

    async def close(self) -> None:
        """Disconnect, within half a second."""


class Capture:
    """Collect a byte stream of any length in bounded memory: its head and its tail, of one byte at least."""

    def __init__(self, *, head: int = 32768, tail: int = 32768) -> None:
        self._head_bytes, self._tail_bytes = head, tail
        self._head, self._tail = bytearray(), bytearray()
        self._total = 0

    def add(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self._total += len(data)
        room = self._head_bytes - len(self._head)
        self._head += data[:room]
        self._tail += data[room:][-self._tail_bytes :]
        # Cutting at twice the size keeps the cost per byte constant.
        if len(self._tail) > 2 * self._tail_bytes:
            del self._tail[: -self._tail_bytes]

    def snapshot(self, total: int | None = None) -> Captured:
        """Return what is kept so far; `total` is the far side's own count, where it kept part of the stream back."""
        tail = bytes(self._tail[-self._tail_bytes :])
        return Captured(head=bytes(self._head), tail=tail, total=max(self._total, total or 0))


class Wire(Protocol):
    """Be what a session writes to: asyncssh's channels are such, and so is `local`'s pair of pipes."""

    def write(self, data: bytes, /) -> None:
        """Take bytes for the program's stdin."""

    def pause_reading(self) -> None:
        """Stop delivering output."""

    def resume_reading(self) -> None:
        """Deliver output again."""


class Duplex:
    """Join a protocol's callbacks to a session's awaits, in bounded memory.

    The protocol side calls `connected` first and `feed` ... `gone` as things happen. At most 256 KiB of stdout wait for
    a reader, and what the channel's window still lets through.
    """

    _wire: Wire

    def __init__(self) -> None:
        self._stdout, self._stderr = bytearray(), Capture()
        self._paused = self._eof = self._input_ended = False
        self._exit: Exit | None = None
        self._lost: str | None = None
        self._readable, self._may_write, self._known = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._may_write.set()

    # --- what the protocol says ---

    def connected(self, wire: Wire) -> None:
        """Take the wire to write to."""
        self._wire = wire

    def feed(self, data: bytes) -> None:
        """Take bytes of stdout."""
        self._stdout += data
        self._readable.set()
        if len(self._stdout) > _PAUSE_BYTES and not self._paused:
            self._paused = True
            self._wire.pause_reading()

    def feed_error(self, data: bytes) -> None:
        """Take bytes of stderr."""
        self._stderr.add(data)

    def feed_eof(self) -> None:
        """Take the end of stdout."""
        self._eof = True
        self._readable.set()

    def hold(self) -> None:
        """Let writers wait."""
        self._may_write.clear()

    def release(self) -> None:
        """Let writers go on."""
        self._may_write.set()

    def input_ended(self) -> None:
        """Note that nothing more can be written."""
        self._input_ended = True
        self._may_write.set()

    def ended(self, how: Exit) -> None:
        """Note how the program ended; the first word counts."""
        self._exit = self._exit or how
        self._known.set()

    def gone(self, reason: str, *, died: bool = False) -> None:
        """Note that nothing more comes.

        That is a loss, and `reason` says of what, when no end of the program was told before; or when the connection
        `died` with the end of stdout still to come.
        """
        if self._exit is None or (died and not self._eof):
            self._lost = reason
        self.ended(Exit(lost=True))
        self.input_ended()
        self.feed_eof()

    # --- what the session's user asks ---

    @property
    def stderr(self) -> Captured:
        """Return what came on stderr so far."""
        return self._stderr.snapshot()

    async def write(self, data: bytes) -> None:
        """Write all of `data`, waiting while the far side takes none."""
        for start in range(0, len(data), READ_BYTES):
            await self._may_write.wait()
            if self._lost is not None:
                raise ConnectionLost(self._lost)
            if self._input_ended:
                raise SessionEnded("the program takes no more input")
            try:
                self._wire.write(data[start : start + READ_BYTES])
            except BrokenPipeError as error:
                raise SessionEnded("the program takes no more input") from error

    async def read(self) -> bytes:
        """Return some bytes of stdout, or b"" at its end."""
        while not self._stdout and not self._eof:
            self._readable.clear()
            await self._readable.wait()
        if not self._stdout and self._lost is not None:
            raise ConnectionLost(self._lost)
        data = bytes(self._stdout[:READ_BYTES])
        del self._stdout[:READ_BYTES]
        if self._paused and len(self._stdout) <= _RESUME_BYTES:
            self._paused = False
            self._wire.resume_reading()
        return data

    async def exit(self) -> Exit:
        """Wait until it is known how the program ended."""
        await self._known.wait()
        return self._exit or Exit(lost=True)
