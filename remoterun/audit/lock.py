"""One audit of a project at a time: who holds the lock says so in it, and who was cut has left its words there."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Self

from remoterun.errors import ConfigError, Problem, RemoterunError, clean
from remoterun.model.times import now_text
from remoterun.records import dataclass
from remoterun.store import make_private

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from remoterun.model import Json

BUSY_STATUS: Final = 75
"""EX_TEMPFAIL of sysexits.h: nothing is wrong, it just was not the moment."""

_FOLDER: Final = "audits"
_FILE: Final = "lock"
_MOST: Final = 1 << 20
_MOST_CUT: Final = 50
"""So many audits that were cut are told of one by one, the newest; earlier ones are counted."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Hold what stands in a lock: who holds it, None for nobody, and who was cut before, the oldest first.

    `more` counts the audits before those of `cut`.
    """

    holder: Holder | None = None
    cut: tuple[Holder, ...] = ()
    more: int = 0

    def after(self) -> Words:
        """Return what the next holder finds: who holds it was cut."""
        cut = self.cut if self.holder is None else (*self.cut, self.holder)
        dropped = max(len(cut) - _MOST_CUT, 0)
        return Words(cut=cut[dropped:], more=self.more + dropped)


class BusyError(RemoterunError):
    """Say that another audit of the project is going on, and whose."""

    def __init__(self, project: Path, holder: Holder) -> None:
        super().__init__(f"an audit of {project} is going on: {holder}")
        self.holder = holder


class Lock:
    """Hold a project's lock, for as long as this process lives at most.

    Use as a context manager. `left` is what audits have left that did not come to their end, and of which nobody was
    told yet: its `cut` and `more`.
    """

    def __init__(self, fd: int, holder: Holder, left: Words) -> None:
        self._fd = fd
        self._holder = holder
        self._untold = left
        self._words_stay = False
        self.left = left

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
                holder = Holder(pid=os.getpid(), host=socket.gethostname(), started_at=now_text())
                lock = cls(fd, holder, _read(fd).after())
                lock._write()
            except BaseException:
                os.close(fd)
                raise
        return lock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave without a word of this audit, mostly: it was not cut, whatever its end was."""
        try:
            if not self._words_stay:
                _put(self._fd, self._untold)
        finally:
            os.close(self._fd)

    def keep_words(self) -> None:
        """Let the next audit find that this one was cut."""
        self._words_stay = True

    def told(self) -> None:
        """Let the next audit find nothing of those that were cut before this one: people know of them."""
        self._untold = Words()
        self._write()

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
        _put(self._fd, Words(holder=self._holder, cut=self._untold.cut, more=self._untold.more))


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


@contextmanager
def _usable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        said = f"cannot be used: {error.strerror or error}; let XDG_STATE_HOME name another folder"
        raise ConfigError(Problem(file=str(folder), message=said)) from error


def _open(folder: Path) -> int:
    make_private(folder)
    return os.open(folder / _FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _lock(fd: int, project: Path, kind: int = fcntl.LOCK_EX) -> None:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in {errno.EAGAIN, errno.EACCES}:
            raise
        raise BusyError(project, _read(fd).holder or Holder()) from error


def _put(fd: int, words: Words) -> None:
    """Put words into the file, so that they outlast us, and the machine; on a full disk they go unsaid."""
    value: dict[str, Json] = {**(_document(words.holder) if words.holder else {})}
    if words.cut:
        value["cut"], value["more"] = [_document(each) for each in words.cut], words.more
    # One line: what is left of longer words behind it is nobody's.
    data = json.dumps(value).encode("ascii") + b"\n" if value else b""
    with suppress(OSError):
        # Not emptied before: the room that its words have on a full disk stays theirs.
        os.pwrite(fd, data, 0)
        os.ftruncate(fd, len(data))
        os.fsync(fd)


def _document(holder: Holder) -> dict[str, Json]:
    return {
        "pid": holder.pid,
        "host": holder.host,
        "started_at": holder.started_at,
        "runs": list(holder.runs),
    }


def _read(fd: int) -> Words:
    """Return what stands in the file; of what nobody can read, that there was a holder."""
    data = os.pread(fd, _MOST, 0).partition(b"\n")[0]
    if not data:
        return Words()
    try:
        value = json.loads(data)
        return Words(
            holder=_holder(value) if "pid" in value else None,
            cut=tuple(map(_holder, value.get("cut", ()))),
            more=int(value.get("more", 0)),
        )
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return Words(holder=Holder())


def _holder(value: Mapping[str, Any]) -> Holder:
    return Holder(
        pid=None if value["pid"] is None else int(value["pid"]),
        host=clean(str(value["host"])),
        started_at=clean(str(value["started_at"])),
        runs=tuple(clean(str(run)) for run in value["runs"]),
    )
