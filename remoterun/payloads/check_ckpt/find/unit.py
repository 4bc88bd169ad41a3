"""What an audit is of: one checkpoint, be it a file, some files of a folder, or a folder."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Tuple

from ..records import Record
from .names import step_in_name

if TYPE_CHECKING:
    from ..model import Found
    from ..readers.folder import Seen


class Unit(Record):
    """Name a checkpoint, and what stat said of its files.

    `path` is that of its file or folder, `relative` the same below the root, with what tells it from others in the same
    folder; `files` are by their path below `folder`. `family` is empty for a file by itself. `temporary` tells that a
    name says it is not finished; `companion` that it only goes with other files of its folder. `folders` are the times
    at which its folders were last changed when they were listed, `found` is what its surroundings tell.
    """

    path: str
    relative: str
    name: str
    folder: str
    files: Dict[str, Seen]
    family: str = ""
    temporary: bool = False
    companion: bool = False
    folders: Tuple[Tuple[str, int], ...] = ()
    found: Tuple[Found, ...] = ()

    @property
    def size(self) -> int:
        """Count the bytes of its files."""
        return sum(seen.size for seen in self.files.values())

    @property
    def mtime_ns(self) -> int:
        """Return when the newest of its files was last written."""
        return max(seen.mtime_ns for seen in self.files.values())

    @property
    def step(self) -> Optional[int]:
        """Return the step that its name tells."""
        return step_in_name(self.relative or self.name)


class Skipped(Record):
    """Say why something that was met was not looked into."""

    path: str
    reason: str


def newest_first(units: Sequence[Unit]) -> List[Unit]:
    """Sort by the steps in the names when all have one, else by when the files were last written."""
    steps = {each.relative: each.step for each in units}
    if any(step is None for step in steps.values()):
        return sorted(units, key=lambda each: (-each.mtime_ns, each.relative))
    return sorted(units, key=lambda each: (-(steps[each.relative] or 0), -each.mtime_ns, each.relative))


def age_of(mtime_ns: int) -> str:
    """Write how long ago something happened."""
    return span(max(0.0, time.time() - mtime_ns / 1e9))


def span(seconds: float) -> str:
    """Write a length of time."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return "%d %s" % (seconds // size, unit)
    return "%d s" % seconds
