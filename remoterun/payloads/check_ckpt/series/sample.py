"""A few elements of each large matrix: enough to know it again in another checkpoint, wherever it stands there."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Dict, Iterator, List, Sequence, Tuple

from ..model import MODEL, OPTIMIZER
from ..readers.folder import ChangedError, Folder
from ..scan.elements import Elements
from ..scan.scanner import Pace
from ..scan.spans import pieces
from ..source import ShrunkError

if TYPE_CHECKING:
    from ..model import Tensor
    from ..report import Report

ELEMENTS = 32
# What is read once more is next to nothing, but for each there is a place of its own on the disk.
_MOST_TENSORS = 2048
_FEWEST_ELEMENTS = 1024
# Of each element two bytes are kept: of float32, those that bfloat16 has.
_KEPT = {"float32": 4, "bfloat16": 2, "float16": 2}


def samples(report: Report) -> Dict[int, str]:
    """Return elements from the middle of tensors as text, by index; none of what can't be read any more."""
    tensors, found = report.checkpoint.tensors, {}
    wanted = [index for index in report.scanned.stats if index not in report.scanned.counts and _tells(tensors[index])]
    try:
        with Folder(report.unit.folder, report.unit.files).sources() as sources:
            elements = Elements(report.checkpoint.regions, sources, Pace(None))
            for index in wanted[:_MOST_TENSORS]:
                data = elements.read(tensors[index], tensors[index].numel // 2, ELEMENTS)
                size = _KEPT[tensors[index].dtype.name]
                found[index] = b"".join(data[at - 2 : at] for at in range(size, len(data) + 1, size)).hex()
    except (ChangedError, ShrunkError, OSError):
        pass
    return found


def _tells(tensor: Tensor) -> bool:
    if tensor.role != MODEL and (tensor.role, tensor.key) != (OPTIMIZER, "exp_avg_sq"):
        return False
    matrix = len(tensor.shape) > 1 and tensor.numel >= _FEWEST_ELEMENTS and tensor.dtype.name in _KEPT
    return matrix and len(pieces(tensor, 1)) == 1


def numbers_of(sample: str, dtype: str) -> List[float]:
    """Return the elements, less their mean; none where they are all alike or are no sample."""
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
    return centred if 0 < _product(centred, centred) < math.inf else []


def _widened(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), 2):
        yield b"\0\0" + data[at : at + 2]


def likeness(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the correlation of two samples, 0 where one is missing."""
    if not (one and other):
        return 0.0
    scale = math.sqrt(_product(one, one)) * math.sqrt(_product(other, other))
    return _product(one, other) / scale if scale else 0.0


def _product(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(one, other))
