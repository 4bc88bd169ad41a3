"""Sessions on hosts: connections shared by the targets of a run, and bounds on what each host is asked at once.

One login per host, whoever wants it first; its failure is everybody's. Jump hosts are hosts like any other: logged in
at once, and shared by all behind them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes.util
import os
import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar, cast

from remoterun.errors import TargetError
from remoterun.model import Concurrency, Host, Phase, format_duration
from remoterun.transports.dial import in_daemon
from remoterun.transports.link import Budget, Link
from remoterun.transports.local import LocalSession
from remoterun.transports.openfiles import CONNECTION_FILES, LOGIN_FILES, PROGRAM_FILES, OpenFiles, room_here
from remoterun.transports.session import ConnectionLost, SessionRefused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    from remoterun.transports.fabric import FabricConnection
    from remoterun.transports.keyring import Ask, Keyring
    from remoterun.transports.link import Stage
    from remoterun.transports.route import Route
    from remoterun.transports.session import Connection as AnyConnection
    from remoterun.transports.session import OnPhase, Session
    from remoterun.transports.ssh import Connection

_T = TypeVar("_T")

# A hop that has not answered after this long is not starting Perl any more but hangs, in a frozen guest mostly.
_ENTER_SLOT_S: Final = 5.0
MAX_JUMPS: Final = 8


class Pool:
    """Open sessions on hosts; one pool per run, used as an async context manager.

    Args:
        keepalive_s: after this silence a connection is asked for a sign of life; after three in vain it is given up.
        ask: asks a person for passphrases and passwords; without it, nobody is asked.
        fabric: connections that a person has made with Fabric, by the key of the host; others are made here.
    """

    def __init__(
        self, *, keepalive_s: float = 10.0, ask: Ask | None = None, fabric: Mapping[str, object] | None = None
    ) -> None:
        self._keepalive_s = keepalive_s
        self._ask = ask
        self._fabric = fabric or {}
        self._keys: Keyring | None = None
        self._links: dict[Host, Link] = {}
        self._gates: dict[object, asyncio.Semaphore] = {}
        self._readings: dict[object, asyncio.Task[object]] = {}
        self._files = OpenFiles(room_here(), self._make_room)
        self._stand_on: dict[AnyConnection, Link | None] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for reading in self._readings.values():
            reading.cancel()
        await asyncio.gather(*(link.close() for link in self._links.values()))

    @contextlib.asynccontextmanager
    async def session(
        self,
        host: Host,
        argv: Sequence[str],
        *,
        connect_s: float | None,
        enter_s: float | None,
        on_phase: OnPhase,
        again: bool = False,
    ) -> AsyncIterator[Session]:
        """Run a program on a host and hold the session to it. Waiting for slots burns no limit.

        Args:
            host: where; its connection is shared with every other session there.
            argv: the exact words of the program.
            connect_s: the limit `connect`, from resolving to authentication, jump hosts included.
            enter_s: the limit `enter`, here for opening the session.
            on_phase: told of connecting, of waiting for a slot, and of the moment at which the program is asked for.
            again: the host was reached before, so that a failure of its login is no last word.

        Raises:
            TargetError: the host could not be reached, or opened no session.
            ConnectionLost: the connection died while the session was being opened.
        """
        enter = _EnterSlot(self._gate(("enter", _place(host)), host.concurrency.enter), on_phase)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(enter.give)
            session: Session
            if host.transport == "local":
                await enter.take()
                await stack.enter_async_context(self._files.lent(PROGRAM_FILES))
                enter.begin()
                session = await LocalSession.start(argv, entered=enter.give)
            else:
                if again:
                    self._forgive()
                stack.enter_context(self._using(host))
                try:
                    session, give = await self._open(host, argv, connect_s, enter_s, enter, on_phase)
                except TargetError as error:
                    raise _labelled(error, host.key, host) from error
                stack.callback(give)
            stack.push_async_callback(session.close)
            yield session

    async def _open(
        self,
        host: Host,
        argv: Sequence[str],
        connect_s: float | None,
        enter_s: float | None,
        enter: _EnterSlot,
        on_phase: OnPhase,
    ) -> tuple[Session, Callable[[], None]]:
        """Open a session, and return it with what gives its slot back."""
        # Before queuing to enter: a host that cannot be reached must not hold anybody up there.
        await self._up(host, Budget(connect_s), on_phase)
        await enter.take()
        since = asyncio.get_running_loop().time()
        lost = False
        while True:
            link = await self._up(host, Budget(connect_s), on_phase)
            carrier = link.take()
            if carrier is None:
                on_phase(Phase.ENTER, waiting=True)
                await link.slot_freed(since, connect_s)
                continue
            enter.begin()
            try:
                async with asyncio.timeout(enter_s):
                    session = await carrier.connection.open_session(argv, enter.give)
            except SessionRefused as error:
                if not carrier.connection.closed:
                    link.refused(carrier, str(error))
                    continue
                # It died unnoticed before this: worth one more login, as nothing was started.
                link.give(carrier)
                if lost:
                    raise ConnectionLost(str(error)) from error
                lost = True
            except TimeoutError as error:
                link.give(carrier)
                raise _open_timeout(enter_s or 0.0) from error
            except BaseException:
                link.give(carrier)
                raise
            else:
                link.opened(carrier)
                return session, partial(link.give, carrier, ran=True)

    # --- connections ---

    def _forgive(self) -> None:
        """Let every login be tried again: the one that failed may be that of a jump host."""
        for link in self._links.values():
            link.forgive()

    async def _up(self, host: Host, budget: Budget, on_phase: OnPhase, jumps: int = 0) -> Link:
        """Return the link of a host with a live connection, its jump hosts connected before it."""
        link = self._link(host)
        if link.connection is not None:
            return link
        if self._ask is None:
            link.raise_failure(budget)
        if jumps > MAX_JUMPS:
            raise TargetError("connect_failed", f"more than {MAX_JUMPS} jump hosts: do they lead in a circle?")
        if host.transport == "fabric":
            link.gate = self._gate(("login", host.address, host.port), host.concurrency.logins)
            await link.up(partial(self._log_in_by_fabric, host, link), budget, on_phase)
            return link
        route = await self._route(host, budget)
        link.gate = self._gate(("login", route.address, route.port, route.via), host.concurrency.logins)
        if route.via is None:
            await self._connected(link, route, None, budget, on_phase)
            return link
        with self._using(route.via):
            try:
                via = await self._up(route.via, budget, on_phase, jumps + 1)
            except TargetError as error:
                raise _labelled(error, f"its jump host {route.via.key}") from error
            await self._connected(link, route, via, budget, on_phase)
        return link

    def _link(self, host: Host) -> Link:
        place = _place(host)
        link = self._links.get(place)
        if link is None:
            link = self._links[place] = Link(host.concurrency.sessions, self._closed)
        return link

    @contextlib.contextmanager
    def _using(self, host: Host) -> Iterator[None]:
        """Have no connection to a host closed for want of files."""
        link = self._link(host)
        link.users += 1
        try:
            yield
        finally:
            link.users -= 1
            self._files.look_again()

    # --- open files ---

    def _make_room(self) -> None:
        """Close the connections to one host that nobody needs now; a later target there logs in again."""
        for link in self._links.values():
            if link.retire_unused():
                break

    def _hold(self, connection: AnyConnection, via: Link | None = None) -> None:
        """Count what a new connection stands on until it is closed: files of its own, or one to its jump host."""
        self._stand_on[connection] = via
        if via is not None:
            via.users += 1
        else:
            self._files.add(CONNECTION_FILES)

    def _closed(self, connection: AnyConnection) -> None:
        via = self._stand_on.pop(connection)
        if via is not None:
            via.users -= 1
            self._files.look_again()
        else:
            self._files.give(CONNECTION_FILES)

    async def _connected(self, link: Link, route: Route, via: Link | None, budget: Budget, on_phase: OnPhase) -> None:
        """Log in at one host, with all that a person can be asked for."""
        opener = partial(self._log_in, route, link.gate, via)
        while self._ask is not None:
            seen = self._keyring.state(route)
            try:
                await link.up(opener, budget, on_phase)
            except TargetError as error:
                # Whoever is asked takes the time that it takes: no limit goes on.
                on_phase(Phase.CONNECT, waiting=True)
                if not await self._keyring.more(route, error, seen):
                    raise
                link.retry()
            else:
                return
        await link.up(opener, budget, on_phase)

    async def _log_in(
        self, route: Route, gate: asyncio.Semaphore, via: Link | None, stage: Stage, begin: Callable[[], None]
    ) -> Connection:
        """Wait for the turn at the jump host and at the host, then log in."""
        from remoterun.transports.hostkeys import load_known_hosts
        from remoterun.transports.ssh import login

        async with contextlib.AsyncExitStack() as stack:
            if via is None:
                # Nobody waits for files who has a turn or a connection: all could wait for each other.
                await stack.enter_async_context(self._files.lent(LOGIN_FILES))
            for turn in (via.gate, gate) if via is not None else (gate,):
                await stack.enter_async_context(turn)
            begin()
            stage.text = "reading known_hosts"
            known = await asyncio.shield(
                self._read(("known_hosts", route.known_hosts), partial(load_known_hosts, route.known_hosts))
            )
            onward = cast("Connection | None", via.connection) if via is not None else None
            if via is not None and onward is None:
                raise TargetError("connect_failed", "the connection to its jump host was lost")
            connection = await login(route, known, onward, stage, self._keyring, keepalive_s=self._keepalive_s)
            self._hold(connection, via)
            return connection

    async def _log_in_by_fabric(
        self, host: Host, link: Link, stage: Stage, begin: Callable[[], None]
    ) -> FabricConnection:
        from remoterun.transports.fabric import login

        given = self._fabric.get(host.key)
        if given is not None and link.connection is not None:
            raise TargetError("connect_failed", "a connection of a person's own is the only one there")
        async with self._files.lent(LOGIN_FILES), link.gate:
            begin()
            connection = await login(host, given, stage)
            self._hold(connection)
            return connection

    @property
    def _keyring(self) -> Keyring:
        from remoterun.transports.keyring import Keyring

        if self._keys is None:
            self._keys = Keyring(self._ask)
        return self._keys

    async def route(self, host: Host, connect_s: float | None) -> Route:
        """Return what ssh_config and the inventory say about a host.

        Raises:
            TargetError: what they say cannot be used.
        """
        return await self._route(host, Budget(connect_s))

    async def connection(self, host: Host, connect_s: float | None) -> Connection:
        """Return a live connection to a jump host.

        Raises:
            TargetError: it could not be reached.
        """
        try:
            link = await self._up(host, Budget(connect_s), _unseen)
        except TargetError as error:
            raise _labelled(error, f"its jump host {host.key}") from error
        if link.connection is None:
            raise TargetError("connect_failed", "the connection to its jump host was lost")
        return cast("Connection", link.connection)

    async def _route(self, host: Host, budget: Budget) -> Route:
        import_asyncssh()
        from remoterun.transports.route import resolve

        since = asyncio.get_running_loop().time()
        reading = self._read(("route", _place(host)), partial(resolve, host))
        done, _ = await asyncio.wait({reading}, timeout=budget.left(since))
        if not done:
            raise budget.exceeded("reading ssh_config")
        budget.spend(since)
        return reading.result()

    def _read(self, key: object, work: Callable[[], _T]) -> asyncio.Task[_T]:
        """Do blocking work once per pool, whoever asks for it."""
        task = self._readings.get(key)
        if task is None:
            task = self._readings[key] = asyncio.create_task(in_daemon(work))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen, if by nobody else
        return cast("asyncio.Task[_T]", task)

    def _gate(self, key: object, width: int) -> asyncio.Semaphore:
        gate = self._gates.get(key)
        if gate is None:
            gate = self._gates[key] = asyncio.Semaphore(width)
        return gate


class _EnterSlot:
    """Hold one of a host's slots for entering, from the exec request until the program inside has answered."""

    def __init__(self, gate: asyncio.Semaphore, on_phase: OnPhase) -> None:
        self._gate, self._on_phase = gate, on_phase
        self._held = False
        self._timer: asyncio.TimerHandle | None = None

    async def take(self) -> None:
        """Wait for a slot."""
        if self._gate.locked():
            self._on_phase(Phase.ENTER, waiting=True)
        await self._gate.acquire()
        self._held = True

    def begin(self) -> None:
        """Say that the program is being asked for; from now on the slot is not kept for ever."""
        self._on_phase(Phase.ENTER, waiting=False)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_ENTER_SLOT_S, self.give)

    def give(self) -> None:
        """Give the slot back, once."""
        if self._timer is not None:
            self._timer.cancel()
        if self._held:
            self._held = False
            self._gate.release()


def _unseen(phase: Phase, waiting: bool) -> None:  # noqa: FBT001 - the callback of a phase
    """Take no note."""


def _place(host: Host) -> Host:
    """Reduce a host to what makes it another connection: two names for one place share it."""
    return replace(host, key="", become=None, concurrency=Concurrency(), flags=())


def _labelled(error: TargetError, who: str, on: Host | None = None) -> TargetError:
    """Say of whom an error is told, and what commands that help are to be typed with; a new error each time.

    Many wait for one login.
    """
    hint = error.hint if on is None else error.hint.replace("--on TARGET", shlex.join(("--on", on.key, *on.flags)))
    return TargetError(error.code, f"{who}: {error.message}", hint=hint, limit=error.limit)


def _open_timeout(enter_s: float) -> TargetError:
    text = f"the SSH server did not open a session within {format_duration(enter_s)}"
    return TargetError("enter_timeout", text, limit=("enter", enter_s, "limits.enter"))


def import_asyncssh() -> None:
    """Import asyncssh without its search for liboqs by way of ldconfig, gcc and ld, a sixth of its import time.

    A library that the dynamic linker's cache does not name is one that ldconfig will not find. Where there is no such
    cache (macOS, musl), or LD_LIBRARY_PATH adds to it, asyncssh searches as it likes.
    """
    if "asyncssh" in sys.modules:
        return
    cache = Path("/etc/ld.so.cache")
    search = ctypes.util.find_library
    known = cache.read_bytes() if cache.exists() and not os.environ.get("LD_LIBRARY_PATH") else None

    def find_library(name: str) -> str | None:
        soname = f"lib{name.removeprefix('lib')}.so".encode()
        return search(name) if known is None or soname in known else None

    ctypes.util.find_library = find_library
    try:
        import asyncssh  # noqa: F401
    finally:
        ctypes.util.find_library = search
