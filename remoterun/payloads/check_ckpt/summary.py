"""The end of an audit: how many checkpoints are worth what, and which is the one to resume from."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Dict, Iterator, Optional, Sequence, Tuple

from .find.names import step_in_name
from .model import Found, clean_text
from .records import Record
from .rules.catalogue import IN_PROGRESS, OK
from .rules.rule import BAD, SUSPECT

if TYPE_CHECKING:
    from .find.discover import Discovery
    from .find.unit import Unit


# What keeps a checkpoint from being resumed from.
_TOLD = {BAD: "damaged", SUSPECT: "suspect", IN_PROGRESS: "not finished"}


class Judged(Record):
    """Keep what the summary needs of one audited checkpoint."""

    unit: Unit
    verdict: str
    step: Optional[int]
    weights: bool
    optimizer: bool
    companion: bool


def summary(root: str, discovery: Discovery, judged: Sequence[Judged]) -> Dict[str, object]:
    """Return the last record of an audit."""
    verdicts: Dict[str, int] = {}
    for each in judged:
        if not each.companion:
            verdicts[each.verdict] = verdicts.get(each.verdict, 0) + 1
    best = newest_good(judged)
    return {
        "kind": "summary",
        "checkpoints": sum(verdicts.values()),
        "verdicts": verdicts,
        "resume_from": None if best is None else clean_text(best.unit.name),
        "resume_path": None if best is None else clean_text(best.unit.path, 4000),
        "root": clean_text(root, 4000),
        "found": len(discovery.units),
        "companions": [clean_text(each.unit.name) for each in judged if each.companion][:100],
        "skipped": [{"path": clean_text(each.path, 1000), "reason": each.reason} for each in discovery.skipped[:100]],
    }


def overall(discovery: Discovery, judged: Sequence[Judged]) -> Iterator[Tuple[str, Found]]:
    """Yield what is found of no single checkpoint, with what it is about."""
    yield from discovery.found
    if discovery.pointers:
        from .find.pointers import judge_pointers

        verdicts = {os.path.realpath(each.unit.path): each.verdict for each in judged}
        for pointer, found in judge_pointers(discovery.pointers, verdicts):
            yield pointer.relative, found
    best = newest_good(judged)
    ahead = next((each for each in judged if best is not None and _is_ahead(each, best)), None)
    if best is not None and ahead is not None:
        message = "resume from %s: this one is newer, but %s" % (clean_text(best.unit.name), _TOLD[ahead.verdict])
        data: Dict[str, object] = {"file": clean_text(ahead.unit.path, 1000), "resume_from": clean_text(best.unit.name)}
        yield ahead.unit.name, Found("CK069", message, data)


def _is_ahead(each: Judged, best: Judged) -> bool:
    """Tell whether a checkpoint is newer than the best, and not worth to be resumed from."""
    if each.verdict not in _TOLD:
        return False
    mine, its = each.step if each.step is not None else each.unit.step, best.step
    return mine > its if mine is not None and its is not None else each.unit.mtime_ns > best.unit.mtime_ns


def newest_good(judged: Sequence[Judged]) -> Optional[Judged]:
    """Return the newest checkpoint to resume from: one with weights, of which no part is worse than ok."""
    spoiled = {each.unit.folder for each in judged if each.verdict != OK and _is_part(each.unit)}
    good = [
        each
        for each in judged
        if each.verdict == OK and each.weights and not (_is_part(each.unit) and each.unit.folder in spoiled)
    ]
    if good and all(each.step is not None for each in good):
        return max(good, key=lambda each: (each.step or 0, each.optimizer))
    return good[0] if good else None


def _is_part(unit: Unit) -> bool:
    """Tell whether a file is one of several that make up the checkpoint its folder's name numbers."""
    if unit.family:
        return False
    folder, file = os.path.split(unit.relative)
    return step_in_name(os.path.basename(folder)) is not None and step_in_name(file) is None
