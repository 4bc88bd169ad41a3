"""Looking at numbers on graphics processors that nobody else uses, with the torch of the target's environment."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any, Optional, Sequence, Tuple

from .engine import Blocks, Counts, Engine, Look
from .stdlib_engine import count_codes, look_at_codes, number_of

if TYPE_CHECKING:
    from ..dtypes import Dtype
    from .engine import Answer, Buffer

# What a device may use for numbers, and what is copied to it at a time: up to twelve times as much comes out of that.
_MOST_BYTES = 512 << 20
_CHUNK = 16 << 20
# For fewer bytes, the calls cost more than a processor needs for the numbers.
_WORTH = 256 * 1024
_BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


class CudaEngine(Engine):
    """Look at one chunk on a device while the next one is read; what is small is left to another engine.

    `devices` are their UUIDs (or "cpu"), one worker to each. Nothing of them is touched before `start`, which is called
    in the process that will use one: whoever has, can't be forked any more.
    """

    name = "cuda"
    chunk = _CHUNK
    late = True

    def __init__(self, devices: Sequence[str], small: Engine, torch: Any, worth: int = _WORTH) -> None:
        self.workers = len(devices)
        self._worth = worth
        self._devices = devices
        self.instead: Engine = small
        self._torch = torch
        self._device: Any = None

    def start(self, worker: int, buffers: Sequence[Buffer]) -> None:
        """Take a device, which from now on fetches from the buffers by itself."""
        torch, device = self._torch, self._devices[worker]
        # Threads that this process was forked from a user of are not there to be waited for.
        torch.set_num_threads(1)
        if device == "cpu":
            self._device = torch.device(device)
            return
        # Looked at when the first is used; so this process sees no other.
        os.environ["CUDA_VISIBLE_DEVICES"] = device
        self._device = torch.device("cuda", 0)
        total = torch.cuda.get_device_properties(self._device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, _MOST_BYTES / total), self._device)
        for buffer in buffers:
            address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
            torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(address, len(buffer), 0))

    def look(
        self,
        dtype: Dtype,
        buffer: Buffer,
        start: int,
        stop: int,
        *,
        thorough: bool = True,
        blocks: Optional[Blocks] = None,
    ) -> Look:
        """Have everything counted and measured, and wait for it."""
        return self.ask(dtype, buffer, start, stop, thorough=thorough, blocks=blocks)()

    def ask(
        self,
        dtype: Dtype,
        buffer: Buffer,
        start: int,
        stop: int,
        *,
        thorough: bool = True,
        blocks: Optional[Blocks] = None,
    ) -> Answer:
        """Have everything counted and measured; until the answer is taken, the buffer must stay as it is."""
        if stop - start < self._worth or dtype.kind == "clean":
            return self.instead.ask(dtype, buffer, start, stop, thorough=thorough, blocks=blocks)
        torch = self._torch
        # Torch warns of what it can't write to.
        held = bytearray(buffer) if isinstance(buffer, bytes) else buffer
        here = torch.frombuffer(held, dtype=torch.uint8, count=stop - start, offset=start)
        there = here.to(self._device, non_blocking=True)
        if start % dtype.lane:
            there = there.clone()
        if dtype.kind == "codes":
            return self._ask_codes(dtype, there, buffer, start, stop)
        return self._ask_lanes(dtype, there, blocks)

    def compare(
        self, first: bytes, second: bytes, factor: float, granted: float, most: float
    ) -> Tuple[int, float, int]:
        """Leave it to the other engine."""
        return self.instead.compare(first, second, factor, granted, most)

    def _ask_codes(self, dtype: Dtype, there: Any, buffer: Buffer, start: int, stop: int) -> Answer:
        histogram = self._torch.bincount(there, minlength=256)

        def answer() -> Look:
            often = histogram.tolist()
            odd = any(often[code] for code in dtype.odd)
            return look_at_codes(dtype, often, count_codes(dtype, buffer[start:stop]) if odd else Counts())

        return answer

    def _ask_lanes(self, dtype: Dtype, there: Any, blocks: Optional[Blocks]) -> Answer:
        torch, parts = self._torch, dtype.parts
        bits = there.view(getattr(torch, _BITS[dtype.lane])).reshape(-1, parts)
        most = (1 << (8 * dtype.lane - 1)) - 1
        size = bits & most
        nan, inf = (size > dtype.exponent).any(1), (size == dtype.exponent).any(1)
        odd = nan | inf
        # In this order, integers follow each other as the numbers do.
        order = torch.where(bits < 0, -size, size)
        finite = ~odd[:, None]
        numbers = [
            nan.sum(),
            inf.sum(),
            ((size == dtype.exponent) & (bits < 0)).sum() if parts == 1 else odd.sum() * 0,
            odd.to(torch.uint8).argmax(),
            (size == 0).all(1).sum(),
            (((size <= dtype.mantissa) & (size > 0)).any(1) & ~odd).sum(),
            torch.where(finite, order, most).min(),
            torch.where(finite, order, -most).max(),
        ]
        told = torch.stack([number.to(torch.int64) for number in numbers])
        floats = there.view(getattr(torch, dtype.name if parts == 1 else _part(dtype)))
        exact = torch.where(finite, floats.reshape(-1, parts), 0).double()
        squares = (exact * exact).sum()
        sums = _sums(torch, floats if dtype.lane == 8 else floats.float(), blocks) if blocks else None

        def answer() -> Look:
            nans, infs, below, first, zeros, subnormals, low, high = told.tolist()
            counts = Counts(nans, infs, below, first if nans or infs else -1)
            packed = _packed(sums) if sums is not None else b""
            if low > high:
                return Look(counts, 0, 0, negative=False, blocks=packed)
            bottom, top = (number_of(dtype, each if each >= 0 else most + 1 - each) for each in (low, high))
            return Look(counts, zeros, subnormals, bottom, top, float(squares), low < 0, packed)

        return answer


def _part(dtype: Dtype) -> str:
    """Name the format of one part of a complex number."""
    return "float%d" % (8 * dtype.lane)


def _sums(torch: Any, floats: Any, blocks: Blocks) -> Any:
    """Return sums by block, the first and the last of which may be cut."""
    behind = -(len(floats) + blocks.phase) % blocks.width
    padded = torch.nn.functional.pad(floats, (blocks.phase, behind)).reshape(-1, blocks.width)
    return (padded * padded if blocks.squares else padded).sum(1).float()


def _packed(sums: Any) -> bytes:
    here = sums.cpu().contiguous()
    return ctypes.string_at(here.data_ptr(), 4 * here.numel())
