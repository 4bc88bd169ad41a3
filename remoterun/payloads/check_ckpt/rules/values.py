"""Rules about values."""

from __future__ import annotations

import re
from typing import Dict, Iterator, Tuple

from ..model import EMA, MODEL, OPTIMIZER, Found, Tensor, count_of
from ..scan.engine import Counts
from ..scan.spans import pieces
from .facts import Facts
from .rule import BAD, GO_BACK, INFO, SUSPECT, Rule

RULES: Dict[str, Rule] = {
    "CK001": Rule(BAD, GO_BACK),
    "CK002": Rule(INFO, "Nothing to do if this is an attention mask."),
    "CK003": Rule(
        BAD, "Go back, or start the optimizer afresh: resuming spreads it into the weights at the first step."
    ),
    "CK009": Rule(SUSPECT, "Find out what this file was meant to hold: there is nothing in it to resume from."),
    "CK012": Rule(SUSPECT, "Find out what this tensor is for; it belongs neither to the model nor to the optimizer."),
}

# Names of buffers that hold minus infinity on purpose.
_MASK = re.compile(
    r"(?:^|[._])\w*(mask|causal|alibi|attn_bias|attention_bias|position_bias|bias_table|rel_pos)\w*$", re.IGNORECASE
)
# A best loss that starts at infinity and the like.
_FEW = 16


def _values(facts: Facts) -> Iterator[Found]:
    for index in sorted(facts.scanned.counts):
        tensor, counts = facts.checkpoint.tensors[index], facts.scanned.counts[index]
        rule, severity = _rule_for(tensor, counts)
        yield Found(
            rule, _tell(tensor, counts), _where(facts, tensor, counts), severity, evidence=_numbers(tensor, counts)
        )


def _rule_for(tensor: Tensor, counts: Counts) -> Tuple[str, str]:
    if tensor.role == OPTIMIZER:
        return "CK003", "bad"
    only_minus = counts.nan == 0 and counts.inf == counts.negative_inf
    if only_minus and _MASK.search(tensor.name):
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
    kind = "averaged weights " if tensor.role == EMA else ""
    return "%s%s: %s of %s (%s)" % (
        kind,
        tensor.name,
        " and ".join(kinds),
        count_of(tensor.numel, "element"),
        tensor.dtype.name,
    )


def _where(facts: Facts, tensor: Tensor, counts: Counts) -> Dict[str, object]:
    region = facts.checkpoint.regions[tensor.region]
    runs = pieces(tensor, 1)
    data: Dict[str, object] = {
        "tensor": tensor.name,
        "dtype": tensor.dtype.name,
        "shape": list(tensor.shape),
        "file": facts.paths[region.file],
        "range": [region.offset + runs[0][0], region.offset + runs[-1][1]],
        "first_byte": counts.first,
    }
    if tensor.role == OPTIMIZER:
        data["state"] = tensor.key
    return data


def _numbers(tensor: Tensor, counts: Counts) -> Dict[str, object]:
    numbers: Dict[str, object] = {"nan": counts.nan, "inf": counts.inf, "elements": tensor.numel}
    if counts.inf and tensor.dtype.parts == 1:
        numbers["negative_inf"] = counts.negative_inf
    return numbers


def _emptiness(facts: Facts) -> Iterator[Found]:
    checkpoint = facts.checkpoint
    if checkpoint.empty:
        message = "%s without data, saved from the meta device: %s" % (
            count_of(len(checkpoint.empty), "tensor"),
            checkpoint.empty[0],
        )
        yield Found("CK009", message, {"tensors": checkpoint.empty[:20]})
    weights = [tensor for tensor in checkpoint.tensors if tensor.role == MODEL]
    if weights and not any(tensor.numel for tensor in weights):
        message = "all %s of the model are empty (of size 0), as ZeRO-3 leaves them in the model's file" % count_of(
            len(weights), "tensor"
        )
        yield Found("CK009", message, {"tensors": [tensor.name for tensor in weights[:20]]})
    if checkpoint.decoded and not (checkpoint.tensors or checkpoint.empty or checkpoint.unchecked):
        yield Found("CK009", "no tensor found in it, so there is nothing that could be checked")


QUESTIONS = (_values, _emptiness)
