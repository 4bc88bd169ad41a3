"""The walk through folders: what lies where, links and loops followed once, and no further than is sensible."""

from __future__ import annotations

import collections
import errno
import os
import stat
from typing import Deque, Dict, Iterator, List, Set, Tuple

from ..model import Found, clean_text
from ..readers.folder import Listing, Seen
from ..records import Record
from ..rules.rule import BAD
from ..source import identity
from .names import is_checkpoint
from .unit import Skipped

# Enough for any folder of checkpoints; a link to / must not send the audit through the whole machine.
_MOST_ENTRIES = 200_000
# Levels below a folder that may belong to a checkpoint which the folder is.
INNER = 2
# What went while the walk went on, and links that lead nowhere.
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE)


class Link(Record):
    """Name a symbolic link, what it says, and whether anything is there."""

    relative: str
    target: str
    exists: bool


class Place:
    """Hold what one folder has; `whole` tells that nothing of it was left out."""

    def __init__(self, relative: str, level: int) -> None:
        self.relative = relative
        self.level = level
        self.files: Dict[str, Seen] = {}
        self.folders: Dict[str, Place] = {}
        self.mtime_ns = 0
        self.whole = False


class Walk:
    """Walk through a folder, `depth` levels of folders deep and `INNER` more for what belongs to those."""

    def __init__(self, root: str, depth: int) -> None:
        self._root = root
        self._depth = depth
        self._seen: Set[Tuple[int, int]] = set()
        self._waiting: List[Place] = []
        self._linked: Deque[Tuple[Place, str]] = collections.deque()
        self.top = Place("", 0)
        self.skipped: List[Skipped] = []
        # By the folder below the root.
        self.found: Dict[str, Found] = {}
        self.links: List[Link] = []
        self.entries = 0

    def run(self) -> None:
        """Look at everything once."""
        self._waiting.append(self.top)
        # Links come last, so that what they lead to has its own name where it has one.
        while self._waiting or self._linked:
            if self._waiting:
                self._list(self._waiting.pop())
            else:
                self._follow(*self._linked.popleft())

    def places(self) -> Iterator[Place]:
        """Yield the folders that may hold checkpoints, outer ones first."""
        waiting = [self.top]
        while waiting:
            place = waiting.pop()
            if place.level <= self._depth:
                yield place
                waiting += reversed(list(place.folders.values()))

    def listing(self, place: Place, taken: Set[str], levels: int = INNER) -> Listing:
        """List a folder and what lies so many levels below it, but for the files that are taken."""
        start = os.path.join(place.relative, "")
        files = {name: seen for name, seen in place.files.items() if start + name not in taken}
        inner = place.folders.items() if levels else ()
        folders = {name: self.listing(each, taken, levels - 1) for name, each in inner}
        return Listing(os.path.join(self._root, place.relative) if place.relative else self._root, files, folders)

    def _list(self, place: Place) -> None:
        path = os.path.join(self._root, place.relative)
        try:
            status = os.stat(path)
            names = [] if identity(status) in self._seen else sorted(os.listdir(path))
        except OSError as error:
            place.whole = os.path.basename(path) == "lost+found"
            self._miss(place, path, error, "the folder")
            return
        place.mtime_ns = status.st_mtime_ns
        self._seen.add(identity(status))
        for name in names:
            self.entries += 1
            if self.entries > _MOST_ENTRIES:
                self._waiting.clear()
                self._linked.clear()
                self.skipped.append(Skipped(path, "more than %d files and folders: stopped looking" % _MOST_ENTRIES))
                return
            if os.path.islink(os.path.join(path, name)):
                self._linked.append((place, name))
            else:
                self._take(place, name, link=False)
        place.whole = True

    def _follow(self, place: Place, name: str) -> None:
        relative = os.path.join(place.relative, name)
        try:
            target = os.readlink(os.path.join(self._root, relative))
        except OSError:  # it is gone, or no link any more
            target = ""
        link = Link(relative, target, exists=self._take(place, name, link=True))
        if target:
            self.links.append(link)

    def _take(self, place: Place, name: str, *, link: bool) -> bool:
        """Note a file or folder, and tell whether it is there, as it may be where it can't be looked at."""
        relative = os.path.join(place.relative, name)
        path = os.path.join(self._root, relative)
        try:
            status = os.stat(path)
        except OSError as error:
            # In a folder that may be listed and not entered, nothing tells what a name is of.
            hidden = not link and isinstance(error, PermissionError) and place.relative not in self.found
            if is_checkpoint(name) or hidden:
                self._miss(place, path, error, clean_text(name))
            return error.errno not in _GONE
        if stat.S_ISDIR(status.st_mode):
            if place.level < self._depth + INNER and not (link and identity(status) in self._seen):
                place.folders[name] = Place(relative, place.level + 1)
                self._waiting.append(place.folders[name])
        elif stat.S_ISREG(status.st_mode):
            place.files[name] = Seen(name, status.st_size, status.st_mtime_ns, identity(status), link)
        elif is_checkpoint(name):
            self.skipped.append(Skipped(path, "no regular file"))
        return True

    def _miss(self, place: Place, path: str, error: OSError, what: str) -> None:
        """Note what can't be looked at, once for each folder as a finding."""
        reason = error.strerror or str(error)
        self.skipped.append(Skipped(path, reason))
        if not place.whole and error.errno not in _GONE and "/." not in "/" + place.relative:
            severity = BAD if error.errno == errno.EIO else None
            found = Found("CK030", "%s was not checked: %s" % (what, reason), None, severity)
            self.found.setdefault(place.relative, found)
