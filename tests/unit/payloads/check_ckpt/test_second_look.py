"""The comparison of weights in half precision with exact ones, against torch's own rounding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from remoterun.payloads.check_ckpt.dtypes import DTYPES
from remoterun.payloads.check_ckpt.model import Checkpoint, Region, Rounded, Tensor
from remoterun.payloads.check_ckpt.scan.scanner import Pace
from remoterun.payloads.check_ckpt.scan.second_look import second_look
from remoterun.payloads.check_ckpt.source import Source

if TYPE_CHECKING:
    from pathlib import Path

    from remoterun.payloads.check_ckpt.model import Found

pytestmark = pytest.mark.torch


def compared(path: Path, exact: torch.Tensor, rounded: torch.Tensor) -> list[Found]:
    """Compare two tensors that lie in one file."""
    data = [tensor.view(torch.uint8).numpy().tobytes() for tensor in (exact, rounded)]
    path.write_bytes(b"".join(data))
    checkpoint = Checkpoint("test", sum(map(len, data)))
    for tensor, raw, start in ((exact, data[0], 0), (rounded, data[1], len(data[0]))):
        dtype = DTYPES[str(tensor.dtype).removeprefix("torch.")]
        checkpoint.regions.append(Region(0, start, len(raw), "r"))
        region = len(checkpoint.regions) - 1
        checkpoint.tensors.append(Tensor("t", "model", dtype, (tensor.numel(),), (1,), region, 0))
    checkpoint.rounded.append(Rounded(1, 0, 0))
    with Source(str(path)) as source:
        return list(second_look(checkpoint, [source], Pace(None)))


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("seed", range(3))
def test_any_bits_round_as_torch_rounds_them(tmp_path: Path, half: torch.dtype, seed: int) -> None:
    """NaN, infinity, subnormal numbers and those halfway between two among them."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(2**31), 2**31, (70_000,), dtype=torch.int64, generator=generator).to(torch.int32)
    bits[:4000] = bits[:4000] & -0x10000 | 0x8000
    exact = bits.view(torch.float32)
    assert compared(tmp_path / "f", exact, exact.to(half)) == []
    plain = torch.randn(70_000, generator=generator) / 100
    assert compared(tmp_path / "f", plain, plain.to(half)) == []


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_every_element_that_differs_is_counted(tmp_path: Path, half: torch.dtype) -> None:
    exact = torch.randn(70_000, generator=torch.Generator().manual_seed(1))
    rounded = exact.to(half)
    places = [0, 32_767, 32_768, 69_999]
    rounded.view(torch.int16)[places] += 1
    (found,) = compared(tmp_path / "f", exact, rounded)
    assert found.evidence == {"unequal": 4, "compared": 70_000, "tensors": 1, "first": 0}
