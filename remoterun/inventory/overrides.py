"""Flags laid over what the files say, on every selected target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from remoterun.errors import ConfigError, Problem, show
from remoterun.inventory import words
from remoterun.inventory.endpoints import split_jump
from remoterun.inventory.settings import Login, Settings, check_guest
from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from remoterun.inventory.settings import Become, GuestHop
    from remoterun.model import Host, Target

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Hold what flags say about every selected target; None is not said, and what is said beats every file.

    `user` is the login on the host, `guest_user` the account inside the guest. All is written as in the inventory, but
    relative paths start at the working directory. What has no meaning for a target does not apply to it: `hop` to a
    host without guests, `port` to this machine. `typed` are the words of a command line that said so, for hints.
    """

    venv: str | None = None
    python: str | None = None
    user: str | None = None
    guest_user: str | None = None
    port: int | None = None
    hop: str | None = None
    become: str | None = None
    identity_file: tuple[str, ...] | None = None
    known_hosts: tuple[str, ...] | None = None
    host_key: tuple[str, ...] | None = None
    accept_new: bool = False
    ssh_config: str | None = None
    jump: str | None = None
    typed: tuple[str, ...] = ()

    def checked(self) -> Flags:
        """Return the flags as the nearest layer of settings, with absolute paths.

        Raises:
            ConfigError: every problem at once, each under the flag's name.
        """
        problems: list[Problem] = []
        folder = Path.cwd()

        def ask(flag: str, check: Callable[[_T], _R], given: _T | None) -> _R | None:
            try:
                return None if given is None else check(given)
            except ValueError as error:
                problems.append(Problem(path=flag, message=str(error)))
                return None

        def paths(given: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(words.local_path(text, folder) for text in given)

        login = Login(
            user=ask("--user", words.LOGIN_USER.check, self.user),
            port=ask("--port", _port, self.port),
            identity_files=ask("--identity", paths, self.identity_file),
            known_hosts=ask("--known-hosts", paths, self.known_hosts),
            host_key=ask("--host-key", _fingerprints, self.host_key),
            accept_new=self.accept_new or None,
            ssh_config=ask("--ssh-config", lambda text: words.config_path(text, folder), self.ssh_config),
            jump=ask("--jump", split_jump, self.jump),
            become=ask("--become", _become, self.become),
        )
        settings = Settings(
            venv=ask("--venv", words.VENV.check, self.venv),
            python=ask("--python", words.PYTHON.check, self.python),
            hop=ask("--hop", _hop, self.hop),
        )
        if self.venv is not None and self.python is not None:
            problems.append(Problem(path="--python", message="give --venv or --python, not both"))
        guest_user = ask("--guest-user", words.GUEST_USER.check, self.guest_user)
        if problems:
            raise ConfigError(problems)
        return Flags(login=login, settings=settings, guest_user=guest_user, typed=self.typed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """Hold checked overrides; `login.jump` is not looked at: the chain is resolved by the inventory."""

    login: Login
    settings: Settings
    guest_user: str | None
    typed: tuple[str, ...] = ()

    def laid_over(self, target: Target, jump: tuple[Host, ...] | None) -> Target:
        """Return a target with the flags laid over it, and `jump` unless it is None.

        Raises:
            ValueError: the guest's key is nothing that the hop takes.
        """
        if self == _NOTHING:
            return target
        host = replace(self.trusting(self._host(target.host, jump)), flags=self.typed)
        return replace(self._laid_over(target), host=host)

    def _laid_over(self, target: Target) -> Target:
        said = self.settings
        hop = target.hop
        if target.guest is not None and said.hop in ("pct", "lxc"):
            check_guest(target.guest, said.hop)
            hop = said.hop
        user = target.user if target.guest is None or self.guest_user is None else inner_user(self.guest_user)
        return replace(
            target,
            hop=hop,
            user=user,
            interpreter=said.interpreter if said.names_python else target.interpreter,
            venv=said.venv if said.names_python else target.venv,
        )

    def trusting(self, host: Host) -> Host:
        """Return a host that takes new keys, where flags say so, with all hosts on the way to it."""
        if not self.login.accept_new:
            return host
        return replace(host, accept_new=True, jump=host.jump and tuple(map(self.trusting, host.jump)))

    def _refuse_for_fabric(self, host: Host, jump: tuple[Host, ...] | None) -> None:
        """Say which flags a host takes no account of: that they are given and ignored would be a trap."""
        given = {"--jump": jump is not None, "--host-key": self.login.host_key is not None}
        message = f"has no meaning for {host.key}, which is reached by Fabric"
        if any(given.values()):
            raise ConfigError(Problem(path=flag, message=message) for flag, is_given in given.items() if is_given)

    def _host(self, host: Host, jump: tuple[Host, ...] | None) -> Host:
        said = self.login
        become = host.become if said.become is None else said.sudo
        if host.transport == "local":
            return replace(host, become=become)
        if host.transport == "fabric":
            self._refuse_for_fabric(host, jump)
        return replace(
            host,
            port=host.port if said.port is None else said.port,
            user=host.user if said.user is None else said.user,
            identity_files=host.identity_files if said.identity_files is None else said.identity_files,
            known_hosts=host.known_hosts if said.known_hosts is None else said.known_hosts,
            host_key=host.host_key if said.host_key is None else said.host_key,
            accept_new=said.host_key is None and host.accept_new,
            ssh_config=host.ssh_config if said.ssh_config is None else said.ssh_config,
            jump=host.jump if jump is None else jump,
            become=become,
        )


_NOTHING: Final = Flags(login=Login(), settings=Settings(), guest_user=None)


def inner_user(user: str | None) -> str | None:
    """Return the account inside a guest as a target holds it: root, whom every hop enters as, is None."""
    return None if user == "root" else user


def _port(number: int) -> int:
    if not 1 <= number <= words.HIGHEST_PORT:
        raise ValueError(f"{number} is not a port: write a number from 1 to {words.HIGHEST_PORT}")
    return number


def _hop(text: str) -> GuestHop:
    hops: dict[str, GuestHop] = {"pct": "pct", "lxc": "lxc"}
    if text not in hops:
        raise ValueError(f"{show(text)} is no way into a guest: write pct or lxc")
    return hops[text]


def _become(text: str) -> Become:
    ways: dict[str, Become] = {"sudo": "sudo", "none": "none"}
    if text not in ways:
        raise ValueError(f"{show(text)} is no way to become root: write sudo or none")
    return ways[text]


def _fingerprints(given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(words.fingerprint(text) for text in given)
