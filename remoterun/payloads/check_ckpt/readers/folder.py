"""The files of one checkpoint that has many, and what a family of such checkpoints has to offer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Iterator, List, NamedTuple, Tuple

from ..source import Source

if TYPE_CHECKING:
    from typing import Protocol

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


class Seen(NamedTuple):
    """Remember a regular file: its path below the checkpoint's folder, its size and when it was last written."""

    relative: str
    size: int
    mtime_ns: int


class Claim(NamedTuple):
    """Name the files that make up one checkpoint, relative to the listed folder.

    `name` is empty when the folder itself is the checkpoint, otherwise what tells it from others in the same folder
    (``000100``).
    """

    name: str
    files: Tuple[str, ...]


class Listing(NamedTuple):
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

    def number(self, name: str) -> int:
        """Return the number by which regions name a file."""
        return self._numbers[name]

    def open(self, name: str) -> Source:
        """Open one of the files; the caller closes it.

        Raises:
            OSError, NotRegularError: when it can't be read any more, or never could.
        """
        return Source("%s/%s" % (self.path, name))
