"""The machine below the lab: running programs, looking at processes, undoing cgroups and links."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CLEAN_ENV = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8"}
CGROUPS = Path("/sys/fs/cgroup")

Content = str | bytes | Path
"""What a file is to hold; a Path is copied."""


class LabError(Exception):
    """Say what the lab could not do, with what the failing program printed."""


def run(
    argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 60.0, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a program in a clean environment, decoding what it prints so that every byte survives.

    Raises:
        LabError: when it fails and `check` is set.
    """
    done = subprocess.run(argv, input=stdin, capture_output=True, timeout=timeout, env=CLEAN_ENV, check=False)
    text = subprocess.CompletedProcess(done.args, done.returncode, _text(done.stdout), _text(done.stderr))
    if check and done.returncode != 0:
        raise LabError(f"{' '.join(argv)}: exit status {done.returncode}: {text.stderr.strip()}{text.stdout.strip()}")
    return text


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def write_file(path: Path, content: Content, *, mode: int = 0o644) -> Path:
    """Write a file, folders included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path):
        shutil.copyfile(content, path)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
    return path


def wait_for(condition: Callable[[], bool], what: str, *, limit_s: float = 60.0) -> None:
    """Wait until `condition` holds.

    Raises:
        LabError: naming `what` did not happen within the limit.
    """
    begin = time.monotonic()
    while not condition():
        waited = time.monotonic() - begin
        if waited > limit_s:
            raise LabError(f"waited {limit_s:g} s in vain for: {what}")
        time.sleep(pause(waited))


def pause(waited: float) -> float:
    """Return how long to wait before looking again: a look may go through all processes of the machine."""
    return min(max(0.005, waited / 10), 0.1)


def send(number: int, *pids: int) -> None:
    """Send a signal to processes, of which any may have ended by itself, or with another of them."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Show one process as seen from outside: `pid` is valid in the namespace of the tests, `state` is R, S, D, Z, T."""

    pid: int
    parent: int
    state: str
    name: str
    cmdline: tuple[str, ...]
    environ: dict[str, str]
    group: int
    session: int

    @property
    def inside_pid(self) -> int:
        """Return its pid in its own, innermost pid namespace; 0 when it has ended."""
        return namespace_pids(self.pid)[-1]


def pid_namespace(pid: int) -> str | None:
    """Return the identity of a process's pid namespace; None when it has ended."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return None


def children_of(pid: int) -> list[int]:
    """List the direct children of a process."""
    tasks = Path(f"/proc/{pid}/task")
    return [int(word) for task in tasks.iterdir() for word in (task / "children").read_text().split()]


def processes_in(namespaces: Iterable[str]) -> list[Process]:
    """List the processes of some pid namespaces, zombies included, by pid."""
    wanted = frozenset(namespaces)
    found = (_read_process(pid) for pid in _pids() if pid_namespace(pid) in wanted)
    return [process for process in found if process is not None]


def _pids() -> list[int]:
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - names, not paths


def _read_process(pid: int) -> Process | None:
    folder = Path(f"/proc/{pid}")
    try:
        head, _, tail = (folder / "stat").read_text(errors="replace").rpartition(")")
        cmdline = (folder / "cmdline").read_bytes()
        environ = (folder / "environ").read_bytes()
    except OSError:
        return None
    fields = tail.split()
    words = tuple(_text(word) for word in cmdline.removesuffix(b"\0").split(b"\0")) if cmdline else ()
    pairs = (_text(item).partition("=") for item in environ.split(b"\0") if item)
    return Process(
        pid=pid,
        parent=int(fields[1]),
        state=fields[0],
        name=head.partition("(")[2],
        cmdline=words,
        environ={key: value for key, _, value in pairs},
        group=int(fields[2]),
        session=int(fields[3]),
    )


def namespace_pids(pid: int) -> tuple[int, ...]:
    """Return a process's pids from the tests' namespace inwards; (0,) when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return (0,)
    return next(tuple(map(int, line.split()[1:])) for line in lines if line.startswith("NSpid:"))


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal; a process that has ended is fine."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def inits(cgroup: str) -> Iterator[int]:
    """Find the inits of hosts by the cgroup folder in their command line, which is their marker."""
    for pid in _pids():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[1:2] == [b"/run/lab/init"] and words[2].decode().partition("/")[0] == cgroup:
            yield pid


def cgroup_folders(name: str) -> list[Path]:
    """Find every folder of that name, in any hierarchy and at any depth below the root."""
    found = []
    for folder, children, _ in os.walk(CGROUPS):
        if name in children:
            found.append(Path(folder, name))
            children.remove(name)
    return found


def thaw(cgroup: str) -> None:
    """Thaw everything below a lab's or a host's cgroups: a frozen process of cgroup v1 can not even be killed."""
    name, _, host = cgroup.partition("/")
    for folder in (folder / host for folder in cgroup_folders(name)):
        for state in folder.rglob("freezer.state"):
            _write_quietly(state, "THAWED")
        for state in folder.rglob("cgroup.freeze"):
            _write_quietly(state, "0")


def _write_quietly(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError:
        return  # the cgroup went away on its own


def remove_cgroups(name: str) -> None:
    """Remove the cgroups of that name with everything below, once their processes are gone."""
    for folder in cgroup_folders(name):
        for inner, _, _ in os.walk(folder, topdown=False):
            wait_for(functools.partial(_rmdir, inner), f"the cgroup {inner} to be empty")


def _rmdir(folder: str) -> bool:
    try:
        os.rmdir(folder)  # noqa: PTH106 - a path from os.walk
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
