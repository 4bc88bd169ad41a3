"""Which checkpoints follow each other, by their names: those that differ in nothing but how far training was."""

from __future__ import annotations

import os
import re
from typing import List, Optional

from ..find.names import step_in_name
from ..patterns import pattern
from ..records import Record

_NUMBER = pattern(r"\d+(?:\.\d+)?", re.ASCII)
# A number after one of these moves on with training, whether or not it is the one to sort by.
_MOVES = pattern(r"(?:=|(?:^|[^a-z])(?:epochs?|ep|e|\w*loss|acc|score|ppl|fid|psnr|bleu|iou)[-_]?)$", re.IGNORECASE)
_EPOCH = pattern(r"(?:^|[^a-z])(?:epochs?|ep)[-_=]?(\d{1,9})(?!\d)", re.IGNORECASE | re.ASCII)


# No epoch has so many steps.
EPOCH = 10**9


class Place(Record):
    """Say where a checkpoint stands: in which series, and how far into it by its name, if that tells."""

    series: str
    order: Optional[int]


def place_of(relative: str) -> Place:
    """Read a checkpoint's place from its path below the root.

    Folders above the one that holds the number are part of the series' name; below it, that number is left out, too.
    """
    parts = relative.split(os.sep)
    for tell in (step_in_name, epoch_in):
        for index in range(len(parts) - 1, -1, -1):
            number = tell(parts[index])
            if number is not None:
                masked = [_masked(parts[index], number, moving=True)]
                below = [_masked(part, number, moving=False) for part in parts[index + 1 :]]
                # Steps may begin anew with each epoch.
                epoch = epoch_in(parts[index]) or 0 if tell is step_in_name else 0
                return Place(os.sep.join(parts[:index] + masked + below), number + epoch * EPOCH)
    return Place(os.sep.join([*parts[:-1], _without_last_number(parts[-1])]), None)


def epoch_in(relative: str) -> Optional[int]:
    """Return the epoch that a path names last."""
    found = _EPOCH.findall(relative)
    return int(found[-1]) if found else None


def _masked(part: str, number: int, *, moving: bool) -> str:
    """Put # for the number, and for others that move on with it; a decay or a rank is part of the name."""
    masked: List[str] = []
    end = 0
    for match in _NUMBER.finditer(part):
        text, before = match.group(), part[max(0, match.start() - 24) : match.start()]
        same = text.isdigit() and len(text) <= 15 and int(text) == number
        moves = moving and _MOVES.search(before) is not None
        masked += [part[end : match.start()], "#" if same or moves else text]
        end = match.end()
    return "".join(masked) + part[end:]


def _without_last_number(part: str) -> str:
    stem, extension = os.path.splitext(part)
    numbers = list(_NUMBER.finditer(stem))
    return stem[: numbers[-1].start()] + "#" + stem[numbers[-1].end() :] + extension if numbers else part
