"""Which runs are going on: each holds a lock for as long as its process lives, however it ends."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from remoterun.store import make_private

if TYPE_CHECKING:
    from pathlib import Path

_FOLDER: Final = "running"
# Whoever looks at a lock, or clears it away, holds it for some microseconds, or longer on a busy machine. Tries are
# counted, and not time: a machine that stands still for a moment is no other process.
_BEGIN_TRIES: Final = 125
_LOOK_TRIES: Final = 3
_PAUSE_S: Final = 0.002


class Alive:
    """Hold a run's lock."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd

    @classmethod
    def begin(cls, folder: Path, run_id: str) -> Self:
        """Take the lock of a run, and clear away those of runs whose processes were killed.

        Raises:
            BlockingIOError: when another process carries this run out.
            OSError: when the file can't be made.
        """
        path = folder / _FOLDER / run_id
        make_private(path.parent)
        sweep(folder)
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                _lock(fd, fcntl.LOCK_EX, _BEGIN_TRIES)
                if _is_at(path, fd):
                    return cls(path, fd)
            except BaseException:
                os.close(fd)
                raise
            # It was cleared away in between: what is locked has no name any more.
            os.close(fd)

    def end(self) -> None:
        """Give the lock back."""
        with suppress(OSError):
            self._path.unlink()
        os.close(self._fd)


def is_running(folder: Path, run_id: str) -> bool:
    """Tell whether a process is carrying a run out."""
    path = folder / _FOLDER / run_id
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        _lock(fd, fcntl.LOCK_SH, _LOOK_TRIES)
    except BlockingIOError:
        return True
    except OSError:
        pass
    finally:
        os.close(fd)
    return False


def sweep(folder: Path) -> None:
    """Clear away the locks that nobody holds: their processes were killed. Where that can't be done, they stay."""
    with suppress(OSError), os.scandir(folder / _FOLDER) as entries:
        for entry in entries:
            with suppress(OSError):
                _clear_away(folder / _FOLDER / entry.name)


def _clear_away(path: Path) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Only who holds the lock of a file takes its name away, so that a new one of the same name is safe.
        if _is_at(path, fd):
            path.unlink()
    finally:
        os.close(fd)


def _is_at(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def _lock(fd: int, kind: int, tries: int) -> None:
    """Take a lock; raises BlockingIOError when another process keeps it."""
    for left in reversed(range(tries)):
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if not left:
                raise
            time.sleep(_PAUSE_S)
        else:
            return
