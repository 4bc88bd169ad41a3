"""The steps that an optimizer counts for each parameter: a snapshot taken while it stepped has two."""

from __future__ import annotations

import collections
import itertools
import math
from typing import Dict, Iterator, List

from ...model import Found, Number, Optimizer, count_of
from ...records import Record
from ..facts import Facts
from ..integrity import is_torn
from ..rule import BAD, INFO, SUSPECT

# Up to here, these formats hold every integer.
_EXACT = {"bfloat16": 256, "float16": 2048}
_PLAIN = ("", "optimizer", "optimizer_state_dict")
# While a file is written, an optimizer makes a step or two, not ten.
_SMALL = 2
# By chance, so many counts hardly ever rise from place to place.
_RISING = 4
# The share of the parameters from which a block at the front is more than one that missed a step.
_SHARE = 0.1


class _Verdict(Record):
    severity: str
    words: str
    odd: List[int]


def _steps(facts: Facts) -> Iterator[Found]:
    for optimizer in facts.checkpoint.optimizers:
        keys = [key for key, state in optimizer.states.items() if math.isfinite(state.numbers.get("step", math.nan))]
        steps = [optimizer.states[key].numbers["step"] for key in keys]
        formats = {optimizer.states[key].dtypes.get("step", "") for key in keys} & set(_EXACT)
        if formats:
            yield _tell_format(optimizer, min(formats, key=lambda name: _EXACT[name]), max(steps))
        elif len(set(steps)) > 1:
            verdict = _judge(steps, _groups(optimizer, keys), torn=is_torn(facts))
            yield _tell_steps(optimizer, keys, steps, verdict)


def _tell_format(optimizer: Optimizer, name: str, highest: Number) -> Found:
    rounded = highest > _EXACT[name]
    message = "the steps of %s are kept in %s, which %s" % (
        called(optimizer),
        name,
        "rounds them: beyond %d, not every integer is in it" % _EXACT[name]
        if rounded
        else "holds every integer up to %d only" % _EXACT[name],
    )
    return Found("CK046", message, {"optimizer": optimizer.name}, None if rounded else INFO, evidence={"step": highest})


def called(optimizer: Optimizer) -> str:
    """Name an optimizer in a sentence."""
    return "the optimizer" if optimizer.name in _PLAIN else "optimizer %s" % optimizer.name


def _groups(optimizer: Optimizer, keys: List[str]) -> List[int]:
    """Return for each parameter the number of its group."""
    known = {key: number for number, group in enumerate(optimizer.groups) for key in group.params}
    return [known.get(key, -1) for key in keys]


def _judge(steps: List[Number], groups: List[int], *, torn: bool) -> _Verdict:
    """Tell a torn snapshot from parameters that took part in fewer steps, by how the steps lie in the file.

    `torn` tells that tensors of the file changed while it was written.
    """
    runs = [(step, len(list(run))) for step, run in itertools.groupby(steps)]
    counts = collections.Counter(steps)
    usual = max(counts, key=lambda step: (counts[step], step))
    small = max(steps) - min(steps) <= _SMALL
    if len(set(zip(groups, steps))) == len(set(groups)):
        return _Verdict(INFO, "each group has a count of its own, as when groups are added later", [])
    rises = [after - before for (before, _), (after, _) in zip(runs, runs[1:])]
    if min(rises) > 0 and (torn or (len(runs) >= _RISING and max(rises) <= _SMALL)):
        words = "they rise from place to place, as when the optimizer steps while the file is written"
        return _Verdict(BAD if torn else SUSPECT, words, [at for at, step in enumerate(steps) if step > steps[0]])
    if small and len(runs) == 2 and runs[0][0] < runs[1][0]:
        return _judge_halves(steps, runs[0][1])
    ahead = [index for index, step in enumerate(steps) if step > usual]
    if small and ahead and min(steps) == usual:
        together = ahead[-1] - ahead[0] + 1 == len(ahead) and ahead[0] > 0
        words = "%s is ahead of all others" if len(ahead) == 1 else "%s are ahead of all others"
        return _Verdict(BAD if together else SUSPECT, words % count_of(len(ahead), "parameter"), ahead)
    behind = [index for index, step in enumerate(steps) if step < usual]
    if not behind:
        words = "%s took part in more steps than all others, as where layers are thawed later"
        return _Verdict(INFO, words % count_of(len(ahead), "parameter"), ahead)
    words = "%s took part in fewer steps, as frozen layers and unused experts do"
    return _Verdict(INFO, words % count_of(len(behind), "parameter"), behind)


def _judge_halves(steps: List[Number], front: int) -> _Verdict:
    """Judge steps that are higher from one place in the file on."""
    if front == 1 and len(steps) > 2:
        return _Verdict(INFO, "the first parameter took part in fewer steps", [0])
    words = "the first %s in the file stand at an earlier step than the %s after them" % (
        count_of(front, "parameter"),
        format(len(steps) - front, ","),
    )
    severity = BAD if front >= _SHARE * len(steps) else SUSPECT
    return _Verdict(severity, words, list(range(front, len(steps))))


def _tell_steps(optimizer: Optimizer, keys: List[str], steps: List[Number], verdict: _Verdict) -> Found:
    message = "the steps of %s disagree, %s to %s: %s" % (
        called(optimizer),
        format(min(steps), ",.10g"),
        format(max(steps), ",.10g"),
        verdict.words,
    )
    data: Dict[str, object] = {"optimizer": optimizer.name, "parameters": [keys[index] for index in verdict.odd[:20]]}
    evidence: Dict[str, object] = {
        "lowest": min(steps),
        "highest": max(steps),
        "parameters": len(steps),
        "odd": len(verdict.odd),
    }
    return Found("CK040", message, data, verdict.severity, evidence=evidence)


QUESTIONS = (_steps,)
