"""Two checkpoints that follow each other, side by side."""

from __future__ import annotations

import collections
from typing import Dict, Optional, Sequence, Set, Tuple

from ..model import MODEL, OPTIMIZER
from ..records import Record
from ..rules.names import BUFFER
from .profile import Card, Mark, Profile

Shape = Tuple[int, ...]
# A tensor's name, without the wrappers that come and go, and where it begins in the whole if it is a part.
Place = Tuple[str, Tuple[int, ...]]

MOST_NAMED = 20


class Pair(Record):
    """Hold two checkpoints of a series, the older first, and their tensors of each role by place."""

    older: Card
    younger: Card
    model: Tuple[Dict[Place, Mark], Dict[Place, Mark]]
    states: Tuple[Dict[Place, Mark], Dict[Place, Mark]]

    @property
    def steps(self) -> Optional[float]:
        """Return how many steps the optimizer made in between; below zero when it was started afresh."""
        before, after = self.older.optimizer_step, self.younger.optimizer_step
        return None if before is None or after is None else after - before

    @property
    def fresh(self) -> bool:
        """Tell that the optimizer was started afresh."""
        return self.steps is not None and self.steps < 0


def pair_of(older: Profile, younger: Profile) -> Optional[Pair]:
    """Put two checkpoints side by side; None when the marks of one can't be had any more."""
    old, new = older.marks(), younger.marks()
    if not old or not new:
        return None
    model = _by_place(old, MODEL), _by_place(new, MODEL)
    return Pair(older.card, younger.card, model, (_by_place(old, OPTIMIZER), _by_place(new, OPTIMIZER)))


def _by_place(marks: Sequence[Mark], role: str) -> Dict[Place, Mark]:
    return {(_plain(mark.name), mark.offsets): mark for mark in marks if mark.role == role}


def _plain(name: str) -> str:
    """Take away what DistributedDataParallel and torch.compile put into a name."""
    if "module" not in name and "_orig_mod" not in name:
        return name
    return ".".join(part for part in name.split(".") if part not in ("module", "_orig_mod"))


def parameter_shapes(pair: Pair) -> Set[Shape]:
    """Return the shapes of which every weight has its moments: of the others, some may be buffers."""
    weights = collections.Counter(mark.shape for (name, _), mark in pair.model[1].items() if not BUFFER.search(name))
    states = collections.Counter(mark.shape for mark in pair.states[1].values() if mark.key == "exp_avg")
    return {shape for shape, count in weights.items() if states[shape] == count}
