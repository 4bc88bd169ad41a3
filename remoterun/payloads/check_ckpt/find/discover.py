"""What an audit of a file or folder is about: checkpoints, what was passed over, and what points to checkpoints."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, List, Tuple

from ..readers.folder import Seen
from ..records import Record
from ..source import identity
from .unit import Skipped, Unit

if TYPE_CHECKING:
    from ..model import Found
    from .pointers import Pointer


class Discovery(Record):
    """Hold what a search found: checkpoints in no order, what was passed over, what points to checkpoints.

    `found` has, with the folder below the root, what is no matter of one checkpoint.
    """

    units: List[Unit]
    skipped: List[Skipped]
    entries: int
    pointers: List[Pointer]
    found: List[Tuple[str, Found]]


def discover(root: str, depth: int) -> Discovery:
    """Search a folder, `depth` levels of folders deep; a root that is a file is a checkpoint whatever its name.

    Raises:
        OSError: when the root can't be looked at.
    """
    status = os.stat(root)
    if not stat.S_ISDIR(status.st_mode):
        if not stat.S_ISREG(status.st_mode):
            return Discovery([], [Skipped(root, "no regular file")], 1, [], [])
        name = os.path.basename(os.path.abspath(root))
        folder, file = os.path.split(root)
        seen = Seen(file, status.st_size, status.st_mtime_ns, identity(status))
        return Discovery([Unit(root, name, name, folder, {file: seen})], [], 1, [], [])
    from .search import search

    return search(root, depth)
