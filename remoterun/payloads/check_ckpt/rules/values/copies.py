"""The same bytes in two tensors."""

from __future__ import annotations

from typing import Dict, Iterator, Tuple

from ...model import MODEL, OPTIMIZER, Found, Tensor
from ...scan.stats import Stats
from ..facts import Facts
from ..names import INPUT, OUTPUT
from ..rule import SUSPECT

_LARGE = 4096
_MOST = 20


def _copies(facts: Facts) -> Iterator[Found]:
    groups: Dict[Tuple[object, ...], Dict[str, int]] = {}
    for index, tensor, stats in facts.seen((MODEL, OPTIMIZER)):
        if _tells(tensor, stats):
            key = tensor.key if tensor.role == OPTIMIZER else ""
            # Every rank may have one of the same name.
            groups.setdefault((tensor.role, key, tensor.shape, stats.digest), {}).setdefault(tensor.name, index)
    same = [list(members.values()) for members in groups.values() if len(members) > 1]
    trained = facts.kept() if same else {}
    for members in same:
        tensors = [facts.checkpoint.tensors[index] for index in members]
        # Two trained weights, or the moments of two, can't be the same after a step.
        kept = [trained[index] for index in members if index in trained]
        moved = tensors[0].role == OPTIMIZER or (len(kept) == len(members) and all(map(facts.moved, kept)))
        # Those at both ends of a language model are CK123.
        if not moved and all(INPUT.search(each.name) or OUTPUT.search(each.name) for each in tensors):
            continue
        message = "%s and %s hold the same %s bytes%s" % (
            tensors[0].name,
            tensors[1].name,
            format(tensors[0].numel * tensors[0].dtype.size, ","),
            ", though an optimizer works on each of them" if moved else "",
        )
        data: Dict[str, object] = {"tensors": [tensor.name for tensor in tensors[:_MOST]], **facts.place(members[1])}
        yield Found("CK011", message, data, SUSPECT if moved else None, evidence={"copies": len(members)})


def _tells(tensor: Tensor, stats: Stats) -> bool:
    """Leave out what may well be the same in many places: constants, tables, vectors."""
    if len(tensor.shape) < 2 or tensor.numel < _LARGE or not stats.digest or stats.minimum == stats.maximum:
        return False
    if tensor.role == MODEL:
        return tensor.name.endswith("weight")
    return tensor.key in ("exp_avg", "exp_avg_sq", "momentum_buffer")


QUESTIONS = (_copies,)
