"""Weights that are too large, or too small, to be weights, and what optimizers keep that no gradient explains."""

from __future__ import annotations

import math
from typing import Dict, Iterator, Optional

from ...model import EMA, MASTER, MODEL, OPTIMIZER, Found, Tensor
from ...scan.stats import Stats
from ..facts import Facts, peak_of
from ..names import BUFFER, MASK
from ..rule import INFO

_WEIGHTS = (MODEL, EMA, MASTER)
# No weight of a network that learns is larger; counters, variances and other buffers may be.
_LARGE = 1e6
# Nothing that anybody counts or measures is larger.
_HUGE = 1e30
# Nor does an optimizer keep more than squares of gradients of 1e10, or averages of those.
_OF_GRADIENTS, _OF_SQUARES = 1e10, 1e20
_GRADIENTS = frozenset(("exp_avg", "exp_avg_fast", "exp_avg_slow", "grad_avg", "momentum_buffer", "prev"))
# Scalars are counters, temperatures and the like.
_FEW = 16
# What masks are filled with.
_LOWEST = -1.6e38
_FILLS = (-1e4, -1e9, -1e10, -1e12, -1e30, -65504.0)
# A single element that outweighs all others: what a flipped bit of the exponent leaves.
_MANY, _OUTSTANDING, _SHARE = 4096, 64.0, 0.9
_SUBNORMAL, _FLOOD = 0.01, 0.5
# Smaller numbers are subnormal in float16 without being strange.
_WIDE = ("float32", "bfloat16", "float64")


def _size(facts: Facts) -> Iterator[Found]:
    for index, tensor, stats in facts.seen(_WEIGHTS):
        peak = peak_of(stats)
        if peak is None or peak < _OUTSTANDING or _is_mask(tensor, stats):
            continue
        weight = _is_weight(tensor)
        evidence: Dict[str, object] = {"max": peak, "elements": stats.elements}
        if stats.squares is not None and math.isfinite(stats.squares):
            evidence["rms"] = math.sqrt(stats.squares / stats.elements)
        if peak > (_LARGE if weight else _HUGE):
            message = "%s has an element of magnitude %.3g: no trained weight is that large" % (tensor.name, peak)
            yield Found("CK005", message, facts.place(index), evidence=evidence)
        elif weight and _stands_out(tensor, stats, peak):
            message = "%s has an element of magnitude %.3g that outweighs all %s others" % (
                tensor.name,
                peak,
                format(stats.elements - 1, ","),
            )
            yield Found("CK005", message, facts.place(index), evidence=evidence)


def _state(facts: Facts) -> Iterator[Found]:
    for index, tensor, stats in facts.seen((OPTIMIZER,)):
        peak = peak_of(stats)
        if (
            tensor.numel > _FEW
            and peak is not None
            and peak > (_OF_GRADIENTS if tensor.key in _GRADIENTS else _OF_SQUARES)
        ):
            message = "%s has an element of magnitude %.3g: no gradient makes it that large" % (tensor.name, peak)
            evidence: Dict[str, object] = {"max": peak, "elements": stats.elements}
            yield Found("CK005", message, facts.place(index), evidence=evidence)


def _is_weight(tensor: Tensor) -> bool:
    if tensor.numel <= _FEW or BUFFER.search(tensor.name):
        return False
    return len(tensor.shape) > 1 or tensor.name.endswith(("weight", "bias"))


def _is_mask(tensor: Tensor, stats: Stats) -> bool:
    """Tell whether a tensor is one that keeps attention away, whatever its name."""
    if MASK.search(tensor.name):
        return True
    lowest = stats.minimum is not None and (stats.minimum in _FILLS or stats.minimum <= _LOWEST)
    return lowest and stats.maximum is not None and stats.maximum <= 1


def _stands_out(tensor: Tensor, stats: Stats, peak: float) -> bool:
    if len(tensor.shape) < 2 or stats.elements < _MANY or stats.squares is None:
        return False
    # In a sparse tensor, the others may be zero.
    return stats.zeros is not None and stats.zeros * 2 < stats.elements and peak * peak > _SHARE * stats.squares


def _subnormals(facts: Facts) -> Iterator[Found]:
    for index, tensor, stats in facts.seen(_WEIGHTS):
        share = (stats.subnormals or 0) / stats.elements
        if tensor.dtype.name not in _WIDE or tensor.numel <= _FEW or share <= _SUBNORMAL:
            continue
        message = "%s: %s of %s elements are subnormal (too small for the format's full precision)" % (
            tensor.name,
            format(stats.subnormals, ","),
            format(stats.elements, ","),
        )
        evidence: Dict[str, object] = {"subnormals": stats.subnormals, "elements": stats.elements, "max": stats.maximum}
        # Weight decay brings what is never used there, after many steps; means of dead channels come there soon.
        severity: Optional[str] = None if share >= _FLOOD and not BUFFER.search(tensor.name) else INFO
        yield Found("CK008", message, facts.place(index), severity, evidence=evidence)


QUESTIONS = (_size, _state, _subnormals)
