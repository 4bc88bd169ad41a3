"""Files that others read while they are written anew."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from remoterun.store import Unfinished

if TYPE_CHECKING:
    from collections.abc import Iterable

_MODE: Final = 0o644


def write_whole(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write a file, in pieces maybe, so that its readers find the old one or the new one, whole, also after a crash.

    Anybody may read it, as far as the umask allows: a collector of metrics runs under an account of its own.

    Raises:
        OSError: when it can't be written; then the old one is still there, and nothing beside it.
    """
    # What lies in the place of a link is what readers mean.
    path = Path(os.path.realpath(path))
    _refuse_other_kinds(path)
    with Unfinished(path, _MODE) as unfinished:
        with unfinished.writer() as file:
            file.writelines([data] if isinstance(data, bytes) else data)
        unfinished.put()


def _refuse_other_kinds(path: Path) -> None:
    """Keep devices and pipes from being replaced by a file: root could do that to /dev/null."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
