"""Whether somebody still writes a checkpoint: a question that a second look and /proc can answer."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Dict, Iterator, Set, Tuple

from ..readers.folder import change
from ..source import identity
from .unit import age_of

if TYPE_CHECKING:
    from .unit import Unit

# A file that was last written longer ago is taken for finished.
_FRESH_S = 10.0
# Between two files of one save, as ranks or a slow disk make it.
_GROWING_S = 120.0
# Between two looks at a fresh file: writers of checkpoints write much more often.
_LOOK_AGAIN_S = 0.5
_MOST_DESCRIPTORS = 50_000
_WRITING = os.O_WRONLY | os.O_RDWR


def still_written(unit: Unit, files: Dict[str, os.stat_result], *, lacking: bool) -> str:
    """Say how one can tell that an incomplete checkpoint is still being written, nothing when it is not.

    `files` are those that were read, by their paths; `lacking` says that others are not there.
    """
    started = time.monotonic()
    if _has_writer({identity(status) for status in files.values()}):
        return "a process has it open for writing"
    if lacking and abs(time.time() - unit.mtime_ns / 1e9) < _GROWING_S:
        return "files are missing, and its newest was written %s ago" % age_of(unit.mtime_ns)
    if lacking and any(_changed(path, mtime_ns) for path, mtime_ns in unit.folders):
        return "files came or went since it was found"
    fresh = any(abs(time.time() - status.st_mtime) < _FRESH_S for status in files.values())
    if fresh:
        time.sleep(max(0.0, _LOOK_AGAIN_S - (time.monotonic() - started)))
    for path, status in files.items():
        what = change(path, status) if fresh else ""
        if what:
            return "it %s while it was read" % what
    return ""


def growing(unit: Unit) -> bool:
    """Tell whether another process writes a checkpoint, before that is read."""
    if abs(time.time() - unit.mtime_ns / 1e9) >= _GROWING_S:
        return False
    return _has_writer({seen.identity for seen in unit.files.values()})


def _changed(folder: str, mtime_ns: int) -> bool:
    try:
        return os.stat(folder).st_mtime_ns != mtime_ns
    except OSError:
        return True


def _has_writer(wanted: Set[Tuple[int, int]]) -> bool:
    """Look for a descriptor that is open for writing, as far as /proc shows other processes' descriptors."""
    for count, path in enumerate(_descriptors()):
        if count >= _MOST_DESCRIPTORS:
            break
        try:
            if identity(os.stat(path)) in wanted and _writes(path):
                return True
        except OSError:  # it was closed, or its process has ended
            continue
    return False


def _descriptors() -> Iterator[str]:
    own = str(os.getpid())
    try:
        processes = [name for name in os.listdir("/proc") if name.isdigit() and name != own]
    except OSError:
        return
    for process in processes:
        folder = "/proc/%s/fd" % process
        try:
            names = os.listdir(folder)
        except OSError:  # another user's process, or one that has ended
            continue
        for name in names:
            yield "%s/%s" % (folder, name)


def _writes(path: str) -> bool:
    with open(path.replace("/fd/", "/fdinfo/"), encoding="ascii") as file:
        for line in file:
            if line.startswith("flags:"):
                return bool(int(line.split()[1], 8) & _WRITING)
    return False
