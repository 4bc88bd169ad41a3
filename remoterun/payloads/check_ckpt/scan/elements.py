"""Reading some elements of a tensor once more, after the one pass over all bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

if TYPE_CHECKING:
    from ..model import Region, Tensor
    from ..source import Source
    from .scanner import Pace


class Elements:
    """Read elements of tensors whose elements lie one after the other."""

    def __init__(self, regions: Sequence[Region], sources: Sequence[Source], pace: Pace) -> None:
        self._regions = regions
        self._sources = sources
        self._pace = pace

    def place(self, tensor: Tensor, number: int) -> int:
        """Return where in its file an element begins."""
        return self._regions[tensor.region].offset + tensor.start + number * tensor.dtype.size

    def read(self, tensor: Tensor, first: int, length: int) -> bytes:
        """Return the bytes of so many elements.

        Raises:
            ShrunkError: when the file got shorter.
            OSError: when it can't be read.
        """
        region, size = self._regions[tensor.region], tensor.dtype.size
        if region.data is not None:
            return region.read(self._sources[region.file], tensor.start + first * size, length * size)
        data = bytearray(length * size)
        self._pace.spend(len(data))
        self._sources[region.file].read_into(memoryview(data), self.place(tensor, first))
        return bytes(data)
