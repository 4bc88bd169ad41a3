"""Bytes that never reached the disk: holes, zeros at a file's end, and no room for more."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, List

from ..model import Checkpoint, Region, count_of

if TYPE_CHECKING:
    from ..source import Source

# Fewer zeros at the end may be anybody's data.
_TELLING = 512
_MOST = 1 << 20
_PAGE = 4096
_MOST_HOLES = 100


def note_absence(source: Source, checkpoint: Checkpoint) -> None:
    """Note what of a file was never written, and whether that was for want of room."""
    checkpoint.holes += _holes(source)
    cut = checkpoint.truncated or any(each.rule == "CK020" for each in checkpoint.found)
    if not cut:
        return
    zeros = zeros_at_end(source)
    if zeros >= _PAGE and not checkpoint.holes:
        checkpoint.holes.append(Region(0, source.base + source.size - zeros, zeros, "zeros at the end"))
    room = _room(source)
    if room < source.size:
        hint = "The disk has %s left, too few for such a file: make room, then go back to the checkpoint before."
        hint %= count_of(room, "byte")
        checkpoint.found = [
            each._replace(next_step=hint) if each.rule == "CK020" else each for each in checkpoint.found
        ]


def _holes(source: Source) -> List[Region]:
    """List the parts of a file that take no room on the disk, as far as its filesystem tells."""
    holes: List[Region] = []
    at, end = source.base, source.base + source.size
    try:
        while len(holes) < _MOST_HOLES:
            start = os.lseek(source.fd, at, os.SEEK_HOLE)
            if start >= end:
                break
            at = min(end, _data_after(source.fd, start, end))
            holes.append(Region(0, start, at - start, "hole"))
            if at == end:
                break
    except OSError:  # a filesystem without holes
        return []
    return holes


def _data_after(fd: int, start: int, end: int) -> int:
    try:
        return os.lseek(fd, start, os.SEEK_DATA)
    except OSError:  # there is none
        return end


def _room(source: Source) -> int:
    """Return the bytes that its filesystem has left."""
    status = os.fstatvfs(source.fd)
    return status.f_bavail * status.f_frsize


def zeros_at_end(source: Source) -> int:
    """Count the zero bytes at the end, no more than the last MiB's."""
    size = min(source.size, _MOST)
    tail = source.read(source.size - size, size)
    return len(tail) - len(tail.rstrip(b"\0"))


def is_all_zeros(source: Source, start: int, zeros: int) -> bool:
    """Tell whether a file holds nothing but zeros from a place on, as far as those at its end tell."""
    return zeros >= min(source.size - start, _MOST)


def tell_zeros(source: Source) -> str:
    """Say how many bytes at the end are zero, nothing when that tells nothing."""
    zeros = zeros_at_end(source)
    return "; its last %s are zero" % count_of(zeros, "byte") if zeros >= _TELLING else ""
