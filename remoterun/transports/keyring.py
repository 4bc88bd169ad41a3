"""What a person is asked for while hosts are logged in at: passphrases of keys, and passwords; each once in a run.

Nobody is asked before a login without it has failed: an agent or another key may do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import asyncssh

from remoterun.errors import TargetError, clean
from remoterun.transports.dial import in_daemon
from remoterun.transports.identities import key_files

if TYPE_CHECKING:
    from remoterun.transports.route import Route

Ask: TypeAlias = Callable[[str], Awaitable[str | None]]
"""Ask a question, and return the answer, which nobody sees; None when there is none."""

_TRIES: Final = 3

_Account: TypeAlias = tuple[str, int, str]


class RefusedError(TargetError):
    """Say that a host let nobody in, and whether it would have taken a password."""

    def __init__(self, message: str, *, hint: str | None, takes_password: bool) -> None:
        super().__init__("auth_failed", message, hint=hint)
        self.takes_password = takes_password


class Keyring:
    """Hold what was asked for. Without `ask` it stays empty."""

    def __init__(self, ask: Ask | None) -> None:
        self._ask = ask
        self._lock = asyncio.Lock()
        self._unlocked: dict[str, asyncssh.SSHKey] = {}
        self._passwords: dict[_Account, list[str]] = {}
        self._declined: set[object] = set()

    def keys(self, route: Route) -> list[asyncssh.SSHKey]:
        """Return the keys of a way that passphrases have unlocked."""
        if not self._unlocked:
            return []
        return [self._unlocked[path] for path in key_files(route) if path in self._unlocked]

    def password(self, route: Route) -> str | None:
        """Return the password that was last given for an account."""
        return self._passwords.get(_account(route), [None])[-1]

    def state(self, route: Route) -> object:
        """Return what tells whether there is more to try than before."""
        return (len(self.keys(route)), len(self._passwords.get(_account(route), ())))

    async def more(self, route: Route, error: TargetError, seen: object) -> bool:
        """Ask for more after a login has failed, and tell whether it is worth another try.

        Args:
            route: the way to the host.
            error: what the login failed of.
            seen: the state before it.
        """
        if self._ask is None or not isinstance(error, RefusedError):
            return False
        async with self._lock:
            # Others wait for the same host, or were refused with the same key.
            return self.state(route) != seen or await self._asked(self._ask, route, error)

    async def _asked(self, ask: Ask, route: Route, error: RefusedError) -> bool:
        for path in key_files(route):
            if path not in self._unlocked and path not in self._declined and await in_daemon(partial(is_locked, path)):
                if await self._unlock(ask, path):
                    return True
                self._declined.add(path)
        account = _account(route)
        given = self._passwords.get(account, [])
        if not error.takes_password or account in self._declined or len(given) == _TRIES:
            return False
        again = "That was not it. " if given else ""
        password = await ask(f"{again}Password of {clean(route.user)} at {clean(route.where)}: ")
        if not password:
            self._declined.add(account)
            return False
        self._passwords[account] = [*given, password]
        return True

    async def _unlock(self, ask: Ask, path: str) -> bool:
        question = f"Passphrase of the key {clean(path)}: "
        for _ in range(_TRIES):
            passphrase = await ask(question)
            if not passphrase:
                return False
            try:
                self._unlocked[path] = await in_daemon(partial(asyncssh.read_private_key, path, passphrase))
            except (OSError, ValueError):
                question = f"That was not it. Passphrase of the key {clean(path)}: "
            else:
                return True
        return False


def is_locked(path: str) -> bool:
    """Tell whether a key file needs a passphrase."""
    try:
        asyncssh.read_private_key(path)
    except (OSError, ValueError) as error:
        return isinstance(error, asyncssh.KeyEncryptionError) or "assphrase" in str(error)
    return False


def _account(route: Route) -> _Account:
    return (route.address, route.port, route.user)
