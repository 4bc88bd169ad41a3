"""First and second moments: what they can't be, and what they can't be together."""

from __future__ import annotations

import functools
import math
from typing import Dict, Iterator, List, Optional, Set, Tuple

from ...model import EMA, MODEL, OPTIMIZER, Checkpoint, Found, Group, Optimizer, State, Tensor, count_of
from ...records import Record
from ...scan.stats import Broken, Pair
from ..facts import Facts, peak_of
from ..rule import INFO, SUSPECT

# State that sums up squares.
_SQUARES = (
    "exp_avg_sq",
    "max_exp_avg_sq",
    "exp_avg_sq_row",
    "exp_avg_sq_col",
    "row_var",
    "col_var",
    "variance",
    "square_avg",
    "acc_delta",
    "exp_inf",
)
# What Adam and its like keep. Others go by the same names and reckon differently, but keep more.
_ADAM = frozenset(
    ("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "mu_product", "master_param", "param", "fp32_param")
)
# Options that only those have whose moments are certain to be Adam's.
_CERTAIN = ("amsgrad", "bias_correction", "correct_bias", "decoupled_weight_decay")
# What the bound is allowed to be exceeded by: rounding, step after step.
_SLACK = {"float64": 1.05, "float32": 1.05, "bfloat16": 1.1, "float16": 1.5}
# Nothing but betas that changed during training brings |m| / sqrt(v) up to here: (0.0, 0.999) allows 32.
_EXPLAINED = 40.0
# An average of squares may lose so many of the smallest normal numbers of its format.
_GRANTED = 1024.0
# Of so small a share of zeros that only the second moments have, nothing is said.
_FEW = 0.01


class _Moments(Record):
    optimizer: Optimizer
    group: Group
    key: str
    state: State


def pairs(checkpoint: Checkpoint) -> List[Pair]:
    """Return the moments that are to be held against each other: those of Adam, for which a bound can be proved.

    |m| <= C * sqrt(v) with C = (1 - b1) / sqrt((1 - b2) * (1 - b1^2 / b2)), by the inequality of Cauchy and Schwarz on
    the gradients that make up both, whatever they were.
    """
    asked = []
    for each in _adam(checkpoint):
        first, second = each.state.tensors["exp_avg"], each.state.tensors["exp_avg_sq"]
        one = checkpoint.tensors[first]
        if _comparable(one, checkpoint.tensors[second]):
            asked.append(Pair(first, second, _bound(each.group) * _SLACK[one.dtype.name]))
    return asked


def _comparable(one: Tensor, other: Tensor) -> bool:
    """Tell whether the elements of two tensors lie in the same order, in the same format, and one that is known."""
    return one.dtype.name in _SLACK and one[2:5] == other[2:5] and one.piece == other.piece


def _adam(checkpoint: Checkpoint) -> Iterator[_Moments]:
    for optimizer in checkpoint.optimizers:
        groups = {key: group for group in optimizer.groups for key in group.params}
        for key, state in optimizer.states.items():
            moments = "exp_avg" in state.tensors and "exp_avg_sq" in state.tensors
            known = moments and _ADAM.issuperset(state.dtypes) and _ADAM.issuperset(state.numbers)
            if known and key in groups and _bound(groups[key]):
                yield _Moments(optimizer, groups[key], key, state)


def _bound(group: Group) -> float:
    """Return the factor of the bound, 0 when there is none."""
    betas = group.options.get("betas")
    # LAMB may add up gradients, where Adam averages them.
    if not isinstance(betas, tuple) or len(betas) != 2 or group.options.get("grad_averaging") is False:
        return 0.0
    return _factor(*betas)


@functools.lru_cache(maxsize=64)
def _factor(first: float, second: float) -> float:
    if not (0 <= first < 1 and 0 < second < 1 and first * first < second):
        return 0.0
    return float((1 - first) / math.sqrt((1 - second) * (1 - first * first / second)))


def _broken_bounds(facts: Facts) -> Iterator[Found]:
    told = facts.scanned.broken if facts.whole else []
    owners = {each.state.tensors["exp_avg"]: each for each in _adam(facts.checkpoint)} if told else {}
    for broken in told:
        each = owners.get(broken.pair.first)
        if each is not None:
            yield _tell_broken(facts, each, broken)


def _tell_broken(facts: Facts, each: _Moments, broken: Broken) -> Found:
    bound = _bound(each.group)
    reached = broken.ratio * broken.pair.factor
    severity, ending = _weigh(each, reached)
    first = facts.checkpoint.tensors[broken.pair.first]
    message = "%s: |m| reaches %s times sqrt(v), where %.3g is the most that the betas allow, in %s of %s, %s" % (
        first.name,
        _times(reached),
        bound,
        format(broken.blocks, ","),
        count_of(broken.of_blocks, "element" if broken.width == 1 else "block"),
        ending,
    )
    data: Dict[str, object] = {**facts.place(broken.pair.first), "parameter": each.key, "first_byte": broken.offset}
    evidence: Dict[str, object] = {
        "ratio": reached if math.isfinite(reached) else "inf",
        "bound": bound,
        "blocks": broken.blocks,
        "of_blocks": broken.of_blocks,
        "block_elements": broken.width,
        "betas": each.group.options["betas"],
    }
    return Found("CK045", message, data, severity, evidence=evidence)


def _weigh(each: _Moments, reached: float) -> Tuple[Optional[str], str]:
    """Return the severity of a broken bound, None for the usual one, and the words that go with it."""
    if reached <= _EXPLAINED:
        return INFO, "as after a change of betas"
    if any(option in each.group.options for option in _CERTAIN):
        return None, "which no gradients can do"
    return SUSPECT, "which Adam's can't do"


def _times(reached: float) -> str:
    return "infinitely many" if math.isinf(reached) else "%.3g" % reached


def _peaks(facts: Facts) -> Iterator[Found]:
    """Hold the greatest first moment against the greatest second one: what holds for each element holds for these."""
    told = {broken.pair.first for broken in facts.scanned.broken}
    for each in _adam(facts.checkpoint) if facts.whole else ():
        first, second = each.state.tensors["exp_avg"], each.state.tensors["exp_avg_sq"]
        one, other = facts.checkpoint.tensors[first], facts.checkpoint.tensors[second]
        peaks = peak_of(facts.stats(first)), peak_of(facts.stats(second))
        comparable = {one.dtype.name, other.dtype.name} <= _SLACK.keys() and second not in facts.scanned.counts
        alike = one.shape == other.shape and one.piece == other.piece
        if first in told or not (comparable and alike) or peaks[0] is None or peaks[1] is None:
            continue
        slack = max(_SLACK[one.dtype.name], _SLACK[other.dtype.name])
        if peaks[0] > _bound(each.group) * slack * math.sqrt(peaks[1] + _GRANTED * other.dtype.smallest):
            yield _tell_peak(facts, each, peaks[0], math.sqrt(peaks[1]))


def _tell_peak(facts: Facts, each: _Moments, peak: float, root: float) -> Found:
    bound, reached = _bound(each.group), peak / root if root else math.inf
    severity, ending = _weigh(each, reached)
    first = each.state.tensors["exp_avg"]
    message = "%s: the greatest |m|, %.3g, is %s times the greatest sqrt(v), where %.3g is the most, %s" % (
        facts.checkpoint.tensors[first].name,
        peak,
        _times(reached),
        bound,
        ending,
    )
    evidence: Dict[str, object] = {
        "ratio": reached if math.isfinite(reached) else "inf",
        "bound": bound,
        "max": peak,
        "betas": each.group.options["betas"],
    }
    return Found("CK045", message, {**facts.place(first), "parameter": each.key}, severity, evidence=evidence)


def _not_compared(facts: Facts) -> Iterator[Found]:
    """Name the moments of Adam that could not be held, block by block, against each other."""
    if not (facts.whole and facts.scanned.stats):
        return
    tensors, skimmed = facts.checkpoint.tensors, set(facts.scanned.skimmed)
    unpaired = {pair.first for pair in facts.scanned.unpaired}
    both = ((each.state.tensors["exp_avg"], each.state.tensors["exp_avg_sq"]) for each in _adam(facts.checkpoint))
    # Of what was only skimmed, that is told for all of it.
    left = [
        one
        for one, other in both
        if (one in unpaired or not _comparable(tensors[one], tensors[other]))
        and skimmed.isdisjoint((one, other))
        and tensors[one].numel
    ]
    if left:
        message = "%s could not be held, block by block, against the second moments beside: format or layout differ"
        data: Dict[str, object] = {"tensors": [tensors[index].name for index in left[:20]]}
        yield Found("CK126", message % count_of(len(left), "first moment"), data, INFO, "")


def _negative(facts: Facts) -> Iterator[Found]:
    sums = _sums(facts.checkpoint)
    for index, tensor in enumerate(facts.checkpoint.tensors):
        variance = tensor.role in (MODEL, EMA) and tensor.name.endswith("running_var")
        squares = variance or (tensor.role == OPTIMIZER and (tensor.key in _SQUARES or index in sums))
        stats = facts.scanned.stats.get(index) if squares else None
        if stats is None or not (stats.negative or (stats.minimum is not None and stats.minimum < 0)):
            continue
        least = "" if stats.minimum is None else " (%.6g)" % stats.minimum
        message = "%s sums up squares, and yet has an element below zero%s" % (tensor.name, least)
        evidence: Dict[str, object] = {"min": stats.minimum, "elements": stats.elements}
        step = "Go back to the checkpoint before: normalised by it, everything is NaN." if variance else None
        yield Found("CK044", message, facts.place(index), None, step, evidence)


def _sums(checkpoint: Checkpoint) -> Set[int]:
    """Return the sums that Adagrad keeps; others may keep something else by so plain a name."""
    adagrads = (
        each
        for each in checkpoint.optimizers
        if any("initial_accumulator_value" in group.options for group in each.groups)
    )
    return {state.tensors["sum"] for each in adagrads for state in each.states.values() if "sum" in state.tensors}


def _formats(facts: Facts) -> Iterator[Found]:
    for optimizer in facts.checkpoint.optimizers:
        half: List[int] = []
        for key, state in optimizer.states.items():
            half += [
                state.tensors[name]
                for name in _SQUARES
                if state.dtypes.get(name) == "float16" and name in state.tensors
            ]
            yield from _odd_state(facts, key, state)
        if half:
            message = "%s of second moments in float16, which has no room for them: squares below 6e-8 become zero"
            data: Dict[str, object] = {"tensors": [facts.checkpoint.tensors[index].name for index in half[:20]]}
            yield Found("CK052", message % count_of(len(half), "tensor"), data, evidence={"tensors": len(half)})


def _odd_state(facts: Facts, key: str, state: State) -> Iterator[Found]:
    """Judge the state of one parameter: shapes that differ, codes without their key, squares that became zero."""
    if state.dtypes.get("state1") == "uint8" and not {"qmap1", "absmax1"}.issubset(state.dtypes):
        message = "the 8-bit state of parameter %s lacks what gives its codes a meaning (qmap1, absmax1)" % key
        yield Found("CK052", message, {"parameter": key})
    if "exp_avg" not in state.tensors or "exp_avg_sq" not in state.tensors:
        return
    first, second = state.tensors["exp_avg"], state.tensors["exp_avg_sq"]
    one, other = facts.checkpoint.tensors[first], facts.checkpoint.tensors[second]
    if one.shape != other.shape and not _is_shared(one, other):
        message = "the moments of parameter %s differ in shape: %s and %s" % (key, list(one.shape), list(other.shape))
        yield Found("CK052", message, facts.place(second))
    lost = _lost(facts, first, second) if other.dtype.name == "float16" and one.dtype != other.dtype else 0
    if lost:
        message = "%s: at least %s of %s are zero where the first moments are not" % (
            other.name,
            format(lost, ","),
            count_of(other.numel, "second moment"),
        )
        yield Found("CK045", message, facts.place(second), evidence={"zeros": lost, "elements": other.numel})


def _is_shared(one: Tensor, other: Tensor) -> bool:
    """Tell whether each second moment is that of a whole tensor, row or column, as NovoGrad has them on purpose."""
    fits = len(one.shape) == len(other.shape) and all(size in (1, of) for size, of in zip(other.shape, one.shape))
    return other.numel == 1 or fits


def _lost(facts: Facts, first: int, second: int) -> int:
    """Count the zeros that second moments have more than first ones; each stands for a square that was lost."""
    one, other = facts.stats(first), facts.stats(second)
    if one is None or other is None or one.zeros is None or other.zeros is None:
        return 0
    lost = other.zeros - one.zeros
    return lost if lost > _FEW * other.elements else 0


QUESTIONS = (_negative, _broken_bounds, _peaks, _not_compared, _formats)
