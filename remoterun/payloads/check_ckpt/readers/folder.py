"""The files of one checkpoint that has many, and what a family of such checkpoints has to offer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Tuple

from ..records import Record
from ..source import Source, identity

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Optional, Protocol, Sequence, Type

    from ..model import Checkpoint

    class Family(Protocol):
        """Be a module that knows one layout of folders."""

        NAME: str

        def claim(self, listing: Listing) -> List[Claim]:
            """Name the checkpoints of this family that a folder holds or is; no file is opened but small text ones."""
            ...

        def read(self, folder: Folder) -> Checkpoint:
            """Read a claimed checkpoint; regions name files by `Folder.number`.

            Raises:
                OSError: when the storage can't give it back.
            """
            ...

    _Sequence = Sequence[Source]
else:
    _Sequence = object

# Files of one checkpoint that are kept open at a time, however many it has.
_MOST_OPEN = 64


class ChangedError(Exception):
    """Say that a file did not hold still since it was first opened, and what happened to it."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__("%s %s" % (path, what))
        self.path = path
        self.what = what


class Seen(Record):
    """Remember a regular file: its path below the checkpoint's folder, its size and when it was last written.

    `identity` tells it from other files whatever they are called; `link` says that a symbolic link led to it.
    """

    relative: str
    size: int
    mtime_ns: int
    identity: Tuple[int, int] = (0, 0)
    link: bool = False


class Claim(Record):
    """Name the files that make up one checkpoint, relative to the listed folder.

    `name` is empty when the folder itself is the checkpoint, otherwise what tells it from others in the same folder
    (``000100``).
    """

    name: str
    files: Tuple[str, ...]


class Listing(Record):
    """Hold what one folder has: regular files by name, and, by name, the listings of its folders, two levels deep."""

    path: str
    files: Dict[str, Seen]
    folders: Dict[str, "Listing"]

    def walk(self, prefix: str = "") -> Iterator[Tuple[str, Seen]]:
        """Yield every file with its path below this folder."""
        for name, seen in self.files.items():
            yield prefix + name, seen
        for name, inner in self.folders.items():
            yield from inner.walk(prefix + name + "/")


class Folder:
    """Give a family's reader the files of one checkpoint; `files` by their path below `path`, in file-number order."""

    def __init__(self, path: str, files: Dict[str, Seen]) -> None:
        self.path = path
        self.files = files
        self._numbers = {name: number for number, name in enumerate(files)}
        self.opened: Dict[str, os.stat_result] = {}

    def number(self, name: str) -> int:
        """Return the number by which regions name a file."""
        return self._numbers[name]

    def locate(self, name: str) -> str:
        """Return the path of one of the files."""
        return os.path.join(self.path, name)

    def open(self, name: str) -> Source:
        """Open one of the files; the caller closes it.

        Raises:
            OSError, NotRegularError: when it can't be read any more, or never could.
            ChangedError: when it was opened before and is another one now.
        """
        return self._first(Source(self.locate(name)))

    def _first(self, source: Source) -> Source:
        """Hold a file against what it was when it was first opened."""
        what = _difference(self.opened.setdefault(source.path, source.seen), source.seen)
        if what:
            source.close()
            raise ChangedError(source.path, what)
        return source

    def inner(self, name: str) -> Folder:
        """Return what lies in one of its folders as a checkpoint of its own, but for its files' numbers."""
        start = name + "/"
        inside = [path for path in self.files if path.startswith(start)]
        inner = Folder(self.locate(name), {path[len(start) :]: self.files[path] for path in inside})
        inner._numbers = {path[len(start) :]: self._numbers[path] for path in inside}
        inner.opened = self.opened
        return inner

    def listing(self) -> Listing:
        """List its files as those of a folder."""
        top = Listing(self.path, {}, {})
        for path, seen in self.files.items():
            at = top
            *folders, name = path.split("/")
            for folder in folders:
                at = at.folders.setdefault(folder, Listing("%s/%s" % (at.path, folder), {}, {}))
            at.files[name] = seen
        return top

    def sources(self) -> Sources:
        """Return all files for reading by their numbers."""
        return Sources(self)


class _Pooled(Source):
    # What it is when it could not be opened.
    fd = -1

    def __del__(self) -> None:
        self.close()


class Sources(_Sequence):
    """Open the files of a checkpoint when they are read, and keep only some of them open."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._names = list(folder.files)
        self._open: Dict[int, Source] = {}

    def __enter__(self) -> Sources:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._open.clear()

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, number: Any) -> Any:
        source = self._open.pop(number, None)
        if source is None:
            source = self._folder._first(_Pooled(self._folder.locate(self._names[number])))
        # The one that was used last stands last. One that is still read is closed when its reader lets go of it.
        self._open[number] = source
        if len(self._open) > _MOST_OPEN:
            del self._open[next(iter(self._open))]
        return source

    def hold(self) -> None:
        """Look at all files again.

        Raises:
            ChangedError: when one did not hold still since it was first opened.
        """
        held = {source.path: source for source in self._open.values()}
        for path, first in self._folder.opened.items():
            what = held[path].changes() if path in held else change(path, first)
            if what:
                raise ChangedError(path, what)


def change(path: str, first: os.stat_result) -> str:
    """Say what happened to a file since `first` was seen of it, nothing when it held still."""
    try:
        return _difference(first, os.stat(path))
    except FileNotFoundError:
        return "was deleted or moved away"


def _difference(before: os.stat_result, now: os.stat_result) -> str:
    if identity(before) != identity(now):
        return "was replaced"
    if before.st_size != now.st_size:
        return "grew" if now.st_size > before.st_size else "shrank"
    return "was written to" if before.st_mtime_ns != now.st_mtime_ns else ""


def escapes(name: str) -> bool:
    """Tell whether a path that a file names leads out of the folder that it is in."""
    return name.startswith("/") or ".." in name.split("/") or "\0" in name
