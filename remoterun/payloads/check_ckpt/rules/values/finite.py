"""NaN and infinity: where they are, and which copy of the weights has none."""

from __future__ import annotations

from typing import Dict, Iterator, List, Tuple

from ...model import EMA, MASTER, MODEL, OPTIMIZER, Found, Tensor, count_of
from ...scan.engine import Counts
from ..facts import Facts
from ..names import EXTREME, MASK

# A best loss that starts at infinity and the like.
_FEW = 16
_COPIES = {
    MODEL: "the model's weights",
    EMA: "the averaged weights",
    MASTER: "the optimizer's own copy of the weights",
}


def _values(facts: Facts) -> Iterator[Found]:
    for index in sorted(facts.scanned.counts):
        tensor, counts = facts.checkpoint.tensors[index], facts.scanned.counts[index]
        rule, severity = _rule_for(tensor, counts)
        data: Dict[str, object] = {**facts.place(index), "first_byte": counts.first}
        if tensor.role == OPTIMIZER:
            data["state"] = tensor.key
        yield Found(rule, _tell(tensor, counts), data, severity, evidence=_numbers(tensor, counts))


def _rule_for(tensor: Tensor, counts: Counts) -> Tuple[str, str]:
    if tensor.role in (OPTIMIZER, MASTER):
        return "CK003", "bad"
    only_minus = counts.nan == 0 and counts.inf == counts.negative_inf
    # What has seen nothing yet begins with the infinities.
    empty = tensor.role in (MODEL, EMA) and counts.inf == tensor.numel and EXTREME.search(tensor.name)
    if empty or (only_minus and MASK.search(tensor.name)):
        return "CK002", "info"
    if tensor.role in (MODEL, EMA):
        return "CK001", "bad"
    return "CK012", "info" if tensor.numel <= _FEW else "suspect"


def _tell(tensor: Tensor, counts: Counts) -> str:
    kinds = []
    if counts.nan:
        kinds.append("%s NaN" % format(counts.nan, ","))
    if counts.inf:
        kinds.append("%s infinite" % format(counts.inf, ","))
    kind = {EMA: "averaged weights ", MASTER: "master weights "}.get(tensor.role, "")
    return "%s%s: %s of %s (%s)" % (
        kind,
        tensor.name,
        " and ".join(kinds),
        count_of(tensor.numel, "element"),
        tensor.dtype.name,
    )


def _numbers(tensor: Tensor, counts: Counts) -> Dict[str, object]:
    numbers: Dict[str, object] = {"nan": counts.nan, "inf": counts.inf, "elements": tensor.numel}
    if counts.inf and tensor.dtype.parts == 1:
        numbers["negative_inf"] = counts.negative_inf
    return numbers


def _copies(facts: Facts) -> Iterator[Found]:
    """Say which copy of the weights is good, where another is not."""
    tensors = facts.checkpoint.tensors
    there = {tensor.role for tensor in tensors if tensor.numel and tensor.dtype.floating}
    spoiled = {
        tensors[index].role
        for index, counts in facts.scanned.counts.items()
        if _rule_for(tensors[index], counts)[0] != "CK002"
    }
    bad = [role for role in _COPIES if role in there & spoiled]
    good = [role for role in _COPIES if role in there - spoiled]
    if bad and good and facts.scanned.crcs.keys() >= {tensor.region for tensor in tensors if tensor.role in good}:
        message = "%s hold numbers that are not finite, %s do not" % (_listed(bad), _listed(good))
        yield Found("CK004", message, {"good": good, "bad": bad})


def _listed(roles: List[str]) -> str:
    return " and ".join(_COPIES[role] for role in roles)


QUESTIONS = (_values, _copies)
