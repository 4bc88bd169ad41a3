"""A few elements of each large matrix: enough to know it again in another checkpoint, wherever it stands there."""

from __future__ import annotations

import math
import operator
import struct
from typing import TYPE_CHECKING, Dict, Iterator, List, Sequence, Tuple

from ..model import MODEL, OPTIMIZER
from ..scan.spans import pieces

if TYPE_CHECKING:
    from ..model import Tensor

ELEMENTS = 32
# What is kept is little, but is kept of every checkpoint.
_MOST_TENSORS = 2048
_FEWEST_ELEMENTS = 1024
_FORMATS = ("float32", "bfloat16", "float16")


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
