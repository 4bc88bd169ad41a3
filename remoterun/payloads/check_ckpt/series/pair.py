"""Two checkpoints that follow each other, side by side, and what has changed its form in between (CK083)."""

from __future__ import annotations

import collections
from typing import Dict, Iterator, Optional, Sequence, Set, Tuple

from ..model import MODEL, OPTIMIZER, Found, count_of
from ..records import Record
from ..rules.names import BUFFER
from ..rules.rule import INFO
from .profile import Card, Mark, Profile

Shape = Tuple[int, ...]
# A tensor's name, without the wrappers that come and go, and where it begins in the whole if it is a part.
Place = Tuple[str, Tuple[int, ...]]

MOST_NAMED = 20
# Less than this share of names in common, and it is another model.
_LEAST_COMMON = 0.5


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


# --- form -----------------------------------------------------------------------------------------------------------


def drift(pair: Pair) -> Iterator[Found]:
    """Say what of the younger checkpoint has another form than in the older one."""
    before, after = _named(pair.model[0]), _named(pair.model[1])
    common = [name for name in after if name in before]
    # What is saved without an optimizer may be cast or cut down on purpose, and a fresh start may begin with anything.
    severity = None if pair.states[0] and pair.states[1] and not pair.fresh else INFO
    if len(common) < _LEAST_COMMON * max(len(before), len(after)):
        text = "it holds another model: of its %s, %d have a name that is known from %s"
        yield Found("CK083", text % (count_of(len(after), "tensor"), len(common), pair.older.name), severity=INFO)
        return
    formats = [(name, before[name].dtype, after[name].dtype) for name in common]
    shapes = [(name, _shown(before[name].shape), _shown(after[name].shape)) for name in common]
    yield from _changed("number format", formats, pair, severity)
    yield from _changed("shape", shapes, pair, severity)
    yield from _gone("missing", [name for name in before if name not in after], pair, severity)
    yield from _gone("new", [name for name in after if name not in before], pair, severity)
    if severity is None:
        # The shapes of its states are not compared: those of flat partitions depend on the number of ranks.
        old, new = _named(pair.states[0]), _named(pair.states[1])
        states = [(name, old[name].dtype, new[name].dtype) for name in new if name in old]
        yield from _changed("number format", states, pair, severity)


def _named(marks: Dict[Place, Mark]) -> Dict[str, Mark]:
    return {name: mark for (name, _), mark in marks.items() if not BUFFER.search(name)}


def _shown(shape: Sequence[int]) -> str:
    return "[%s]" % ", ".join(map(str, shape))


def _changed(what: str, known: Sequence[Tuple[str, str, str]], pair: Pair, severity: Optional[str]) -> Iterator[Found]:
    changed = [(name, before, after) for name, before, after in known if before != after]
    if changed:
        kinds = sorted({"%s instead of %s" % (after, before) for _, before, after in changed})
        whose = "its" if len(changed) == 1 else "their"
        text = "changed %s %s since %s (%s)" % (whose, what, pair.older.name, ", ".join(kinds[:3]))
        yield _told(text, [name for name, _, _ in changed], severity)


def _gone(what: str, names: Sequence[str], pair: Pair, severity: Optional[str]) -> Iterator[Found]:
    if names:
        verb = "is" if len(names) == 1 else "are"
        yield _told("of the model %s %s since %s" % (verb, what, pair.older.name), names, severity)


def _told(text: str, names: Sequence[str], severity: Optional[str]) -> Found:
    message = "%s %s: %s" % (count_of(len(names), "tensor"), text, ", ".join(names[:3]))
    return Found("CK083", message, {"tensors": list(names[:MOST_NAMED])}, severity, evidence={"tensors": len(names)})
