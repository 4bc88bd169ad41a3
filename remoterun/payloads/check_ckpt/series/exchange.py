"""Tensors that are not what they were in the checkpoint before: in another's place, or unlike all of them (CK089)."""

from __future__ import annotations

import math
import operator
import struct
from typing import TYPE_CHECKING, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from ..model import MODEL, OPTIMIZER, Found
from ..records import Record
from ..rules.rule import INFO
from ..scan.spans import pieces
from .pair import MOST_NAMED, Pair, Place, Shape, parameter_shapes
from .profile import Mark

if TYPE_CHECKING:
    from ..model import Tensor

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
# A few elements of each large matrix are enough to know it again, wherever it stands.
ELEMENTS = 32
# What is kept is little, but is kept of every checkpoint.
_MOST_TENSORS = 2048
_FEWEST_ELEMENTS = 1024
_FORMATS = ("float32", "bfloat16", "float16")


class Change(Record):
    """Hold a matrix as it was and as it is, its samples, and the correlation of these."""

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
    changes = list(changes_of(*halves))
    moved = [each for each in changes if each.alike < (1 + _SAME) / 2]
    if len(moved) > _MOST:
        return
    shapes: Dict[Shape, List[Change]] = {}
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


def changes_of(before: Dict[Place, Mark], after: Dict[Place, Mark]) -> Iterator[Change]:
    """Yield the matrices of which there are samples of both times."""
    for place, mark in after.items():
        last = before.get(place)
        if last is not None and last.sample and mark.sample and last.shape == mark.shape:
            old, new = numbers_of(last.sample, last.dtype), numbers_of(mark.sample, mark.dtype)
            if old and new:
                yield Change(place[0], last, mark, old, new, likeness(old, new))


def _source(each: Change, fitting: List[Change]) -> Optional[Change]:
    """Return what it was before, in another place."""
    best, alike = None, _SAME
    for other in fitting:
        its = likeness(other.old, each.new) if other is not each else 0.0
        if its > alike:
            best, alike = other, its
    return best if _CLOSER * (1 - alike) < 1 - each.alike else None


def _is_displaced(each: Change, sources: Dict[str, Optional[Change]]) -> bool:
    """Tell whether no weight that is trained on is where it came from: older models may be kept beside, in a row."""
    source = sources[each.name]
    seen = {each.name}
    while source is not None and source.name not in seen:
        if source.alike >= _OTHER and sources.get(source.name) is None:
            return False
        seen.add(source.name)
        source = sources.get(source.name)
    return len(seen) > 1


def _is_weight_of_same_norm(each: Change) -> bool:
    before, after = each.before.squares or 0.0, each.after.squares or 0.0
    alike = before < after * _SAME_NORM**2 and after < before * _SAME_NORM**2
    return alike and each.after.role == MODEL


def _weigh(pair: Pair, shapes: Set[Shape]) -> Optional[str]:
    """Return the severity: buffers may become others, and so does a layer that is begun anew, as its steps tell."""
    steps = {mark.high for mark in pair.states[1].values() if mark.key == "step"}
    trained = len(steps) == 1 and pair.steps is not None and pair.steps > 0
    return None if trained and shapes <= parameter_shapes(pair) else INFO


# --- samples --------------------------------------------------------------------------------------------------------


def samples(tensors: Sequence[Tensor]) -> Dict[int, Tuple[int, int]]:
    """Return where in which tensors, by their index, samples begin and end."""
    wanted = [index for index, tensor in enumerate(tensors) if _tells(tensor)][:_MOST_TENSORS]
    firsts = ((index, tensors[index].numel // 2, tensors[index].dtype.size) for index in wanted)
    return {index: (first * size, (first + ELEMENTS) * size) for index, first, size in firsts}


def _tells(tensor: Tensor) -> bool:
    if tensor.role != MODEL and (tensor.role, tensor.key) != (OPTIMIZER, "exp_avg_sq"):
        return False
    matrix = len(tensor.shape) > 1 and tensor.numel >= _FEWEST_ELEMENTS and tensor.dtype.name in _FORMATS
    return matrix and len(pieces(tensor, 1)) == 1


def numbers_of(sample: str, dtype: str) -> List[float]:
    """Return the elements, less their mean and scaled to a length of 1; none where they are alike or are no sample."""
    try:
        data = bytes.fromhex(sample)
        if dtype == "float16":
            numbers: Tuple[float, ...] = struct.unpack("<%de" % ELEMENTS, data)
        else:
            numbers = struct.unpack("<%df" % ELEMENTS, b"".join(_widened(data)))
    except (ValueError, struct.error):
        return []
    mean = math.fsum(numbers) / ELEMENTS if all(map(math.isfinite, numbers)) else math.nan
    centred = [number - mean for number in numbers]
    length = math.sqrt(likeness(centred, centred))
    return [number / length for number in centred] if 0 < length < math.inf else []


def _widened(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), 2):
        yield b"\0\0" + data[at : at + 2]


def likeness(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the correlation of two samples."""
    return sum(map(operator.mul, one, other), 0.0)
