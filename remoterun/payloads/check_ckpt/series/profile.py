"""What is kept of a checkpoint to hold others against it: a card of a few numbers, and a mark of each tensor."""

from __future__ import annotations

import math
from _blake2 import blake2b
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Sequence, Set, Tuple

from ..model import MODEL, OPTIMIZER, Checkpoint, Optimizer, Tensor
from ..records import Record
from ..rules.names import BUFFER

if TYPE_CHECKING:
    from ..scan.scanner import Scanned

# A model of fewer elements may well be the same at two steps, such as a threshold that somebody saved.
_FEWEST_ELEMENTS = 256
_STEP_KEYS = ("step", "steps")


class Mark(Record):
    """Remember a tensor; of a part of one, `shape` is that of the whole and `offsets` say where the part begins.

    `elements` counts those that were looked at; where `digest` is 0, `squares` and the rest are not known either.
    `sample` are a few of them, as text.
    """

    name: str
    role: str
    key: str
    dtype: str
    shape: Tuple[int, ...]
    offsets: Tuple[int, ...] = ()
    elements: int = 0
    digest: int = 0
    squares: Optional[float] = None
    low: Optional[float] = None
    high: Optional[float] = None
    odd: int = 0
    sample: str = ""

    @property
    def peak(self) -> Optional[float]:
        """Return the greatest magnitude of a finite element."""
        return None if self.low is None or self.high is None else max(abs(self.low), abs(self.high))


class Card(Record):
    """Sum up one checkpoint of a series.

    `order` sorts the series: the step that the name tells, else the one inside. `tensors` counts them. `model` and
    `moments` are fingerprints of all weights and of all moments of the optimizer, empty when not all is known. `odd`
    counts non-finite elements of both, `norm` is that of all weights but buffers. Of the parameter groups, `rates` are
    the learning rates, empty when one is not known; `top_rate`, `decay` and `epsilon` are the greatest of their kind.
    `adam` tells that the moments are those of Adam, `torn` that training went on while the file was written.
    """

    series: str = ""
    order: float = 0.0
    name: str = ""
    path: str = ""
    mtime_ns: int = 0
    step: Optional[float] = None
    epoch: Optional[float] = None
    tensors: int = 0
    model: str = ""
    moments: str = ""
    odd: Tuple[int, int] = (0, 0)
    norm: Optional[float] = None
    optimizer_step: Optional[float] = None
    rates: Tuple[float, ...] = ()
    top_rate: float = 0.0
    decay: float = 0.0
    epsilon: float = 0.0
    adam: bool = False
    torn: bool = False

    @property
    def idle(self) -> bool:
        """Tell that no learning rate is above zero, so that no step changes a weight."""
        return bool(self.rates) and max(self.rates) == 0


class Profile:
    """Hold the card of a checkpoint, and know where its marks are."""

    def __init__(self, card: Card, load: Callable[[], Optional[List[Mark]]]) -> None:
        self.card = card
        self._load = load

    def marks(self) -> List[Mark]:
        """Return the marks, none when they can't be had."""
        return self._load() or []


def marks_of(checkpoint: Checkpoint, scanned: Scanned) -> List[Mark]:
    """Remember every tensor of a checkpoint."""
    return [_mark(tensor, index, scanned) for index, tensor in enumerate(checkpoint.tensors)]


def _mark(tensor: Tensor, index: int, scanned: Scanned) -> Mark:
    piece, stats, counts = tensor.piece, scanned.stats.get(index), scanned.counts.get(index)
    mark = Mark(
        tensor.name,
        tensor.role,
        tensor.key,
        tensor.dtype.name,
        piece.whole if piece else tensor.shape,
        piece.offsets if piece else (),
        odd=counts.nan + counts.inf if counts else 0,
    )
    if stats is None:
        return mark
    return mark._replace(
        elements=stats.elements,
        digest=stats.digest,
        squares=_finite(stats.squares),
        low=_finite(stats.minimum),
        high=_finite(stats.maximum),
        sample="" if counts else _written(stats.sample, tensor.dtype.size),
    )


def _written(sample: bytes, size: int) -> str:
    """Write a sample: of each element two bytes, which of float32 are those that bfloat16 has."""
    return b"".join([sample[at - 2 : at] for at in range(size, len(sample) + 1, size)]).hex() if sample else ""


def _finite(number: Optional[float]) -> Optional[float]:
    return number if number is not None and math.isfinite(number) else None


def card_of(checkpoint: Checkpoint, marks: Sequence[Mark]) -> Card:
    """Sum a checkpoint up, but for its name and place."""
    options = [group.options for optimizer in checkpoint.optimizers for group in optimizer.groups]
    rates = [each for each in (_number(group.get("lr")) for group in options) if each is not None]
    model = [mark for mark in marks if mark.role == MODEL]
    states = [mark for mark in marks if mark.role == OPTIMIZER]
    squares = [mark.squares for mark in model if mark.digest and not BUFFER.search(mark.name)]
    return Card(
        step=_number(checkpoint.step),
        epoch=_number(checkpoint.epoch),
        tensors=len(marks),
        model=_fingerprint(checkpoint, marks, MODEL),
        moments=_fingerprint(checkpoint, marks, OPTIMIZER),
        odd=(sum(mark.odd for mark in model), sum(mark.odd for mark in states)),
        norm=_finite(math.sqrt(sum(each for each in squares if each))) if squares and None not in squares else None,
        optimizer_step=max(_steps(checkpoint.optimizers), default=None),
        rates=tuple(rates) if len(rates) == len(options) else (),
        top_rate=_greatest(options, "lr", "initial_lr", "max_lr"),
        decay=_greatest(options, "weight_decay"),
        epsilon=_greatest(options, "eps"),
        adam={"exp_avg", "exp_avg_sq"} <= {mark.key for mark in states},
    )


def _greatest(options: Sequence[Dict[str, object]], *keys: str) -> float:
    return max((_number(each.get(key)) or 0.0 for each in options for key in keys), default=0.0)


def _number(value: object) -> Optional[float]:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return _finite(float(value))
    except OverflowError:
        return None


def _steps(optimizers: Sequence[Optimizer]) -> List[float]:
    """Return how often each parameter was stepped, from wherever the optimizer keeps it."""
    numbers: List[object] = []
    for optimizer in optimizers:
        for key in _STEP_KEYS:
            numbers += [state.numbers.get(key) for state in optimizer.states.values()]
            numbers += [group.options.get(key) for group in optimizer.groups]
    return [number for number in map(_number, numbers) if number is not None]


def _fingerprint(checkpoint: Checkpoint, marks: Sequence[Mark], role: str) -> str:
    """Hash the digests of all tensors of a role; nothing when the role is too small, constant or not wholly known."""
    if not any(mark.digest for mark in marks):
        return ""
    owned: Set[Tuple[int, int]] = set()
    wanted: List[Tuple[Tensor, Mark]] = []
    opaque = seen = 0
    for tensor, mark in zip(checkpoint.tensors, marks):
        if tensor.role != role or not tensor.numel or (role == OPTIMIZER and tensor.numel == 1):
            continue
        if not tensor.dtype.floating:
            opaque += tensor.numel * tensor.dtype.bits
            continue
        seen += mark.elements * tensor.dtype.bits
        wanted.append((tensor, mark))
        if mark.digest:
            owned.add((tensor.region, tensor.start))
    known = all(mark.digest or (tensor.region, tensor.start) in owned for tensor, mark in wanted)
    elements = sum(mark.elements for _, mark in wanted)
    varied = any(mark.low != mark.high for _, mark in wanted)
    if not known or not varied or elements < _FEWEST_ELEMENTS or opaque > seen:
        return ""
    lines = sorted("%s %s %x" % (mark.dtype, mark.shape, mark.digest) for _, mark in wanted if mark.digest)
    return blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()
