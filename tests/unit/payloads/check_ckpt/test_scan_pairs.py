"""The moments of one parameter against each other: |m| <= factor * sqrt(v), block by block, in the same one pass."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch

from remoterun.payloads.check_ckpt.dtypes import DTYPES
from remoterun.payloads.check_ckpt.scan.pairs import Pairs
from remoterun.payloads.check_ckpt.scan.spans import Place, Span
from remoterun.payloads.check_ckpt.scan.stats import Pair
from remoterun.payloads.check_ckpt.scan.stdlib_engine import StdlibEngine
from tests.unit.payloads.check_ckpt.scan_support import Seen, scan
from tests.unit.payloads.check_ckpt.support import ENGINES, place_of, save

if TYPE_CHECKING:
    from pathlib import Path

    from remoterun.payloads.check_ckpt.model import Checkpoint

pytestmark = pytest.mark.torch

FACTOR = 8.0


def moments(count: int = 20_000, *, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Make moments as Adam does, after fifty steps."""
    torch.manual_seed(count)
    weight = torch.nn.Parameter(torch.zeros(count))
    optimizer = torch.optim.Adam([weight])
    for _ in range(50):
        weight.grad = torch.randn(count) * torch.logspace(-9, 0, count)
        optimizer.step()
    state = optimizer.state[weight]
    return state["exp_avg"].to(dtype), state["exp_avg_sq"].to(dtype)


def pair_all(checkpoint: Checkpoint) -> list[Pair]:
    """Pair every m with its v."""
    index = {tensor.name: index for index, tensor in enumerate(checkpoint.tensors)}
    return [Pair(index[name], index["v" + name[1:]], FACTOR) for name in index if name[0] == "m"]


def hold(path: Path, first: torch.Tensor, second: torch.Tensor, engine: str, workers: int = 1) -> Seen:
    return scan(save({"m": first, "v": second}, path / "c.pt"), engine=engine, workers=workers, pairs=pair_all)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 100, 20_000, 20_001])
def test_what_adam_made_holds(tmp_path: Path, engine: str, dtype: torch.dtype, count: int) -> None:
    scanned = hold(tmp_path, *moments(count, dtype=dtype), engine).scanned
    assert (scanned.broken, list(scanned.unpaired)) == ([], [])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_page_of_second_moments_set_to_zero(tmp_path: Path, engine: str) -> None:
    first, second = moments()
    second[10_000:11_024] = 0.0
    seen = hold(tmp_path, first, second, engine)
    (broken,) = seen.scanned.broken
    assert (broken.blocks, broken.of_blocks, broken.width, broken.ratio) == (3, 79, 256, math.inf)
    # The page's first block is only partly zero.
    data, _ = place_of(tmp_path / "c.pt", "data/0")
    assert broken.offset == data + 4 * 40 * 256
    assert broken.pair == Pair(seen.index("m"), seen.index("v"), FACTOR)


@pytest.mark.parametrize("engine", ENGINES)
def test_first_moments_of_another_scale(tmp_path: Path, engine: str) -> None:
    first, second = moments()
    (broken,) = hold(tmp_path, first * 300, second, engine).scanned.broken
    blocks = torch.nn.functional.pad(first.double() * 300, (0, 79 * 256 - 20_000)).reshape(79, 256).square().sum(1)
    bounds = torch.nn.functional.pad(second.double(), (0, 79 * 256 - 20_000)).reshape(79, 256).sum(1) * FACTOR**2
    assert broken.blocks == int((blocks > bounds).sum()) > 70
    assert math.isclose(broken.ratio, float((blocks / bounds).sqrt().max()), rel_tol=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_squares_that_vanish_break_nothing(tmp_path: Path, engine: str, dtype: torch.dtype) -> None:
    """What is too small for a number format is zero in the second moment, and not in the first."""
    first, second = moments(4000, dtype=dtype)
    assert hold(tmp_path, first * 1e-18, second * 1e-36, engine).scanned.broken == []
    assert (
        hold(tmp_path, torch.full((500,), 1e-21).to(dtype), torch.zeros(500, dtype=dtype), engine).scanned.broken == []
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_a_first_moment_that_is_far_out_and_one_that_is_not_finite(tmp_path: Path, engine: str) -> None:
    first, second = moments()
    first[19_999] = 3e30
    (broken,) = hold(tmp_path, first, second, engine).scanned.broken
    assert (broken.blocks, broken.ratio) == (1, math.inf)
    for odd in (math.nan, math.inf, -math.inf):
        first[19_999] = odd
        assert hold(tmp_path, first, second, engine).scanned.broken == []


@pytest.mark.parametrize("workers", [1, 3])
def test_halves_far_apart_and_cut_anywhere(tmp_path: Path, workers: int) -> None:
    """Views of one storage begin at no multiple of anything, and pieces of work end inside blocks."""
    torch.manual_seed(1)
    flat = torch.rand(11_000_000) + 0.5
    tensors = {"m1": flat[7:3_000_010], "m2": flat[3_000_011:5_500_000]}
    tensors |= {"v1": flat[5_500_001:8_500_004], "v2": flat[8_500_005:10_999_994]}
    tensors["v2"][1_000_000:1_000_600] = 1e-9
    path = save(tensors, tmp_path / "c.pt")
    seen = scan(
        path, workers=workers, pairs=lambda checkpoint: [pair._replace(factor=4.0) for pair in pair_all(checkpoint)]
    )
    (broken,) = seen.scanned.broken
    assert broken.pair.first == seen.index("m2")
    assert broken.of_blocks == -(-(5_500_000 - 3_000_011) // 256)
    assert broken.blocks == 1
    data, _ = place_of(path, "data/0")
    assert broken.offset == data + 4 * (3_000_011 + 1_000_192)
    assert not seen.scanned.unpaired


def test_what_can_not_be_compared_is_told(tmp_path: Path) -> None:
    """Of other formats or layouts, tied to another, or too large for the standard library."""
    ones = torch.ones(4, 600)
    tensors = {"m1": ones.clone(), "v1": ones.clone().half(), "m2": ones.clone(), "v2": ones[:, :300].clone()}
    tensors |= {"m3": ones, "v3": ones, "m4": ones.clone().to(torch.complex64), "v4": ones.clone().to(torch.complex64)}
    tensors |= {"m5": ones[:, ::2].clone(), "v5": torch.ones(8, 300)[:, ::2]}
    seen = scan(save(tensors, tmp_path / "c.pt"), pairs=pair_all)
    assert [seen.checkpoint.tensors[pair.first].name for pair in seen.scanned.unpaired] == [
        "m1",
        "m2",
        "m3",
        "m4",
        "m5",
    ]
    large = {"m": torch.ones(600_000), "v": torch.zeros(600_000), "m1": ones.clone(), "v1": ones.clone() * 0}
    for engine, left in (("stdlib", ["m"]), ("numpy", [])):
        seen = scan(save(large, tmp_path / "c.pt"), engine=engine, pairs=pair_all)
        assert [seen.checkpoint.tensors[pair.first].name for pair in seen.scanned.unpaired] == left
        assert len(seen.scanned.broken) == 2 - len(left)


def test_blocks_grow_with_what_has_to_wait() -> None:
    """All first moments of a large model before all second ones: what waits stays below 16 MiB."""
    dtype = DTYPES["float32"]

    def width(order: list[int], count: int) -> int:
        places = {index: Place(dtype, 0, at * count * 4, [Span(0, count * 4, index)]) for at, index in enumerate(order)}
        pairs = Pairs([Pair(index, index + 1, 1.0) for index in range(0, len(order), 2)], places, StdlibEngine())
        blocks = pairs.wanted(0, 0)
        assert blocks is not None
        return blocks.width

    count = 50_000_000
    assert width(list(range(200)), count) == 256
    apart = [*range(0, 200, 2), *range(1, 200, 2)]
    assert width(apart, count) == 4096
    assert 200 * count // width(apart, count) * 4 <= 16 << 20
