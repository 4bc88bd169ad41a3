"""What is remembered of checkpoints between audits: one file each in the user's cache, which a reader trusts little.

A file is a fixed head, then two compressed JSON texts, each with its length and CRC-32: what a report needs, and the
marks of all tensors, which are read only when somebody asks. Its name is the hash of what tells that a checkpoint is
still the same. A folder that can't be trusted or written to is not used, which costs a second reading and nothing else.
"""

from __future__ import annotations

import os
import stat
import struct
import zlib
from _blake2 import blake2b
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from ..records import Record
from .profile import Mark

# What a checkpoint is found to be depends on the rules, so what other rules found is not used.
RULES_VERSION = "1.1.0"
MAX_FILES = 8192
MAX_BYTES = 256 << 20
_MAGIC = b"RRDIGEST"
_HEAD = struct.Struct("<8sIIII")
_MAX_PACKED = 8 << 20
_MAX_TEXT = 32 << 20
_AT_ONCE = 16384
# Saves of a file that is overwritten: a training that was gone back with has a newer one that tells nothing.
_MOST_PAST = 4
# Two writes to a file within the resolution of its times look like one. Some file servers tell whole seconds.
_RACY_NS = 3 * 10**9

# What the columns of marks hold.
_NUMBERS = {float, type(None)}
_KINDS: Tuple[Set[Any], ...] = (
    *({str}, {str}, {str}, {str}, {list}, {list}),
    *({int}, {int}, _NUMBERS, _NUMBERS, _NUMBERS, {int}, {str}),
)
_MOST = 1 << 64

Header = Dict[str, Any]


class DamagedError(Exception):
    """Say that a kept file does not hold what was put into it."""


class Identity(Record):
    """Tell one content of a file from another, as far as its file system does."""

    path: str
    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


def identify(paths: Sequence[str]) -> Tuple[Identity, ...]:
    """Look at the files of a checkpoint.

    Raises:
        OSError: when one can't be looked at.
    """
    states = [(path, os.stat(path)) for path in paths]
    return tuple(
        Identity(path, each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns, each.st_ctime_ns)
        for path, each in states
    )


def key_of(name: str, files: Sequence[Identity], *, deep: bool) -> str:
    """Name what is kept of a checkpoint: of its values, or of its headers alone; its own name tells its step, too."""
    told = ascii((RULES_VERSION, deep, name, tuple(map(tuple, files))))
    return blake2b(told.encode("ascii"), digest_size=32).hexdigest()


def is_settled(files: Sequence[Identity], now: float) -> bool:
    """Tell that the files were last changed so long ago that another change would show."""
    return max(max(each.mtime_ns, each.ctime_ns) for each in files) < now * 1e9 - _RACY_NS


class Store:
    """Keep and find what is known of checkpoints; every failure means that nothing is known."""

    def __init__(self, folder: Optional[str]) -> None:
        self._folder = folder
        self._wrote = False

    @property
    def keeps(self) -> bool:
        """Tell whether anything can be kept."""
        return self._folder is not None

    def find(self, key: str) -> Optional[Header]:
        """Return what was kept for a report; what is damaged is removed."""
        header = self._load(key, 0)
        return header if isinstance(header, dict) else None

    def marks(self, key: str) -> Optional[List[Mark]]:
        """Return the marks that were kept."""
        columns = self._load(key, 1)
        if not isinstance(columns, list) or not (columns == [] or _are_marks(columns)):
            return None
        if not columns:
            return []
        names, shapes, offsets, numbers = columns[:4], map(tuple, columns[4]), map(tuple, columns[5]), columns[6:]
        return [Mark._make(each) for each in zip(*names, shapes, offsets, *numbers)]

    def keep(self, key: str, header: Header, marks: Sequence[Mark]) -> bool:
        """Keep a checkpoint's header and marks under a key; False where that can't be."""
        if self._folder is None:
            return False
        import json  # which costs an audit that keeps nothing two milliseconds

        texts = [json.dumps(each).encode("ascii") for each in (header, list(zip(*marks)))]
        packed = [zlib.compress(text) for text in texts]
        if max(map(len, texts)) > _MAX_TEXT or sum(map(len, packed)) > _MAX_PACKED:
            return False
        sums = [number for each in packed for number in (len(each), zlib.crc32(each))]
        kept = _put(os.path.join(self._folder, key), b"".join([_HEAD.pack(_MAGIC, *sums), *packed]))
        self._wrote = self._wrote or kept
        return kept

    def close(self) -> None:
        """Bound what is kept: what was used longest ago goes."""
        if self._folder is None or not self._wrote:
            return
        ages = []
        try:
            names = os.listdir(self._folder)
        except OSError:
            return
        for name in names:
            path = os.path.join(self._folder, name)
            try:
                state = os.lstat(path)
            except OSError:
                continue
            ages.append((state.st_mtime_ns, state.st_size, path))
        total = 0
        for count, (_, size, path) in enumerate(sorted(ages, reverse=True)):
            total += size
            if count >= MAX_FILES or total > MAX_BYTES:
                _remove(path)

    def _load(self, key: str, part: int) -> Optional[object]:
        if self._folder is None:
            return None
        path = os.path.join(self._folder, key)
        try:
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError:
            _remove(path)
            return None
        try:
            value = _part(file, part)
            # The oldest goes first, and what is used is young.
            os.utime(file)
        except (DamagedError, OSError, ValueError, RecursionError, struct.error, zlib.error):
            _remove(path)
            return None
        finally:
            os.close(file)
        return value


class Past:
    """Know under which keys it was kept what stood at a path before: `last.ckpt` is written over and over."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def of(self, path: str) -> List[str]:
        """Return the keys of what was seen at a path, the last one first."""
        keys = (self._store.find(_path_key(path)) or {}).get("past")
        return [key for key in keys if isinstance(key, str) and key.isalnum()] if isinstance(keys, list) else []

    def add(self, path: str, key: str) -> None:
        """Note what is at a path now."""
        before = [each for each in self.of(path) if each != key]
        self._store.keep(_path_key(path), {"past": [key, *before][:_MOST_PAST]}, [])


def _path_key(path: str) -> str:
    return key_of(path, (), deep=True)


def _part(file: int, part: int) -> object:
    """Read one of the two texts of a kept file.

    Raises:
        DamagedError, OSError, ValueError, RecursionError, struct.error, zlib.error: when it is not what was kept.
    """
    import json

    state = os.fstat(file)
    first = os.pread(file, _AT_ONCE, 0)
    magic, *sums = _HEAD.unpack(first[: _HEAD.size])
    size, crc = sums[2 * part : 2 * part + 2]
    start = _HEAD.size + part * sums[0]
    regular = stat.S_ISREG(state.st_mode) and state.st_size == _HEAD.size + sums[0] + sums[2]
    if magic != _MAGIC or not regular or size > _MAX_PACKED:
        raise DamagedError
    packed = first[start : start + size]
    if len(packed) < size:
        packed += os.pread(file, size - len(packed), start + len(packed))
    if len(packed) != size or zlib.crc32(packed) != crc:
        raise DamagedError
    unpacker = zlib.decompressobj()
    text = unpacker.decompress(packed, _MAX_TEXT)
    if not unpacker.eof:
        raise DamagedError
    # Nothing that is kept is NaN or infinite, and neither is an integer.
    value: object = json.loads(text, parse_constant=int)
    return value


def _are_marks(columns: List[Any]) -> bool:
    """Tell whether these are columns of marks: who may write into the folder may have left anything there."""
    if len(columns) != len(_KINDS) or not all(isinstance(column, list) for column in columns):
        return False
    if not all(kinds.issuperset(map(type, column)) for kinds, column in zip(_KINDS, columns)):
        return False
    sizes = [size for column in columns[4:6] for each in column for size in each]
    return all(type(size) is int and 0 <= size < _MOST for size in [*sizes, *columns[6], *columns[7], *columns[11]])


def open_store(log: Callable[[str], None]) -> Store:
    """Open the user's cache; where it can't be used, say why and return one that keeps nothing."""
    home = os.environ.get("HOME", "")
    path = home if home.startswith("/") else os.path.expanduser("~")
    try:
        for part in (".cache", "remoterun", "digests"):
            path = os.path.join(path, part)
            if not os.path.isdir(path):
                os.mkdir(path, 0o700)
        state = os.lstat(path)
    except OSError as error:
        return _without(log, "%s can't be made (%s)" % (path, error.strerror))
    # A folder that others may write into could be filled with what we would believe.
    if state.st_mode & 0o170077 != 0o040000 or state.st_uid != os.geteuid():
        return _without(log, "%s is not this user's alone" % path)
    if not os.access(path, os.W_OK | os.X_OK):
        return _without(log, "%s can't be written to" % path)
    return Store(path)


def _without(log: Callable[[str], None], reason: str) -> Store:
    log("nothing is remembered from audit to audit, so unchanged checkpoints are read again: %s" % reason)
    return Store(None)


def _put(path: str, data: bytes) -> bool:
    """Write a file under a name of its own, then give it its right one; False where that can't be."""
    temporary = "%s.%d.tmp" % (path, os.getpid())
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(data)
        os.rename(temporary, path)
    except OSError:
        _remove(temporary)
        return False
    return True


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
