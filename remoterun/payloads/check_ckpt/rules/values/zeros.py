"""What holds nothing: checkpoints and adapters, tensors that are zero or constant, and pages of zeros inside others."""

from __future__ import annotations

import collections
from typing import Dict, Iterator, List, Optional, Tuple

from ...model import EMA, MASTER, MODEL, OPTIMIZER, Found, Tensor, count_of, row_major
from ...records import Record
from ...scan.stats import Stats
from ..facts import EARLY, Facts, Kept
from ..names import BIAS, BUFFER, LORA_FIRST, LORA_SECOND, MASK, NORM
from ..parameters import SHAPED
from ..rule import INFO, SUSPECT

_WEIGHTS = (MODEL, EMA, MASTER)
# Scalars and small vectors may be anything.
_FEW = 16
# A model with less in it may be anything.
_SOME = 1024
_FINE = ("float32", "float64")
_PAGE = 4096
# What is less wide than this has no rows that zeros could fill.
_SHORTEST_ROW = 32
# With more zeros than these among the rest, a tensor is sparse, and zero pages tell nothing.
_SPARSE = 0.01
# What training leaves no zeros in: steps are not lost in the format.
_WIDE = ("float32", "float64", "bfloat16")
# With fewer weights to compare, nobody knows what is the rule.
_SEVERAL = 3
# Second moments of Adam are held against the first ones instead.
_PASSED_OVER = ("exp_avg_sq", "max_exp_avg_sq")
# One empty weight may be meant: a cache, a part that was switched off.
_MEANT = 1


# --- checkpoints and adapters -----------------------------------------------------------------------------------------


def _emptiness(facts: Facts) -> Iterator[Found]:
    checkpoint = facts.checkpoint
    if checkpoint.empty:
        message = "%s without data, saved from the meta device: %s" % (
            count_of(len(checkpoint.empty), "tensor"),
            checkpoint.empty[0],
        )
        yield Found("CK009", message, {"tensors": checkpoint.empty[:20]})
    yield from _placeholders(facts)
    if checkpoint.decoded and not (checkpoint.tensors or checkpoint.empty or checkpoint.unchecked):
        yield Found("CK009", "no tensor found in it, so there is nothing that could be checked")


def _placeholders(facts: Facts) -> Iterator[Found]:
    weights = [tensor for tensor in facts.checkpoint.tensors if tensor.role == MODEL]
    empty = [tensor for tensor in weights if not tensor.numel]
    named = [tensor for tensor in empty if tensor.shape == (0,) and tensor.name.endswith("weight")]
    whole = len(empty) == len(weights)
    if not whole:
        empty = named
    if not empty or (not whole and len(empty) <= _MEANT):
        return
    # ZeRO-3 leaves the smallest matrices in place; a module may have its weights from elsewhere, beside many others.
    matrices = sum(len(tensor.shape) > 1 and tensor.name.endswith("weight") for tensor in weights)
    message = "%s of the model are empty (of size 0), as " + (
        "ZeRO-3 leaves them in the model's file" if matrices < len(empty) else "modules leave them that need none"
    )
    # What the optimizer keeps is then the model.
    kept = any(tensor.role == MASTER and tensor.numel for tensor in facts.checkpoint.tensors)
    yield Found(
        "CK009",
        ("all " if whole else "") + message % count_of(len(empty), "tensor"),
        {"tensors": [tensor.name for tensor in empty[:20]]},
        INFO if kept or matrices >= len(empty) else None,
        "The weights are in the optimizer's files: put them together with zero_to_fp32.py." if kept else None,
        {"empty": len(empty), "tensors": len(weights)},
    )


def _adapter(facts: Facts) -> Iterator[Found]:
    """Say when an adapter adds nothing: the second factor of each pair is zero."""
    second = [(tensor, stats) for _, tensor, stats in facts.seen((MODEL,)) if LORA_SECOND.search(tensor.name)]
    if not second or any(stats.zeros != stats.elements for _, stats in second):
        return
    first = sum(bool(LORA_FIRST.search(tensor.name)) for _, tensor, _ in facts.seen((MODEL,)))
    fresh = facts.step == 0 or any(not each.states for each in facts.checkpoint.optimizers)
    message = "%s: the second factor of each is zero, so the adapter changes nothing%s" % (
        count_of(len(second), "low-rank pair"),
        ", as it is before the first step" if fresh else "",
    )
    yield Found(
        "CK010",
        message,
        {"tensors": [tensor.name for tensor, _ in second[:20]]},
        INFO if fresh else None,
        evidence={"pairs": len(second), "elements": sum(stats.elements for _, stats in second), "first": first},
    )


# --- whole tensors --------------------------------------------------------------------------------------------------


def _constant(facts: Facts) -> Iterator[Found]:
    seen = facts.seen(_WEIGHTS)
    if not any(_is_flat(stats) for _, _, stats in seen):
        return
    weights = [each for each in seen if each[1].numel > _FEW and not _is_buffer(each[1])]
    flat = [each for each in weights if _is_flat(each[2])]
    zero = [each for each in flat if each[2].zeros == each[2].elements]
    total = sum(stats.elements for _, _, stats in weights)
    matrix = any(len(tensor.shape) > 1 for _, tensor, _ in zero)
    if matrix and len(zero) == len(weights) and total >= _SOME:
        message = "all %s of the weights are zero, in %s" % (
            count_of(total, "element"),
            count_of(len(zero), "tensor"),
        )
        yield Found("CK006", message, {"tensors": [tensor.name for _, tensor, _ in zero[:20]]})
        return
    kept = facts.kept() if flat else {}
    for index, tensor, stats in flat:
        severity = _severity(facts, tensor, stats, kept.get(index))
        if severity is not None:
            only_zeros = stats.zeros == stats.elements
            message = "%s: all %s are %s%s" % (
                tensor.name,
                count_of(stats.elements, "element"),
                "zero" if only_zeros else "%.6g" % (stats.minimum or 0.0),
                ", though an optimizer works on it" if severity == SUSPECT and index in kept else "",
            )
            evidence: Dict[str, object] = {"value": stats.minimum, "elements": stats.elements}
            yield Found("CK006", message, facts.place(index), severity, evidence=evidence)


def _is_flat(stats: Stats) -> bool:
    return stats.minimum is not None and stats.minimum == stats.maximum


def _is_buffer(tensor: Tensor) -> bool:
    return bool(BUFFER.search(tensor.name) or MASK.search(tensor.name))


def _severity(facts: Facts, tensor: Tensor, stats: Stats, kept: Optional[Kept]) -> Optional[str]:
    """Judge a constant tensor; None when there is nothing to say."""
    zero = stats.zeros == stats.elements
    matrix = len(tensor.shape) > 1
    if LORA_SECOND.search(tensor.name) or not (zero or matrix):
        return None
    # bfloat16 rounds small changes of what is not zero away.
    if kept is not None and (zero or tensor.dtype.name in _FINE) and facts.moved(kept):
        return SUSPECT
    if BIAS.search(tensor.name) or not (matrix or NORM.search(tensor.name)):
        return None
    late = facts.step is not None and facts.step >= EARLY
    if zero:
        return SUSPECT if late and kept is None and not _may_be_frozen(facts, tensor) else INFO
    return INFO if late else None


def _may_be_frozen(facts: Facts, tensor: Tensor) -> bool:
    """Tell whether there is an optimizer that works on fewer weights of this shape than there are."""
    tensors = facts.checkpoint.tensors
    weights = collections.Counter(each.shape for each in tensors if each.role == MODEL and not _is_buffer(each))
    kept = [(each.key, each.shape) for each in tensors if each.role == OPTIMIZER and each.key in SHAPED]
    # Of flat partitions, shapes tell nothing.
    if weights.keys().isdisjoint(shape for _, shape in kept):
        return False
    counts = collections.Counter(key for key, shape in kept if shape == tensor.shape)
    return max(counts.values(), default=0) < weights[tensor.shape]


# --- pages ----------------------------------------------------------------------------------------------------------


class _Blank(Record):
    """Hold the pages of zeros in a tensor: runs of elements, and how many zeros there are elsewhere."""

    runs: List[Tuple[int, int]]
    others: int


def _pages(facts: Facts) -> Iterator[Found]:
    blank = {}
    for index, tensor, stats in facts.seen((*_WEIGHTS, OPTIMIZER)):
        found = _blank(facts, tensor, stats)
        if found is not None:
            blank[index] = found
    rivals = _rivals(facts) if blank else {}
    for index, found in blank.items():
        tensor, rival = facts.checkpoint.tensors[index], rivals.get(index)
        alive = rival is not None and _alive(facts, rival, found)
        if tensor.role == MODEL:
            damaged = alive or not _fills_rows(tensor, found)
        else:
            # The first moment of a row that is not used any more decays to zero long before the second.
            damaged = not _fills_rows(tensor, found) and (alive or rival is None)
        if damaged:
            yield _tell_pages(facts, index, found, alive=alive)


def _blank(facts: Facts, tensor: Tensor, stats: Stats) -> Optional[_Blank]:
    """Return the pages of zeros of a tensor that is dense elsewhere."""
    if not stats.zero_pages or stats.zeros is None or stats.zeros == stats.elements or not tensor.dtype.size:
        return None
    if tensor.key in _PASSED_OVER or _is_buffer(tensor) or tensor.stride != row_major(tensor.shape):
        return None
    runs = _elements(facts, tensor, stats)
    listed = sum(stop - start for start, stop in runs)
    page = _PAGE // tensor.dtype.size
    others = max(0, stats.zeros - max(listed, stats.zero_pages * page))
    # What is zero need not begin and end with pages.
    inside = others - 2 * page * len(runs)
    return None if inside > _SPARSE * (stats.elements - stats.zeros) else _Blank(runs, others)


def _elements(facts: Facts, tensor: Tensor, stats: Stats) -> List[Tuple[int, int]]:
    """Return the runs of zero pages as elements of the tensor."""
    base, size = facts.checkpoint.regions[tensor.region].offset + tensor.start, tensor.dtype.size
    return [(-((base - start) // size), (stop - base) // size) for start, stop in stats.zero_runs]


def _rivals(facts: Facts) -> Dict[int, int]:
    """Return which tensor tells whether a row of another got gradients: the second moment, which decays slowly."""
    kept = {index: each.state.tensors for index, each in facts.kept().items()}
    rivals = {index: tensors["exp_avg_sq"] for index, tensors in kept.items() if "exp_avg_sq" in tensors}
    for optimizer in facts.checkpoint.optimizers:
        for state in optimizer.states.values():
            if "exp_avg" in state.tensors and "exp_avg_sq" in state.tensors:
                rivals[state.tensors["exp_avg"]] = state.tensors["exp_avg_sq"]
    return rivals


def _alive(facts: Facts, rival: int, blank: _Blank) -> bool:
    """Tell whether another tensor of the same shape has too few zeros to be zero where this one is."""
    stats = facts.stats(rival)
    return (
        stats is not None and stats.zeros is not None and stats.zeros < sum(stop - start for start, stop in blank.runs)
    )


def _fills_rows(tensor: Tensor, blank: _Blank) -> bool:
    """Tell whether the zeros may be whole rows, as far as their number tells: padding, words that did not occur."""
    row = 1
    for size in reversed(tensor.shape[1:]):
        row = row * size if row < _SHORTEST_ROW else row
    if row < _SHORTEST_ROW:
        # Without rows, zeros that were meant would hardly begin and end with pages, unless they fill the tensor up.
        last = blank.runs[-1][1] if blank.runs else 0
        return blank.others >= _SHORTEST_ROW or tensor.numel - last < _PAGE // tensor.dtype.size
    missing = sum(start % row + -stop % row for start, stop in blank.runs)
    return blank.others >= missing


def _tell_pages(facts: Facts, index: int, blank: _Blank, *, alive: bool) -> Found:
    tensor, stats = facts.checkpoint.tensors[index], facts.scanned.stats[index]
    message = "%s: %s of its file, %s of %s, %s zero, and next to nothing else in it is%s" % (
        tensor.name,
        count_of(stats.zero_pages, "page"),
        format(stats.zero_pages * _PAGE // tensor.dtype.size, ","),
        count_of(stats.elements, "element"),
        "is" if stats.zero_pages == 1 else "are",
        ", while the optimizer has second moments for these elements" if alive else "",
    )
    data: Dict[str, object] = {**facts.place(index), "zero_ranges": [list(run) for run in stats.zero_runs]}
    evidence: Dict[str, object] = {
        "zero_pages": stats.zero_pages,
        "pages": stats.pages,
        "zeros_elsewhere": blank.others,
    }
    return Found("CK007", message, data, evidence=evidence)


# --- zeros that fill no page ----------------------------------------------------------------------------------------


def _trained_zeros(facts: Facts) -> Iterator[Found]:
    """Find weights of which a part is zero that the optimizer has moved: less than pages of the file show."""
    if not any(_fills_no_page(tensor, stats) for _, tensor, stats in facts.seen((MODEL,))):
        return
    compared, odd = 0, []
    for index, kept in facts.kept().items():
        tensor, stats, rival = facts.checkpoint.tensors[index], facts.stats(index), kept.state.tensors.get("exp_avg_sq")
        other = None if rival is None else facts.stats(rival)
        if stats is None or stats.zeros is None or other is None or other.zeros is None or len(tensor.shape) < 2:
            continue
        compared += 1
        if _fills_no_page(tensor, stats._replace(zeros=stats.zeros - other.zeros)) and facts.moved(kept):
            odd.append((index, stats.zeros - other.zeros))
    # Where it is the rule, weights are pruned or held above zero.
    if compared >= _SEVERAL and len(odd) <= max(1, compared // 10):
        for index, count in odd:
            yield _tell_zeros(facts, index, count)


def _fills_no_page(tensor: Tensor, stats: Stats) -> bool:
    """Tell whether there are more zeros than training leaves, and not so many that whole pages would show them."""
    size = (stats.zeros or 0) * tensor.dtype.size
    return tensor.dtype.name in _WIDE and not stats.zero_pages and _PAGE // 2 <= size < 2 * _PAGE


def _tell_zeros(facts: Facts, index: int, count: int) -> Found:
    tensor, stats = facts.checkpoint.tensors[index], facts.scanned.stats[index]
    message = (
        "%s: %s of %s are zero, and no other weight is like that, while the optimizer has second moments for %s"
        % (
            tensor.name,
            format(stats.zeros, ","),
            count_of(stats.elements, "element"),
            "them" if count == stats.zeros else "%s of these" % format(count, ","),
        )
    )
    evidence: Dict[str, object] = {"zeros": stats.zeros, "trained": count, "elements": stats.elements}
    return Found("CK007", message, facts.place(index), evidence=evidence)


QUESTIONS = (_emptiness, _adapter, _constant, _pages, _trained_zeros)
