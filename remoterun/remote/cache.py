"""The packs a target keeps: named by their sha256, verified on each use, bounded, and nobody else's business.

A cache that cannot be trusted (another owner, open to others) or written (read-only home) is not used, which costs an
upload and nothing else.
"""

from __future__ import annotations

import os

from remoterun.remote.system import account, sha256, write_all

_MAX_BYTES = 64 << 20
_MAX_PACKS = 32
_MAX_CODES = 24
_MARK = 32


def cache_folder(kind: str) -> str | None:
    """Return this user's cache folder of a kind ("packs", "code"), made if need be; None when it cannot be trusted."""
    path = account()[1]
    try:
        for part in (".cache", "remoterun", kind):
            path = os.path.join(path, part)
            if not os.path.isdir(path):
                os.mkdir(path, 0o700)
        state = os.lstat(path)
    except OSError:
        return None
    # A folder that others may write into could be swapped under us between check and use.
    trusted = (state.st_mode & 0o170077) == 0o040000 and state.st_uid == os.geteuid()
    return path if trusted else None


def cached_pack(sha: str, size: int) -> bytes | None:
    """Return the pack of this hash if it is there and still is what its name says; what is not gets removed."""
    folder = cache_folder("packs")
    if folder is None:
        return None
    path = os.path.join(folder, sha)
    data = _read(path, size)
    if data is None:
        return None
    if len(data) != size or sha256(data).hexdigest() != sha:
        _remove(path)
        return None
    _touch(path)
    return data


def keep_pack(sha: str, data: bytes) -> None:
    """Put a verified pack into the cache, then bound the cache."""
    folder = cache_folder("packs")
    if folder is not None and _put(os.path.join(folder, sha), data):
        _shrink(folder, _MAX_BYTES, _MAX_PACKS, sha)


def kept_code(path: str, key: bytes) -> bytes | None:
    """Return compiled code that was signed with this key; what nobody signed gets removed."""
    data = _read(path, _MAX_BYTES)
    if data is None:
        return None
    if _mark(data[_MARK:], key) != data[:_MARK]:
        _remove(path)
        return None
    _touch(path)
    return data[_MARK:]


def keep_code(path: str, key: bytes, data: bytes) -> None:
    """Keep compiled code, signed with a key that only the controller knows, then bound what is kept."""
    folder = cache_folder("code")
    if folder is not None and folder == os.path.dirname(path) and _put(path, _mark(data, key) + data):
        _shrink(folder, _MAX_BYTES, _MAX_CODES, os.path.basename(path))


def _mark(data: bytes, key: bytes) -> bytes:
    from _blake2 import blake2b

    return blake2b(data, key=key, digest_size=_MARK).digest()


def empty_caches() -> tuple[int, int]:
    """Remove everything that is kept, by payloads too; return how many packs were removed, and the bytes of all."""
    removed = freed = 0
    for kind in ("packs", "code", "digests"):
        folder = cache_folder(kind)
        count, size = _shrink(folder, 0, 0, "") if folder is not None else (0, 0)
        removed += count if kind == "packs" else 0
        freed += size
    return removed, freed


def _read(path: str, size: int) -> bytes | None:
    """Read a regular file, or one byte more than it may have; None where that can't be."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        data = b""
        while len(data) <= size:
            part = os.read(fd, size + 1 - len(data))
            if not part:
                break
            data += part
        return data
    except OSError:
        return None
    finally:
        os.close(fd)


def _touch(path: str) -> None:
    """Mark a file as used."""
    try:
        os.utime(path)
    except OSError:
        pass


def _put(path: str, data: bytes) -> bool:
    """Write a file under a name of its own, then give it its right one; False where that can't be."""
    temporary = "%s.%d.tmp" % (path, os.getpid())
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, data)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except OSError:
        _remove(temporary)
        return False
    return True


def _shrink(folder: str, max_bytes: int, max_files: int, newest: str) -> tuple[int, int]:
    """Remove the files used longest ago until the folder fits; return how many were removed and their bytes."""
    entries = []
    try:
        names = os.listdir(folder)
    except OSError:
        return 0, 0
    for name in names:
        path = os.path.join(folder, name)
        try:
            state = os.lstat(path)
        except OSError:
            continue
        entries.append((name == newest, state.st_mtime, state.st_size, path))
    removed = freed = kept = kept_bytes = 0
    for _, _, size, path in sorted(entries, reverse=True):
        # Another leg's half-written file has a name of its own; one it left behind goes with the oldest.
        if kept < max_files and kept_bytes + size <= max_bytes:
            kept += 1
            kept_bytes += size
        elif _remove(path):
            removed += 1
            freed += size
    return removed, freed


def _remove(path: str) -> bool:
    try:
        os.unlink(path)
        return True
    except OSError:
        return False
