"""The engines against torch: every number format, every bit pattern, exact counts and statistics."""

from __future__ import annotations

import functools
import itertools
import math
import mmap
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from remoterun.payloads.check_ckpt.dtypes import DTYPES, Dtype
from remoterun.payloads.check_ckpt.scan.cuda_engine import CudaEngine
from remoterun.payloads.check_ckpt.scan.engine import Blocks, Counts, Engine, Look
from remoterun.payloads.check_ckpt.scan.numpy_engine import NumpyEngine
from remoterun.payloads.check_ckpt.scan.stdlib_engine import StdlibEngine

if TYPE_CHECKING:
    import random

pytestmark = [
    pytest.mark.torch,
    # The payload ignores them for the whole process; every test begins with none ignored.
    pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning"),
]

# The code for graphics processors also runs on what everybody has.
ON_TORCH = CudaEngine(["cpu"], StdlibEngine(), torch, worth=0)
ON_TORCH.start(0, ())
ENGINES: tuple[Engine, ...] = (StdlibEngine(), NumpyEngine(), ON_TORCH)
FLOATS = tuple(dtype for dtype in DTYPES.values() if dtype.kind in {"ieee", "codes"})
TORCH = {name: getattr(torch, name) for name in DTYPES if hasattr(torch, name)}

by_engine = pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
by_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)


def tensor_of(dtype: Dtype, data: bytes) -> torch.Tensor:
    """Read data with torch; formats that it can't test are widened, which keeps every value."""
    tensor = torch.frombuffer(bytearray(data), dtype=TORCH[dtype.name]) if data else torch.empty(0)
    if dtype.kind == "codes":
        return tensor.float()
    return tensor.to(torch.complex64) if dtype.name == "complex32" else tensor


def count_with_torch(dtype: Dtype, data: bytes) -> Counts:
    tensor = tensor_of(dtype, data)
    nan, inf = torch.isnan(tensor), torch.isinf(tensor)
    odd = (nan | inf).nonzero()
    negative = 0 if dtype.parts == 2 else int((inf & (tensor < 0)).sum())
    return Counts(int(nan.sum()), int(inf.sum()), negative, int(odd[0]) if len(odd) else -1)


def smallest_normal(dtype: Dtype) -> float:
    if dtype.name == "float8_e8m0fnu":
        return 0.0
    return torch.finfo(TORCH[dtype.name]).smallest_normal


def look_with_torch(dtype: Dtype, data: bytes) -> Look:
    """Take all statistics with torch."""
    tensor = tensor_of(dtype, data)
    finite = tensor[torch.isfinite(tensor)]
    parts = torch.view_as_real(finite) if dtype.parts == 2 else finite[:, None]
    parts = parts.double()
    small = (parts != 0) & (parts.abs() < smallest_normal(dtype))
    counts = count_with_torch(dtype, data)
    if not len(finite):
        return Look(counts, 0, 0, negative=False)
    low, high = float(parts.min()), float(parts.max())
    squares = float(parts.square().sum())
    return Look(
        counts, int((parts == 0).all(1).sum()), int(small.any(1).sum()), low + 0.0, high + 0.0, squares, low < 0
    )


def same(one: Look, other: Look) -> bool:
    """Compare two looks; sums of squares hold to six digits."""
    if one.squares is None or other.squares is None:
        return one == other
    close = math.isclose(one.squares, other.squares, rel_tol=2e-6)
    return close and one._replace(squares=None) == other._replace(squares=None)


def look_at(engine: Engine, dtype: Dtype, data: bytes, start: int = 0, *, thorough: bool = True) -> Look:
    """Look at data that lies somewhere inside a larger buffer, whose other bytes are all NaN."""
    buffer = mmap.mmap(-1, 1 << 18)
    buffer[:] = b"\xff" * len(buffer)
    buffer[start : start + len(data)] = data
    return engine.look(dtype, buffer, start, start + len(data), thorough=thorough)


@by_engine
@by_dtype
class TestAgainstTorch:
    @settings(max_examples=25)
    @given(data=st.data())
    def test_random_bytes(self, engine: Engine, dtype: Dtype, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, 70))
        drawn = data.draw(st.binary(min_size=count * dtype.size, max_size=count * dtype.size))
        start = data.draw(st.sampled_from([0, 64, 4096, 1, 2, 4, 6]))
        assert same(look_at(engine, dtype, drawn, start), look_with_torch(dtype, drawn))
        assert look_at(engine, dtype, drawn, start, thorough=False).counts == count_with_torch(dtype, drawn)

    @settings(max_examples=25)
    @given(data=st.data())
    def test_special_numbers_among_ordinary_ones(self, engine: Engine, dtype: Dtype, data: st.DataObject) -> None:
        lanes = data.draw(st.lists(st.sampled_from(_patterns(dtype)), min_size=2, max_size=64))
        drawn = b"".join(lanes[: len(lanes) // dtype.parts * dtype.parts])
        assert same(look_at(engine, dtype, drawn), look_with_torch(dtype, drawn))
        assert look_at(engine, dtype, drawn, thorough=False).counts == count_with_torch(dtype, drawn)

    def test_much_data_with_one_at_the_very_end(self, engine: Engine, dtype: Dtype) -> None:
        size = 9_000 // dtype.size * dtype.size
        for pattern in _patterns(dtype):
            drawn = bytes(size - dtype.lane) + pattern
            assert same(look_at(engine, dtype, drawn, 4096), look_with_torch(dtype, drawn))
            assert look_at(engine, dtype, drawn, thorough=False).counts == count_with_torch(dtype, drawn)

    def test_ordinary_weights(self, engine: Engine, dtype: Dtype, rng: random.Random) -> None:
        drawn = _ordinary(dtype, rng, 5000)
        assert same(look_at(engine, dtype, drawn, 64), look_with_torch(dtype, drawn))

    def test_what_is_told_without_being_thorough_is_the_same(
        self, engine: Engine, dtype: Dtype, rng: random.Random
    ) -> None:
        for drawn in (_ordinary(dtype, rng, 3000), bytes(3000 * dtype.size), b"\x01" * (3000 * dtype.size)):
            quick, whole = look_at(engine, dtype, drawn, thorough=False), look_with_torch(dtype, drawn)
            for field in ("zeros", "subnormals", "low", "high", "negative"):
                assert getattr(quick, field) in (None, getattr(whole, field)), field


def test_without_being_thorough_the_standard_library_knows_zeros_and_signs(rng: random.Random) -> None:
    """Nothing else is known of tensors that are too large for it."""
    dtype = DTYPES["float32"]
    weights = _ordinary(dtype, rng, 3000)
    assert look_at(ENGINES[0], dtype, weights, thorough=False) == Look(negative=True)
    squares = torch.frombuffer(bytearray(weights), dtype=torch.float32).square().numpy().tobytes()
    assert look_at(ENGINES[0], dtype, squares, thorough=False) == Look(negative=False)
    assert look_at(ENGINES[0], dtype, bytes(12_000), thorough=False) == look_with_torch(dtype, bytes(12_000))


@by_engine
@pytest.mark.parametrize("dtype", [dtype for dtype in FLOATS if dtype.size <= 2], ids=lambda dtype: dtype.name)
def test_every_bit_pattern_of_a_small_format(engine: Engine, dtype: Dtype) -> None:
    every = b"".join(number.to_bytes(dtype.size, "little") for number in range(256**dtype.size))
    assert same(engine.look(dtype, every, 0, len(every)), look_with_torch(dtype, every))
    for number in range(256**dtype.size) if dtype.size == 1 else range(0, 65536, 97):
        many = number.to_bytes(dtype.size, "little") * 40
        assert same(engine.look(dtype, many, 0, len(many)), look_with_torch(dtype, many))
        quick = engine.look(dtype, many, 0, len(many), thorough=False)
        assert quick.counts == count_with_torch(dtype, many)
        assert quick.negative in (None, look_with_torch(dtype, many).negative)


@by_engine
@pytest.mark.parametrize("scale", [3e38, 1e30, 1e-20, 1e-30, 1e-44])
def test_squares_beyond_single_precision(engine: Engine, scale: float) -> None:
    data = (torch.linspace(0.1, 1, 1000) * scale).numpy().tobytes()
    assert same(engine.look(DTYPES["float32"], data, 0, len(data)), look_with_torch(DTYPES["float32"], data))


@by_engine
@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize(("count", "phase"), [(5000, 0), (5000, 100), (600, 255), (200, 0), (200, 100), (30, 250)])
def test_sums_by_block(engine: Engine, name: str, count: int, phase: int, rng: random.Random) -> None:
    data = _ordinary(DTYPES[name], rng, count)
    values = tensor_of(DTYPES[name], data).double()
    edges = [0, *range(256 - phase, count, 256), count]
    for squares in (True, False):
        look = engine.look(DTYPES[name], data, 0, len(data), blocks=Blocks(squares, 256, phase))
        sums = torch.frombuffer(bytearray(look.blocks), dtype=torch.float32).double()
        runs = [values[start:stop] for start, stop in itertools.pairwise(edges)]
        wanted = torch.stack([(run.square() if squares else run).sum() for run in runs])
        assert torch.allclose(sums, wanted, rtol=1e-5, atol=1e-4)
        assert same(look._replace(blocks=b""), look_with_torch(DTYPES[name], data))


@by_engine
def test_what_is_not_finite_shows_in_its_block_alone(engine: Engine) -> None:
    values = torch.ones(2000)
    values[300], values[1999] = math.nan, math.inf
    data = values.numpy().tobytes()
    look = engine.look(DTYPES["float32"], data, 0, len(data), blocks=Blocks(squares=True, width=256, phase=0))
    sums = torch.frombuffer(bytearray(look.blocks), dtype=torch.float32).tolist()
    assert [sums[0], *sums[2:7]] == [256.0] * 6
    assert math.isnan(sums[1])
    assert math.isinf(sums[7])


@by_engine
def test_comparison_of_sums(engine: Engine) -> None:
    def compare(first: list[float], second: list[float], most: float = math.inf) -> tuple[int, float, int]:
        pack = functools.partial(torch.tensor, dtype=torch.float32)
        halves = [pack(values).numpy().tobytes() for values in (first, second)]
        return engine.compare(halves[0], halves[1], 4.0, 1e-6, most)

    nan, inf = math.nan, math.inf
    assert compare([1, 4, 0, nan, 1, 1e-7], [1, 1, 0, 1, nan, 0]) == (0, 0.0, -1)
    assert compare([1, 8, 40], [1, 1, 1]) == (2, 10.0, 1)
    assert compare([0, 1], [0, 0]) == (1, inf, 1)
    assert compare([inf, 1], [1, inf]) == (1, inf, 0)
    assert compare([inf, 8], [1, 1], most=1e300) == (1, 2.0, 1)


def test_an_answer_can_be_taken_later() -> None:
    buffer = mmap.mmap(-1, 1 << 20)
    buffer[:] = torch.linspace(-1, 1, 1 << 18).numpy().tobytes()
    answers = [ON_TORCH.ask(DTYPES["float32"], buffer, at, at + (1 << 18)) for at in range(0, 1 << 20, 1 << 18)]
    assert [same(answer(), look) for answer, look in zip(answers, _quarters(buffer), strict=True)] == [True] * 4


def _quarters(buffer: mmap.mmap) -> list[Look]:
    data = bytes(buffer)
    return [look_with_torch(DTYPES["float32"], data[at : at + (1 << 18)]) for at in range(0, 1 << 20, 1 << 18)]


def test_nothing_is_counted_in_formats_that_can_hold_nothing_else() -> None:
    for engine in ENGINES:
        for name in ("float4_e2m1fn_x2", "float4_e2m1", "float6_e2m3", "float6_e3m2"):
            assert engine.look(DTYPES[name], b"\xff" * 300, 0, 300) == Look()


def _ordinary(dtype: Dtype, rng: random.Random, count: int) -> bytes:
    values = torch.tensor([rng.uniform(-1, 1) for _ in range(2 * count)])
    tensor = torch.view_as_complex(values.reshape(-1, 2)) if dtype.parts == 2 else values[:count]
    return tensor.to(TORCH[dtype.name]).view(torch.uint8).numpy().tobytes()


def _patterns(dtype: Dtype) -> list[bytes]:
    """List the patterns that matter: zero, one, largest, subnormal, NaN quiet and signalling, infinities."""
    if dtype.kind == "codes":
        return [
            bytes([code]) for code in (0x00, 0x01, 0x38, 0x7E, 0x7F, 0x80, 0x83, 0xFE, 0xFF, 0x7B, 0x7C, 0x7D, 0xFC)
        ]
    top = dtype.exponent
    sign = 1 << (8 * dtype.lane - 1)
    numbers = [
        *(0, 1, sign, sign | 1, dtype.mantissa, dtype.mantissa + 1, top - 1, top >> 1, top >> 1 | sign),
        *(top, top | sign, top | 1, top | sign | 1, top | dtype.mantissa, (1 << (8 * dtype.lane)) - 1),
    ]
    return [number.to_bytes(dtype.lane, "little") for number in numbers]
