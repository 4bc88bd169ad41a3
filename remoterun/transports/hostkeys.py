"""The policy for host keys: strict, on every hop. Trusted is what is pinned or in a known_hosts file; nothing else."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from asyncssh import SSHKey, SSHKnownHosts

from remoterun.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from remoterun.model import Host

# Key types as families: what a server can sign with one key. In OpenSSH's order of preference.
_FAMILIES: Final = (
    ("ssh-ed25519", ("ssh-ed25519",)),
    ("ecdsa-sha2-nistp256", ("ecdsa-sha2-nistp256",)),
    ("ecdsa-sha2-nistp384", ("ecdsa-sha2-nistp384",)),
    ("ecdsa-sha2-nistp521", ("ecdsa-sha2-nistp521",)),
    ("ssh-rsa", ("rsa-sha2-512", "rsa-sha2-256")),
)


def load_known_hosts(paths: Iterable[str]) -> SSHKnownHosts:
    """Read known_hosts files; a missing file or a line that makes no sense is passed over, as by OpenSSH."""
    known = SSHKnownHosts()
    for path in paths:
        with contextlib.suppress(OSError):
            for line in Path(path).read_text(encoding="utf-8", errors="replace").splitlines():
                with contextlib.suppress(ValueError):
                    known.load(line)
    return known


class Judge:
    """Judge the key that one host offers, over as many connection attempts as it takes to see the right one."""

    def __init__(self, host: Host, known: SSHKnownHosts) -> None:
        self._host, self._known = host, known
        self._pins = {pin.strip().rstrip("=") for pin in host.host_key}
        self._trusted: tuple[list[SSHKey], list[SSHKey], list[SSHKey]] = ([], [], [])
        self._offered: list[SSHKey] = []
        self._asked_all = bool(self._pins)
        self._authority = False

    @property
    def algorithms(self) -> str | tuple[()]:
        """Return the host key algorithms to ask for; () lets asyncssh ask for the types that known_hosts has."""
        if not self._asked_all:
            return ()
        seen = {_kind(key) for key in self._offered}
        return ",".join(name for kind, names in _FAMILIES if kind not in seen for name in names)

    def known_hosts(self, name: str, _addr: str, port: int | None) -> tuple[list[SSHKey], list[SSHKey], list[SSHKey]]:
        """Return the host, authority and revoked keys for a name.

        The address is not looked up, unlike in asyncssh's own way: who answers for a name must not get by with the key
        of another machine.
        """
        if not self._pins:
            keys, authorities, revoked, *_ = self._known.match(name, "", port)
            self._trusted = (list(keys), list(authorities), list(revoked))
        return self._trusted

    @property
    def offered(self) -> bool:
        """Tell whether the host has shown a key that is not trusted."""
        return bool(self._offered)

    def offer(self, key: SSHKey) -> bool:
        """Take a key that known_hosts does not vouch for, and tell whether it is pinned."""
        self._offered.append(key)
        return _fingerprint(key) in self._pins

    def offer_authority(self) -> bool:
        """Take a certificate of an authority that known_hosts does not vouch for."""
        self._authority = True
        return False

    def may_ask_again(self) -> bool:
        """Tell whether another attempt with the algorithms now asked for can show another key.

        A server shows one key per attempt. It may have the pinned one beside it; or a certificate hides its plain key;
        or it has none of the types in known_hosts, and what it does have is worth telling.
        """
        if self._pins:
            return bool(self._offered and self.algorithms)
        if self._asked_all or (self._offered and not self._authority):
            return False
        self._asked_all = True
        return True

    def verdict(self, reason: str) -> TargetError:
        """Say what is wrong with what was offered; `reason` is asyncssh's, for what never came to an offer."""
        keys, _, revoked = self._trusted
        offered = ", ".join(_describe(key) for key in self._offered) or reason
        if any(key in revoked for key in self._offered) or (revoked and not self._offered):
            return TargetError("host_key_changed", f"the host's key is marked as revoked in known_hosts: {offered}")
        if self._pins:
            pins = ", ".join(sorted(self._pins))
            return TargetError("host_key_changed", f"the host offers {offered}, but pinned is {pins}")
        if keys:
            had = ", ".join(_describe(key) for key in keys)
            return TargetError("host_key_changed", f"the host offers {offered}, but known_hosts has {had}")
        hint = None
        if self._offered:
            pin = f"host_key: {_fingerprint(self._offered[-1])}"
            hint = f"Compare the fingerprint with the host's own, then pin it in the inventory: `{pin}`."
        return TargetError("host_key_unknown", f"the host's key is not known: {offered}", hint=hint)


def _kind(key: SSHKey) -> str:
    return key.get_algorithm()


def _fingerprint(key: SSHKey) -> str:
    return key.get_fingerprint().rstrip("=")


def _describe(key: SSHKey) -> str:
    return f"{_kind(key)} {_fingerprint(key)}"
