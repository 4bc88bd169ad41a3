"""Which runs are going on: each holds a lock for as long as its process lives, however it ends."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from pathlib import Path

_FOLDER: Final = "running"


class Alive:
    """Hold a run's lock."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd

    @classmethod
    def begin(cls, folder: Path, run_id: str) -> Self:
        """Take the lock of a run.

        Raises:
            BlockingIOError: when another process carries this run out.
            OSError: when the file can't be made.
        """
        path = folder / _FOLDER / run_id
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.parent.mkdir(exist_ok=True, mode=0o700)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(fd)
            raise
        return cls(path, fd)

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
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    finally:
        os.close(fd)
    return False
