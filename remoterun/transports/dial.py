"""Sockets to SSH servers, made without ever holding up the loop or the end of the program."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import socket
import threading
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from remoterun.transports.local import end, spawn
from remoterun.transports.session import Capture

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_T = TypeVar("_T")

Address: TypeAlias = tuple[int, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]
"""An address family, and an address as sockets of that family take it."""

_LAST_WORDS_S: Final = 0.3
_GRACE_S: Final = 1.0

_STAGGER_S: Final = 0.25
"""The next address is tried when one has not answered for this long (RFC 8305 recommends 250 ms)."""


async def in_daemon(work: Callable[[], _T]) -> _T:
    """Run blocking work in a thread that the program's end does not wait for.

    The resolver blocks for half a minute when no name server answers; threads of an executor are joined at exit.
    """
    box: concurrent.futures.Future[_T] = concurrent.futures.Future()
    box.set_running_or_notify_cancel()  # from here on, cancelling the awaiting side leaves the box alone

    def run() -> None:
        try:
            box.set_result(work())
        except Exception as error:
            box.set_exception(error)

    threading.Thread(target=run, name="remoterun-blocking", daemon=True).start()
    return await asyncio.wrap_future(box)


async def lookup(address: str, port: int, *, family: int = 0) -> list[Address]:
    """Resolve a name; raises `socket.gaierror`."""
    ask = partial(socket.getaddrinfo, address, port, family=family, type=socket.SOCK_STREAM)
    try:
        try:
            # An address needs no resolver, and so no thread.
            infos = ask(flags=socket.AI_NUMERICHOST)
        except socket.gaierror:
            infos = await in_daemon(ask)
    except UnicodeError as error:
        # Python takes it apart before any resolver is asked.
        raise socket.gaierror(socket.EAI_NONAME, "a part of it is empty or longer than 63 characters") from error
    return [(info[0], info[4]) for info in infos]


async def dial(addresses: Sequence[Address], *, bind: str | None = None) -> socket.socket:
    """Open a TCP connection to the first address that answers.

    Raises:
        OSError: none took the connection; the error is the last one's.
    """
    waiting = list(addresses)
    trying: set[asyncio.Task[socket.socket]] = set()
    error: BaseException = OSError("there is no address to try")
    try:
        while waiting or trying:
            if waiting:
                trying.add(asyncio.create_task(_connect(waiting.pop(0), bind)))
            done, trying = await asyncio.wait(
                trying, timeout=_STAGGER_S if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                error = task.exception() or error
                if task.exception() is None:
                    trying |= done - {task}
                    return task.result()
    finally:
        for task in trying:
            task.cancel()
            task.add_done_callback(_close_late)
    raise error


def _close_late(task: asyncio.Task[socket.socket]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()


async def _connect(address: Address, bind: str | None) -> socket.socket:
    family, where = address
    sock = QuickSocket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(0)
        if bind is not None:
            sock.bind((bind, 0))
        await asyncio.get_running_loop().sock_connect(sock, where)
    except BaseException:
        sock.close()
        raise
    return sock


class QuickSocket(socket.socket):
    """Acknowledge at once what is read, where the system can.

    sshd leaves Nagle's algorithm on: its second packet waits for our acknowledgement, which Linux delays for 40 ms.
    The kernel forgets the option by itself, so it is set again with each read.
    """

    _QUICKACK: Final = getattr(socket, "TCP_QUICKACK", None)

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        """Read like a plain socket."""
        data = super().recv(bufsize, flags)
        if self._QUICKACK is not None:
            with contextlib.suppress(OSError):
                self.setsockopt(socket.IPPROTO_TCP, self._QUICKACK, 1)
        return data


class ProxyCommand(asyncio.SubprocessProtocol):
    """Run a ProxyCommand in a session of its own: Ctrl-C must not cut the connection before kills are confirmed.

    asyncssh's own way feeds what the command says on stderr into the SSH stream.
    """

    def __init__(self) -> None:
        self._said = Capture(head=0, tail=2048)
        self._silent = asyncio.Event()

    @classmethod
    async def start(cls, command: str) -> tuple[ProxyCommand, socket.socket]:
        """Start the command, and return it with the socket that is its stdin and stdout."""
        proxy = cls()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                argv = ("/bin/sh", "-c", f"exec {command}")
                proxy._process = await spawn(lambda: proxy, argv, stdin=theirs.fileno(), stdout=theirs.fileno())
            except BaseException:
                ours.close()
                raise
        ours.settimeout(0)
        return proxy, ours

    _process: asyncio.SubprocessTransport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Keep what it says on stderr."""
        self._said.add(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Note that it says no more."""
        self._silent.set()

    async def close(self) -> str:
        """End the command and everything it started, and return the last it said on stderr."""
        try:
            # A command that ended by itself has its last words still in the pipe.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._silent.wait(), _LAST_WORDS_S)
        finally:
            await end(self._process, _GRACE_S)
        return self._said.snapshot().tail.decode(errors="replace").strip()
