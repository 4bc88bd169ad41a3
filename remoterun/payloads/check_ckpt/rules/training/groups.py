"""What an optimizer covers, whether its parameter groups make sense, and what is saved along with it."""

from __future__ import annotations

import collections
import math
from typing import Dict, Iterator, List, Tuple

from ...model import MODEL, Found, Optimizer, State, count_of
from ..facts import Facts
from ..parameters import shaped_state
from ..rule import BAD, INFO, SUSPECT
from .progress import called

_MOST = 20
# What makes every weight NaN at the first step where it is NaN itself.
_FACTORS = ("lr", "weight_decay", "eps", "momentum", "betas", "alpha", "rho")
# What is only saved by those who save all of a training.
_ALONG = ("scheduler", "scaler")


def _coverage(facts: Facts) -> Iterator[Found]:
    checkpoint = facts.checkpoint
    for optimizer in checkpoint.optimizers:
        keys = [key for group in optimizer.groups for key in group.params]
        without = [key for key in keys if not _is_kept(optimizer.states.get(key))]
        if not without or not _has_state(optimizer):
            continue
        if len(without) == len(keys):
            yield from _tell_empty(facts, optimizer, len(keys))
            continue
        names = {key: name for group in optimizer.groups for key, name in zip(group.params, group.names)}
        message = "%s has state for %s of %s" % (
            called(optimizer),
            format(len(keys) - len(without), ","),
            count_of(len(keys), "parameter"),
        )
        data: Dict[str, object] = {
            "optimizer": optimizer.name,
            "parameters": [names.get(key, key) for key in without[:_MOST]],
        }
        yield Found("CK049", message, data, evidence={"without": len(without), "parameters": len(keys)})
    if MODEL in checkpoint.parts and "optimizer" not in checkpoint.parts:
        along = ["a " + part for part in _ALONG if part in checkpoint.parts]
        counted = any(each.what == "step" and each.value > 0 for each in checkpoint.progress)
        if along or counted:
            message = "no optimizer is in it, though %s is" % " and ".join(along or ["a step"])
            yield Found("CK050", message, None, INFO, "Nothing to do, unless training is to go on from it.")


def _is_kept(state: object) -> bool:
    return isinstance(state, State) and bool(state.tensors or state.numbers or state.dtypes)


def _has_state(optimizer: Optimizer) -> bool:
    """Tell whether it is of a kind that keeps anything: plain gradient descent does not."""
    return not optimizer.groups or any(
        "momentum" not in group.options or group.options["momentum"] for group in optimizer.groups
    )


def _tell_empty(facts: Facts, optimizer: Optimizer, count: int) -> Iterator[Found]:
    if facts.step == 0:
        return
    known = facts.step is not None and any("betas" in group.options for group in optimizer.groups)
    # A discriminator or an actor may begin later than the other network. Parts of one optimizer have one name.
    later = any(each.states and each.name != optimizer.name for each in facts.checkpoint.optimizers)
    message = "%s has groups of %s, but no state at all%s" % (
        called(optimizer),
        count_of(count, "parameter"),
        ", at step %s" % format(facts.step, ",") if facts.step is not None else "",
    )
    yield Found(
        "CK050",
        message,
        {"optimizer": optimizer.name},
        None if known and not later else INFO,
        evidence={"parameters": count},
    )


def _groups(facts: Facts) -> Iterator[Found]:
    for optimizer in facts.checkpoint.optimizers:
        keys = collections.Counter(key for group in optimizer.groups for key in group.params)
        twice = [key for key, count in keys.items() if count > 1]
        # Some keep what belongs to no parameter, under a name.
        strays = [key for key in optimizer.states if keys and key not in keys and key.isdigit()]
        for odd, words in (
            (twice, "in its groups more than once"),
            (strays, "in no group, though it has state for them"),
        ):
            if odd:
                message = "%s has %s %s" % (called(optimizer), count_of(len(odd), "parameter"), words)
                data: Dict[str, object] = {"optimizer": optimizer.name, "parameters": odd[:_MOST]}
                yield Found("CK051", message, data, evidence={"odd": len(odd), "parameters": len(keys)})
        for number, group in enumerate(optimizer.groups):
            for key, value in _factors(group.options):
                yield from _judge_factor(optimizer, number, key, value)


def _factors(options: object) -> Iterator[Tuple[str, float]]:
    for key in _FACTORS:
        value = options.get(key) if isinstance(options, dict) else None
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, (int, float)) and not isinstance(each, bool):
                yield key, each


def _judge_factor(optimizer: Optimizer, number: int, key: str, value: float) -> Iterator[Found]:
    if math.isfinite(value) and not (key == "lr" and value < 0):
        return
    message = "%s of group %d of %s is %s" % (key, number, called(optimizer), value)
    severity = SUSPECT if math.isfinite(value) else BAD
    yield Found("CK051", message, {"optimizer": optimizer.name, "group": number}, severity, evidence={key: str(value)})


def _shapes(facts: Facts) -> Iterator[Found]:
    """Hold state that has its parameter's shape against the parameter, where names tell which that is."""
    tensors = facts.checkpoint.tensors
    if not any(group.names for optimizer in facts.checkpoint.optimizers for group in optimizer.groups):
        return
    for optimizer, found in zip(facts.checkpoint.optimizers, facts.matched()):
        odd: List[Tuple[str, int]] = []
        same = 0
        for key, index in found.items():
            state = optimizer.states.get(key)
            shaped = shaped_state(tensors, state.tensors) if state is not None else None
            if shaped is not None and shaped.piece is None:
                same += shaped.shape == tensors[index].shape
                odd += [(str(list(shaped.shape)), index)] if shaped.shape != tensors[index].shape else []
        # Where most differ, one side is cut up, and nothing is wrong.
        for shape, index in odd if len(odd) < same else ():
            message = "%s is of shape %s, its moments are of shape %s" % (
                tensors[index].name,
                list(tensors[index].shape),
                shape,
            )
            yield Found("CK051", message, facts.place(index))


# --- what is saved along --------------------------------------------------------------------------------------------

_SCALES = ("scale", "cur_scale", "loss_scale")


def _scalers(facts: Facts) -> Iterator[Found]:
    for numbers in facts.checkpoint.scalers:
        scale = next((numbers[key] for key in _SCALES if key in numbers), None)
        if scale is None:
            yield Found("CK053", "the gradient scaler is there, but not its scale")
        elif not math.isfinite(scale) or scale < 1:
            severity = BAD if not math.isfinite(scale) or scale <= 0 else None
            message = "the gradient scaler's scale is %.6g" % scale
            yield Found(
                "CK053", message, severity=severity, evidence={"scale": scale if math.isfinite(scale) else str(scale)}
            )


def _missing(facts: Facts) -> Iterator[Found]:
    parts = facts.checkpoint.parts
    groups = [group for optimizer in facts.checkpoint.optimizers for group in optimizer.groups]
    # A scheduler leaves this in the groups it works on.
    if "scheduler" not in parts and any("initial_lr" in group.options for group in groups):
        yield Found("CK054", "a learning-rate scheduler was at work, but its state is not in it")
    if "dataloader" in parts and "rng" not in parts:
        yield Found("CK054", "the place in the data is in it, but no state of a random number generator")


QUESTIONS = (_coverage, _groups, _shapes, _scalers, _missing)
