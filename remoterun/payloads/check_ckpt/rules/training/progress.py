"""How far training was, by all that tells: names, counters, schedulers, the optimizer's steps.

The optimizer counts them for each parameter: a snapshot taken while it stepped has two.
"""

from __future__ import annotations

import collections
import itertools
import math
import re
from typing import Dict, Iterator, List, Optional

from ...find.names import step_in_name
from ...model import Found, Number, Optimizer, Progress, count_of
from ...patterns import pattern
from ...records import Record
from ..facts import Facts
from ..integrity import is_torn
from ..rule import BAD, INFO, SUSPECT

# A name that says step means it; "checkpoint-3" may count anything.
_SAYS_STEP = pattern(r"(?:step|iter|it)s?(?:ation)?[-_=]?0*%d(?!\d)", re.IGNORECASE)
_EPOCH = pattern(r"(?<![a-z])(?:epoch|ep)[-_=]?(\d{1,9})(?!\d)", re.IGNORECASE)
# Keys under which some count from the beginning of each epoch.
_WITHIN_EPOCH = frozenset(("step", "steps", "iter", "it", "iteration"))
# Two counts that differ by more than this share count different things.
_NEAR = 0.05
_WEAK, _FACTOR = 100, 2
_MOST = 20
_ROUNDED = 1e-5
# Up to here, these formats hold every integer.
_EXACT = {"bfloat16": 256, "float16": 2048}
_PLAIN = ("", "optimizer", "optimizer_state_dict")
# While a file is written, an optimizer makes a step or two, not ten.
_SMALL = 2
# By chance, so many counts hardly ever rise from place to place.
_RISING = 4
# The share of the parameters from which a block at the front is more than one that missed a step.
_SHARE = 0.1


def _files(facts: Facts) -> Iterator[Found]:
    """Hold against each other what the same counter says in several files of one checkpoint."""
    counters: Dict[str, Dict[str, Number]] = {}
    for each in facts.checkpoint.progress:
        file, apart, key = each.where.rpartition(": ")
        if apart and each.what == "step":
            counters.setdefault(key, {})[file] = each.value
    for key, files in counters.items():
        low, high = min(files, key=lambda name: files[name]), max(files, key=lambda name: files[name])
        if files[low] != files[high]:
            message = "its files are from different steps: %s is %s in %s, and %s in %s" % (
                key,
                format(files[low], ",.10g"),
                low,
                format(files[high], ",.10g"),
                high,
            )
            evidence: Dict[str, object] = {"lowest": files[low], "highest": files[high], "files": len(files)}
            yield Found("CK043", message, {"places": dict(list(files.items())[:_MOST])}, evidence=evidence)


def _step_in_name(facts: Facts) -> Iterator[Found]:
    named = step_in_name(facts.name)
    told = [each for each in facts.checkpoint.progress if each.what == "step"]
    if named is None or not told:
        return
    inside = min(told, key=lambda each: abs(each.value - named))
    if any(each.value == named for each in facts.checkpoint.progress) or not _same_unit(facts, named, told[0]):
        return
    away = abs(inside.value - named)
    first = inside if away == 1 else told[0]
    message = "its name says step %s, %s inside says %s" % (
        format(named, ","),
        first.where,
        format(first.value, ",.10g"),
    )
    severity = INFO if away == 1 or _counts_otherwise(facts, named, first) else None
    evidence: Dict[str, object] = {"named": named, "inside": first.value}
    yield Found("CK047", message, {"places": _places(told)}, severity, evidence=evidence)


def _places(told: List[Progress]) -> Dict[str, Number]:
    return {each.where: each.value for each in told[:_MOST]}


def _same_unit(facts: Facts, named: int, inside: Progress) -> bool:
    """Tell whether a number in a name can be meant as a step."""
    if re.search(_SAYS_STEP.pattern % named, facts.name, re.IGNORECASE):
        return True
    return named >= _WEAK and named <= _FACTOR * inside.value <= _FACTOR * _FACTOR * named


def _counts_otherwise(facts: Facts, named: int, inside: Progress) -> bool:
    """Tell whether one counts what the other counts several of, or one of them only since the epoch began."""
    few, many = sorted((named, inside.value))
    if few and not many % few:
        return True
    key = inside.where.rpartition(": ")[2].rpartition(".")[2]
    within = key in _WITHIN_EPOCH if inside.value < named else _EPOCH.search(facts.name)
    return bool(within) and (facts.checkpoint.epoch or 0) >= 1


def _epoch_in_name(facts: Facts) -> Iterator[Found]:
    match = (_EPOCH.findall(facts.name) or [None])[-1]
    told = [each for each in facts.checkpoint.progress if each.what == "epoch"]
    if match is None or not told:
        return
    named = int(match)
    away = min(abs(math.floor(each.value) - named) for each in told)
    if away and not any(each.value == named for each in facts.checkpoint.progress):
        message = "its name says epoch %s, %s inside says %s" % (
            format(named, ","),
            told[0].where,
            format(told[0].value, ",.10g"),
        )
        evidence: Dict[str, object] = {"named": named, "inside": told[0].value}
        yield Found("CK047", message, {"places": _places(told)}, INFO if away == 1 else None, evidence=evidence)


def _scheduler(facts: Facts) -> Iterator[Found]:
    """Hold what schedulers count against the step: they may count epochs, or begin anew, but not be off by little."""
    checkpoint = facts.checkpoint
    named = step_in_name(facts.name)
    step, rule, words = (named, "CK047", "its name") if named is not None else (checkpoint.step, "CK048", "its counter")
    if step is None:
        return
    for numbers in checkpoint.schedulers:
        count = numbers.get("last_epoch")
        if count is None or not _is_off(count, step) or _is_known(facts, count):
            continue
        # Where gradients overflow, the step counts and the scheduler does not.
        severity = INFO if checkpoint.scalers else None
        message = "%s says step %s, its scheduler has made %s" % (words, format(step, ",.10g"), format(count, ",.10g"))
        yield Found(rule, message, severity=severity, evidence={"step": step, "scheduler": count})


def _is_off(count: Number, step: Number) -> bool:
    """Tell whether two counts are of the same thing, and yet differ by more than a convention."""
    return 1 < abs(count - step) <= _NEAR * step


def _is_known(facts: Facts, count: Number) -> bool:
    return any(abs(each.value - count) <= 1 for each in facts.checkpoint.progress)


def _optimizer(facts: Facts) -> Iterator[Found]:
    step = facts.checkpoint.step
    for optimizer in facts.checkpoint.optimizers if step is not None else ():
        count = _steps_made(optimizer)
        if count is None or step is None or not _is_off(count, step):
            continue
        message = "its counter says step %s, its optimizer has made %s" % (
            format(step, ",.10g"),
            format(count, ",.10g"),
        )
        # Steps are skipped where gradients overflow or are too large, so only a series tells more.
        yield Found("CK048", message, {"optimizer": optimizer.name}, INFO, evidence={"step": step, "optimizer": count})


def _steps_made(optimizer: Optimizer) -> Optional[Number]:
    """Return the most steps that a parameter has made, None where that is not known exactly."""
    if any(state.dtypes.get("step") in _EXACT for state in optimizer.states.values()):
        return None
    counts = [state.numbers["step"] for state in optimizer.states.values() if "step" in state.numbers]
    return max(filter(math.isfinite, counts), default=None)


def _together(facts: Facts) -> Iterator[Found]:
    """Hold optimizer and scheduler against each other where it is known that they step together."""
    checkpoint = facts.checkpoint
    if len(checkpoint.optimizers) != 1 or len(checkpoint.schedulers) != 1:
        return
    (optimizer,), (scheduler,) = checkpoint.optimizers, checkpoint.schedulers
    stepped, count = _steps_made(optimizer), scheduler.get("last_epoch")
    made, words = checkpoint.step if stepped is None else stepped, "optimizer has made %s steps"
    if made is None or count is None or not 1 < abs(made - count) < math.inf:
        return
    if stepped is None:
        words = "counter says step %s"
    # One that waits for a plateau is asked at evaluations. Other programs' optimizers lie deeper in their files.
    both = checkpoint.format == "hf-trainer" and not optimizer.name and "num_bad_epochs" not in scheduler
    if both and stepped is not None:
        reason = "Trainer steps both, so one is of another save"
    elif _is_cosine(optimizer, scheduler, made) and not _is_cosine(optimizer, scheduler, count):
        reason = "its learning rate is that of the former"
    elif checkpoint.step in (made, made - 1) and count < made < 2 * count and _is_other_rate(optimizer, scheduler):
        reason = "its learning rate is not the one that was set last"
    else:
        return
    message = "its " + words + ", its scheduler %s: %s"
    evidence: Dict[str, object] = {"optimizer" if stepped is not None else "step": made, "scheduler": count}
    yield Found("CK048", message % (format(made, ",.10g"), format(count, ",.10g"), reason), evidence=evidence)


def _is_other_rate(optimizer: Optimizer, scheduler: Dict[str, Number]) -> bool:
    """Tell whether an optimizer has another rate than its scheduler has given it."""
    rate, last = optimizer.groups[0].options.get("lr") if optimizer.groups else None, scheduler.get("_last_lr")
    return isinstance(rate, float) and isinstance(last, float) and not math.isclose(rate, last, rel_tol=_ROUNDED)


def _is_cosine(optimizer: Optimizer, scheduler: Dict[str, Number], at: Number) -> bool:
    """Tell whether all rates are what torch's cosine schedule makes of the first ones in so many steps."""
    for options in (group.options for group in optimizer.groups):
        rate, first = options.get("lr"), options.get("initial_lr")
        if not isinstance(rate, (int, float)) or not isinstance(first, (int, float)):
            return False
        try:
            share = (1 + math.cos(math.pi * at / scheduler["T_max"])) / 2
            off = scheduler["eta_min"] + (first - scheduler["eta_min"]) * share - rate
        except (KeyError, ValueError, OverflowError, ZeroDivisionError):
            return False
        # It is reckoned step by step.
        if not abs(off) <= _ROUNDED * abs(first):
            return False
    return bool(optimizer.groups)


# --- the optimizer's steps ------------------------------------------------------------------------------------------


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


STEPS = (_steps,)
QUESTIONS = (_files, _step_in_name, _epoch_in_name, _scheduler, _optimizer, _together)
