"""Files that others read while they are written anew."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_MODE: Final = 0o644
# No name is longer than 255 bytes, and a character may take four of them.
_KEPT_CHARS: Final = 50


def write_whole(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write a file, in pieces maybe, so that its readers find the old one or the new one, whole, also after a crash.

    Anybody may read it, as far as the umask allows: a collector of metrics runs under an account of its own.

    Raises:
        OSError: when it can't be written; then the old one is still there, and nothing beside it.
    """
    # What lies in the place of a link is what readers mean.
    path = Path(os.path.realpath(path))
    _refuse_other_kinds(path)
    # Collectors read all files with their suffix, so that of an unfinished one is another.
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:_KEPT_CHARS]}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, _MODE & ~_umask())
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def _refuse_other_kinds(path: Path) -> None:
    """Keep devices and pipes from being replaced by a file: root could do that to /dev/null."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
