"""Tensors that are not what they were in the checkpoint before: in another's place, or unlike all of them (CK089)."""

from __future__ import annotations

from typing import Dict, Iterator, List, Optional, Set, Tuple

from ..model import MODEL, Found
from ..records import Record
from ..rules.rule import INFO
from .pair import MOST_NAMED, Pair, Place, Shape, parameter_shapes
from .profile import Mark
from .sample import likeness, numbers_of

# The correlation of a matrix with what it was, in samples of both, as training leaves it, and where it is another one.
_SAME, _OTHER = 0.9, 0.5
# What lacks to a correlation of 1 is so many times less with what another one was, where that is what it is. Layers may
# begin as copies of each other, and stay somewhat alike.
_CLOSER = 8
# Where more are not what they were, training has come far, and each would be held against all others.
_MOST = 64
# So many of the weights may be others, and the rest tells that training had not come that far.
_FEW = 0.5
# What training turns into another matrix has another norm, too.
_SAME_NORM = 1.1


class _Change(Record):
    name: str
    before: Mark
    after: Mark
    old: List[float]
    new: List[float]
    alike: float


def exchanges(pair: Pair) -> Iterator[Found]:
    """Find what stands in another's place, among the weights and among the second moments."""
    for halves in (pair.model, pair.states):
        yield from _among(pair, halves)


def _among(pair: Pair, halves: Tuple[Dict[Place, Mark], Dict[Place, Mark]]) -> Iterator[Found]:
    changes = list(_changes(*halves))
    moved = [each for each in changes if each.alike < (1 + _SAME) / 2]
    if len(moved) > _MOST:
        return
    shapes: Dict[Shape, List[_Change]] = {}
    for each in changes:
        shapes.setdefault(each.after.shape, []).append(each)
    sources = {each.name: _source(each, shapes[each.after.shape]) for each in moved}
    for each in moved:
        source, displaced = sources[each.name], _is_displaced(each, sources)
        if source is not None and (displaced or each.alike < _OTHER):
            text = "%s is what %s was in %s" % (each.name, source.name, pair.older.name)
            data: Dict[str, object] = {"tensors": [each.name, source.name], "shape": list(each.after.shape)}
            evidence: Dict[str, object] = {"alike": round(likeness(source.old, each.new), 3)}
            # What stays in its own place, too, was copied: such as into the target of a network.
            level = None if displaced and not pair.fresh else INFO
            yield Found("CK089", text, data, level, evidence=evidence)
    others = [each for each in moved if each.alike < _OTHER]
    unlike = [each for each in others if sources[each.name] is None and _is_weight_of_same_norm(each)]
    usual = sum(each.alike >= _SAME for each in changes)
    if unlike and usual + len(others) == len(changes) and len(others) <= _FEW * len(changes):
        text = "%s nothing like in %s, though of the same norm, while all others are much as they were"
        names = [each.name for each in unlike]
        words = names[0] + " is" if len(names) == 1 else ", ".join(names[:3]) + " are"
        severity = _weigh(pair, {each.after.shape for each in unlike})
        yield Found("CK089", text % (words, pair.older.name), {"tensors": names[:MOST_NAMED]}, severity)


def _changes(before: Dict[Place, Mark], after: Dict[Place, Mark]) -> Iterator[_Change]:
    for place, mark in after.items():
        last = before.get(place)
        if last is not None and last.sample and mark.sample and last.shape == mark.shape:
            old, new = numbers_of(last.sample, last.dtype), numbers_of(mark.sample, mark.dtype)
            if old and new:
                yield _Change(place[0], last, mark, old, new, likeness(old, new))


def _source(each: _Change, fitting: List[_Change]) -> Optional[_Change]:
    """Return what it was before, in another place."""
    best, alike = None, _SAME
    for other in fitting:
        its = likeness(other.old, each.new) if other is not each else 0.0
        if its > alike:
            best, alike = other, its
    return best if _CLOSER * (1 - alike) < 1 - each.alike else None


def _is_displaced(each: _Change, sources: Dict[str, Optional[_Change]]) -> bool:
    """Tell whether no weight that is trained on is where it came from: older models may be kept beside, in a row."""
    source = sources[each.name]
    seen = {each.name}
    while source is not None and source.name not in seen:
        if source.alike >= _OTHER and sources.get(source.name) is None:
            return False
        seen.add(source.name)
        source = sources.get(source.name)
    return len(seen) > 1


def _is_weight_of_same_norm(each: _Change) -> bool:
    before, after = each.before.squares or 0.0, each.after.squares or 0.0
    alike = before < after * _SAME_NORM**2 and after < before * _SAME_NORM**2
    return alike and each.after.role == MODEL


def _weigh(pair: Pair, shapes: Set[Shape]) -> Optional[str]:
    """Return the severity: buffers may become others, and so does a layer that is begun anew, as its steps tell."""
    steps = {mark.high for mark in pair.states[1].values() if mark.key == "step"}
    trained = len(steps) == 1 and pair.steps is not None and pair.steps > 0
    return None if trained and shapes <= parameter_shapes(pair) else INFO
