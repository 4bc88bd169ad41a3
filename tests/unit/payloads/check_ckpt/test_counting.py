"""The engines against torch: every number format, every bit pattern, exact counts."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from remoterun.payloads.check_ckpt.dtypes import DTYPES, Dtype
from remoterun.payloads.check_ckpt.scan.engine import Counts, Engine, StdlibEngine
from remoterun.payloads.check_ckpt.scan.numpy_engine import NumpyEngine

if TYPE_CHECKING:
    import random

pytestmark = pytest.mark.torch

ENGINES: tuple[Engine, ...] = (StdlibEngine(), NumpyEngine())
FLOATS = tuple(dtype for dtype in DTYPES.values() if dtype.kind in {"ieee", "codes"})
TORCH = {name: getattr(torch, name) for name in DTYPES if hasattr(torch, name)}


def by_torch(dtype: Dtype, data: bytes) -> Counts:
    """Count with torch; one-byte formats are widened, which keeps NaN and infinity."""
    tensor = torch.frombuffer(bytearray(data), dtype=TORCH[dtype.name]) if data else torch.empty(0)
    if dtype.kind == "codes":
        tensor = tensor.float()
    elif dtype.name == "complex32":
        tensor = tensor.to(torch.complex64)
    nan, inf = torch.isnan(tensor), torch.isinf(tensor)
    odd = (nan | inf).nonzero()
    negative = 0 if dtype.parts == 2 else int((inf & (tensor < 0)).sum())
    return Counts(int(nan.sum()), int(inf.sum()), negative, int(odd[0]) if len(odd) else -1)


def screened(engine: Engine, dtype: Dtype, data: bytes, start: int = 0) -> bool:
    """Screen data that lies somewhere inside a larger buffer, whose other bytes are all NaN."""
    buffer = mmap.mmap(-1, 1 << 16)
    buffer[:] = b"\xff" * len(buffer)
    buffer[start : start + len(data)] = data
    return engine.screen(dtype, buffer, start, start + len(data))


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
class TestAgainstTorch:
    @settings(max_examples=25)
    @given(data=st.data())
    def test_random_bytes(self, engine: Engine, dtype: Dtype, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, 70))
        drawn = data.draw(st.binary(min_size=count * dtype.size, max_size=count * dtype.size))
        assert engine.count(dtype, drawn) == by_torch(dtype, drawn)
        assert screened(engine, dtype, drawn, 64) or by_torch(dtype, drawn).first < 0

    @settings(max_examples=25)
    @given(data=st.data())
    def test_special_numbers_among_ordinary_ones(self, engine: Engine, dtype: Dtype, data: st.DataObject) -> None:
        lanes = data.draw(st.lists(st.sampled_from(_patterns(dtype)), min_size=2, max_size=64))
        drawn = b"".join(lanes[: len(lanes) // dtype.parts * dtype.parts])
        expected = by_torch(dtype, drawn)
        assert engine.count(dtype, drawn) == expected
        assert screened(engine, dtype, drawn) or expected.first < 0

    def test_much_data_with_one_at_the_very_end(self, engine: Engine, dtype: Dtype) -> None:
        size = 40_000 // dtype.size * dtype.size
        for pattern in _patterns(dtype):
            drawn = bytes(size - dtype.lane) + pattern
            assert engine.count(dtype, drawn) == by_torch(dtype, drawn)
            assert screened(engine, dtype, drawn, 4096) or by_torch(dtype, drawn).first < 0

    def test_ordinary_weights_pass_the_screen(self, engine: Engine, dtype: Dtype, rng: random.Random) -> None:
        """A screen that always asks for a closer look would be right and slow."""
        values = torch.tensor([rng.uniform(-1, 1) for _ in range(4096)])
        tensor = values.to(torch.complex64).to(TORCH[dtype.name]) if dtype.parts == 2 else values.to(TORCH[dtype.name])
        drawn = tensor.view(torch.uint8).numpy().tobytes()
        assert not screened(engine, dtype, drawn)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
@pytest.mark.parametrize("dtype", [dtype for dtype in FLOATS if dtype.size <= 2], ids=lambda dtype: dtype.name)
def test_every_bit_pattern_of_a_small_format(engine: Engine, dtype: Dtype) -> None:
    every = b"".join(number.to_bytes(dtype.size, "little") for number in range(256**dtype.size))
    assert engine.count(dtype, every) == by_torch(dtype, every)
    for number in range(256**dtype.size) if dtype.size == 1 else range(0, 65536, 97):
        one = number.to_bytes(dtype.size, "little")
        assert screened(engine, dtype, one) or by_torch(dtype, one).first < 0


def test_large_finite_numbers_are_not_counted() -> None:
    """Their squares overflow, which makes the dot product of the numpy screen infinite."""
    data = torch.full((1000,), 3e38).numpy().tobytes()
    for engine in ENGINES:
        assert engine.count(DTYPES["float32"], data) == Counts()


def _patterns(dtype: Dtype) -> list[bytes]:
    """List the patterns that matter: zero, one, largest, subnormal, NaN quiet and signalling, infinities."""
    if dtype.kind == "codes":
        return [bytes([code]) for code in (0x00, 0x38, 0x7E, 0x7F, 0x80, 0xFE, 0xFF, 0x7B, 0x7C, 0x7D, 0xFC)]
    top = dtype.exponent
    sign = 1 << (8 * dtype.lane - 1)
    numbers = [
        *(0, 1, sign, dtype.mantissa, top - 1, top >> 1),
        *(top, top | sign, top | 1, top | sign | 1, top | dtype.mantissa, (1 << (8 * dtype.lane)) - 1),
    ]
    return [number.to_bytes(dtype.lane, "little") for number in numbers]
