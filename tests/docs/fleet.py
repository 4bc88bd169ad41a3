"""Where the examples of the docs run: the fleet that they speak of, as an embedded lab, and a desk for each page.

The machines have the names and addresses of the docs: the desk's ssh_config leads all of them to the lab. The folders
that the docs name (`/workspace/checkpoints`) lie below the desk. Nothing of this machine is touched: `crontab`,
`systemctl` and `sudo` are stand-ins.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from remoterun.lab import Guest, Lab
from tests.docs.pages import ROOT

HOSTS: Final = "10.1.2.* kpro6 kpro7 storage1"
STANDINS: Final = {
    # It keeps the crontab in a file, and says what Debian's says where there is none.
    "crontab": 'if [ "$1" = -l ]; then cat "$HOME/crontab" 2>/dev/null || { echo "no crontab for root" >&2; exit 1; }\n'
    'else cat > "$HOME/crontab"; fi',
    "systemctl": 'echo "systemctl $*" >> "$HOME/calls"',
    "sudo": 'exec "$@"',
    "fab": f'exec "{sys.executable}" -m fabric "$@"',
    "remoterun": f'exec "{sys.executable}" -m remoterun "$@"',
    "python": f'exec "{sys.executable}" "$@"',
}
PLACES: Final = re.compile(r"(?<![\w.~/*-])/(?:workspace|data/ckpt|root/venv|opt|srv|var/lib|etc)\b")
SYSTEM_UNITS: Final = Path("/etc/systemd/system")
LONGEST_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Hold what one command line of a block gave; `status` is None where the shell left before its end."""

    command: str
    status: int | None
    output: str
    errors: str


@dataclass(frozen=True, slots=True)
class Fleet:
    """Be the machines of the docs, which all lead to one lab."""

    lab: Lab

    def ssh_config(self) -> str:
        """Return what leads every name of the docs to the lab."""
        keys = self.lab.folder / "keys"
        return (
            f"Host {HOSTS}\n  HostName 127.0.0.1\n  Port {self.lab.port}\n  User root\n"
            f"  IdentityFile {keys / 'id_ed25519'}\n  UserKnownHostsFile {keys / 'known_hosts'}\n"
        )


@contextmanager
def fleet(folder: Path) -> Iterator[Fleet]:
    """Serve the fleet while the block lasts."""
    guests = [Guest(id=200, name="dflash-train"), Guest(id=201, name="small-run"), Guest(id=300, name="aux")]
    with Lab.start(folder, guests, host="kpro6") as lab:
        yield Fleet(lab)


@dataclass(frozen=True, slots=True)
class Desk:
    """Be the machine that somebody reads a page at: a home, a project, and the folders that the docs speak of."""

    folder: Path
    project: Path = field(init=False)
    home: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "project", self.folder / "srv" / "fleet")
        object.__setattr__(self, "home", self.folder / "home")

    def set_up(self, fleet: Fleet) -> None:
        """Make all of it, once."""
        self.project.mkdir(parents=True)
        ssh = self.home / ".ssh"
        ssh.mkdir(parents=True, mode=0o700)
        (ssh / "config").write_text(fleet.ssh_config(), "utf-8")
        # Fabric's Paramiko reads no other file of that kind, whatever ssh_config says.
        shutil.copy(fleet.lab.folder / "keys/known_hosts", ssh / "known_hosts")
        data = ROOT / "remoterun/lab/data"
        for place, guest in (("workspace/checkpoints", "201"), ("workspace/damaged", "200"), ("data/ckpt", "201")):
            shutil.copytree(data / guest, self.folder / place)
        environment = Path(sys.executable).parent.parent
        for name in ("root/venv", "opt/venv", "opt/conda", "project/.venv"):
            link = self.folder / name
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(environment, target_is_directory=True)
        programs = self.folder / "bin"
        programs.mkdir()
        for name, source in STANDINS.items():
            (programs / name).write_text(f"#!/bin/sh\n{source}\n", "utf-8")
            (programs / name).chmod(0o755)

    def here(self, text: str) -> str:
        """Put this desk's folders in the place of those that the docs name."""
        return PLACES.sub(lambda found: f"{self.folder}{found[0]}", text)

    def there(self, text: str) -> str:
        """Put the folders that the docs name back."""
        return text.replace(str(self.folder), "")

    def environment(self) -> dict[str, str]:
        """Return all that a command finds in its environment."""
        return {
            "HOME": str(self.home),
            "PATH": f"{self.folder / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "COLUMNS": "80",
        }

    def at_work(self) -> list[bytes]:
        """Return the command lines of what runs with anything that lies here."""
        found = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                found.append(file.read_bytes())
        return [line for line in found if f"{self.folder}/".encode() in line]

    def write(self, name: str, text: str) -> None:
        """Write a file of the project."""
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.here(text), "utf-8")

    def _own_units(self) -> list[str]:
        """Return what has commands find a folder of this desk where root's units of systemd lie on this machine."""
        if os.geteuid() != 0 or not SYSTEM_UNITS.is_dir():
            return []
        units = self.folder / "units"
        units.mkdir(exist_ok=True)
        mount = 'mount --bind "$0" "$1" && shift && exec "$@"'
        return ["unshare", "--mount", "/bin/sh", "-c", mount, str(units), str(SYSTEM_UNITS)]

    def type(self, *commands: str, more: Mapping[str, str] | None = None) -> list[Line]:
        """Type commands into one shell, and return what became of each."""
        if not commands:
            return []
        outputs = [self.folder / f"output-{number}" for number in range(len(commands))]
        errors = [output.with_suffix(".errors") for output in outputs]
        ends = self.folder / "ends"
        script = "".join(
            f"{{ {self.here(command)}\n}} > {output} 2> {error} < /dev/null; echo $? >> {ends}\n"
            for command, output, error in zip(commands, outputs, errors, strict=True)
        )
        for file in (ends, *outputs, *errors):
            file.write_text("")
        environment = {**self.environment(), **(more or {})}
        argv = [*self._own_units(), "/bin/sh", "-c", script]
        shell = subprocess.Popen(argv, cwd=self.project, env=environment, start_new_session=True)
        try:
            shell.wait(LONGEST_S * len(commands))
        finally:
            if shell.poll() is None:
                os.killpg(shell.pid, signal.SIGKILL)
                shell.wait()
        statuses = [int(word) for word in ends.read_text().split()]
        return [
            Line(
                command=command,
                status=statuses[number] if number < len(statuses) else None,
                output=self.there(outputs[number].read_text("utf-8", "replace")),
                errors=self.there(errors[number].read_text("utf-8", "replace")),
            )
            for number, command in enumerate(commands)
        ]
