"""Reading that leaves the page cache as it was: what was not in it before is given back, and nothing else."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any, List, Optional, Tuple

if TYPE_CHECKING:
    from ..source import Source

_PAGE = 4096
# What the cache is asked about at a time, and how far ahead of the reader a disk is asked for what it does not have.
_STEP = 4 << 20
_AHEAD = 8 << 20
# For less, opening a file anew costs more than it saves.
_WORTH_DIRECT = 256 << 10
# The same number on all architectures, since Linux 6.5.
_CACHESTAT = 451

Ranges = List[Tuple[int, int]]


class Reader:
    """Read files front to back.

    The cache is looked at first, and what has no page in it is read past it (O_DIRECT), which costs a tenth of the CPU
    time and no memory. Where that can't be done, what is missing is asked for ahead of the reader, since the kernel's
    own reading ahead would blur what was in the cache before, and dropped as soon as it was used. (Reads that must not
    wait, RWF_NOWAIT, don't tell: they start to read what is missing, and a fast disk has it before they give up.) Where
    the cache can't be looked at, files are read as usual.
    """

    def __init__(self) -> None:
        self._source: Optional[Source] = None
        self._at = 0
        # Up to where the cache was looked at, -1 where it can't be.
        self._ahead = -1
        self._missing: Ranges = []
        self._direct = _Direct(None)

    def read(self, source: Source, view: memoryview, offset: int, size: int, limit: int) -> None:
        """Read so many bytes from the beginning of a page on; `limit` is the end of what will be read in one go.

        The buffer begins at a page of memory and holds whole ones.

        Raises:
            ShrunkError: when the file ends first.
        """
        if source is not self._source or not self._at - _PAGE <= offset <= self._at:
            self._begin(source, offset)
        self._drop(offset)
        self._at = offset + size
        if self._ahead >= 0:
            self._look_ahead(source, _whole_pages(limit))
        done = 0
        if size >= _WORTH_DIRECT and self._lacks(offset, offset + _whole_pages(size)):
            done = min(size, self._direct.read(view[: _whole_pages(size)], offset))
        source.read_into(view[done:size], offset + done)

    def finish(self) -> None:
        """Give back what is still to be given back."""
        self._drop(sys.maxsize)
        self._source = None
        self._direct.close()

    def _begin(self, source: Source, offset: int) -> None:
        self.finish()
        self._source, self._ahead = source, -1
        if not source.base and _may_look(source):
            self._ahead = offset
            self._direct = _Direct(source)
            os.posix_fadvise(source.fd, 0, 0, os.POSIX_FADV_RANDOM)

    def _look_ahead(self, source: Source, limit: int) -> None:
        ask = not self._direct.usable
        while self._ahead < min(limit, self._at + (_AHEAD if self._missing and ask else 0)):
            stop = min(limit, self._ahead + _STEP)
            missing = missing_pages(source.fd, self._ahead, stop)
            if missing is None:
                self._ahead = -1
                os.posix_fadvise(source.fd, 0, 0, os.POSIX_FADV_NORMAL)
                return
            if missing and ask:
                os.posix_fadvise(source.fd, self._ahead, stop - self._ahead, os.POSIX_FADV_WILLNEED)
            self._missing += missing
            self._ahead = stop

    def _lacks(self, start: int, stop: int) -> bool:
        """Tell whether the cache has none of these pages."""
        inside = (min(stop, end) - max(start, begin) for begin, end in self._missing)
        return sum(size for size in inside if size > 0) == stop - start

    def _drop(self, position: int) -> None:
        """Give back what lies wholly before a position."""
        while self._missing and self._missing[0][1] <= position:
            start, stop = self._missing.pop(0)
            if self._source is not None and self._source.fd >= 0:
                os.posix_fadvise(self._source.fd, start, stop - start, os.POSIX_FADV_DONTNEED)


class _Direct:
    """Read a file past the cache, as far as its file system lets that be done.

    Some take the flag and fill the cache all the same (ext4 with `data=journal`), so what was read is to be dropped
    afterwards as ever, and nothing may be read ahead.
    """

    def __init__(self, source: Optional[Source]) -> None:
        self._source = source
        self._fd = -1
        self.usable = source is not None and hasattr(os, "O_DIRECT")

    def read(self, view: memoryview, offset: int) -> int:
        """Fill a buffer of whole pages and return how much of it is filled, possibly nothing."""
        if not self.usable or self._source is None:
            return 0
        try:
            if self._fd < 0:
                self._fd = os.open("/proc/self/fd/%d" % self._source.fd, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
                os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)
            return os.preadv(self._fd, [view], offset)
        except OSError:
            # Whether the file can't be read at all, the usual way finds out.
            self.usable = False
            return 0

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _whole_pages(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def _may_look(source: Source) -> bool:
    """Tell whether the kernel would say what is in the cache of a file: to others, everything seems to be."""
    return os.geteuid() in (0, source.seen.st_uid) or os.access(source.path, os.W_OK)


def missing_pages(fd: int, start: int, stop: int) -> Optional[Ranges]:
    """Return the ranges of whole pages, from the beginning of a page on, that are not in the cache.

    None when that can't be told.
    """
    libc = _libc()
    if libc is None:
        return None
    import ctypes

    place, found = (ctypes.c_uint64 * 2)(start, stop - start), (ctypes.c_uint64 * 5)()
    if not libc.syscall(_CACHESTAT, fd, place, found, 0):
        if found[0] * _PAGE >= stop - start:
            return []
        if not found[0]:
            return [(start, stop)]
    return _listed(libc, fd, start, stop)


def _listed(libc: Any, fd: int, start: int, stop: int) -> Optional[Ranges]:
    """Ask about every page; the file is mapped for it, but so that nothing can be read through the mapping."""
    import ctypes

    size = stop - start
    address = libc.mmap(None, size, 0, 1, fd, start)  # PROT_NONE, MAP_SHARED
    if address in (None, ctypes.c_void_p(-1).value):
        return None
    pages = ctypes.create_string_buffer(-(-size // _PAGE))
    failed = libc.mincore(address, size, pages)
    libc.munmap(address, size)
    if failed:
        return None
    # Only the lowest bit of each byte has a meaning.
    there = pages.raw.translate(bytes([0, 1] * 128))
    ranges = []
    at = there.find(0)
    while at >= 0:
        end = there.find(1, at)
        end = len(there) if end < 0 else end
        ranges.append((start + at * _PAGE, start + end * _PAGE))
        at = there.find(0, end)
    return ranges


@functools.lru_cache(maxsize=1)
def _libc() -> Any:
    try:
        import ctypes

        libc = ctypes.CDLL(None)
        whole, word, address = ctypes.c_size_t, ctypes.c_long, ctypes.c_void_p
        libc.mmap.restype = address
        libc.mmap.argtypes = [address, whole, ctypes.c_int, ctypes.c_int, ctypes.c_int, word]
        libc.munmap.argtypes = [address, whole]
        libc.mincore.argtypes = [address, whole, ctypes.c_char_p]
        libc.syscall.argtypes = [word, ctypes.c_int, address, address, ctypes.c_uint]
    except (ImportError, OSError, AttributeError):
        return None
    return libc
