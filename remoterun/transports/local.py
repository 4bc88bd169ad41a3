"""The session without SSH: a program on this machine, started directly and in a session of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Final, TypeVar, cast

from remoterun.transports.openfiles import ran_out
from remoterun.transports.session import Duplex, Exit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_CLOSE_S: Final = 0.5
_LOOK_S: Final = 0.02
_REAP_S: Final = 1.0

_T = TypeVar("_T")


async def spawn(
    protocol: Callable[[], asyncio.SubprocessProtocol],
    argv: Sequence[str],
    *,
    stdin: int = subprocess.PIPE,
    stdout: int = subprocess.PIPE,
) -> asyncio.SubprocessTransport:
    """Start a program in a session of its own; when cancelled meanwhile, kill it.

    A cancelled `subprocess_exec` can wait for ever for pipes that it has not connected yet (CPython 3.11): it is seen
    through, which takes no longer than fork and exec.
    """
    loop = asyncio.get_running_loop()
    starting = asyncio.ensure_future(
        loop.subprocess_exec(protocol, *argv, stdin=stdin, stdout=stdout, start_new_session=True)
    )
    try:
        process, _ = await asyncio.shield(starting)
    except asyncio.CancelledError:
        try:
            await _see_through(starting)
        finally:
            if not starting.cancelled() and starting.exception() is None:
                await kill(starting.result()[0])
        raise
    return process


async def kill(process: asyncio.SubprocessTransport) -> None:
    """Kill all in a program's process group, if it still runs, and close its pipes once asyncio has seen its end.

    On standard error, asyncio complains of an end after that of the loop, and of one that a transport sees as it is
    closed. That may take a second at most, however often this task is cancelled.
    """
    if process.get_returncode() is None:
        _reaches(process.get_pid(), signal.SIGKILL)
    try:
        await _see_through(asyncio.ensure_future(_ended(process)))
    finally:
        process.close()


async def _ended(process: asyncio.SubprocessTransport) -> None:
    loop = asyncio.get_running_loop()
    give_up = loop.time() + _REAP_S
    while process.get_returncode() is None and loop.time() < give_up:  # noqa: ASYNC110 - only protocols are told
        await asyncio.sleep(_LOOK_S)


async def _see_through(future: asyncio.Future[_T]) -> None:
    """Wait for something however often this task is cancelled, which comes out once it is there."""
    cancelled = False
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


async def end(process: asyncio.SubprocessTransport, grace_s: float) -> None:
    """End a program and all in its process group: SIGTERM, a time to obey, SIGKILL. Cancelled, it kills at once."""
    loop, group = asyncio.get_running_loop(), process.get_pid()
    # The group of a program that was waited for may be another's by now.
    alive = process.get_returncode() is None and _reaches(group, signal.SIGTERM)
    try:
        give_up = loop.time() + grace_s
        while alive and loop.time() < give_up:
            await asyncio.sleep(_LOOK_S)
            alive = _reaches(group, 0)
    finally:
        if alive:
            _reaches(group, signal.SIGKILL)
        await kill(process)


def _reaches(group: int, number: int) -> bool:
    """Send a signal to a process group, and tell whether there is one that takes it."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


class LocalSession(Duplex):
    """Carry bytes to and from a program on this machine."""

    def __init__(self, entered: Callable[[], None]) -> None:
        super().__init__()
        self.entered = entered
        self.process_ended = asyncio.Event()
        self._process: asyncio.SubprocessTransport | None = None

    @classmethod
    async def start(cls, argv: Sequence[str], *, entered: Callable[[], None]) -> LocalSession:
        """Start a program; one that cannot be started looks like a shell's: status 127 or 126 and a word on stderr.

        Raises:
            OSError: this process may open no more files.
        """
        session = cls(entered)
        try:
            session._process = await spawn(lambda: _Protocol(session), argv)
        except OSError as error:
            if ran_out(error):
                raise
            missing = isinstance(error, FileNotFoundError)
            session.feed_error(os.fsencode(f"{argv[0]}: {'not found' if missing else error.strerror}\n"))
            session.ended(Exit(status=127 if missing else 126))
            session.gone("")
        return session

    async def close(self) -> None:
        """Close the pipes, give the program half a second to notice, then kill its process group."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            self.gone("the session was closed")
            for fd in (0, 1):
                _pipe(process, fd).close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.process_ended.wait(), _CLOSE_S)
        finally:
            await kill(process)


class _Protocol(asyncio.SubprocessProtocol):
    """Hand a subprocess's events to its session."""

    def __init__(self, session: LocalSession) -> None:
        self._session = session

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._process = cast("asyncio.SubprocessTransport", transport)
        self._session.connected(_Pipes(self._process))

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        (self._session.feed if fd == 1 else self._session.feed_error)(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 0:
            self._session.input_ended()
        elif fd == 1:
            self._session.feed_eof()

    def process_exited(self) -> None:
        self._session.process_ended.set()
        status = self._process.get_returncode()
        if status is None or status >= 0:
            self._session.ended(Exit(status=status, lost=status is None))
        else:
            self._session.ended(Exit(signal=_signal_name(-status)))

    def pause_writing(self) -> None:
        self._session.hold()

    def resume_writing(self) -> None:
        self._session.release()


class _Pipes:
    """Be the wire of a subprocess."""

    def __init__(self, process: asyncio.SubprocessTransport) -> None:
        self._process = process

    def write(self, data: bytes, /) -> None:
        _stdin(self._process).write(data)

    def pause_reading(self) -> None:
        _stdout(self._process).pause_reading()

    def resume_reading(self) -> None:
        _stdout(self._process).resume_reading()


def _pipe(process: asyncio.SubprocessTransport, fd: int) -> asyncio.BaseTransport:
    pipe = process.get_pipe_transport(fd)
    assert pipe is not None  # noqa: S101 - asyncio connects all three before it hands the process out
    return pipe


def _stdin(process: asyncio.SubprocessTransport) -> asyncio.WriteTransport:
    return cast("asyncio.WriteTransport", _pipe(process, 0))


def _stdout(process: asyncio.SubprocessTransport) -> asyncio.ReadTransport:
    return cast("asyncio.ReadTransport", _pipe(process, 1))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name.removeprefix("SIG")
    except ValueError:
        return str(number)
