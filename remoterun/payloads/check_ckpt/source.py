"""A file that is read by position and never trusted to hold still."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Tuple

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Optional, Type


# Parts this close to each other are read in one go.
NEAR = 64 * 1024
# A window of so few bytes holds them.
_LITTLE = 16 * 1024


class ShrunkError(Exception):
    """Say that bytes which were there a moment ago can't be read any more."""


class NotRegularError(Exception):
    """Say that a path names a FIFO, a device or a folder."""


class Source:
    """Read one file without moving a position and without mapping it (a truncated mapping is a SIGBUS).

    `base` is where it begins in the file, and `whole` whether it is all of it; a `window` is not.
    """

    base = 0
    whole = True

    def __init__(self, path: str) -> None:
        # Opening a FIFO would wait for a writer without O_NONBLOCK.
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        self.path = path
        self.seen = os.fstat(self.fd)
        self.size = self.seen.st_size
        if not stat.S_ISREG(self.seen.st_mode):
            self.close()
            raise NotRegularError(path)

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the descriptor back; later calls do nothing."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def read(self, offset: int, size: int) -> bytes:
        """Read bytes; fewer come back at the end of the file."""
        size = min(size, self.size - offset)
        if size <= 0:
            return b""
        offset += self.base
        data = os.pread(self.fd, size, offset)
        if len(data) == size:
            return data
        parts = [data]
        while parts[-1] and size > len(parts[-1]):
            offset += len(parts[-1])
            size -= len(parts[-1])
            parts.append(os.pread(self.fd, size, offset))
        return b"".join(parts)

    def window(self, offset: int, size: int) -> Source:
        """Return a part of the file to be read like a file of its own; it ends with this one."""
        return _Window(self, offset, size)

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fill a buffer.

        Raises:
            ShrunkError: when the file ends first.
        """
        offset += self.base
        while view:
            count = os.preadv(self.fd, [view], offset)
            if not count:
                raise ShrunkError("%s ends at byte %d" % (self.path, offset))
            view = view[count:]
            offset += count

    def changes(self) -> str:
        """Say what happened to the file since it was opened, nothing when it held still."""
        now = os.fstat(self.fd)
        if now.st_nlink == 0:
            return "was deleted"
        if now.st_size != self.seen.st_size:
            return "grew" if now.st_size > self.seen.st_size else "shrank"
        if now.st_mtime_ns != self.seen.st_mtime_ns:
            return "was written to"
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return "was moved away"
        return "" if identity(there) == identity(now) else "was replaced"


class _Window(Source):
    whole = False

    def __init__(self, whole: Source, offset: int, size: int) -> None:
        self.fd = whole.fd
        self.path = whole.path
        self.seen = whole.seen
        self.base = whole.base + max(0, offset)
        self.size = max(0, min(size, whole.size - offset))
        # Little is read at once: an item of a distributed checkpoint would be in thirty parts.
        self._data = whole.read(self.base - whole.base, self.size) if self.size <= _LITTLE else None

    def read(self, offset: int, size: int) -> bytes:
        """Read bytes; fewer come back at the end of the window."""
        return super().read(offset, size) if self._data is None else self._data[offset : offset + max(0, size)]

    def close(self) -> None:
        """Leave the descriptor to the whole file."""


class Held(Source):
    """Be a source whose bytes are in memory."""

    def __init__(self, data: bytes) -> None:
        self.fd = -1
        self.path = ""
        self.size = len(data)
        self._data = data

    def read(self, offset: int, size: int) -> bytes:
        """Read bytes; fewer come back at the end."""
        return self._data[offset : offset + size]


class Near:
    """Read small parts of a file, many at once while they lie close to one another."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._data = b""
        self._base = 0

    def read(self, offset: int, size: int) -> Tuple[bytes, int]:
        """Return bytes, and where among them those of a place are; fewer come back at the end of the file."""
        at = offset - self._base
        if at < 0 or at + size > len(self._data):
            near = 0 <= at < NEAR
            self._data = self._source.read(offset, max(size, NEAR) if near else size)
            self._base, at = offset, 0
        return self._data, at


def identity(status: os.stat_result) -> Tuple[int, int]:
    """Return what tells two files apart, whatever they are called."""
    return status.st_dev, status.st_ino
