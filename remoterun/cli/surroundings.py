"""What a command cannot do without and this machine does not give: told as that, since it is no bug of ours."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from remoterun.errors import Problem
from remoterun.model import RunStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

_LACKING: Final[Mapping[int, str]] = MappingProxyType(
    {
        errno.ENOSPC: "make room there",
        errno.EDQUOT: "make room there",
        errno.EFBIG: "see `ulimit -f`",
        errno.EMFILE: "raise the limit, such as by `ulimit -n 4096`",
        errno.ENFILE: "too many are open on this machine",
        errno.EROFS: "mount it otherwise, or name another place",
        errno.ENOMEM: "see `ulimit -v` and what the container may have",
    }
)
"""What errors of the system ask for."""


def settle_home() -> None:
    """Let `~` lead nowhere where nobody knows a home: services and containers have accounts without one."""
    try:
        Path.home()
    except RuntimeError:
        # Nothing can be made below it, not even by root.
        os.environ["HOME"] = os.devnull


def told(error: Exception) -> tuple[Problem, RunStatus] | None:
    """Return what an error says of the machine, what to do about it, and how that ends a command.

    None for an error that may be a bug. What runs short may do so at any time: nobody knows what was started.
    """
    if isinstance(error, MemoryError):
        return _short(f"there is not enough memory: {_LACKING[errno.ENOMEM]}")
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return _short("no thread can be started: see `ulimit -u` and `ulimit -v`")
    if not isinstance(error, OSError):
        return None
    if isinstance(error, FileNotFoundError) and not _is_anywhere():
        return Problem(message="the folder that this was started in is gone: `cd` to another"), RunStatus.INVALID
    file, said = None if error.filename is None else os.fsdecode(error.filename), error.strerror or str(error)
    if isinstance(error, PermissionError):
        # Whatever file it was that a command looked for: nothing but its name would help.
        return Problem(file=file, message=said), RunStatus.INVALID
    advice = _LACKING.get(error.errno or 0)
    return None if advice is None else _short(f"{said}: {advice}", file)


def _short(message: str, file: str | None = None) -> tuple[Problem, RunStatus]:
    return Problem(file=file, message=message), RunStatus.ERROR


def _is_anywhere() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True
