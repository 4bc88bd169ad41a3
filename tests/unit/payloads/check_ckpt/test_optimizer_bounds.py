"""State that the arithmetic of its optimizer can't come to, though it is neither NaN nor negative."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from tests.unit.payloads.check_ckpt.support import audit, save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.torch

_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "amsgrad": functools.partial(torch.optim.AdamW, amsgrad=True),
    "adagrad": functools.partial(torch.optim.Adagrad, initial_accumulator_value=0.1),
    "adamax": torch.optim.Adamax,
    "rmsprop": functools.partial(torch.optim.RMSprop, centered=True),
}


def trained(name: str, dtype: torch.dtype = torch.float32, steps: int = 30) -> dict[str, Any]:
    """Train a little, on inputs that give large gradients at first."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32)).to(dtype)
    optimizer = _OPTIMIZERS[name](model.parameters(), lr=1e-3)
    for step in range(steps):
        inputs = torch.randn(16, 32, dtype=dtype) * (10 if step < 5 else 1)
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": steps}


@pytest.mark.parametrize("steps", [1, 2, 30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", _OPTIMIZERS)
def test_what_the_optimizers_keep_is_sound(name: str, dtype: torch.dtype, steps: int, tmp_path: Path) -> None:
    save(trained(name, dtype, steps), tmp_path / "c.pt")
    heard = audit(tmp_path)
    assert (heard.record["verdict"], heard.rules(above_info=True)) == ("ok", set()), heard.findings


def _zero_a_page(tensor: torch.Tensor) -> None:
    tensor.view(-1)[:512] = 0


def _shrink(tensor: torch.Tensor) -> None:
    tensor /= 1e4


@pytest.mark.parametrize(
    ("name", "key", "damage"),
    [
        ("amsgrad", "max_exp_avg_sq", _zero_a_page),
        ("amsgrad", "max_exp_avg_sq", _shrink),
        ("adagrad", "sum", _zero_a_page),
        ("adamax", "exp_inf", _zero_a_page),
        ("rmsprop", "square_avg", _shrink),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_no_step_can_have_left_is_bad(
    name: str, key: str, damage: Callable[[torch.Tensor], None], dtype: torch.dtype, tmp_path: Path
) -> None:
    state = trained(name, dtype)
    damage(state["optimizer"]["state"][2][key])
    heard = audit(save(state, tmp_path / "c.pt"))
    assert heard.record["verdict"] == "bad"
    found = heard.of("CK055")
    assert (found["severity"], found["data"]["tensor"]) == (
        "bad",
        "optimizer.state.2." + ("grad_avg" if name == "rmsprop" else key),
    )
    assert key in found["evidence"]


def test_others_may_keep_something_else_by_these_names(tmp_path: Path) -> None:
    state = trained("adamax")
    _zero_a_page(state["optimizer"]["state"][2]["exp_inf"])
    del state["optimizer"]["param_groups"][0]["differentiable"]
    assert "CK055" not in audit(save(state, tmp_path / "c.pt")).rules()


@pytest.mark.parametrize("options", [{"eps": "x"}, {"eps": None}, {"betas": ()}, {"eps": -1.0}])
def test_options_that_no_training_has_end_nothing(options: dict[str, Any], tmp_path: Path) -> None:
    state = trained("adamax")
    state["optimizer"]["param_groups"][0].update(options)
    assert "CK030" not in audit(save(state, tmp_path / "c.pt")).rules()
