"""The policy for host keys, on every hop: trusted is what is pinned or in a known_hosts file.

Nothing else is, but for the first key of a host that nothing is known of, where the user says so.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hmac
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from asyncssh import HostKeyNotVerifiable, SSHKey, SSHKnownHosts

from remoterun.errors import CODES, TargetError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from remoterun.model import Host

_Known: TypeAlias = "tuple[list[SSHKey], list[SSHKey], list[SSHKey]]"

_LOCK_TRIES: Final = 50
_LOCK_PAUSE_S: Final = 0.01

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
                    known.load(_in_small_letters(line))
    return known


def _in_small_letters(line: str) -> str:
    """Write the names of a line small, as they are looked up; hashed ones are made of such."""
    marker, names, rest = re.fullmatch(r"(\s*(?:@\S+\s+)?)(\S*)(.*)", line, re.DOTALL).groups("")  # type: ignore[union-attr]
    return line if names.startswith("|") else f"{marker}{names.lower()}{rest}"


class Judge:
    """Judge the key that one host offers, over as many connection attempts as it takes to see the right one.

    Args:
        host: what the inventory says of it.
        known: what was known of all hosts when the run began.
        files: the known_hosts files, of which the first takes new keys.
        alias: the name that it is known by whatever its port (HostKeyAlias).
        remark: what else to say where nothing is known of it.
    """

    def __init__(
        self, host: Host, known: SSHKnownHosts, files: Sequence[str] = (), *, alias: str | None = None, remark: str = ""
    ) -> None:
        self._host, self._known, self._files, self._alias, self._remark = host, known, files, alias, remark
        self._pins = {pin.strip().rstrip("=") for pin in host.host_key}
        self._trusted: _Known = ([], [], [])
        self._place: tuple[str, int | None] = ("", None)
        self._offered: list[SSHKey] = []
        self._asked_all = bool(self._pins)
        self._authority = False
        self._invalid = ""
        self._new: SSHKey | None = None
        self._unkept = ""

    @property
    def algorithms(self) -> str | tuple[()]:
        """Return the host key algorithms to ask for; () lets asyncssh ask for the types that known_hosts has."""
        if not self._asked_all:
            return ()
        seen = {_kind(key) for key in self._offered}
        return ",".join(name for kind, names in _FAMILIES if kind not in seen for name in names)

    def known_hosts(self, name: str, _addr: str, port: int | None) -> _Known:
        """Return the host, authority and revoked keys for a name.

        The address is not looked up, unlike in asyncssh's own way: who answers for a name must not get by with the key
        of another machine.
        """
        self._place = self._known_as(name, port)
        if not self._pins:
            self._trusted = _matching(self._known, *self._place)
        return self._trusted

    def _known_as(self, name: str, port: int | None) -> tuple[str, int | None]:
        return (name.lower(), None if self._alias else port)

    @property
    def offered(self) -> bool:
        """Tell whether the host has shown a key that is not trusted."""
        return bool(self._offered)

    def offer(self, key: SSHKey) -> bool:
        """Take a key that known_hosts does not vouch for, and tell whether it is pinned, or new and to be trusted."""
        if fingerprint_of(key) in self._pins:
            return True
        if self._host.accept_new and not self._pins:
            # Another connection may have written one down since the run began.
            keys, authorities, revoked = self._trusted = _matching(load_known_hosts(self._files), *self._place)
            if key in keys and key not in revoked:
                return True
            if not (keys or authorities or key in revoked):
                # The first attempt was left to asyncssh, which likes RSA best; the next one asks in OpenSSH's order.
                self._new = key if self._asked_all else None
                return self._asked_all
        self._offered.append(key)
        return False

    def settle(self) -> None:
        """Write a new key down, once the host has proved that it holds it.

        Raises:
            HostKeyNotVerifiable: it could not be written.
        """
        if self._new is None:
            return
        try:
            keep_keys(self._files, *self._place, [self._new])
        except OSError as error:
            self._unkept = f"{_describe(self._new)} is new, and could not be written down: {error.strerror or error}"
            self._unkept += f": {error.filename}" if error.filename else ""
            raise HostKeyNotVerifiable(self._unkept) from error

    def offer_authority(self, _key: SSHKey) -> bool:
        """Take a certificate of an authority that known_hosts does not vouch for."""
        self._authority = True
        return False

    def may_ask_again(self, reason: str = "") -> bool:
        """Tell whether another attempt with the algorithms now asked for can show another key.

        `reason` is why asyncssh took the last one for none; of a certificate it is worth telling whatever follows. A
        server shows one key per attempt. It may have the pinned one beside it; or a certificate hides its plain key;
        or it has none of the types in known_hosts, and what it does have is worth telling.
        """
        invalid = re.match(r"(?:Certificate|Host) (principal mismatch|expired|not yet valid|CA key is revoked)", reason)
        self._invalid = invalid[1] if invalid else self._invalid
        if self._unkept:
            return False
        if self._pins:
            return bool(self._offered and self.algorithms)
        if self._asked_all or (self._offered and not self._authority):
            return False
        self._asked_all = True
        return True

    def verdict(self, reason: str) -> TargetError:
        """Say what is wrong with what was offered; `reason` is asyncssh's, for what never came to an offer."""
        keys, _, revoked = self._trusted
        if self._unkept:
            return TargetError("host_key_unknown", f"the host's key {self._unkept}")
        offered = ", ".join(_describe(key) for key in self._offered) or reason
        if any(key in revoked for key in self._offered) or (revoked and not self._offered):
            return TargetError("host_key_changed", f"the host's key is marked as revoked in known_hosts: {offered}")
        if self._pins:
            pins = ", ".join(sorted(self._pins))
            return TargetError("host_key_changed", f"the host offers {offered}, but pinned is {pins}")
        if self._invalid:
            return _of_certificate(self._invalid, self._place[0], offered)
        if keys:
            had = ", ".join(_describe(key) for key in keys)
            return TargetError("host_key_changed", f"the host offers {offered}, but known_hosts has {had}")
        hint = None
        if self._offered:
            pin = f"host_key: {fingerprint_of(self._offered[-1])}"
            hint = f"{CODES['host_key_unknown'].hint} Or pin it in the inventory: `{pin}`.{self._remark}"
            if self._files[:1] == (os.devnull,):
                hint = f"Compare the fingerprint with the host's own, then pin it in the inventory: `{pin}`."
                hint += f" What is accepted would be kept nowhere, since its known_hosts is {os.devnull}.{self._remark}"
        return TargetError("host_key_unknown", f"the host's key is not known: {offered}", hint=hint)


def _of_certificate(invalid: str, name: str, offered: str) -> TargetError:
    """Say why a certificate of a known authority does not count, where the plain key behind it is not known either."""
    text = f"the host's certificate does not count ({invalid}), and its plain key is not known: {offered}"
    if "revoked" in invalid:
        return TargetError("host_key_changed", text)
    hint = "Have the authority sign the host's key anew (`ssh-keygen -Lf` on the host shows for when and what it is)."
    if "principal" in invalid:
        hint = (
            f"It is for other names than {name}: reach the host by one of them (`address`, HostName or HostKeyAlias). "
        )
        hint += "`ssh-keygen -Lf` shows them, for the file that HostCertificate of the host's sshd_config names."
    return TargetError("host_key_unknown", text, hint=hint)


class Survey(Judge):
    """Trust nothing, and see every key that a host has, one by one."""

    def __init__(self, host: Host, known: SSHKnownHosts, *, alias: str | None = None) -> None:
        super().__init__(host, known, alias=alias)
        self._asked_all = False
        self._seen = 0
        self.authorities: list[SSHKey] = []

    @property
    def keys(self) -> tuple[SSHKey, ...]:
        """Return the keys that were offered."""
        order = [kind for kind, _ in _FAMILIES]
        return tuple(sorted(self._offered, key=lambda key: order.index(_kind(key)) if _kind(key) in order else 99))

    @property
    def pins(self) -> frozenset[str]:
        """Return the pinned fingerprints."""
        return frozenset(self._pins)

    @property
    def trusted(self) -> _Known:
        """Return the host, authority and revoked keys that are known for the host."""
        return _matching(self._known, *self.place)

    @property
    def place(self) -> tuple[str, int | None]:
        """Return the name and port that the host is known by."""
        return self._place

    def known_hosts(self, name: str, _addr: str, port: int | None) -> _Known:
        """Return nothing, so that every key is offered to us."""
        self._place = self._known_as(name, port)
        return [], [], []

    def offer(self, key: SSHKey) -> bool:
        """Take note of a key."""
        self._offered.append(key)
        return False

    def offer_authority(self, key: SSHKey) -> bool:
        """Take note of who signed the host's certificate."""
        self.authorities.append(key)
        return False

    def may_ask_again(self, reason: str = "") -> bool:
        """Tell whether the last attempt brought anything new."""
        came, self._seen = len(self._offered) - self._seen, len(self._offered)
        first, self._asked_all = not self._asked_all, True
        return bool(first or came) and bool(self.algorithms)


def _matching(known: SSHKnownHosts, name: str, port: int | None) -> _Known:
    keys, authorities, revoked, *_ = known.match(name, "", port)
    # Where nothing but a revocation is said of the port, `match` goes on to what is said without one.
    of_port = known.match(f"[{name}]:{port}", "", None)[2] if port else ()
    return list(keys), list(authorities), [*revoked, *of_port]


def _kind(key: SSHKey) -> str:
    return key.get_algorithm()


def fingerprint_of(key: SSHKey) -> str:
    """Return a key's fingerprint as OpenSSH prints it."""
    return key.get_fingerprint().rstrip("=")


def _describe(key: SSHKey) -> str:
    return f"{_kind(key)} {fingerprint_of(key)}"


# --- writing keys down ------------------------------------------------------------------------------------------------


def keep_keys(files: Sequence[str], name: str, port: int | None, keys: Iterable[SSHKey]) -> str:
    """Add keys of a host to the first known_hosts file, as OpenSSH does, and return that file.

    What the file is (a link, hashed names) stays as it is: lines are only added, all at once.

    Raises:
        OSError: it can't be written.
    """
    file = next((path for path in files if Path(path).name != "none"), None)
    if file is None:
        raise OSError("there is no known_hosts file to write to")
    path = Path(file)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(path) as descriptor:
        old = path.read_bytes()
        already, _, _ = _matching(load_known_hosts([file]), name, port)
        place = f"[{name}]:{port}" if port else name
        # Entries of ssh-keygen -H and HashKnownHosts tell nobody which hosts there are; neither does a new one then.
        hashed = b"\n|1|" in b"\n" + old
        lines = [_line(_hashed(place) if hashed else place, key) for key in keys if key not in already]
        if lines:
            start = "\n" if old and not old.endswith(b"\n") else ""
            os.write(descriptor, (start + "".join(lines)).encode())
    return file


def _line(place: str, key: SSHKey) -> str:
    return f"{place} {_kind(key)} {base64.b64encode(key.public_data).decode()}\n"


def _hashed(place: str) -> str:
    salt = os.urandom(20)
    parts = (salt, hmac.digest(salt, place.encode(), "sha1"))
    return "|1|" + "|".join(base64.b64encode(part).decode() for part in parts)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Open a file to add to it, made if need be, and keep others of us out; for a lock nobody waits long."""
    while True:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            for _ in range(_LOCK_TRIES):
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    time.sleep(_LOCK_PAUSE_S)
                except OSError:  # a file system without locks
                    break
                else:
                    break
            # ssh-keygen -R puts a new file in its place.
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                yield descriptor
                return
        finally:
            os.close(descriptor)
