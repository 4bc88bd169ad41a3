"""Files and links that name the checkpoint to resume from, held against what is there; nothing is opened by them."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from ..model import Found, clean_text
from ..patterns import pattern
from ..records import Record
from ..rules.rule import BAD, INFO, SUSPECT
from ..source import NotRegularError, Source
from .names import is_checkpoint, step_in_name

if TYPE_CHECKING:
    from .walk import Link, Place

# Trackers hold the name of a file or folder beside them: DeepSpeed's, mmengine's; or a number: Megatron-LM's, verl's.
_TRACKER = pattern(r"latest|latest_universal|latest\.txt|latest_checkpoint(?:ed_iteration)?\.txt|last_checkpoint")
_LINK = pattern(r"(?:latest|last|newest|current|best)(?:[-_.].*)?", re.DOTALL)
_LONGEST = 4096


class Pointer(Record):
    """Name a pointer and what it says, below the root; `target` is the path it leads to, empty when there is none."""

    relative: str
    path: str
    says: str
    target: str
    escapes: bool = False


def find_pointers(root: str, places: Sequence[Place], links: Sequence[Link]) -> List[Pointer]:
    """Return what points to checkpoints."""
    found = []
    for place in places:
        for name in sorted(filter(_TRACKER.fullmatch, place.files)):
            pointer = _tracker(root, place, name) if place.files[name].size <= _LONGEST else None
            if pointer is not None:
                found.append(pointer)
    for link in links:
        path, name = os.path.join(root, link.relative), os.path.basename(link.relative)
        # What a link that is called like a checkpoint leads to is a checkpoint, unless it is gone.
        if _LINK.fullmatch(name) or (is_checkpoint(name) and not link.exists):
            target = os.path.realpath(path) if link.exists else ""
            found.append(Pointer(link.relative, path, link.target, target))
    return found


def _tracker(root: str, place: Place, name: str) -> Optional[Pointer]:
    relative = os.path.join(place.relative, name)
    path, folder = os.path.join(root, relative), os.path.join(root, place.relative)
    says = _read(path)
    if not says or not says.isprintable() or len(says.split()) != 1:
        return None
    if says.isdigit() and len(says) <= 15:
        names = [each for each in (*place.folders, *place.files) if step_in_name(each) == int(says)]
        return Pointer(relative, path, says, os.path.realpath(os.path.join(folder, names[0])) if names else "")
    # Some write where the file was when they saved it: only its name is good for anything.
    tag = os.path.basename(says) if name == "last_checkpoint" else says
    if tag.startswith("/") or ".." in tag.split("/"):
        return Pointer(relative, path, says, "", escapes=True)
    there = os.path.join(folder, tag)
    return Pointer(relative, path, says, os.path.realpath(there) if os.path.exists(there) else "")


def _read(path: str) -> str:
    try:
        with Source(path) as source:
            return source.read(0, _LONGEST).decode("utf-8").strip()
    except (OSError, NotRegularError, UnicodeDecodeError):
        return ""


def judge_pointers(pointers: Sequence[Pointer], verdicts: Dict[str, str]) -> Iterator[Tuple[Pointer, Found]]:
    """Say which pointers lead nowhere, or to no good; `verdicts` are those of checkpoints by their real paths."""
    # By the paths of checkpoints and of all folders that they are in.
    known: Dict[str, Set[str]] = {}
    for path, verdict in verdicts.items():
        at = path
        while verdict not in known.setdefault(at, set()):
            known[at].add(verdict)
            at = os.path.dirname(at)
    for pointer in pointers:
        shown, says = clean_text(pointer.relative, 200), clean_text(pointer.says, 200)
        data: Dict[str, object] = {"file": clean_text(pointer.path, 1000), "names": says}
        if pointer.escapes:
            yield pointer, Found("CK104", "%s points out of its folder: %s" % (shown, says), data)
        elif not pointer.target and os.path.lexists(pointer.path):
            yield pointer, Found("CK065", "%s names %s, which is not there" % (shown, says), data, BAD)
        else:
            worst = known.get(pointer.target, ())
            if "bad" in worst:
                yield pointer, Found("CK065", "%s names %s, which is damaged" % (shown, says), data, SUSPECT)
            elif "in_progress" in worst:
                yield pointer, Found("CK065", "%s names %s, which is not finished" % (shown, says), data, INFO)
