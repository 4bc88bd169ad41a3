"""What the inventory and ssh_config together say about one host: where it is and how to log in there."""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from remoterun.errors import TargetError
from remoterun.model import Host
from remoterun.records import dataclass
from remoterun.transports.sshconfig import SYSTEM_CONFIG, ConfigError, read

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remoterun.transports.sshconfig import Settings

# Every packet of ChaCha20-Poly1305, asyncssh's own first choice, makes three cipher objects in Python: it takes four
# times as long as AES-GCM, which is one call.
_CIPHERS: Final = "^aes128-gcm@openssh.com,aes256-gcm@openssh.com"
_USER_CONFIG: Final = "~/.ssh/config"
_USER_KNOWN_HOSTS: Final = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
_SYSTEM_KNOWN_HOSTS: Final = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
_FAMILIES: Final = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}

# What of ssh_config is asyncssh's business; it passes over algorithms that it does not know.
_ALGORITHMS: Final = ("KexAlgorithms", "MACs", "HostKeyAlgorithms", "CASignatureAlgorithms", "PreferredAuthentications")
_SWITCHES: Final = (
    "Compression",
    "GSSAPIAuthentication",
    "GSSAPIDelegateCredentials",
    "GSSAPIKeyExchange",
    "KbdInteractiveAuthentication",
    "PasswordAuthentication",
    "PubkeyAuthentication",
    "TCPKeepAlive",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Hold everything needed to log in at one host.

    `via`: the host to tunnel through, complete with its own way; None for a direct connection. `identity_files` are
    None when nothing named any: then the usual ones are tried. `agent`: the socket of the agent, if it is to be asked;
    `only_named`: of its keys only those that the files name. `key_alias`: the name that the host's key is known by,
    where it is another. `options`: what of ssh_config is asyncssh's business, as asyncssh keeps it.
    `remark`: what of ssh_config is left unheeded about host keys.
    """

    host: Host
    address: str
    port: int
    user: str
    via: Host | None
    proxy_command: str | None
    known_hosts: tuple[str, ...]
    key_alias: str | None
    identity_files: tuple[str, ...] | None
    certificate_files: tuple[str, ...]
    agent: str | None
    only_named: bool
    family: int
    bind: str | None
    options: Mapping[str, object]
    remark: str

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
    local_user = _local_user()
    try:
        config = read(_config_paths(host), host.address, host.user, host.port, local_user)
    except (ConfigError, OSError) as error:
        raise TargetError(
            "connect_failed", f"ssh_config cannot be used: {error}", hint="Correct the file that is named."
        ) from error
    if _is_on(config, "proxyusefdpass") and _one(config, "proxycommand") and host.jump is None:
        raise TargetError(
            "connect_failed",
            "ssh_config sets ProxyUseFdpass, which is not known here",
            hint="Give this host a ProxyCommand that carries the bytes itself, as `nc %h %p` does.",
        )
    jumps = _jumps(host, _one(config, "proxyjump"))
    identities = host.identity_files or config.get("identityfile")
    return Route(
        host=host,
        address=config["hostname"][0],
        port=int(config.get("port", ("22",))[0]),
        user=config.get("user", (local_user,))[0],
        via=replace(jumps[-1], jump=jumps[:-1] or jumps[-1].jump) if jumps else None,
        proxy_command=None if jumps or host.jump is not None else _one(config, "proxycommand"),
        known_hosts=_known_hosts(host, config),
        key_alias=_one(config, "hostkeyalias"),
        identity_files=None if identities is None else _existing(identities, must=bool(host.identity_files)),
        certificate_files=_existing(config.get("certificatefile", ())),
        agent=_agent(config),
        only_named=bool(host.identity_files) or _is_on(config, "identitiesonly"),
        family=_FAMILIES.get((_one(config, "addressfamily") or "").lower(), socket.AF_UNSPEC),
        bind=_one(config, "bindaddress"),
        options=_for_asyncssh(config),
        remark=_unheeded(config),
    )


def _one(config: Settings, option: str) -> str | None:
    """Return the first word of an option; None where it is not set, or set to none."""
    word = config.get(option, ("none",))[0]
    return None if word.lower() == "none" else word


def _is_on(config: Settings, option: str) -> bool:
    # Words other than yes and no, such as `PubkeyAuthentication unbound`, say how.
    return config.get(option, ("no",))[0].lower() not in {"no", "false"}


def _unheeded(config: Settings) -> str:
    said = ""
    if _one(config, "knownhostscommand"):
        said += " KnownHostsCommand of ssh_config is not run here."
    checking = config.get("stricthostkeychecking", ("ask",))[0].lower()
    if checking in {"no", "off", "accept-new"}:
        said += f" `StrictHostKeyChecking {checking}` of ssh_config does not count here: `host_key: accept-new` in the"
        said += " inventory, or `--accept-new`, takes the first key of a host."
    return said


def _agent(config: Settings) -> str | None:
    words = config.get("identityagent", ("SSH_AUTH_SOCK",))
    if words[0] == "SSH_AUTH_SOCK" or words[0].startswith("$"):
        return os.environ.get(words[0].removeprefix("$")) or None
    return None if words[0].lower() == "none" else str(Path(words[0]).expanduser())


def _for_asyncssh(config: Settings) -> Mapping[str, object]:
    options: dict[str, object] = {"Ciphers": _one(config, "ciphers") or _CIPHERS}
    options |= {name: config[name.lower()][0] for name in _ALGORITHMS if name.lower() in config}
    options |= {name: _is_on(config, name.lower()) for name in _SWITCHES if name.lower() in config}
    if "pkcs11provider" in config:
        options["PKCS11Provider"] = _one(config, "pkcs11provider")
    if "rekeylimit" in config:
        size, *time = (word.lower() for word in config["rekeylimit"])
        options["RekeyLimit"] = (() if size == "default" else size, None if time == ["none"] else (*time, ())[0])
    return options


def _local_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:  # as containers start programs under numbers that have no account
        raise TargetError(
            "connect_failed",
            f"user {os.geteuid()} of this machine has no name, which SSH asks for",
            hint="Let USER be its name, such as `export USER=me`.",
        ) from error


def _config_paths(host: Host) -> tuple[str, ...]:
    if host.ssh_config == "none":
        return ()
    if host.ssh_config is not None:
        return (str(Path(host.ssh_config).expanduser()),)
    usual = (str(Path(path).expanduser()) for path in (_USER_CONFIG, SYSTEM_CONFIG))
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


def _known_hosts(host: Host, config: Settings) -> tuple[str, ...]:
    if host.known_hosts:
        names: Sequence[str] = host.known_hosts
    else:
        names = (
            *config.get("userknownhostsfile", _USER_KNOWN_HOSTS),
            *config.get("globalknownhostsfile", _SYSTEM_KNOWN_HOSTS),
        )
    return tuple(str(Path(name).expanduser()) for name in names if name.lower() != "none")


def _existing(names: Sequence[str], *, must: bool = False) -> tuple[str, ...]:
    """Leave out files that are not there, as OpenSSH does; `must`: the inventory named them, so they have to be.

    Of a key that only an agent has, the public half is enough, in a file beside.
    """
    kept: list[str] = []
    missing: list[str] = []
    for path in (Path(name).expanduser() for name in names):
        try:
            (kept if path.exists() or Path(f"{path}.pub").exists() else missing).append(str(path))
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
