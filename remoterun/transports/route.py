"""What the inventory and ssh_config together say about one host: where it is and how to log in there."""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar, cast

from asyncssh.config import ConfigParseError, SSHClientConfig, SSHConfig

from remoterun.errors import TargetError
from remoterun.model import Host
from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

_T = TypeVar("_T")

# Every packet of ChaCha20-Poly1305, asyncssh's own first choice, makes three cipher objects in Python: it takes four
# times as long as AES-GCM, which is one call.
_CIPHERS: Final = "^aes128-gcm@openssh.com,aes256-gcm@openssh.com"
_USER_CONFIG: Final = "~/.ssh/config"
_SYSTEM_CONFIG: Final = "/etc/ssh/ssh_config"
_USER_KNOWN_HOSTS: Final = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
_SYSTEM_KNOWN_HOSTS: Final = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")

# Whether it is a reload, canonical, final.
_FIRST_PASS: Final = (False, False, False)
_FINAL_PASS: Final = (True, False, True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Hold everything needed to log in at one host.

    `via`: the host to tunnel through, complete with its own way; None for a direct connection. `identity_files` are
    None when nothing named any: then the usual ones are tried. `config`: the ssh_config files. `ciphers` as there.
    """

    host: Host
    address: str
    port: int
    user: str
    via: Host | None
    proxy_command: str | None
    config: tuple[str, ...]
    known_hosts: tuple[str, ...]
    identity_files: tuple[str, ...] | None
    certificate_files: tuple[str, ...]
    ciphers: str
    family: int
    bind: str | None

    @property
    def where(self) -> str:
        """Return the address and port, for people."""
        return f"{self.address} port {self.port}"


def resolve(host: Host) -> Route:
    """Read ssh_config for a host and lay the inventory over it. Blocks: it reads files and runs `Match exec`.

    Raises:
        TargetError: ssh_config is broken, an identity file that the inventory names is missing, or nobody knows who we
            are.
    """
    paths, local_user = _config_paths(host), _local_user()
    try:
        given = (local_user, host.user or (), host.address, host.port or ())
        config = SSHClientConfig.load(None, list(paths), *_FIRST_PASS, *given)
        if config.has_match_final():
            config = SSHClientConfig.load(config, list(paths), *_FINAL_PASS, *given)
    except (ConfigParseError, OSError, KeyError, UnicodeError) as error:
        raise TargetError(
            "connect_failed", f"ssh_config cannot be used: {error}", hint="Correct the file that is named."
        ) from error
    jumps = _jumps(host, cast("str | None", config.get("ProxyJump")))
    command = cast("str | None", config.get("ProxyCommand"))
    identities = host.identity_files or cast("list[str] | None", config.get("IdentityFile"))
    return Route(
        host=host,
        address=_get(config, "Hostname", host.address),
        port=_get(config, "Port", 22),
        user=_get(config, "User", local_user),
        via=replace(jumps[-1], jump=jumps[:-1] or jumps[-1].jump) if jumps else None,
        proxy_command=None if jumps or host.jump is not None else command,
        config=paths,
        known_hosts=_known_hosts(host, config),
        identity_files=None if identities is None else _existing(identities, must=bool(host.identity_files)),
        certificate_files=_existing(cast("list[str]", config.get("CertificateFile", []))),
        ciphers=_get(config, "Ciphers", _CIPHERS),
        family=_get(config, "AddressFamily", socket.AF_UNSPEC),
        bind=cast("str | None", config.get("BindAddress")),
    )


def _local_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:  # as containers start programs under numbers that have no account
        raise TargetError(
            "connect_failed",
            f"user {os.geteuid()} of this machine has no name, which SSH asks for",
            hint="Let USER be its name, such as `export USER=me`.",
        ) from error


def _get(config: SSHConfig, option: str, default: _T) -> _T:
    return cast("_T", config.get(option, default))


def _config_paths(host: Host) -> tuple[str, ...]:
    if host.ssh_config == "none":
        return ()
    if host.ssh_config is not None:
        return (str(Path(host.ssh_config).expanduser()),)
    usual = (str(Path(path).expanduser()) for path in (_USER_CONFIG, _SYSTEM_CONFIG))
    return tuple(path for path in usual if os.access(path, os.R_OK))


def _jumps(host: Host, configured: str | None) -> tuple[Host, ...]:
    """Return the hosts to tunnel through, the nearest to us first; those of ssh_config read their own blocks there."""
    if host.jump is not None or not configured:
        return host.jump or ()
    # Nothing else says of them what may be done with a new key.
    hops = (_jump(word.strip(), host.ssh_config) for word in configured.split(","))
    return tuple(replace(hop, accept_new=host.accept_new) for hop in hops)


def _jump(word: str, ssh_config: str | None) -> Host:
    user, _, place = word.removeprefix("ssh://").rpartition("@")
    name, port = place, ""
    if place.startswith("["):
        name, _, port = place[1:].partition("]")
        port = port.removeprefix(":")
    elif place.count(":") == 1:
        name, _, port = place.partition(":")
    return Host(
        key=name, address=name, user=user or None, port=int(port) if port.isdigit() else None, ssh_config=ssh_config
    )


def _known_hosts(host: Host, config: SSHConfig) -> tuple[str, ...]:
    if host.known_hosts:
        names: Sequence[str] = host.known_hosts
    else:
        names = (
            *cast("Sequence[str]", config.get("UserKnownHostsFile", _USER_KNOWN_HOSTS)),
            *cast("Sequence[str]", config.get("GlobalKnownHostsFile", _SYSTEM_KNOWN_HOSTS)),
        )
    return tuple(str(Path(name).expanduser()) for name in names)


def _existing(names: Sequence[str], *, must: bool = False) -> tuple[str, ...]:
    """Leave out files that are not there, as OpenSSH does; `must`: the inventory named them, so they have to be."""
    kept: list[str] = []
    missing: list[str] = []
    for path in (Path(name).expanduser() for name in names):
        try:
            (kept if path.exists() else missing).append(str(path))
        except OSError as error:
            if must:
                raise TargetError(
                    "auth_failed",
                    f"the identity file {path} can't be looked at: {error.strerror}",
                    hint="Run as a user who may read it, or name another one as `identity_file` (`--identity`).",
                ) from error
    if missing and must:
        raise TargetError(
            "auth_failed",
            f"there is no identity file {', '.join(missing)}",
            hint="Check `identity_file` in the inventory, or `--identity`.",
        )
    return tuple(kept)
