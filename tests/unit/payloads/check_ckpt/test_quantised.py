"""How many numbers a model has that is kept in integers: a layer of 64 x 96 in each format, and a norm of 64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from tests.unit.payloads.check_ckpt.support import audit, save

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch

_WEIGHTS, _NORM = 64 * 96, 64


def integers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Return integers of all sizes."""
    bits = torch.iinfo(dtype).bits
    low = -(2 ** (bits - 1)) if dtype.is_signed else 0
    generator = torch.Generator().manual_seed(0)
    return torch.randint(low, low + 2**bits - 1, shape, dtype=torch.int64, generator=generator).to(dtype)


_LAYERS: dict[str, dict[str, torch.Tensor]] = {
    "int8": {"weight": integers(torch.int8, 64, 96), "SCB": torch.rand(64)},
    "bitsandbytes": {
        "weight": integers(torch.uint8, _WEIGHTS // 2, 1),
        "weight.absmax": integers(torch.uint8, 96),
        "weight.quant_map": torch.rand(16),
        "weight.nested_absmax": torch.rand(1),
        "weight.quant_state.bitsandbytes__nf4": integers(torch.uint8, 90),
    },
    "gptq, 4 bits": {
        "qweight": integers(torch.int32, 96 // 8, 64),
        "qzeros": integers(torch.int32, 3, 64 // 8),
        "scales": torch.rand(3, 64).half(),
        "g_idx": torch.arange(96, dtype=torch.int32) // 32,
    },
    "gptq, 3 bits": {
        "qweight": integers(torch.int32, 96 * 3 // 32, 64),
        "scales": torch.rand(3, 64).half(),
        "g_idx": torch.arange(96, dtype=torch.int32) // 32,
    },
    "awq": {
        "qweight": integers(torch.int32, 96, 64 // 8),
        "qzeros": integers(torch.int32, 3, 64 // 8),
        "scales": torch.rand(3, 64).half(),
    },
    "nvfp4 of compressed-tensors": {
        "weight_packed": integers(torch.uint8, 64, 96 // 2),
        "weight_scale": torch.ones(64, 96 // 16).to(torch.float8_e4m3fn),
        "weight_global_scale": torch.rand(1),
    },
    "nvfp4 of ModelOpt": {
        "weight": integers(torch.uint8, 64, 96 // 2),
        "weight_scale": torch.ones(64, 96 // 16).to(torch.float8_e4m3fn),
    },
    "mxfp4": {"proj_blocks": integers(torch.uint8, 64, 3, 16), "proj_scales": integers(torch.uint8, 64, 3)},
    "int4 of compressed-tensors": {
        "weight_packed": integers(torch.int32, 64, 96 // 8),
        "weight_scale": torch.rand(64, 3),
        "weight_shape": torch.tensor([64, 96]),
    },
    "quanto": {"weight._data": integers(torch.int8, 64, 96), "weight._scale": torch.rand(64, 1)},
    "torchao": {"weight.qdata": integers(torch.int8, 64, 96), "weight.scale": torch.rand(64, 1)},
    "words that nothing explains": {"qweight": integers(torch.int32, 12, 64), "scales": torch.rand(3, 64).half()},
}


@pytest.mark.parametrize("name", _LAYERS)
def test_quantised_weights_count_where_their_number_is_known(name: str, tmp_path: Path) -> None:
    layer = _LAYERS[name]
    scales = sum(each.numel() for each in layer.values() if each.is_floating_point())
    weights = 0 if name.startswith("words") else _WEIGHTS
    tensors = {**{f"layer.{key}": each for key, each in layer.items()}, "norm.weight": torch.ones(_NORM)}
    path = tmp_path / "model.safetensors"
    save_file({**tensors, "position_ids": torch.arange(512), "ids.weight": torch.arange(512)}, path)
    assert audit(path).record["params"] == weights + scales + _NORM
    assert audit(path, deep=False).record["params"] == weights + scales + _NORM


def test_quantised_weights_that_are_tied_count_once(tmp_path: Path) -> None:
    weight = integers(torch.int8, 64, 96)
    record = audit(save({"embed.weight": weight, "head.weight": weight}, tmp_path / "model.pt")).record
    assert (record["params"], record["params_listed"]) == (_WEIGHTS, 2 * _WEIGHTS)
