"""A host of the lab: namespaces of its own with a private root, sshd, `pct`, users and guests."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Unpack

from tests.support.lab import machine
from tests.support.lab.guest import SHIFTED_BY, Guest, GuestSpec, GuestWords
from tests.support.lab.machine import Content, LabError, Process, run, wait_for, write_file
from tests.support.lab.network import Segment, Wire
from tests.support.lab.rough import RoughWire
from tests.support.lab.seed import HOST_KEY, HostSpec, write_seed

HERE = Path(__file__).parent
FIRST_SPARE_CTID = 9000


class LabHost:
    """Drive one host from outside; see the module `tests.support.lab` for what a host is."""

    def __init__(self, spec: HostSpec, *, folder: Path, cgroup: str, wire: Wire, identity_file: Path) -> None:
        self.spec = spec
        self.name = spec.name
        self.node = spec.node
        self.port = spec.port
        self.ip = self.address = wire.address
        self.identity_file = identity_file
        self.cgroup = f"{cgroup}/{spec.name}"
        self.guests: dict[int, Guest] = {}
        self._folder = folder
        self._wire = wire
        self._rough: RoughWire | None = None
        self._lock = threading.RLock()
        self._unshare: subprocess.Popen[bytes] | None = None
        self.init_pid = 0

    # --- making

    def start(self) -> None:
        """Make the namespaces, lay the wire, start sshd; once, whoever comes first."""
        with self._lock:
            if self._unshare is None:
                try:
                    self._start()
                except BaseException:
                    self.close()
                    raise

    def _start(self) -> None:
        public_key = self.identity_file.with_suffix(".pub").read_text()
        write_seed(self.spec, self._folder, address=self.address, public_key=public_key)
        argv = ["unshare", "--mount", "--uts", "--net", "--pid", "--ipc", "--fork", "--"]
        argv += ["/bin/sh", str(HERE / "host_root.sh"), str(self._folder), self.name, self.cgroup]
        pipe = subprocess.PIPE
        # A session of its own: a Ctrl-C at the terminal is for the tests, which then close the lab.
        self._unshare = subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=pipe, env=machine.CLEAN_ENV, start_new_session=True
        )
        if _pipe(self._unshare.stdout).readline() != b"up\n":
            reason = _pipe(self._unshare.stderr).read().decode(errors="replace")
            raise LabError(f"host {self.name} did not come up: {reason.strip()}")
        [self.init_pid] = machine.children_of(self._unshare.pid)
        if self.spec.rough is None:
            self._wire.create(self.init_pid)
        else:
            self._rough = RoughWire(self._wire, self.init_pid, self.spec.rough)
        self.start_sshd()

    # --- guests

    def guest(self, ctid: int) -> Guest:
        """Return a guest by its id."""
        return self.guests[ctid]

    def add_guests(self, specs: Iterable[GuestSpec | int]) -> list[Guest]:
        """Make guests and bring each into its state, all at once."""
        with self._lock:
            wanted = [GuestSpec(spec) if isinstance(spec, int) else spec for spec in specs]
            made = [Guest(self, spec) for spec in wanted]
            for guest in made:
                if guest.ctid in self.guests:
                    raise LabError(f"host {self.name} has a guest {guest.ctid} already")
                self.guests[guest.ctid] = guest
                guest.prepare()
            self.call("/bin/sh", "-ec", "".join(guest.mount_script() for guest in made))
            for guest in made:
                guest.furnish()
        with ThreadPoolExecutor(max_workers=4) as pool:
            list(pool.map(_bring_up, made))
        return made

    def fresh_guest(self, **words: Unpack[GuestWords]) -> Guest:
        """Make a guest with an id that no other has, for a test that changes its state; the words of `GuestSpec`."""
        with self._lock:
            ctid = max([FIRST_SPARE_CTID, *self.guests]) + 1
            return self.add_guests([GuestSpec(ctid, **words)])[0]

    def shifted_root(self) -> str:
        """Return where unprivileged guests find the machine's root, owned as they need it; made on first use."""
        folder = "/run/lab/shifted"
        with self._lock:
            if not self.path(folder).exists():
                self.write("/run/lab/idmap", HERE / "idmap.pl")
                self.sh(f"mkdir {folder} && perl /run/lab/idmap /run/lab/lower {folder} {SHIFTED_BY} 65536", check=True)
        return folder

    def remove_guest(self, ctid: int) -> None:
        """Stop a guest and remove it with its configuration and files."""
        with self._lock:
            guest = self.guests.pop(ctid)
            guest.stop()
            folder = f"/var/lib/lxc/{ctid}"
            self.call(
                "/bin/sh", "-c", f"umount -R {folder}/rootfs; rm -rf {folder} /run/lab/guests/{ctid}", check=False
            )
            self.path(f"/etc/pve/nodes/{self.node}/lxc/{ctid}.conf").unlink()

    def write_guest_config(self, ctid: int, text: str, *, node: str | None = None) -> None:
        """Write a container's Proxmox configuration, also of a container or node that does not exist."""
        self.write(f"/etc/pve/nodes/{node or self.node}/lxc/{ctid}.conf", text)

    # --- doing things on the host

    def call(
        self, *argv: str, stdin: bytes = b"", check: bool = True, timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on the host directly, without SSH, in a clean environment and with `/` as its folder."""
        enter = ("nsenter", "-t", str(self.init_pid), "-m", "-u", "-i", "-n", "-p", "--")
        return run((*enter, *argv), stdin=stdin, check=check, timeout=timeout)

    def sh(
        self, command: str, *, stdin: bytes = b"", check: bool = False, timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command on the host directly, without SSH."""
        return self.call("/bin/sh", "-c", command, stdin=stdin, check=check, timeout=timeout)

    def ssh_argv(self, *options: str, user: str = "root") -> list[str]:
        """Return the argv of OpenSSH's client for this host, to which a remote command can be added."""
        fixed = {
            "BatchMode": "yes",
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": str(self.known_hosts),
            "GlobalKnownHostsFile": "/dev/null",
            "IdentitiesOnly": "yes",
            "IdentityFile": str(self.identity_file),
            "ConnectTimeout": "10",
            "LogLevel": "ERROR",
        }
        settings = [word for key, value in fixed.items() for word in ("-o", f"{key}={value}")]
        # OpenSSH takes the first value it meets: the caller's stand in front.
        return ["ssh", "-F", "none", *options, *settings, "-p", str(self.port), f"{user}@{self.address}"]

    def ssh(
        self, command: str, *options: str, user: str = "root", stdin: bytes = b"", timeout: float = 60.0
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command by OpenSSH's client, bytes in and out; the login shell parses it."""
        argv = [*self.ssh_argv(*options, user=user), "--", command]
        return subprocess.run(
            argv, input=stdin, capture_output=True, timeout=timeout, env=machine.CLEAN_ENV, check=False
        )

    def path(self, inside: str) -> Path:
        """Return where a path of the host is found from here; absolute links on the way lead outside."""
        return Path(f"/proc/{self.init_pid}/root", inside.lstrip("/"))

    def write(self, path: str, content: Content, *, mode: int = 0o644) -> Path:
        """Write a file on the host, folders included."""
        return write_file(self.path(path), content, mode=mode)

    def set_pct(self, **knobs: str) -> None:
        """Set the stand-in's knobs (see `pct --standin-info`), replacing all earlier ones; none: all defaults."""
        self.write("/etc/pct-standin.conf", self.spec.knobs_file(knobs))

    def outside_pid(self, inside: int) -> int:
        """Translate a pid of the host's namespace to the tests' own.

        Raises:
            LabError: when there is no such process.
        """
        depth = len(machine.namespace_pids(self.init_pid)) - 1
        waiting = [self.init_pid]
        while waiting:
            pid = waiting.pop()
            if machine.namespace_pids(pid)[depth:][:1] == (inside,):
                return pid
            waiting += machine.children_of(pid)
        raise LabError(f"no process {inside} on {self.name}")

    def processes(self) -> list[Process]:
        """List what runs on the host itself, guests left out: its init, sshd's listener, LXC's monitors, and more."""
        namespace = machine.pid_namespace(self.init_pid)
        return machine.processes_in([] if namespace is None else [namespace])

    # --- sshd and the wire

    @property
    def known_hosts(self) -> Path:
        """Return a known_hosts file with the key that the host had when it was made."""
        return self._folder / "known_hosts"

    @property
    def public_key(self) -> str:
        """Return the host key as ``ssh-ed25519 BASE64``, as sshd uses it now."""
        return " ".join(self.path(f"{HOST_KEY}.pub").read_text().split()[:2])

    @property
    def fingerprint(self) -> str:
        """Return the present host key's fingerprint, ``SHA256:...``."""
        digest = hashlib.sha256(base64.b64decode(self.public_key.split()[1])).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")

    def start_sshd(self) -> None:
        """Start sshd; it listens when this returns."""
        if not self.known_hosts.exists():
            name = self.address if self.port == 22 else f"[{self.address}]:{self.port}"
            self.known_hosts.write_text(f"{name} {self.public_key}\n")
        if self.call("/usr/sbin/sshd", "-f", "/etc/ssh/sshd_config", "-E", "/var/log/sshd.log", check=False).returncode:
            raise LabError(f"sshd of {self.name} did not start: {self.sshd_log}")

    def stop_sshd(self, *, sessions: bool = False) -> None:
        """Stop listening: connecting is refused; with `sessions` every open connection is reset too."""
        # It listens before it has written down who it is.
        wait_for(lambda: self.path("/run/sshd.pid").read_text().strip().isdigit(), "sshd to write its pid")
        listener = int(self.path("/run/sshd.pid").read_text())
        doomed = [p.pid for p in self.processes() if p.name == "sshd" and (sessions or p.inside_pid == listener)]
        for pid in doomed:
            machine.kill(pid)
        wait_for(lambda: not any(p.pid in doomed for p in self.processes()), "sshd to end")

    def rotate_host_key(self) -> None:
        """Give the host another key, as if reinstalled; `known_hosts` keeps the old one."""
        self.stop_sshd()
        self.sh(
            "rm /etc/ssh/lab_host_ed25519*; ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/lab_host_ed25519", check=True
        )
        self.start_sshd()

    @property
    def sshd_log(self) -> str:
        """Return what sshd logged so far."""
        return self.path("/var/log/sshd.log").read_text(errors="replace")

    def drop_packets(self) -> None:
        """Drop every packet, both ways, silently."""
        self._wire.cut()

    def slow_down(self, rate: str) -> None:
        """Bound the speed of what goes to the host, until `heal`; `rate` as tc words it, such as ``800kbit``."""
        self._wire.narrow(rate)

    @property
    def rough(self) -> RoughWire:
        """Return the wire of a host that was made with a rough one.

        Raises:
            LabError: when it was not.
        """
        if self._rough is None:
            raise LabError(f"host {self.name} has no rough wire")
        return self._rough

    def heal(self) -> None:
        """Let packets pass again, at full speed."""
        self._wire.mend()
        if self._rough is not None:
            self._rough.heal()

    def segment_behind(self, prefix: str) -> Segment:
        """Return a network that only this host reaches, made on first use; it is a jump host then."""
        segment = Segment(bridge="inner", prefix=prefix, mac_prefix="02:00:0a:d6:00", netns_pid=self.init_pid)
        with self._lock:
            if not self.path("/run/lab/inner").exists():
                segment.create()
                self.write("/run/lab/inner", prefix)
        return segment

    def close(self) -> None:
        """End the host: its init, and with it every process, mount and link of it."""
        if self._unshare is None:
            return
        if self._rough is not None:
            self._rough.close()
            self._rough = None
        # The init thaws what is frozen before it ends; a kill would leave the namespace waiting for frozen processes.
        _pipe(self._unshare.stdin).close()
        self._unshare.wait(timeout=60)
        for pipe in (self._unshare.stdout, self._unshare.stderr):
            _pipe(pipe).close()
        self._unshare = None
        shutil.rmtree(self._folder)


def _bring_up(guest: Guest) -> None:
    if guest.spec.state != "stopped":
        guest.start()
    if guest.spec.state == "frozen":
        guest.freeze()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise LabError("a pipe of the host's init is missing")
    return pipe
