"""The connections to one host: who logs in, who waits for it, and how many sessions each connection takes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeAlias

from remoterun.errors import TargetError
from remoterun.model import Phase, format_duration

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from remoterun.transports.session import Connection, OnPhase

# A further login costs both sides about as much as a short session takes, so a little patience comes first.
_PATIENCE_S: Final = 0.5


class Stage:
    """Say how far a login is, for those who give up waiting for it."""

    text = "waiting for its turn"


Opener: TypeAlias = "Callable[[Stage, Callable[[], None]], Awaitable[Connection]]"
"""Log in: is given the stage to keep up to date, and calls back when its turn has come and the work begins."""


ASKING_AGENT: Final = "asking the SSH agent for its keys"


class Budget:
    """Count what one caller spends of its limit `connect`, over all the hosts on its way."""

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s = limit_s
        self._spent_s = 0.0

    def exceeds(self, limit_s: float) -> bool:
        """Tell whether this caller is more patient than another was."""
        return self._limit_s is None or self._limit_s > limit_s

    def left(self, since: float) -> float | None:
        """Return the seconds left when the work now waited for began at `since`, by the loop's clock."""
        if self._limit_s is None:
            return None
        return max(0.0, self._limit_s - self._spent_s - (asyncio.get_running_loop().time() - since))

    def spend(self, since: float) -> None:
        """Take off the time since `since`."""
        self._spent_s += asyncio.get_running_loop().time() - since

    def exceeded(self, doing: str) -> TargetError:
        """Say what was still going on when it was used up."""
        limit = self._limit_s or 0.0
        return TargetError(
            "connect_timeout",
            f"no SSH connection within {format_duration(limit)}: still {doing}",
            hint="Try `ssh-add -l`: the agent may wait for somebody's word." if doing == ASKING_AGENT else None,
            limit=("connect", limit, "limits.connect"),
        )


class _Login:
    """Be one login that several callers wait for."""

    task: asyncio.Task[None]

    def __init__(self) -> None:
        self.stage = Stage()
        self.begun = asyncio.Event()
        self.begun_at = 0.0
        self.waiters = 0

    def begin(self) -> None:
        """Start everybody's clock; only the first call does."""
        if not self.begun.is_set():
            self.begun_at = asyncio.get_running_loop().time()
            self.begun.set()


class Carrier:
    """Count the sessions on one connection: `taken` with those just being opened, `running`, and `opened` ever."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.taken = 0
        self.running = 0
        self.opened = 0


class Link:
    """Hold the connections to one host, at most one login at a time, and what was learned of its limit on sessions."""

    gate: asyncio.Semaphore
    """How many logins go on at once at this host, and through it at the hosts behind it."""

    _opener: Opener

    def __init__(self, sessions: int, closed: Callable[[Connection], None]) -> None:
        self.users = 0
        """How many need a connection to this host now, or the one that they have: it is not closed under them."""
        self._closed = closed
        self._failure: TargetError | None = None
        self._was_up = False
        self._sessions = sessions
        self._carriers: list[Carrier] = []
        self._login: _Login | None = None
        self._growing: asyncio.Task[None] | None = None
        self._may_grow = True
        self._changed = asyncio.Event()
        self._retiring: set[asyncio.Task[None]] = set()

    @property
    def connection(self) -> Connection | None:
        """Return a live connection, or None."""
        for carrier in [item for item in self._carriers if item.connection.closed]:
            self._retire(carrier)
        return self._carriers[0].connection if self._carriers else None

    # --- logging in ---

    def raise_failure(self, budget: Budget) -> None:
        """Raise what an earlier login failed of; it is not repeated, unless only the patience was too short."""
        failure = self._failure
        if failure is not None and not (failure.limit is not None and budget.exceeds(failure.limit[1])):
            raise failure

    def retry(self) -> None:
        """Forget that a login failed: there is more to try it with."""
        self._failure = None

    def forgive(self) -> None:
        """Forget that a login failed, if an earlier one did not: it may be tried again."""
        if self._was_up:
            self._failure = None

    async def up(self, opener: Opener, budget: Budget, on_phase: OnPhase) -> None:
        """Get a live connection: start a login, or wait for the one under way.

        Raises:
            TargetError: it failed, now or earlier, or the budget is used up.
        """
        if self.connection is not None:
            return
        self.raise_failure(budget)
        self._opener = opener
        login = self._login or self._start()
        login.waiters += 1
        try:
            await self._wait(login, budget, on_phase)
        finally:
            login.waiters -= 1
            if not login.waiters and not login.task.done():
                login.task.cancel()
                self._login = None

    async def _wait(self, login: _Login, budget: Budget, on_phase: OnPhase) -> None:
        if not login.begun.is_set():
            on_phase(Phase.CONNECT, waiting=True)
            await login.begun.wait()
        on_phase(Phase.CONNECT, waiting=False)
        since = asyncio.get_running_loop().time()
        done, _ = await asyncio.wait({login.task}, timeout=budget.left(login.begun_at))
        if not done:
            error = budget.exceeded(login.stage.text)
            if login.waiters == 1:  # nobody is more patient, so this is the login's end
                self._failure = error
            raise error
        budget.spend(since)
        login.task.result()

    def _start(self) -> _Login:
        login = self._login = _Login()
        login.task = asyncio.create_task(self._log_in(login))
        login.task.add_done_callback(lambda task: task.cancelled() or task.exception())  # seen, if by nobody else
        return login

    async def _log_in(self, login: _Login) -> None:
        try:
            connection = await self._opener(login.stage, login.begin)
            self._carriers.append(Carrier(connection))
            self._was_up = True
        except TargetError as error:
            self._failure = error
            raise
        finally:
            login.begin()
            if self._login is login:
                self._login = None

    # --- sessions ---

    def take(self) -> Carrier | None:
        """Take a slot for a session on a connection that has one free; `give` it back."""
        if self.connection is None:
            return None
        carrier = min(self._carriers, key=lambda item: item.taken)
        if carrier.taken >= self._sessions:
            return None
        carrier.taken += 1
        return carrier

    def opened(self, carrier: Carrier) -> None:
        """Note that the server opened the session."""
        carrier.running += 1
        carrier.opened += 1

    def refused(self, carrier: Carrier, why: str) -> None:
        """Note that the server opened no session: learn from it, and give the slot back.

        Raises:
            TargetError: this server opens not a single one.
        """
        self.give(carrier)
        if carrier.running or carrier.taken:
            # While none runs, those still being opened decide: one at a time from now on.
            self._sessions = max(1, min(self._sessions, carrier.running))
        elif carrier.opened:
            # Sessions that ended here still count there, so this connection is used up.
            self._retire(carrier)
        else:
            raise TargetError("session_refused", f"the SSH server opens no session: {why}")

    def _retire(self, carrier: Carrier) -> None:
        """Take a connection out of use, and close what it stands on."""
        self._carriers.remove(carrier)
        task = asyncio.create_task(self._close(carrier.connection))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _close(self, connection: Connection) -> None:
        try:
            await connection.close()
        finally:
            self._closed(connection)

    def retire_unused(self) -> bool:
        """Close the connections that nobody needs now; True when there was one."""
        if self.connection is None or self.users:
            return False
        for carrier in list(self._carriers):
            self._retire(carrier)
        return True

    def give(self, carrier: Carrier, *, ran: bool = False) -> None:
        """Give a slot back; `ran`: a session had been opened in it."""
        carrier.taken -= 1
        carrier.running -= ran
        self._notify()

    async def slot_freed(self, since: float, limit_s: float | None) -> None:
        """Wait until it is worth trying `take` again; some time after `since`, see to a further connection."""
        patience = max(0.0, since + _PATIENCE_S - asyncio.get_running_loop().time())
        try:
            await asyncio.wait_for(self._changed.wait(), patience if self._can_grow else None)
        except TimeoutError:
            if self._can_grow:
                self._growing = asyncio.create_task(self._grow(limit_s))

    @property
    def _can_grow(self) -> bool:
        return self._may_grow and self._growing is None

    async def _grow(self, limit_s: float | None) -> None:
        try:
            async with asyncio.timeout(limit_s):
                connection = await self._opener(Stage(), lambda: None)
            self._carriers.append(Carrier(connection))
        except (TargetError, OSError):  # a timeout among them
            self._may_grow = False  # the connections there are must do
        finally:
            self._growing = None
            self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # --- the end ---

    async def close(self) -> None:
        """Close all connections, and end the logins under way."""
        tasks = [task for task in (self._growing, self._login.task if self._login else None) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._retiring, return_exceptions=True)
        await asyncio.gather(*(self._close(carrier.connection) for carrier in self._carriers))
