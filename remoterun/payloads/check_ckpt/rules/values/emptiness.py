"""Checkpoints with nothing in them, or nothing that does anything."""

from __future__ import annotations

from typing import Iterator

from ...model import MASTER, MODEL, Found, count_of
from ..facts import Facts
from ..names import LORA_FIRST, LORA_SECOND
from ..rule import INFO

# One empty weight may be meant: a cache, a part that was switched off.
_MEANT = 1


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


QUESTIONS = (_emptiness, _adapter)
