"""What lies around a checkpoint and tells something of it: markers, siblings, left-over files."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from typing import TYPE_CHECKING, Dict, FrozenSet, Iterator, List, Optional, Sequence, Tuple

from ..model import Found, clean_text, count_of
from ..patterns import pattern
from ..rules.rule import INFO, SUSPECT
from ..series.naming import place_of
from .names import is_temporary, step_in_name
from .unit import age_of

if TYPE_CHECKING:
    from .unit import Unit
    from .walk import Place

_UNFINISHED = "-unfinished"
# What trainers put into a checkpoint when all of it is there.
_SUCCESS = frozenset(
    ("_SUCCESS", "STABLE", "commit_success.txt", ".complete", "_COMPLETE", "COMPLETE", "DONE", ".done", "_COMMITTED")
)
# What each rank puts there by itself.
_RANK = pattern(r"(?<![a-z])rank[-_]?\d{1,6}(?!\d)", re.IGNORECASE)
# Others that must agree before a checkpoint is held against them.
_MARKED, _SIZED = 2, 3
# A save that ended longer ago leaves nothing temporary that somebody waits for.
_LEFT_OVER_S = 86400.0


class Surroundings:
    """Know what lies in the folders of a search, and judge its checkpoints by that."""

    def __init__(self, places: Sequence[Place], units: Sequence[Unit]) -> None:
        self._places = {place.relative: place for place in places}
        self._units = units
        sizes: Dict[str, List[int]] = {}
        self._marks: Dict[str, Dict[str, FrozenSet[str]]] = {}
        for unit in units:
            if unit.temporary or unit.companion:
                continue
            sizes.setdefault(place_of(unit.relative).series, []).append(unit.size)
            step = self._step_folder(unit.relative)
            if step is not None:
                beside = self._marks.setdefault(os.path.dirname(step), {})
                marks = _SUCCESS.intersection(self._places[step].files)
                rank = os.path.basename(unit.relative)
                ranks = {rank} if not unit.family and _RANK.search(rank) else set()
                beside[step] = beside.get(step, marks) | ranks
        self._usual = {series: sorted(each)[len(each) // 2] for series, each in sizes.items() if len(each) > _SIZED}
        self._counts = {
            parent: Counter(mark for marks in beside.values() for mark in marks)
            for parent, beside in self._marks.items()
        }

    def judged(self) -> List[Unit]:
        """Return the checkpoints with what was found."""
        return [unit._replace(found=(*unit.found, *self._judge(unit))) for unit in self._units]

    def _judge(self, unit: Unit) -> Iterator[Found]:
        if unit.temporary:
            if _is_old(unit.mtime_ns):
                told = _sized(unit.size), age_of(unit.mtime_ns)
                yield Found("CK067", "left over from a save: %s, last written %s ago" % told)
            return
        marker = self._unfinished(unit.relative)
        if marker:
            message = "its save never ended: %s is still there" % clean_text(marker)
            yield Found("CK066", message, {"marker": clean_text(marker, 1000)})
        if not unit.companion:
            yield from self._without_success(unit)
            yield from self._small(unit)

    def _unfinished(self, relative: str) -> str:
        """Return the marker beside a checkpoint, or beside a folder that it is in, that says it is not finished."""
        while relative:
            parent, name = os.path.split(relative)
            place = self._places.get(parent)
            for stem in (name, os.path.splitext(name)[0]):
                marker = stem + _UNFINISHED
                if place is not None and (marker in place.files or marker in place.folders):
                    return os.path.join(parent, marker)
            relative = parent
        return ""

    def _without_success(self, unit: Unit) -> Iterator[Found]:
        step = self._step_folder(unit.relative)
        if step is None:
            return
        parent = os.path.dirname(step)
        others = len(self._marks[parent]) - 1
        if others >= _MARKED:
            counts = self._counts[parent]
            missing = sorted(mark for mark in counts.keys() - self._marks[parent][step] if counts[mark] == others)
            if missing:
                message = "%s is not there, which all %s beside it have: the save may not have ended"
                told = missing[0], count_of(others, "checkpoint")
                yield Found("CK066", message % told, {"marker": missing[0]}, SUSPECT)

    def _step_folder(self, relative: str) -> Optional[str]:
        """Return the innermost folder on the way to a checkpoint that names a step; the checkpoint itself may be it."""
        while relative:
            if relative in self._places and step_in_name(os.path.basename(relative)) is not None:
                return relative
            relative = os.path.dirname(relative)
        return None

    def _small(self, unit: Unit) -> Iterator[Found]:
        usual = self._usual.get(place_of(unit.relative).series, 0)
        if 2 * unit.size < usual:
            severity = SUSPECT if 20 * unit.size < usual else INFO
            message = "it has %s, others of its series about %s" % (_sized(unit.size), _sized(usual))
            yield Found("CK068", message, None, severity, evidence={"bytes": unit.size, "usual": usual})

    def left_over(self, root: str) -> Iterator[Tuple[str, Found]]:
        """Yield, with the folder's path, what temporary files lie beside checkpoints and belong to none."""
        taken = {os.path.normpath(os.path.join(unit.folder, name)) for unit in self._units for name in unit.files}
        beside = {os.path.dirname(path) for path in taken}
        for relative, place in sorted(self._places.items()):
            folder = os.path.normpath(os.path.join(root, relative))
            if folder not in beside:
                continue
            old = [
                place.files[name]
                for name in sorted(filter(is_temporary, place.files))
                if os.path.join(folder, name) not in taken and _is_old(place.files[name].mtime_ns)
            ]
            if old:
                names = [clean_text(seen.relative) for seen in old[:20]]
                size = sum(seen.size for seen in old)
                message = "%s left over from saves, %s: %s" % (count_of(len(old), "file"), _sized(size), names[0])
                yield relative, Found("CK067", message, {"files": names}, evidence={"bytes": size, "count": len(old)})


def _is_old(mtime_ns: int) -> bool:
    return time.time() - mtime_ns / 1e9 > _LEFT_OVER_S


def _sized(size: int) -> str:
    """Write a number of bytes as people do."""
    amount = float(size)
    for unit in ("bytes", "kB", "MB", "GB"):
        if amount < 1000:
            return "%.3g %s" % (amount, unit)
        amount /= 1000
    return "%.4g TB" % amount
