"""Settings before they are laid over each other: how hosts are reached, and what a target inherits."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar

from remoterun.inventory import words
from remoterun.model import Concurrency, HopKind, Host, Json
from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

_T = TypeVar("_T")

DEFAULT_INTERPRETER: Final = "python3"

GuestHop: TypeAlias = Literal["pct", "lxc"]
Become: TypeAlias = Literal["sudo", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """Hold what a layer says about reaching hosts; None is not said. Paths are absolute; `jump` is split only."""

    user: str | None = None
    port: int | None = None
    identity_files: tuple[str, ...] | None = None
    known_hosts: tuple[str, ...] | None = None
    host_key: tuple[str, ...] | None = None
    accept_new: bool | None = None
    ssh_config: str | None = None
    jump: tuple[str, ...] | None = None
    become: Become | None = None
    concurrency: Mapping[str, int] = field(default_factory=dict)

    @property
    def sudo(self) -> Literal["sudo"] | None:
        """Return `become` as a host holds it."""
        return "sudo" if self.become == "sudo" else None

    def over(self, weaker: Login) -> Login:
        """Return these settings laid over weaker ones."""
        return Login(
            user=_first(self.user, weaker.user),
            port=_first(self.port, weaker.port),
            identity_files=_first(self.identity_files, weaker.identity_files),
            known_hosts=_first(self.known_hosts, weaker.known_hosts),
            host_key=_first(self.host_key, weaker.host_key),
            accept_new=_first(self.accept_new, weaker.accept_new),
            ssh_config=_first(self.ssh_config, weaker.ssh_config),
            jump=_first(self.jump, weaker.jump),
            become=_first(self.become, weaker.become),
            concurrency={**weaker.concurrency, **self.concurrency},
        )

    def host(self, key: str, address: str, *, jump: tuple[Host, ...] | None) -> Host:
        """Build the record of a host reached by SSH."""
        return Host(
            key=key,
            address=address,
            port=self.port,
            user=self.user,
            identity_files=self.identity_files or (),
            known_hosts=self.known_hosts or (),
            host_key=self.host_key or (),
            accept_new=bool(self.accept_new),
            ssh_config=self.ssh_config,
            jump=jump,
            become=self.sudo,
            concurrency=replace(Concurrency(), **self.concurrency),
        )

    def fabric_host(self, key: str, address: str) -> Host:
        """Build the record of a host that Fabric reaches, by the gateways it knows."""
        host = self.host(key, address, jump=None)
        return replace(host, host_key=(), accept_new=False, transport="fabric")

    def local_host(self, key: str) -> Host:
        """Build the record of this machine itself, reached without SSH."""
        return Host(
            key=key,
            address="localhost",
            transport="local",
            become=self.sudo,
            concurrency=replace(Concurrency(), **self.concurrency),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Hold what a layer says about targets; None is not said. `venv` and `python` spell one setting in two ways."""

    venv: str | None = None
    python: str | None = None
    hop: HopKind | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    vars: Mapping[str, Json] = field(default_factory=dict)
    tags: frozenset[str] = frozenset()
    limits: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def names_python(self) -> bool:
        """Tell whether this layer says which Python to use."""
        return self.venv is not None or self.python is not None

    def over(self, weaker: Settings) -> Settings:
        """Return these settings laid over weaker ones: env, vars and limits merge by key, tags unite."""
        python = self if self.names_python else weaker
        return Settings(
            venv=python.venv,
            python=python.python,
            hop=_first(self.hop, weaker.hop),
            env={**weaker.env, **self.env},
            vars={**weaker.vars, **self.vars},
            tags=weaker.tags | self.tags,
            limits={**weaker.limits, **self.limits},
        )

    @property
    def interpreter(self) -> str:
        """Return the interpreter's path, or its bare name."""
        if self.venv is not None:
            return f"{self.venv.rstrip('/')}/bin/python"
        return self.python or DEFAULT_INTERPRETER


def _first(nearer: _T | None, weaker: _T | None) -> _T | None:
    return weaker if nearer is None else nearer


def check_guest(guest: str, hop: GuestHop) -> str:
    """Return a guest's key as the hop takes it on its command line.

    Raises:
        ValueError: not a VMID (pct) or not a name (lxc).
    """
    return (words.VMID if hop == "pct" else words.NAME).check(guest)
