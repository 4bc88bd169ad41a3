"""The end of an audit: how many checkpoints are worth what, and which is the one to resume from."""

from __future__ import annotations

import collections
import os
from typing import TYPE_CHECKING, Dict, Iterator, List, Optional, Sequence, Tuple

from .find.names import step_in_name
from .find.unit import newest_first
from .model import Found, Number, clean_text
from .records import Record
from .rules.catalogue import IN_PROGRESS, OK
from .rules.rule import BAD, SUSPECT
from .series.naming import place_of

if TYPE_CHECKING:
    from .find.discover import Discovery
    from .find.unit import Unit


# What keeps a checkpoint from being resumed from.
_TOLD = {BAD: "damaged", SUSPECT: "suspect", IN_PROGRESS: "not finished"}
# Trainings that are told apart.
_MOST_TRAININGS = 100
_MOST_NAMED = 3


class Judged(Record):
    """Keep what the summary needs of one audited checkpoint."""

    unit: Unit
    verdict: str
    step: Optional[int]
    epoch: Optional[Number]
    weights: bool
    optimizer: bool
    companion: bool


def summary(root: str, discovery: Discovery, judged: Sequence[Judged]) -> Dict[str, object]:
    """Return the last record of an audit."""
    verdicts: Dict[str, int] = {}
    for each in judged:
        if not each.companion:
            verdicts[each.verdict] = verdicts.get(each.verdict, 0) + 1
    told = trainings(judged)
    return {
        "kind": "summary",
        "checkpoints": sum(verdicts.values()),
        "verdicts": verdicts,
        **_resumed(_newest(list(filter(None, map(newest_good, told.values()))))),
        "trainings": [_training(folder, members) for folder, members in list(told.items())[:_MOST_TRAININGS]],
        **({"trainings_count": len(told)} if len(told) > _MOST_TRAININGS else {}),
        "root": clean_text(root, 4000),
        "found": len(discovery.units),
        "companions": [clean_text(each.unit.name) for each in judged if each.companion][:100],
        "skipped": [{"path": clean_text(each.path, 1000), "reason": each.reason} for each in discovery.skipped[:100]],
    }


def _training(folder: str, judged: Sequence[Judged]) -> Dict[str, object]:
    count = sum(not each.companion for each in judged)
    return {"folder": clean_text(folder, 1000) or ".", "checkpoints": count, **_resumed(newest_good(judged))}


def _resumed(best: Optional[Judged]) -> Dict[str, object]:
    if best is None:
        return {"resume_from": None, "resume_path": None}
    return {"resume_from": clean_text(best.unit.name), "resume_path": clean_text(best.unit.path, 4000)}


def trainings(judged: Sequence[Judged]) -> Dict[str, List[Judged]]:
    """Tell trainings apart, by the folder below the root that their checkpoints are in.

    What no step is named of (``best.pt``) belongs to the training in whose folder it is, however deep.
    """
    folders = [_folder_of(each.unit) for each in judged]
    numbered = {folder for folder, step in folders if step}
    wholes = _wholes(judged)
    beside = {whole for each, whole in zip(judged, wholes) if each.optimizer} - {None}
    groups: Dict[str, List[Judged]] = {}
    for each, (folder, _), whole in zip(judged, folders, wholes):
        above: Optional[str] = folder
        while above is not None and above not in numbered:
            above = os.path.dirname(above) if above else None
        optimizer = each.optimizer or whole in beside
        groups.setdefault(folder if above is None else above, []).append(each._replace(optimizer=optimizer))
    return {folder: group for folder, group in groups.items() if not all(each.companion for each in group)}


def _folder_of(unit: Unit) -> Tuple[str, bool]:
    """Return the folder that holds a checkpoint beside others of its training, and whether its name tells a step."""
    place = place_of(unit.relative)
    parts = unit.relative.split(os.sep)
    same = 0
    for part, masked in zip(parts, place.series.split(os.sep)):
        if part != masked:
            break
        same += 1
    # A folder that is a checkpoint by itself, and tells nothing, may have older ones below it.
    whole = unit.family and os.path.basename(unit.path) == parts[-1]
    if same == len(parts) and not whole:
        same -= 1
    return os.sep.join(parts[:same]), place.order is not None


def not_judged(judged: Sequence[Judged]) -> Optional[Tuple[str, Optional[str]]]:
    """Say why no checkpoint at all was judged, and what to do other than to look elsewhere; None where one was."""
    told = [each for each in judged if not each.companion]
    if any(each.verdict != IN_PROGRESS for each in told):
        return None
    names = [clean_text(each.unit.name, 100) for each in told or judged]
    shown = ", ".join(names[:_MOST_NAMED])
    shown += " and %s more" % format(len(names) - _MOST_NAMED, ",") if len(names) > _MOST_NAMED else ""
    if told:
        return "nothing was judged, since nothing is finished: %s" % shown, "Run again when the save is done."
    return "nothing was judged, since there is nothing but what goes with checkpoints: %s" % shown, None


def overall(discovery: Discovery, judged: Sequence[Judged]) -> Iterator[Tuple[str, Found]]:
    """Yield what is found of no single checkpoint, with what it is about."""
    yield from discovery.found
    if discovery.pointers:
        from .find.pointers import judge_pointers

        verdicts = {os.path.realpath(each.unit.path): each.verdict for each in judged}
        for pointer, found in judge_pointers(discovery.pointers, verdicts):
            yield pointer.relative, found
    for members in list(trainings(judged).values())[:_MOST_TRAININGS]:
        best = newest_good(members)
        ahead = next((each for each in members if best is not None and _is_ahead(each, best)), None)
        if best is not None and ahead is not None:
            name = clean_text(best.unit.name)
            reason = _TOLD.get(ahead.verdict, "has no optimizer, as others before it have")
            message = "resume from %s: this one is newer, but %s" % (name, reason)
            data: Dict[str, object] = {"file": clean_text(ahead.unit.path, 1000), "resume_from": name}
            yield ahead.unit.name, Found("CK069", message, data)


def _is_ahead(each: Judged, best: Judged) -> bool:
    """Tell whether a checkpoint is newer than the best, and not worth to be resumed from."""
    mine = _step_of(each)
    if mine is None or best.step is None:
        return each.verdict in _TOLD and each.unit.mtime_ns > best.unit.mtime_ns
    # Models are exported without their optimizer at any time; only a step tells that one goes further.
    lacks = best.optimizer and each.verdict == OK and each.weights and not each.optimizer
    if not lacks and each.verdict not in _TOLD:
        return False
    return _newest([best, each._replace(step=mine, optimizer=False)]) is not best


def _step_of(each: Judged) -> Optional[int]:
    return each.unit.step if each.step is None else each.step


def newest_good(judged: Sequence[Judged]) -> Optional[Judged]:
    """Return the checkpoint of a training to resume from: the newest with weights, of which no part is worse than ok.

    It has an optimizer if most have one.
    """
    wholes = _wholes(judged)
    spoiled = {whole for each, whole in zip(judged, wholes) if each.verdict != OK} - {None}
    good = [each for each, whole in zip(judged, wholes) if each.verdict == OK and each.weights and whole not in spoiled]
    whole = [each for each in good if each.optimizer]
    # A step may be there as an exported model, too.
    usual = 2 * len(set(map(_step_of, whole))) >= len(set(map(_step_of, good)))
    return _newest(whole if usual else good)


def _newest(good: Sequence[Judged]) -> Optional[Judged]:
    if good and all(each.step is not None for each in good):
        last = max(good, key=lambda each: (each.step or 0, each.optimizer))
        if any(each.epoch is None for each in good):
            return last
        # Either may begin anew while the other goes on: the steps with each epoch, the epochs with each run.
        of_last = max(good, key=lambda each: (each.epoch or 0, each.step or 0, each.optimizer))
        return max(of_last, last, key=lambda each: each.unit.mtime_ns)
    if all(each.step is None and each.epoch is not None for each in good):
        return max(good, key=lambda each: (each.epoch or 0, each.optimizer, each.unit.mtime_ns), default=None)
    newest = newest_first([each.unit for each in good])[:1]
    return next((each for each in good if [each.unit] == newest), None)


def _wholes(judged: Sequence[Judged]) -> List[Optional[str]]:
    """Return of each the folder whose name numbers the checkpoint that it is one of several parts of.

    It is the one around the part, or the next where the part is alone in a folder of its own. None where it is whole.
    """
    places = [os.path.split(each.unit.relative) for each in judged]
    inside = collections.Counter(above for above, _ in places)
    wholes = []
    for above, name in places:
        near = (above, os.path.dirname(above)) if inside[above] == 1 else (above,)
        numbered = (folder for folder in near if step_in_name(os.path.basename(folder)) is not None)
        wholes.append(next(numbered, None) if step_in_name(name) is None else None)
    return wholes
