"""What is laid over the machine's files to make a host: accounts, sshd, keys, `pct` and its cluster folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.lab.machine import PATH, Content, run, write_file

HERE = Path(__file__).parent
HOST_KEY = "/etc/ssh/lab_host_ed25519"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Describe an account of a host; `sudo` is what follows ``NAME ALL=(root)`` in sudoers."""

    name: str
    uid: int
    shell: str = "/bin/bash"
    sudo: str | None = None


USERS = (
    User(name="ops", uid=2001, sudo="NOPASSWD: /usr/sbin/pct"),
    User(name="plain", uid=2002),
)
"""Every host has these: `ops` may run pct by sudo, `plain` may do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    """Say what a host is to be; `Lab.host` explains the words."""

    name: str
    node: str
    shell: str = "/bin/bash"
    sshd_config: str = ""
    port: int = 22
    pct: bool = True
    knobs: Mapping[str, str] = field(default_factory=dict)
    users: tuple[User, ...] = USERS
    files: Mapping[str, Content] = field(default_factory=dict)
    other_nodes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    rough: str | None = None

    @property
    def accounts(self) -> tuple[User, ...]:
        """Return root and the other accounts of the lab."""
        return (User(name="root", uid=0, shell=self.shell), *self.users)

    def knobs_file(self, knobs: Mapping[str, str]) -> str:
        """Return the text of the stand-in's settings."""
        return _lines(f"{key}={value}" for key, value in ({"node": self.node} | dict(knobs)).items())


def write_seed(spec: HostSpec, folder: Path, *, address: str, public_key: str) -> None:
    """Write ``folder/seed`` (laid over the machine's root), ``folder/home`` (root's home) and ``folder/init``."""
    seed, home = folder / "seed", folder / "home"
    for path in (seed, home, folder / "fs"):
        path.mkdir(parents=True)
    shutil.copyfile(HERE / "host_init.pl", folder / "init")
    for account in spec.accounts:
        _write_home(home if account.uid == 0 else seed / "home" / account.name, account.uid, public_key)
    for name, text in _etc(spec, address).items():
        write_file(seed / "etc" / name, text, mode=_MODES.get(name, 0o644))
    _write_cluster(spec, seed / "etc/pve")
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", spec.name, "-f", f"{seed}{HOST_KEY}"])
    if spec.pct:
        write_file(seed / "usr/sbin/pct", HERE / "pct", mode=0o755)
    for name, content in spec.files.items():
        target = home / name.removeprefix("/root/") if name.startswith("/root/") else seed / name.lstrip("/")
        write_file(target, content)


_MODES = {"shadow": 0o640, "sudoers": 0o440}


def _write_home(home: Path, uid: int, public_key: str) -> None:
    keys = write_file(home / ".ssh/authorized_keys", public_key, mode=0o600)
    for path, mode in ((keys, 0o600), (keys.parent, 0o700), (home, 0o700)):
        path.chmod(mode)
        shutil.chown(path, uid, uid)


def _etc(spec: HostSpec, address: str) -> dict[str, str]:
    own = {user.name for user in spec.accounts}
    system = [line for line in Path("/etc/passwd").read_text().splitlines() if line.partition(":")[0] not in own]
    passwd = [f"root:x:0:0:root:/root:{spec.shell}", *system]
    passwd += [f"{user.name}:x:{user.uid}:{user.uid}::/home/{user.name}:{user.shell}" for user in spec.users]
    group = [*Path("/etc/group").read_text().splitlines(), *(f"{user.name}:x:{user.uid}:" for user in spec.users)]
    sudoers = ["Defaults env_reset", f'Defaults secure_path="{PATH}"', "root ALL=(ALL:ALL) ALL"]
    sudoers += [f"{user.name} ALL=(root) {user.sudo}" for user in spec.users if user.sudo is not None]
    return {
        "hostname": f"{spec.name}\n",
        "hosts": f"127.0.0.1 localhost\n{address} {spec.name}\n",
        "passwd": _lines(passwd),
        "shadow": _lines(f"{line.partition(':')[0]}:*:19000:0:99999:7:::" for line in passwd),
        "group": _lines(group),
        "sudoers": _lines(sudoers),
        "ssh/sshd_config": _sshd_config(spec),
        "pct-standin.conf": spec.knobs_file(spec.knobs),
    }


def _sshd_config(spec: HostSpec) -> str:
    return _lines(
        (
            spec.sshd_config,  # sshd takes the first value it meets, so what a test wants stands first
            f"Port {spec.port}",
            "AddressFamily inet",
            f"HostKey {HOST_KEY}",
            "PidFile /run/sshd.pid",
            "UsePAM no",
            "PermitRootLogin yes",
            "AcceptEnv LANG LC_*",
            "LogLevel VERBOSE",
            "Subsystem sftp /usr/lib/openssh/sftp-server",
        )
    )


def _write_cluster(spec: HostSpec, pve: Path) -> None:
    (pve / "nodes" / spec.node / "lxc").mkdir(parents=True)
    (pve / "lxc").symlink_to(f"nodes/{spec.node}/lxc")
    (pve / "local").symlink_to(f"nodes/{spec.node}")
    for node, ctids in spec.other_nodes.items():
        for ctid in ctids:
            write_file(pve / "nodes" / node / "lxc" / f"{ctid}.conf", f"arch: amd64\nhostname: ct{ctid}\n")


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
