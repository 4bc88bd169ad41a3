"""From what was read and counted to findings: each function is one question asked of a whole checkpoint."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Callable, Dict, Iterator, List, NamedTuple, Sequence, Tuple

from ..model import EMA, MODEL, OPTIMIZER, UNKNOWN_FORMAT, Checkpoint, Found, Tensor, count_of
from ..scan.engine import Counts
from ..scan.spans import pieces

if TYPE_CHECKING:
    from ..scan.scanner import Scanned
    from ..scan.spans import Claims

# Names of buffers that hold minus infinity on purpose.
_MASK = re.compile(
    r"(?:^|[._])\w*(mask|causal|alibi|attn_bias|attention_bias|position_bias|bias_table|rel_pos)\w*$", re.IGNORECASE
)
# A best loss that starts at infinity and the like.
_FEW = 16


class Facts(NamedTuple):
    """Bring together what the questions are asked of."""

    checkpoint: Checkpoint
    claims: Claims
    scanned: Scanned
    paths: Sequence[str]

    def counts(self, roles: Tuple[str, ...]) -> Counts:
        """Add up the counts of all tensors that have one of the roles."""
        counts = [each for index, each in self.scanned.counts.items() if self.checkpoint.tensors[index].role in roles]
        return Counts(sum(each.nan for each in counts), sum(each.inf for each in counts))


def check(facts: Facts) -> List[Found]:
    """Ask every question."""
    return [found for ask in _QUESTIONS for found in ask(facts)]


def _checksums(facts: Facts) -> Iterator[Found]:
    checkpoint, crcs = facts.checkpoint, facts.scanned.crcs
    names: Dict[int, List[str]] = {}
    for tensor in checkpoint.tensors:
        names.setdefault(tensor.region, []).append(tensor.name)
    for index, region in enumerate(checkpoint.regions):
        if region.crc is None or index not in crcs or crcs[index] == region.crc:
            continue
        inside = names.get(index, [])
        what = inside[0] if inside else "record %s" % region.name
        more = " (shared by %s)" % count_of(len(inside), "tensor") if len(inside) > 1 else ""
        yield Found(
            "CK022",
            "%s%s has another CRC-32 than was saved with it: it was written while being modified, or damaged since"
            % (what, more),
            {
                "tensors": inside[:20],
                "record": region.name,
                "file": facts.paths[region.file],
                "range": [region.offset, region.offset + region.size],
            },
            evidence={"crc32": "%08x" % crcs[index], "saved_crc32": "%08x" % region.crc},
        )


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


def _honesty(facts: Facts) -> Iterator[Found]:
    checkpoint = facts.checkpoint
    unknown = [each for each in checkpoint.unchecked if each.reason == UNKNOWN_FORMAT]
    known = [each for each in checkpoint.unchecked if each.reason != UNKNOWN_FORMAT]
    # Of a truncated file, what is missing is told already. A format that nobody knows may be damage.
    for group, severity in ((unknown, "suspect"), ([] if checkpoint.truncated else known, "info")):
        if group:
            reasons = sorted({"%s (%s)" % (each.dtype, each.reason) for each in group})
            message = "the values of %s were not checked: %s" % (count_of(len(group), "tensor"), ", ".join(reasons[:3]))
            yield Found("CK126", message, {"tensors": [each.name for each in group[:20]]}, severity)
    if checkpoint.unsupported:
        yield Found("CK128", checkpoint.unsupported)


_QUESTIONS: Tuple[Callable[[Facts], Iterator[Found]], ...] = (_checksums, _values, _emptiness, _honesty)
