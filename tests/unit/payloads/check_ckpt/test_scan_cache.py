"""The page cache after a scan: what was in it is in it, what was not is not."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import torch

from remoterun.payloads.check_ckpt.scan.cache import Reader
from remoterun.payloads.check_ckpt.source import ShrunkError, Source
from tests.unit.payloads.check_ckpt.scan_support import bytes_of, digest_of, scan
from tests.unit.payloads.check_ckpt.support import save

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.torch

PAGE = 4096


def resident(path: Path) -> list[bool]:
    """Ask the kernel which pages of a file are in its cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    size = path.stat().st_size
    fd = os.open(path, os.O_RDONLY)
    address = libc.mmap(None, size, 0, 1, fd, 0)
    pages = ctypes.create_string_buffer(-(-size // PAGE))
    assert libc.mincore(address, size, pages) == 0
    libc.munmap(address, size)
    os.close(fd)
    return [bool(page & 1) for page in pages.raw]


def leave(path: Path, *ranges: tuple[int, int]) -> None:
    """Have only some pages in the cache; skip the test where that can't be done."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if any(resident(path)):
        pytest.skip("this file system does not give its pages back")
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    for start, stop in ranges:
        for page in range(start, stop):
            os.pread(fd, 1, page * PAGE)
    os.close(fd)


@pytest.fixture
def tensor() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(5_000_000)


@pytest.fixture
def path(tensor: torch.Tensor, tmp_path: Path) -> Path:
    return save({"w": tensor}, tmp_path / "step_1" / "c.pt")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("ranges", [[], [(1000, 2000)], [(0, 1), (100, 101), (2000, 2400), (3001, 3003)], [(0, 4500)]])
def test_only_what_was_not_there_is_dropped(
    path: Path, tensor: torch.Tensor, workers: int, ranges: list[tuple[int, int]]
) -> None:
    before: list[bool] = []

    def prepare() -> None:
        leave(path, *ranges)
        before[:] = resident(path)

    seen = scan(path, workers=workers, prepare=prepare)
    assert seen.stats("w").digest == digest_of(bytes_of(tensor))
    after = resident(path)
    there = [other for one, other in zip(before, after, strict=True) if one]
    brought = [other for one, other in zip(before, after, strict=True) if not one]
    # The kernel takes a page for itself now and then.
    assert sum(there) >= 0.95 * len(there)
    assert sum(brought) <= 0.01 * len(before)


@contextmanager
def no_more_files() -> Iterator[None]:
    """Let this process open no file beyond those that it has open."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = os.open(os.devnull, os.O_RDONLY)
    os.close(spare)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def read_all(path: Path) -> bytes:
    """Read a file as a scan does."""
    with Source(str(path)) as source:
        return _through(source, source.size)


def _through(source: Source, size: int) -> bytes:
    reader, buffer, read = Reader(), mmap.mmap(-1, 1 << 20), b""
    view = memoryview(buffer)
    while len(read) < size:
        part = min(len(buffer), size - len(read))
        reader.read(source, view, len(read), part, size)
        read += buffer[:part]
    reader.finish()
    return read


def test_a_file_that_cannot_be_opened_once_more_is_read_all_the_same(path: Path) -> None:
    data = path.read_bytes()
    leave(path)
    with Source(str(path)) as source, no_more_files():
        assert _through(source, len(data)) == data
    assert not any(resident(path))


def test_a_file_read_past_the_cache_is_read_to_its_last_byte(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x" * 333)
    data = path.read_bytes()
    leave(path)
    with Source(str(path)) as source:
        assert _through(source, len(data)) == data
        os.truncate(path, len(data) - 5000)
        with pytest.raises(ShrunkError):
            _through(source, len(data))


def test_what_was_just_written_is_read_from_the_cache(path: Path) -> None:
    size = path.stat().st_size
    leave(path)
    with path.open("r+b") as file, Source(str(path)) as source:
        file.seek(3 << 20)
        file.write(b"new" * 1000)
        file.flush()
        read = _through(source, size)
    assert read[3 << 20 :].startswith(b"new" * 1000)
