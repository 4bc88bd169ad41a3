"""Which files below a folder make up checkpoints, and what to call them."""

from __future__ import annotations

import os
from collections import Counter
from typing import Dict, Iterator, List, Optional, Sequence, Set, Tuple

from ..readers import families
from ..readers.archive import LOCAL
from ..readers.sniff import sniff
from ..source import NotRegularError, Source
from .discover import Discovery
from .names import TEXTS, is_checkpoint, is_companion, is_temporary, reason_to_pass_over
from .pointers import find_pointers
from .surroundings import Surroundings
from .unit import Skipped, Unit
from .walk import INNER, Place, Walk

# How torch saves: a zip with a pickle at its front, or, of a program, with a padded storage; before torch 1.6, a pickle
# of this number at first.
_PICKLE, _STORAGE, _MAGIC = b"/data.pkl", b"/data/0FB", b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
_FRONT, _END = 512, 4096
# The folder of storages, in the directory at the end.
_FOLDER, _DIRECTORY = b"/data/", 1 << 16
# What Stable-Baselines3 keeps in each of its archives, which lists it at its end.
_BASELINES = b"_stable_baselines3_version"
# Files of other names that are opened to see whether torch saved them.
_MOST_OPENED = 500


def search(root: str, depth: int) -> Discovery:
    """Search a folder, `depth` levels of folders deep.

    Raises:
        OSError: when it can't be looked at.
    """
    walk = Walk(root, depth)
    walk.run()
    places = list(walk.places())
    found = _Search(root, walk)
    units = _named(root, _distinct(list(found.units(places))))
    around = Surroundings(places, units)
    pointers = find_pointers(root, places, walk.links)
    skipped = [*walk.skipped, *found.passed_over()]
    return Discovery(around.judged(), skipped, walk.entries, pointers, [*walk.found.items(), *around.left_over(root)])


class _Search:
    """Share out the files among checkpoints: what a family claims first, what is left by its name."""

    def __init__(self, root: str, walk: Walk) -> None:
        self._root = root
        self._walk = walk
        self._taken: Set[str] = set()
        self._opened = self._archives = 0
        self._passed: Dict[str, List[str]] = {}

    def units(self, places: Sequence[Place]) -> Iterator[Unit]:
        """Yield every checkpoint, those of outer folders first."""
        for place in places:
            if _is_whole(place):
                yield from self._claimed(place)
            yield from self._single(place)

    def _claimed(self, place: Place) -> Iterator[Unit]:
        named = False
        for name in families.that_may_claim([*place.files, *place.folders]):
            for claim in families.family(name).claim(self._walk.listing(place, self._taken)):
                start = os.path.join(place.relative, "")
                self._taken.update(start + file for file in claim.files)
                # Only one of them is called like the folder.
                called = claim.name or (claim.files[0] if named else "")
                named = named or not called
                yield self._unit(place, name, called, claim.files)

    def _unit(self, place: Place, family: str, name: str, names: Sequence[str]) -> Unit:
        folder = os.path.join(self._root, place.relative) if place.relative else self._root
        relative = os.path.join(place.relative, name) if name else place.relative
        places = {os.path.dirname(file): _at(place, os.path.dirname(file)) for file in names}
        files = {
            file: places[os.path.dirname(file)].files[os.path.basename(file)]._replace(relative=file)
            for file in sorted(names)
        }
        return Unit(
            folder,
            relative,
            "" if name else relative,
            folder,
            files,
            family,
            temporary=_is_temporary(relative),
            folders=tuple((os.path.join(folder, inner), each.mtime_ns) for inner, each in sorted(places.items())),
        )

    def _single(self, place: Place) -> Iterator[Unit]:
        for name, seen in place.files.items():
            relative = os.path.join(place.relative, name)
            path = os.path.join(self._root, relative)
            if relative in self._taken or not (is_checkpoint(name) or self._is_save(path, name)):
                continue
            if _is_text(path, name):
                self._passed.setdefault("a text beside weights, as SpeechBrain keeps it", []).append(path)
                continue
            temporary = _is_temporary(relative)
            yield Unit(path, relative, relative, os.path.dirname(path), {name: seen}, temporary=temporary)

    def _is_save(self, path: str, name: str) -> bool:
        """Tell whether a file without a checkpoint's extension is one: ``step_100.tmp``, ``checkpoint.tar``."""
        if is_temporary(name):
            return (_front(path) or b"").startswith(LOCAL)
        if name.lower().endswith(".zip"):
            # Of all the archives that there are, those of one library.
            self._archives += 1
            return self._archives <= _MOST_OPENED and _BASELINES in (_part(path, -_END, _END) or b"")
        reason = reason_to_pass_over(name)
        if not reason:
            return False
        self._opened += 1
        front = _front(path) if self._opened <= _MOST_OPENED else b""
        if front is None:
            reason = "it can't be read"
        elif self._opened > _MOST_OPENED:
            reason = "not looked into, after %d files of such names" % _MOST_OPENED
        elif _is_torchs(front):
            if front.startswith(_MAGIC) or _FOLDER in (_part(path, -_DIRECTORY, _DIRECTORY) or b""):
                return True
            reason = "torch.save wrote it, and no tensor is in it"
        self._passed.setdefault(reason, []).append(path)
        return False

    def passed_over(self) -> List[Skipped]:
        """Return what may hold weights and was not looked into, the first of each kind."""
        told = [(paths[0], reason, len(paths) - 1) for reason, paths in self._passed.items()]
        return [Skipped(path, reason + (" (and %d more)" % more if more else "")) for path, reason, more in told]


def _is_whole(place: Place, levels: int = INNER) -> bool:
    """Tell whether all that a checkpoint of several files could have here was looked at."""
    return place.whole and (not levels or all(_is_whole(each, levels - 1) for each in place.folders.values()))


def _at(place: Place, inner: str) -> Place:
    for part in inner.split("/") if inner else ():
        place = place.folders[part]
    return place


def _is_torchs(front: bytes) -> bool:
    return front.startswith(_MAGIC) or (front.startswith(LOCAL) and (_PICKLE in front or _STORAGE in front))


def _is_text(path: str, name: str) -> bool:
    kind = sniff(_front(path) or b"") if TEXTS.fullmatch(name) else None
    return kind is not None and kind.format == "text"


def _is_temporary(relative: str) -> bool:
    return any(map(is_temporary, relative.split(os.sep)))


def _front(path: str) -> Optional[bytes]:
    """Read what a file begins with; None where that can't be done."""
    return _part(path, 0, _FRONT)


def _part(path: str, start: int, size: int) -> Optional[bytes]:
    """Read a part of a file, counted from its end where it begins below 0."""
    try:
        with Source(path) as source:
            return source.read(start if start >= 0 else max(0, source.size + start), size)
    except (OSError, NotRegularError):
        return None


def _distinct(units: List[Unit]) -> List[Unit]:
    """Leave out what consists of files that others have, too: links, and further names of the same files."""
    known: Set[Tuple[int, int]] = set()
    distinct = []
    for each in sorted(units, key=lambda unit: any(seen.link for seen in unit.files.values())):
        files = {seen.identity for seen in each.files.values()}
        if not files <= known:
            distinct.append(each)
        known |= files
    return distinct


# --- names ----------------------------------------------------------------------------------------------------------


def _named(root: str, units: List[Unit]) -> List[Unit]:
    """Call a checkpoint by its folder's name, where it is the only one there and the name is no other's."""
    members = Counter(each.folder for each in units)
    # What lies in folders goes with what lies beside them, too: the states of random numbers beside DeepSpeed's folder.
    members.update({folder for each in units for folder in _above(each.path if each.family else each.folder)})
    marked = [each._replace(companion=_goes_with_others(each, members)) for each in units]
    leading = Counter(each.folder for each in marked if not each.companion)
    folders = [_folder_of(each, leading) for each in marked]
    alone = Counter(map(os.path.basename, folders))
    return [each._replace(name=_name(root, each, folder, alone)) for each, folder in zip(marked, folders)]


def _above(path: str) -> Iterator[str]:
    """Yield the folders that a folder lies in, the next two."""
    for _ in range(INNER):
        path = os.path.dirname(path)
        yield path


def _goes_with_others(each: Unit, members: Dict[str, int]) -> bool:
    return not each.family and members[each.folder] > 1 and is_companion(os.path.basename(each.relative))


def _folder_of(each: Unit, leading: Dict[str, int]) -> str:
    """Return the folder, below the root, that a checkpoint may be called by."""
    if each.family:
        return each.name
    return os.path.dirname(each.relative) if not each.companion and leading[each.folder] == 1 else ""


def _name(root: str, each: Unit, folder: str, alone: Dict[str, int]) -> str:
    if not each.relative:
        return os.path.basename(os.path.abspath(root))
    if not folder:
        return each.relative
    name = os.path.basename(folder)
    return name if alone[name] == 1 else folder
