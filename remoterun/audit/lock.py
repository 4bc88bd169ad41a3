"""One audit of a project at a time: who holds the lock says so in it, and who was cut has left its words there."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import socket
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Self

from remoterun.errors import ConfigError, Problem, RemoterunError, clean
from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from remoterun.model import Json

BUSY_STATUS: Final = 75
"""EX_TEMPFAIL of sysexits.h: nothing is wrong, it just was not the moment."""

_FOLDER: Final = "audits"
_FILE: Final = "lock"
_MOST: Final = 16 << 10


def audit_folder(state: Path, project: Path) -> Path:
    """Return the folder that holds what audits of a project keep, inside the folder of the history."""
    name = hashlib.sha256(os.fsencode(project.resolve())).hexdigest()[:16]
    return state / _FOLDER / name


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Tell who holds a lock, or was cut while it did; `runs` are those it has started, by their ids.

    `pid` is None where its words can't be read (it has only just begun, or a full disk took nothing).
    """

    pid: int | None = None
    host: str = ""
    started_at: str = ""
    runs: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.pid is None:
            return "a process that has not said who it is"
        doing = f", at work on run {self.runs[-1]}" if self.runs else ""
        return f"process {self.pid} on {self.host}, since {self.started_at}{doing}"


class BusyError(RemoterunError):
    """Say that another audit of the project is going on, and whose."""

    def __init__(self, project: Path, holder: Holder) -> None:
        super().__init__(f"an audit of {project} is going on: {holder}")
        self.holder = holder


class Lock:
    """Hold a project's lock, for as long as this process lives at most.

    Use as a context manager. `cut` is what a former audit has left that did not come to its end, None if all did.
    """

    def __init__(self, fd: int, holder: Holder, cut: Holder | None) -> None:
        self._fd = fd
        self._holder = holder
        self._words_stay = False
        self.cut = cut

    @classmethod
    def take(cls, folder: Path, project: Path) -> Self:
        """Take the lock at once.

        Raises:
            BusyError: another process holds it.
            ConfigError: it can't be had for another reason.
        """
        with _usable(folder):
            fd = _open(folder)
            try:
                _lock(fd, project)
                found = _read(fd)
                lock = cls(fd, Holder(pid=os.getpid(), host=socket.gethostname(), started_at=now()), found)
                lock._write()
            except BaseException:
                os.close(fd)
                raise
        return lock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave, without a word mostly: this audit was not cut, whatever its end was."""
        try:
            if not self._words_stay:
                os.ftruncate(self._fd, 0)
        finally:
            os.close(self._fd)

    def keep_words(self) -> None:
        """Let the next audit find that this one was cut."""
        self._words_stay = True

    @property
    def started_at(self) -> str:
        """Return when this audit began."""
        return self._holder.started_at

    def note(self, run_id: str) -> None:
        """Write down that a run of this audit begins."""
        held = self._holder
        self._holder = Holder(pid=held.pid, host=held.host, started_at=held.started_at, runs=(*held.runs, run_id))
        self._write()

    def _write(self) -> None:
        """Put our words into the file, so that they outlast us, and the machine; on a full disk they go unsaid."""
        held = self._holder
        value: dict[str, Json] = {
            "pid": held.pid,
            "host": held.host,
            "started_at": held.started_at,
            "runs": list(held.runs),
        }
        with suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, json.dumps(value).encode("ascii"), 0)
            os.fsync(self._fd)


def refuse_if_held(folder: Path, project: Path) -> None:
    """Say at once that another audit of the project is going on.

    Raises:
        BusyError: another process holds the lock.
        ConfigError: nobody can.
    """
    with _usable(folder):
        fd = _open(folder)
        try:
            # Shared: those who only look are in nobody's way.
            _lock(fd, project, fcntl.LOCK_SH)
        finally:
            os.close(fd)


def now() -> str:
    """Return the time as documents say it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@contextmanager
def _usable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(Problem(file=str(folder), message=f"cannot be used: {error.strerror or error}")) from error


def _open(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return os.open(folder / _FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _lock(fd: int, project: Path, kind: int = fcntl.LOCK_EX) -> None:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in {errno.EAGAIN, errno.EACCES}:
            raise
        raise BusyError(project, _read(fd) or Holder()) from error


def _read(fd: int) -> Holder | None:
    """Return what stands in the file; None for nothing, and an empty holder for what nobody can read."""
    data = os.pread(fd, _MOST, 0)
    if not data:
        return None
    try:
        value = json.loads(data)
        return Holder(
            pid=int(value["pid"]),
            host=clean(str(value["host"])),
            started_at=clean(str(value["started_at"])),
            runs=tuple(clean(str(run)) for run in value["runs"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return Holder()
