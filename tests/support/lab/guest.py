"""A guest of a lab host: a real LXC container whose root is laid over the machine's own, or holds BusyBox alone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

from tests.support.lab import machine, pythons
from tests.support.lab.machine import Content, LabError, Process, write_file

if TYPE_CHECKING:
    from tests.support.lab.host import LabHost

SHIFTED_BY = 100_000
"""Where the ids of unprivileged guests begin on the host, as Proxmox has it."""

State = Literal["running", "stopped", "frozen"]


@dataclass(frozen=True, slots=True)
class GuestSpec:
    """Say what a guest is to be.

    `python`: "machine" leaves the machine's own, a version (``3.8``) puts that one on PATH instead, None leaves none.
    `venv`: a virtual environment made in advance, of `venv_python` (a version; None: the machine's, where it is left).
    `files`: absolute path to text, bytes, or a file to copy. `unprivileged`: in a user namespace, as Proxmox makes them
    by default. `lxc`: more lines of the LXC configuration, `pve` more lines of the Proxmox one.
    """

    ctid: int
    _: KW_ONLY
    name: str | None = None
    state: State = "running"
    python: str | None = "machine"
    venv: str | None = None
    venv_python: str | None = None
    files: Mapping[str, Content] = field(default_factory=dict)
    rootfs: Literal["machine", "busybox"] = "machine"
    unprivileged: bool = False
    lxc: tuple[str, ...] = ()
    pve: tuple[str, ...] = ()

    @property
    def hostname(self) -> str:
        """Return the name the guest gives itself."""
        return self.name or f"ct{self.ctid}"

    def lxc_config(self, cgroup: str) -> str:
        """Return the container's LXC configuration."""
        sleeper = f"/usr/sbin/init.lxc -q -n {self.ctid} -- /usr/bin/sleep infinity"
        init = "/sbin/init" if self.rootfs == "busybox" else sleeper
        mapped = (f"lxc.idmap = u 0 {SHIFTED_BY} 65536", f"lxc.idmap = g 0 {SHIFTED_BY} 65536")
        lines = (
            f"lxc.rootfs.path = dir:/var/lib/lxc/{self.ctid}/rootfs",
            f"lxc.uts.name = {self.hostname}",
            f"lxc.init.cmd = {init}",
            f"lxc.cgroup.dir = {cgroup}",
            "lxc.net.0.type = empty",
            "lxc.mount.auto = proc:mixed sys:mixed",
            "lxc.mount.entry = tmpfs dev/shm tmpfs rw,nosuid,nodev,create=dir 0 0",
            "lxc.apparmor.profile = unconfined",
            *(mapped if self.unprivileged else ()),
            *self.lxc,
        )
        return "".join(f"{line}\n" for line in lines)

    def pve_config(self) -> str:
        """Return the container's Proxmox configuration."""
        lines = (
            "arch: amd64",
            "cores: 2",
            f"hostname: {self.hostname}",
            "memory: 512",
            "ostype: debian",
            f"rootfs: local:subvol-{self.ctid}-disk-0,size=8G",
            "swap: 0",
            f"unprivileged: {int(self.unprivileged)}",
            *self.pve,
        )
        return "".join(f"{line}\n" for line in sorted(lines))


guest = GuestSpec


class GuestWords(TypedDict, total=False):
    """Spell the words of `GuestSpec` besides the id."""

    name: str | None
    state: State
    python: str | None
    venv: str | None
    venv_python: str | None
    files: Mapping[str, Content]
    rootfs: Literal["machine", "busybox"]
    unprivileged: bool
    lxc: tuple[str, ...]
    pve: tuple[str, ...]


class Guest:
    """Drive one guest from outside.

    `root` is its root file system as seen from here, running or not. Absolute links in it lead outside, so use plain
    paths; in an unprivileged guest what is put there belongs to nobody: `write` gives files to the guest's root.
    """

    def __init__(self, host: LabHost, spec: GuestSpec) -> None:
        self.host = host
        self.spec = spec
        self.ctid = spec.ctid
        self.name = spec.hostname
        self.root = host.path(f"/var/lib/lxc/{spec.ctid}/rootfs")
        self._init: int | None = None

    @property
    def owner(self) -> int:
        """Return the id, as seen from here, of the guest's root."""
        return SHIFTED_BY if self.spec.unprivileged else 0

    def prepare(self) -> None:
        """Write everything that must be there before the file systems are mounted."""
        layers = self.host.path(f"/run/lab/guests/{self.ctid}")
        self.root.mkdir(parents=True)
        if self.spec.rootfs == "machine":
            (layers / "work").mkdir(parents=True)
            (layers / "upper").mkdir()
            self._give(layers / "upper")
            for folder, mode in {"root": 0o700, "tmp": 0o1777, "run": 0o755}.items():
                self._hide(layers / "upper" / folder, mode)
        (self.root.parent / "config").write_text(self.spec.lxc_config(self.host.cgroup))
        self.host.write_guest_config(self.ctid, self.spec.pve_config())

    def _hide(self, folder: Path, mode: int) -> None:
        """Make a folder that shows nothing of the machine's folder below it."""
        folder.mkdir()
        folder.chmod(mode)
        self._give(folder)
        os.setxattr(folder, "trusted.overlay.opaque", b"y")

    def _give(self, path: Path) -> None:
        os.chown(path, self.owner, self.owner, follow_symlinks=False)

    def mount_script(self) -> str:
        """Return the shell text that mounts the root file system, to run on the host."""
        if self.spec.rootfs == "busybox":
            return ""
        lower = self.host.shifted_root() if self.spec.unprivileged else "/run/lab/lower"
        layers, root = f"/run/lab/guests/{self.ctid}", f"/var/lib/lxc/{self.ctid}/rootfs"
        script = f"mount -t overlay -o lowerdir={lower},upperdir={layers}/upper,workdir={layers}/work lab {root}\n"
        versions = pythons.pyenv_folder()
        if versions.is_dir():
            # Without this the interpreters would be hidden together with the machine's /root.
            script += f"mkdir -p {root}{versions} && mount --bind -o ro {lower}{versions} {root}{versions}\n"
        return script

    def furnish(self) -> None:
        """Put in what the specification asks for, once the root file system is mounted."""
        if self.spec.rootfs == "busybox":
            pythons.copy_busybox(self.root)
            self._give_all(self.root)
        if self.spec.python is None:
            pythons.remove_pythons(self.root)
        elif self.spec.python != "machine":
            pythons.replace_python(self.root, self.spec.python)
        if self.spec.venv is not None:
            self.make_venv(self.spec.venv, python=self.spec.venv_python)
        for path, content in self.spec.files.items():
            self.write(path, content)

    # --- files

    def path(self, inside: str) -> Path:
        """Return where a path of the guest is found from here."""
        return self.root / inside.lstrip("/")

    def write(self, path: str, content: Content, *, mode: int = 0o644) -> Path:
        """Write a file, folders included; a Path is copied."""
        target = self.path(path)
        new = self._missing_parents(target)
        write_file(target, content, mode=mode)
        for entry in (target, *new):
            self._give(entry)
        return target

    def make_venv(
        self,
        path: str,
        *,
        python: str | None = None,
        modules: Mapping[str, str] | None = None,
        site: Sequence[str | Path] = (),
    ) -> str:
        """Make a virtual environment of a Python version (None: the machine's); return its interpreter's path inside.

        `modules` maps module names to source text put into site-packages; `site` lists folders to import from.
        """
        new = self._missing_parents(self.path(path))
        inside = pythons.write_venv(self.root, path, python=python, modules=modules or {}, site=site)
        for folder in new:
            self._give(folder)
        self._give_all(self.path(path))
        return inside

    def _missing_parents(self, path: Path) -> list[Path]:
        return [folder for folder in path.parents if not folder.exists()]

    def _give_all(self, folder: Path) -> None:
        for entry in (folder, *folder.rglob("*")):
            self._give(entry)

    # --- life

    def start(self) -> None:
        """Start it and return when it runs all that it has of its own."""
        self.host.call("lxc-start", "-n", str(self.ctid), "-d")
        if self.spec.rootfs == "machine":
            # Until its init has started its sleep, whoever enters is process 2, and a freeze comes before the sleep.
            machine.wait_for(lambda: bool(machine.children_of(self.init_pid)), f"the sleep of guest {self.ctid}")

    def stop(self) -> None:
        """Kill it, as `pct stop` does; fine when it is not running."""
        if self.running:
            self.thaw()
            self.host.call("lxc-stop", "-n", str(self.ctid), "-k")
        self._init = None

    def freeze(self) -> None:
        """Freeze every process in it."""
        self.host.call("lxc-freeze", "-n", str(self.ctid))

    def thaw(self) -> None:
        """Let a frozen guest go on; fine when it is not frozen."""
        self.host.call("lxc-unfreeze", "-n", str(self.ctid))

    def destroy(self) -> None:
        """Stop it and remove its configuration: the host no longer has such a guest."""
        self.host.remove_guest(self.ctid)

    @property
    def running(self) -> bool:
        """Tell whether it runs, frozen included, by the same sign that `pct` goes by."""
        names = Path(f"/proc/{self.host.init_pid}/net/unix").read_text()
        return f"@/var/lib/lxc/{self.ctid}/command\n" in names

    def sh(
        self, command: str, *, stdin: bytes = b"", check: bool = False, timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command as root inside, by lxc-attach, with a clean environment."""
        argv = ["lxc-attach", "-n", str(self.ctid), "--clear-env", "-v", f"PATH={machine.PATH}", "-v", "HOME=/root"]
        return self.host.call(*argv, "--", "/bin/sh", "-c", command, stdin=stdin, check=check, timeout=timeout)

    @property
    def init_pid(self) -> int:
        """Return its init's pid as seen from here.

        Raises:
            LabError: when it is not running.
        """
        if self._init is None or machine.pid_namespace(self._init) is None:
            inside = self.host.call("lxc-info", "-n", str(self.ctid), "-pH", check=False).stdout.strip()
            if not inside:
                raise LabError(f"guest {self.ctid} of {self.host.name} is not running")
            self._init = self.host.outside_pid(int(inside))
        return self._init

    def processes(self) -> list[Process]:
        """List what runs inside besides its init and what init itself started, zombies included, as seen from here."""
        namespace = machine.pid_namespace(self.init_pid)
        found = machine.processes_in([] if namespace is None else [namespace])
        # Inside, init is 1 and its sleep is 2.
        return [process for process in found if process.inside_pid > 2]
