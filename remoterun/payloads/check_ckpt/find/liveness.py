"""Whether somebody still writes a file: a question that a second look and /proc can answer."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Iterator

from ..source import identity

if TYPE_CHECKING:
    from ..source import Source

# A file that was last written longer ago is taken for finished.
_FRESH_S = 10.0
# Between two looks at a fresh file: writers of checkpoints write much more often.
_LOOK_AGAIN_S = 0.5
_MOST_DESCRIPTORS = 50_000
_WRITING = os.O_WRONLY | os.O_RDWR


def still_written(source: Source) -> str:
    """Say how one can tell that an incomplete file is still being written, nothing when it is not."""
    if not -_FRESH_S < time.time() - source.seen.st_mtime < _FRESH_S:
        return "a process has it open for writing" if _has_writer(source) else ""
    started = time.monotonic()
    if _has_writer(source):
        return "a process has it open for writing"
    time.sleep(max(0.0, _LOOK_AGAIN_S - (time.monotonic() - started)))
    changed = source.changes()
    return "it %s while it was read" % changed if changed else ""


def _has_writer(source: Source) -> bool:
    """Look for a descriptor that is open for writing, as far as /proc shows other processes' descriptors."""
    wanted = identity(source.seen)
    for count, path in enumerate(_descriptors()):
        if count >= _MOST_DESCRIPTORS:
            break
        try:
            if identity(os.stat(path)) == wanted and _writes(path):
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
