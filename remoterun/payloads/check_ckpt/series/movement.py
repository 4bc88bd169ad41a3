"""What the optimizer's moments say of how far weights must and can have moved between two checkpoints."""

from __future__ import annotations

import collections
import math
import statistics
from typing import Counter, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from ..model import Found, count_of
from ..records import Record
from ..rules.names import BUFFER, LORA_SECOND, MASK
from ..rules.rule import GO_BACK, INFO
from .pair import MOST_NAMED, Pair, Place, Shape, parameter_shapes
from .profile import Mark

# The distance from 1 to the next number; of other formats, nothing is said.
_GRAIN = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
# A move by so many grains is not rounded away. At its first steps, Adam makes a third of its moments' quotient.
_GRAINS = 64
# Of so many elements, enough are near zero.
_MANY = 1024
# What is smaller, or constant, may be held at a bound, such as the temperature of CLIP.
_FEWEST_ELEMENTS = 16
# Adam moves no element by more than 7.3 times its rate (23 for betas of 0.9 and 0.9999); the rate may have been higher.
_PUSH = 40
# The moments that say which way a parameter is moved.
_FIRST = ("exp_avg", "momentum_buffer")
# What is stored in few bits rounds a little further.
_ROUNDED = 1.02
# Smaller matrices may be temperatures, gates and the like. Among fewer, nobody knows what is usual.
_MATRIX, _SEVERAL = 256, 3
# One weight's peak that moves so many times as far as that of any other moved alone.
_ALONE = 8
# One element grew, and not its tensor: to so many times the peak, by so many times what all the others add up to.
_GREW, _OTHERS = 2, 4
# Moments so small may be too small to decay any further.
_LEAST_MOMENT = 1e-30
# Moments that no step leaves as they were; what is averaged over long rounds to itself in formats of fewer bits.
_STEPPED = {"exp_avg": tuple(_GRAIN), "exp_avg_sq": ("float32", "float64")}


def movement(pair: Pair) -> List[Found]:
    """Judge the weights of two checkpoints, and what the optimizer has made of them in between."""
    if pair.steps is None:
        return [*_stale_shards(pair), *_emptied(pair), *_outlier(pair)]
    # After a fresh start, it says nothing of what the weights should have become.
    if pair.steps <= 0:
        return []
    # A torn save has parts of an earlier step.
    stale = [] if pair.younger.torn else [*_stale_shards(pair), *_standstill(pair), *_stale_moments(pair)]
    return [*stale, *_emptied(pair), *(list(_leaps(pair, pair.steps)) or _outlier(pair))]


# --- CK080: what should have moved ----------------------------------------------------------------------------------


def _standstill(pair: Pair) -> Iterator[Found]:
    """Count, shape by shape: where more parameters were moved than weights have changed, some stood still.

    That needs no knowledge of which state belongs to which weight.
    """
    stood: Dict[Shape, List[str]] = {}
    changed: Counter[Shape] = collections.Counter()
    unknown: Set[Shape] = set()
    for place, after in pair.model[1].items():
        before = pair.model[0].get(place)
        if before is None or not (before.digest and after.digest):
            unknown.add(after.shape)
        elif before.digest != after.digest:
            changed[after.shape] += 1
        elif after.elements >= _FEWEST_ELEMENTS and after.low != after.high and not BUFFER.search(place[0]):
            stood.setdefault(after.shape, []).append(place[0])
    touched, pushed = _touched(pair)
    frozen: List[str] = []
    for shape, names in stood.items():
        if shape in unknown:
            continue
        count = min(pushed[shape] - changed[shape], len(names))
        if count > 0:
            yield _told_standstill(pair, shape, names, count)
        elif touched[shape] <= changed[shape]:
            frozen += names
    # Who freezes most of a model knows it.
    if pair.states[1] and 0 < len(frozen) < sum(changed.values()):
        text = "%s the same as in %s, and the optimizer did not work on %s: %s"
        words = ("a weight is", "it") if len(frozen) == 1 else ("%s are" % count_of(len(frozen), "weight"), "them")
        message = text % (words[0], pair.older.name, words[1], ", ".join(frozen[:3]))
        yield Found("CK080", message, {"tensors": frozen[:MOST_NAMED]}, INFO, "Nothing to do if this is frozen.")


def _told_standstill(pair: Pair, shape: Shape, names: List[str], count: int) -> Found:
    if count == len(names):
        what = "%s the same as in %s, though the optimizer worked on %s" % (
            "a weight is" if count == 1 else "%s are" % count_of(count, "weight"),
            pair.older.name,
            "it" if count == 1 else "them",
        )
    else:
        what = "of %s that are the same as in %s, the optimizer worked on %d" % (
            count_of(len(names), "weight"),
            pair.older.name,
            count,
        )
    data: Dict[str, object] = {"tensors": names[:MOST_NAMED], "shape": list(shape)}
    return Found("CK080", "%s: %s" % (what, ", ".join(names[:3])), data, evidence={"weights": count})


def _touched(pair: Pair) -> Tuple[Counter[Shape], Counter[Shape]]:
    """Count by shape the parameters whose moments changed, and those of which the last step must have moved an element.

    The latter are those that it moved so far that no rounding can hide it, whichever weight of this shape it was.
    """
    rates = [*pair.older.rates, *pair.younger.rates]
    rate = min(rates) if pair.older.rates and pair.younger.rates else 0.0
    grains: Dict[Shape, _Grain] = {}
    for mark in pair.model[1].values():
        grains[mark.shape] = _coarser(grains.get(mark.shape), _grain(mark))
    touched: Counter[Shape] = collections.Counter()
    pushed: Counter[Shape] = collections.Counter()
    for place, after in pair.states[1].items():
        before = pair.states[0].get(place)
        if after.key not in _FIRST or (before is not None and before.digest == after.digest != 0):
            continue
        touched[after.shape] += 1
        known = before is not None and before.digest and after.digest
        grain, push = grains.get(after.shape), rate * _push(pair, place, after)
        if known and grain is not None and (push > _GRAINS * grain.most or _shows(after, push, grain)):
            pushed[after.shape] += 1
    return touched, pushed


class _Grain(Record):
    """Say how coarse a weight's format is at its greatest element, and at one of usual size if it is a large matrix."""

    most: float
    usual: float


def _grain(mark: Mark) -> _Grain:
    grain = _GRAIN.get(mark.dtype, math.inf)
    most = grain * mark.peak if mark.peak else math.inf
    around_zero = (mark.low or 0.0) < 0 < (mark.high or 0.0)
    if not around_zero or not mark.squares or len(mark.shape) < 2 or mark.elements < _MANY:
        return _Grain(most, math.inf)
    return _Grain(most, grain * math.sqrt(mark.squares / mark.elements))


def _coarser(one: Optional[_Grain], other: _Grain) -> _Grain:
    return other if one is None else _Grain(max(one.most, other.most), max(one.usual, other.usual))


def _shows(moment: Mark, push: float, grain: _Grain) -> bool:
    """Tell whether many elements must be so near zero that no rounding hides a push, if they lie around it as usual.

    Of those that are pushed there are at least as many as the moment's squares are times its greatest one.
    """
    peak = moment.peak or 0.0
    least = _GRAINS * peak * peak
    near = (moment.squares or 0.0) * min(grain.usual, 1.6 * push)
    return 0 < least * grain.usual < near


def _push(pair: Pair, place: Place, moment: Mark) -> float:
    """Return by how much, at the least, the last step moved some element, for a learning rate of 1."""
    if moment.key == "momentum_buffer":
        return moment.peak or 0.0
    second = pair.states[1].get((place[0][: -len(moment.key)] + "exp_avg_sq", place[1]))
    if second is None or second.high is None or second.high < 0:
        return 0.0
    return (moment.peak or 0.0) / (math.sqrt(second.high) + max(pair.younger.epsilon, 1e-30))


def _stale_shards(pair: Pair) -> Iterator[Found]:
    """Find parts of tensors that stood still while all else moved, the same ones of each: a shard of another save."""
    parts: Dict[str, List[Tuple[Tuple[int, ...], bool]]] = {}
    for place, after in pair.model[1].items():
        before = pair.model[0].get(place)
        if before is not None and before.digest and after.digest and after.low != after.high:
            parts.setdefault(place[0], []).append((place[1], before.digest == after.digest))
    most = max(map(len, parts.values()), default=0)
    cut = {name: [same for _, same in sorted(each)] for name, each in parts.items() if len(each) == most > 1}
    # What is frozen tells nothing.
    cut = {name: each for name, each in cut.items() if not all(each)}
    still = set(map(tuple, cut.values()))
    if len(cut) >= _SEVERAL and len(still) == 1 and len(set(*still)) == 2:
        text = "of %s that lie in parts, the same parts are as in %s, and the others are not: a shard is of that save"
        message = text % (count_of(len(cut), "weight"), pair.older.name)
        yield Found("CK080", message, {"tensors": list(cut)[:MOST_NAMED]}, None, GO_BACK)


# --- CK088: moments that should have changed -------------------------------------------------------------------------


def _stale_moments(pair: Pair) -> Iterator[Found]:
    """Find moments that are as they were, though steps of their parameter were counted since."""
    same: Dict[str, List[str]] = {}
    changed: Set[str] = set()
    for place, after in pair.states[1].items():
        before = pair.states[0].get(place)
        if before is None or not after.digest or after.dtype not in _STEPPED.get(after.key, ()):
            continue
        if before.digest != after.digest:
            changed.add(after.key)
        elif after.low != after.high and (after.peak or 0.0) > _LEAST_MOMENT and after.elements >= _FEWEST_ELEMENTS:
            counts = [states.get((place[0][: -len(after.key)] + "step", ())) for states in pair.states]
            steps = [0.0 if count is None or count.high is None else count.high for count in counts]
            if steps[0] < steps[1]:
                same.setdefault(after.key, []).append(place[0])
    # Where all of a kind stand still, they were frozen on purpose, or all moments are the same, as CK081 says.
    names = [name for key in same if key in changed for name in same[key]]
    if names:
        text = "%s the same as in %s, though the optimizer has counted steps since: %s"
        what = "a moment is" if len(names) == 1 else "%s are" % count_of(len(names), "moment")
        message = text % (what, pair.older.name, ", ".join(names[:3]))
        yield Found("CK088", message, {"tensors": names[:MOST_NAMED]}, evidence={"moments": len(names)})


# --- CK082: what moved too far --------------------------------------------------------------------------------------


class _Leap(Record):
    name: str
    what: str
    before: float
    after: float
    limit: float


def _leaps(pair: Pair, steps: float) -> Iterator[Found]:
    """Hold the peak and the norm of each weight against what Adam can do to them in so many steps."""
    reach = max(pair.older.top_rate, pair.younger.top_rate) * _PUSH * steps
    if not (pair.older.adam and pair.younger.adam and reach):
        return
    shapes = parameter_shapes(pair)
    weights = [
        (place[0], pair.model[0][place], after)
        for place, after in pair.model[1].items()
        if place in pair.model[0] and after.shape in shapes and not BUFFER.search(place[0])
    ]
    # Rates that go up and down by hand are saved as they are at that step, which may be where they are lowest.
    reach = max(reach, _ALONE * _usual_move(weights))
    decay = min(1.0, reach * pair.younger.decay)
    leaps = [leap for name, before, after in weights for leap in _leap(name, before, after, reach, decay)]
    if not leaps:
        return
    worst = max(leaps, key=lambda leap: leap.after / max(leap.before, 1e-30))
    count = count_of(int(steps), "step")
    text = "the %s of %s was %.4g in %s and is %.4g: further than Adam moves it in %s at its learning rate"
    message = text % (worst.what, worst.name, worst.before, pair.older.name, worst.after, count)
    more = "; so did %s" % count_of(len(leaps) - 1, "other weight") if len(leaps) > 1 else ""
    evidence: Dict[str, object] = {
        "before": worst.before,
        "after": worst.after,
        "limit": worst.limit,
        "weights": len(leaps),
    }
    yield Found("CK082", message + more, {"tensors": [leap.name for leap in leaps[:MOST_NAMED]]}, evidence=evidence)


def _usual_move(weights: Sequence[Tuple[str, Mark, Mark]]) -> float:
    """Return how far some element of a weight has moved at the least, of most weights."""
    moves = []
    for _, before, after in weights:
        if before.peak is not None and after.peak is not None:
            low, high = (after.low or 0.0) - (before.low or 0.0), (after.high or 0.0) - (before.high or 0.0)
            moves.append(max(abs(low), abs(high)))
    return statistics.median(moves) if len(moves) >= _SEVERAL else 0.0


def _leap(name: str, before: Mark, after: Mark, reach: float, decay: float) -> Iterator[_Leap]:
    """Yield at most one: what grew out of reach, or shrank by more than decay and reach."""
    if before.peak is None or after.peak is None or before.squares is None or after.squares is None:
        return
    norm, now, room = math.sqrt(before.squares), math.sqrt(after.squares), reach * math.sqrt(after.elements)
    least = norm * (1 - decay) - room
    if after.peak > (before.peak + reach) * _ROUNDED:
        yield _Leap(name, "greatest magnitude", before.peak, after.peak, before.peak + reach)
    elif now > (norm + room) * _ROUNDED:
        yield _Leap(name, "norm", norm, now, norm + room)
    elif now * _ROUNDED < least:
        yield _Leap(name, "norm", norm, now, least)


def _emptied(pair: Pair) -> Iterator[Found]:
    """Find the matrices that became zero all over, which no step of an optimizer makes of them."""
    names = []
    for place, after in pair.model[1].items():
        before = pair.model[0].get(place)
        if before is None or before.shape != after.shape or len(after.shape) < 2 or after.elements < _MATRIX:
            continue
        # Adapters begin at zero again once they are merged into the model.
        meant = BUFFER.search(place[0]) or MASK.search(place[0]) or LORA_SECOND.search(place[0])
        if after.low == after.high == 0 and before.squares and not meant:
            names.append(place[0])
    if names:
        what = names[0] if len(names) == 1 else "%s (%s)" % (count_of(len(names), "weight"), ", ".join(names[:3]))
        text = "%s: zero all over, and not so in %s: no optimizer does that" % (what, pair.older.name)
        yield Found("CK082", text, {"tensors": names[:MOST_NAMED]}, evidence={"weights": len(names)})


def _outlier(pair: Pair) -> Iterator[Found]:
    """Find the one matrix of which a single element leapt, while the peaks of all others hardly moved."""
    # Rprop has a rate for each element, which grows by itself.
    if any(mark.key == "step_size" for mark in pair.states[1].values()):
        return
    moves = []
    for place, after in pair.model[1].items():
        before = pair.model[0].get(place)
        if before is None or len(after.shape) < 2 or after.elements < _MATRIX or BUFFER.search(place[0]):
            continue
        if before.peak and after.peak and before.squares is not None and after.squares is not None:
            moves.append((after.peak - before.peak, place[0], before, after))
    moves.sort(key=lambda move: -abs(move[0]))
    if len(moves) < _SEVERAL or moves[0][0] <= _ALONE * abs(moves[1][0]):
        return
    _, name, before, after = moves[0]
    peak, last = after.peak or 0.0, before.peak or 0.0
    grown = peak * peak - last * last
    others = abs((after.squares or 0.0) - (before.squares or 0.0) - grown)
    if peak > _GREW * last and grown > _OTHERS * others:
        text = "one element of %s is %.4g, where the greatest in %s was %.4g: the others of it, and of all other "
        text += "weights, hardly moved"
        evidence: Dict[str, object] = {"before": last, "after": peak, "next": moves[1][0]}
        yield Found("CK082", text % (name, peak, pair.older.name, last), {"tensors": [name]}, evidence=evidence)
