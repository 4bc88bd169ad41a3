"""What every reader yields and every rule judges: tensors as byte ranges, and what was found so far."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Dict, List, Optional, Set, Tuple, Union

from .records import Record

if TYPE_CHECKING:
    from .dtypes import Dtype
    from .source import Source

Number = Union[int, float]

MODEL = "model"
EMA = "ema"
# The optimizer's own copy of the weights in float32.
MASTER = "master"
OPTIMIZER = "optimizer"
OTHER = "other"
# The format of a file that has the tokens of a model, and by design none of its tensors.
VOCABULARY = "gguf-vocabulary"
_LONGEST = 4096


class Region(Record):
    """Name a run of bytes that is read as one: a record of a zip, the data of a tensor.

    `file` counts the checkpoint's files, `offset` and `size` are in bytes, `crc` is the CRC-32 it ought to have, None
    when nobody knows. `data` are the bytes themselves where the file has them written as text, about at `offset`.
    """

    file: int
    offset: int
    size: int
    name: str
    crc: Optional[int] = None
    data: Optional[bytes] = None

    def read(self, source: Source, start: int, size: int) -> bytes:
        """Read bytes from `start` on; `source` is the file, or the window of it, that the region lies in."""
        if self.data is not None:
            return self.data[start : start + size]
        return source.read(self.offset - source.base + start, size)


class Piece(Record):
    """Say which part of a larger tensor a tensor is: where it begins in each dimension, and the sizes of the whole."""

    offsets: Tuple[int, ...]
    whole: Tuple[int, ...]


class Tensor(Record):
    """Place a tensor: element 0 lies `start` bytes into region number `region`; `stride` is in elements.

    `role` is model, ema, master, optimizer or other; `key` names the kind of optimizer state (``exp_avg``). A part of a
    tensor that was cut up has the name of the whole one and a `piece`.
    """

    name: str
    role: str
    dtype: Dtype
    shape: Tuple[int, ...]
    stride: Tuple[int, ...]
    region: int
    start: int
    key: str = ""
    piece: Optional[Piece] = None

    @property
    def numel(self) -> int:
        """Count the elements, repeated ones of an expanded tensor too."""
        return product(self.shape)


# Reasons why values were not looked at.
UNKNOWN_FORMAT = "number format not known"


class Unchecked(Record):
    """Say of which bytes the values were not looked at, and why; entries of the same `place` mean the same bytes."""

    name: str
    dtype: str
    size: int
    reason: str
    place: str = ""


class Found(Record):
    """Hold one finding before it is reported; the rule gives the severity and the next step where they are None.

    `evidence` are the numbers that show it, `data` is whatever more there is to say (tensor, byte range, record).
    """

    rule: str
    message: str
    data: Optional[Dict[str, object]] = None
    severity: Optional[str] = None
    next_step: Optional[str] = None
    evidence: Optional[Dict[str, object]] = None


class Group(Record):
    """Hold one parameter group of an optimizer: the ids of its parameters and, where saved, their names.

    `options` are the plain values in it: numbers, booleans, text, and tuples of numbers (``betas``).
    """

    params: Tuple[str, ...]
    names: Tuple[str, ...]
    options: Dict[str, object]


class State(Record):
    """Hold what an optimizer keeps of one parameter: `tensors` by their index in the checkpoint, and plain numbers.

    A tensor of one element (Adam's ``step``) stands in both; `dtypes` has the number format of each tensor.
    """

    tensors: Dict[str, int]
    numbers: Dict[str, Number]
    dtypes: Dict[str, str]


class Optimizer(Record):
    """Hold the state of one optimizer; `states` by the id of the parameter, as text, in the order of the file."""

    name: str
    groups: Tuple[Group, ...]
    states: Dict[str, State]


class Progress(Record):
    """Say how far training was, by one of the places that tell: `what` is step or epoch, `where` is for people."""

    what: str
    value: Number
    where: str


class Rounded(Record):
    """Say that a part of one tensor is another one rounded: elements of `copy` from `first` on, and all of `exact`.

    Both are tensors by their index, with their elements in one row.
    """

    copy: int
    first: int
    exact: int


class FlawedError(Exception):
    """End the reading of one file with a finding."""

    def __init__(self, rule: str, message: str, *, severity: Optional[str] = None, **data: object) -> None:
        super().__init__(message)
        self.found = Found(rule, message, data, severity)


class Checkpoint:
    """Gather what a reader finds in one checkpoint.

    `size` counts the bytes of its files, `holes` are parts of them that were never written. `empty` names tensors that
    were saved without data. `decoded` tells whether the tensors are known, `unsupported` why they are not looked at
    although the file may be sound. `progress` has every place that tells a step or an epoch, the first of each being
    the one that counts. `schedulers` and `scalers` hold their plain numbers. `parts` names what is there at all: model,
    optimizer, scheduler, scaler, rng, dataloader.
    `copied` counts floating-point elements of the model that stand in a second file, too, `blocks` those in quantised
    blocks, which are among the `unchecked`. `digests` are the SHA-256
    that whole files ought to have, by their numbers; `rounded` says which weights ought to be others in less precision.
    """

    def __init__(self, fmt: str, size: int) -> None:
        self.format = fmt
        self.size = size
        self.regions: List[Region] = []
        self.holes: List[Region] = []
        self.tensors: List[Tensor] = []
        self.empty: List[str] = []
        self.unchecked: List[Unchecked] = []
        self.found: List[Found] = []
        self.step: Optional[Number] = None
        self.epoch: Optional[Number] = None
        self.progress: List[Progress] = []
        self.optimizers: List[Optimizer] = []
        self.schedulers: List[Dict[str, Number]] = []
        self.scalers: List[Dict[str, Number]] = []
        self.parts: Set[str] = set()
        self.copied = 0
        self.blocks = 0
        self.digests: Dict[int, str] = {}
        self.rounded: List[Rounded] = []
        self.decoded = False
        self.truncated = False
        self.unsupported = ""

    def add(
        self,
        rule: str,
        message: str,
        *,
        severity: Optional[str] = None,
        next_step: Optional[str] = None,
        **data: object,
    ) -> None:
        """Note a finding."""
        self.found.append(Found(rule, message, data, severity, next_step))

    def count(self, step: object, where: str) -> bool:
        """Take a number that counts before all others for the step; False when it can't be one."""
        if type(step) is not int or not 0 <= step < 1 << 62:
            return False
        self.step = step
        self.progress.append(Progress("step", step, where))
        return True

    def absorb(self, other: Checkpoint, file: Optional[int]) -> None:
        """Take over what was found in one of several files, which is file number `file` of this checkpoint.

        None stands for a part that counts the files as this checkpoint does.
        Whether it is decoded, truncated or unsupported, and its size and format, are for the caller to join.
        """
        regions, tensors = len(self.regions), len(self.tensors)
        self.regions += [
            region if file is None or region.file == file else region._replace(file=file) for region in other.regions
        ]
        self.holes += [hole._replace(file=hole.file if file is None else file) for hole in other.holes]
        self.tensors += (
            [tensor._replace(region=tensor.region + regions) for tensor in other.tensors] if regions else other.tensors
        )
        self.optimizers += [_moved(each, tensors) for each in other.optimizers]
        self.empty += other.empty
        start = "" if file is None else "%d:" % file
        self.unchecked += [each._replace(place=start + (each.place or each.name)) for each in other.unchecked]
        self.found += other.found
        self.progress += other.progress
        self.schedulers += other.schedulers
        self.scalers += other.scalers
        self.parts |= other.parts
        self.copied += other.copied
        self.blocks += other.blocks
        self.rounded += [Rounded(each.copy + tensors, each.first, each.exact + tensors) for each in other.rounded]
        self.digests.update({number if file is None else file: digest for number, digest in other.digests.items()})


def _moved(optimizer: Optimizer, shift: int) -> Optimizer:
    states = {
        name: state._replace(tensors={key: index + shift for key, index in state.tensors.items()})
        for name, state in optimizer.states.items()
    }
    return optimizer._replace(states=states)


def product(numbers: Tuple[int, ...]) -> int:
    """Multiply the sizes of a shape."""
    result = 1
    for number in numbers:
        result *= number
    return result


def row_major(shape: Tuple[int, ...]) -> Tuple[int, ...]:
    """Return the strides of a tensor whose elements lie one after the other, the last dimension running fastest."""
    stride = []
    step = 1
    for size in reversed(shape):
        stride.append(step)
        step *= size
    return tuple(reversed(stride))


def clean_text(text: str, limit: int = 300) -> str:
    """Make text of a file fit to be shown: on one line, bounded, and so that two different texts never look alike.

    What can't be printed, and the backslash, are written as Python writes them; the middle of a long text gives way
    to its CRC-32.
    """
    if len(text) <= limit and text.isascii() and text.isprintable() and "\\" not in text:
        return text
    shown = "".join(char if char.isprintable() and char != "\\" else ascii(char)[1:-1] for char in text[:_LONGEST])
    if len(shown) <= limit and len(text) <= _LONGEST:
        return shown
    mark = "…%08x…" % zlib.crc32(text.encode("utf-8", "surrogatepass"))
    tail = limit // 3
    return shown[: limit - tail - len(mark)] + mark + shown[-tail:]


def count_of(number: int, noun: str) -> str:
    """Write a number with its noun: ``1 tensor``, ``2,000 tensors``."""
    return "%s %s%s" % (format(number, ","), noun, "" if number == 1 else "s")
