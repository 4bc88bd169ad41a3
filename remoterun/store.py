"""Files of this user's: what they wrote is read here, and what is costly to compute again is kept between runs.

Everything kept is signed with the key, so that nobody who could not read it as well can have put anything there.
Where a folder cannot be written, nothing is kept, and everything is computed anew.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import pickle
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Self, TypeVar

from remoterun.errors import ConfigError, Problem, show
from remoterun.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")
KEY_NAME: Final = "key"
_KEY_SIZE: Final = 32
_MOST_FILES: Final = 64
# No name is longer than 255 bytes, and a character may take four of them.
_KEPT_CHARS: Final = 50
MOST_BYTES: Final = 8 << 20
"""No file that a user writes is larger."""


def read_bytes(path: Path, *, most: int = MOST_BYTES) -> bytes:
    """Read a file of bounded size.

    Raises:
        ConfigError: it cannot be read or is too large.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(most + 1)
    except OSError as error:
        raise ConfigError(Problem(file=str(path), message=f"cannot be read: {error.strerror or error}")) from error
    except ValueError as error:  # a NUL in the path
        raise ConfigError(Problem(file=show(str(path)), message=f"cannot be read: {error}")) from error
    if len(data) > most:
        raise ConfigError(Problem(file=str(path), message=f"is larger than {most} bytes"))
    return data


class Unfinished:
    """Hold a file that is written beside the place it is for, and takes that whole or not at all.

    It has no name until it is whole, where the file system can do that, so that nothing is left of a process that is
    killed. Use as a context manager; without `put`, what stood there stays.
    """

    def __init__(self, place: Path, mode: int) -> None:
        """Open it in the folder of its place.

        `mode` are its permissions, as far as the umask allows.

        Raises:
            OSError: nothing can be written there.
        """
        self._place = place
        # Not the number of this process: in containers these are the same few again and again.
        self._beside = place.with_name(f".{place.name[:_KEPT_CHARS]}.{os.urandom(6).hex()}.tmp")
        flags = os.O_WRONLY | os.O_CLOEXEC
        try:
            # Its name comes by way of /proc.
            Path("/proc/self/fd").stat()
            self.descriptor = os.open(place.parent, flags | os.O_TMPFILE, mode)
        except (OSError, AttributeError):
            # Not every file system has files without a name, and only Linux has them at all.
            self.descriptor = os.open(self._beside, flags | os.O_CREAT | os.O_EXCL, mode)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)
        with suppress(OSError):
            self._beside.unlink()

    def writer(self) -> BinaryIO:
        """Return a file object that writes to it."""
        return os.fdopen(self.descriptor, "wb", closefd=False)

    def put(self, *, lasting: bool = True) -> None:
        """Let it take its place; `lasting` also where the machine goes down right after.

        Raises:
            OSError: it can't; what stood there stays.
        """
        if lasting:
            os.fsync(self.descriptor)
        self._name()
        self._beside.replace(self._place)

    def put_first(self) -> bool:
        """Let it take its place, unless something stands there; tell whether it did.

        Raises:
            OSError: it can't, and nothing stands there.
        """
        os.fsync(self.descriptor)
        self._name()
        try:
            os.link(self._beside, self._place)
        except FileExistsError:
            return False
        except OSError:
            # Not every file system has files with two names.
            self._beside.replace(self._place)
        return True

    def _name(self) -> None:
        """Give it a name beside its place, if it has none."""
        if not self._beside.exists():
            # A link to what the descriptor stands for; any `src_dir_fd` makes Python follow that.
            source = f"/proc/self/fd/{self.descriptor}"
            os.link(source, self._beside, src_dir_fd=self.descriptor, follow_symlinks=True)


def make_private(folder: Path) -> None:
    """Make a folder that is nobody else's, with those above it that are not there: no umask makes one writable.

    Raises:
        OSError: it can't be made.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileNotFoundError:
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:
        if not folder.is_dir():
            raise


def place_of(path: str | Path) -> tuple[object, ...]:
    """Name the file that a path leads to, through whatever links: two paths of one file have one name."""
    try:
        real = os.path.realpath(path)
    except ValueError:  # a NUL in the path, which leads nowhere
        return (str(path),)
    folder, name = os.path.split(real)
    for known, rest in ((real, ()), (folder, (name,))):
        with suppress(OSError, ValueError):
            found = os.stat(known)  # noqa: PTH116  # a path that cannot be is none to pathlib
            return found.st_dev, found.st_ino, *rest
    return (real,)


def key_for(purpose: str) -> bytes:
    """Derive a key for one purpose: whoever learns it can do nothing with the others."""
    return hmac.digest(_secret()[0], purpose.encode("utf-8", "surrogateescape"), "sha256")


def sign(purpose: str, data: bytes) -> bytes:
    """Put a signature of this user in front of some bytes."""
    return hmac.digest(key_for(purpose), data, "sha256") + data


def signed(purpose: str, data: bytes) -> bytes | None:
    """Return bytes without their signature, None when this user did not sign them for this purpose."""
    body = data[_KEY_SIZE:]
    return body if hmac.compare_digest(data[:_KEY_SIZE], hmac.digest(key_for(purpose), body, "sha256")) else None


def remember(kind: str, inputs: bytes, build: Callable[[], _T]) -> _T:
    """Return what `build` returns, from an earlier run if it was built from the same inputs by the same code.

    Args:
        kind: what is built, such as "inventory".
        inputs: everything that the result depends on.
        build: makes the result; what it raises is passed on and never kept.
    """
    if not _secret()[1]:
        return build()
    where = hashlib.sha256(b"\0".join((kind.encode(), _code_state(), inputs))).hexdigest()
    path = _cache_folder() / where
    with suppress(OSError):
        data = signed("remember", path.read_bytes())
        if data is not None:
            value: _T = pickle.loads(data)  # noqa: S301  # signed with this user's own key
            return value
    value = build()
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    with suppress(OSError):
        _write_private(path, sign("remember", data))
        _prune(path.parent)
    return value


def _cache_folder() -> Path:
    import platformdirs

    return platformdirs.user_cache_path("remoterun") / "remembered"


@lru_cache(maxsize=1)
def _code_state() -> bytes:
    """Say which code builds the results: version, interpreter, and the state of every module of this package."""
    parts = [VERSION, str(sys.hexversion)]
    for folder, _, names in os.walk(Path(__file__).parent):
        for name in sorted(names):
            if name.endswith(".py"):
                state = os.stat(os.path.join(folder, name))  # noqa: PTH116, PTH118  # at every start: pathlib costs ten times as much
                parts.append(f"{name} {state.st_size} {state.st_mtime_ns}")
    return "\n".join(parts).encode("utf-8", "surrogateescape")


@lru_cache(maxsize=1)
def _secret() -> tuple[bytes, bool]:
    """Return this user's secret, made on first use or where it is no longer whole, and whether it lasts."""
    import platformdirs

    path = platformdirs.user_state_path("remoterun") / KEY_NAME
    with suppress(OSError):
        secret = _kept_secret(path)
        if secret is None or len(secret) != _KEY_SIZE:
            # Of two processes that make the first one at once, one is first, and its key is the other's as well. One
            # that was cut, as where the machine went down, is worth nothing, and would be so for ever.
            _write_private(path, os.urandom(_KEY_SIZE), first=secret is None)
            secret = path.read_bytes()
        if len(secret) == _KEY_SIZE:
            return secret, True
    return os.urandom(_KEY_SIZE), False


def _kept_secret(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _write_private(path: Path, data: bytes, *, first: bool = False) -> None:
    """Write a private file whole or not at all; of two processes that do so at once, the last wins, or the first."""
    make_private(path.parent)
    with Unfinished(path, 0o600) as unfinished:
        with unfinished.writer() as file:
            file.write(data)
        if first:
            unfinished.put_first()
        else:
            unfinished.put(lasting=False)


def _prune(folder: Path) -> None:
    """Keep the newest files only."""
    with os.scandir(folder) as entries:
        files = sorted((entry.stat().st_mtime, entry.path) for entry in entries)
    for _, path in files[:-_MOST_FILES]:
        Path(path).unlink(missing_ok=True)
