"""How many files this process may open: a login or a program waits for its turn rather than fail for want of one."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from remoterun.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

LOGIN_FILES: Final = 5
"""A login takes so many at most: its socket, those of resolver and agent, known_hosts and keys."""
CONNECTION_FILES: Final = 2
"""And an open connection: its socket, and what its ProxyCommand says on stderr."""
PROGRAM_FILES: Final = 4
"""And a program on this machine: three pipes, and what tells of its end."""
# For all else: the history, records that memory is too small for, modules, what a start takes for a moment, and logins
# through a connection that is there: whoever holds one waits for no files, or all might wait for each other.
_RESERVE: Final = 24
_ERRORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
# How resolvers, agents and libraries say so, none of which passes the system's word on.
_SYMPTOMS: Final = frozenset({"dns_failed", "connect_failed", "auth_failed"})


class OpenFiles:
    """Bound how many files are open at once. Whoever finds nothing else open is let in, whatever it needs.

    Args:
        room: how many there may be, None when there is no bound.
        make_room: closes something that nobody needs now, if there is any; what is closed is given back later.
    """

    def __init__(self, room: int | None, make_room: Callable[[], None]) -> None:
        self._room = room
        self._make_room = make_room
        self._taken = 0
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def lent(self, number: int) -> AsyncIterator[None]:
        """Wait until so many more may be opened, and count them until the block is left."""
        while self._room is not None and self._taken and self._taken + number > self._room:
            changed = self._changed
            self._make_room()
            await changed.wait()
        self.add(number)
        try:
            yield
        finally:
            self.give(number)

    def add(self, number: int) -> None:
        """Count so many more."""
        self._taken += number

    def give(self, number: int) -> None:
        """Give back so many."""
        self._taken -= number
        self.look_again()

    def look_again(self) -> None:
        """Let whoever waits look again: there may be something to close now."""
        self._changed.set()
        self._changed = asyncio.Event()


def room_here() -> int | None:
    """Return how many files this process may still open for connections and programs; None without a bound."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        # The listing itself is among them.
        taken = len(os.listdir("/dev/fd")) - 1  # noqa: PTH208 - names, not paths
    except OSError:
        taken = 0
    return limit - taken - _RESERVE


def ran_out(error: BaseException) -> TargetError | None:
    """Return what to tell of an error that came of one file too many; None for any other."""
    if _says_so(error) or (isinstance(error, TargetError) and error.code in _SYMPTOMS and _is_none_left()):
        return TargetError("too_many_files", str(error))
    return None


def _says_so(error: BaseException) -> bool:
    # An error that is raised anew while it is dealt with may be its own cause.
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        if isinstance(cause, OSError) and cause.errno in _ERRORS:
            return True
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__
    return False


def _is_none_left() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in _ERRORS
    return False
