"""Single second moments of zero beside first ones that are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.unit.payloads.check_ckpt.support import ENGINES, audit, save, training_state

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


def moments(state: dict[str, Any], key: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    kept = state["optimizer_state_dict"]["state"][key]
    return kept["exp_avg"], kept["exp_avg_sq"]


@pytest.mark.parametrize("engine", ENGINES)
def test_one_zero_is_found_where_it_is(tmp_path: Path, engine: str) -> None:
    state = training_state()
    first, second = moments(state)
    second.view(-1)[777] = 0
    path = save(state, tmp_path / "c.pt")
    heard = audit(path, engine=engine)
    found = heard.of("CK045")
    assert (found["severity"], heard.rules(), heard.record["verdict"]) == ("bad", {"CK045"}, "bad")
    assert (found["evidence"]["blocks"], found["evidence"]["of_blocks"]) == (1, first.numel())
    assert f"in 1 of {first.numel():,} elements" in found["message"]
    place = found["data"]["first_byte"]
    assert path.read_bytes()[place : place + 4] == first.view(-1)[777].numpy().tobytes()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("small", [0.0, 1e-25, -1e-18])
def test_what_underflow_explains_is_sound(tmp_path: Path, engine: str, small: float) -> None:
    """The square of a gradient of 1e-20 is nothing in single precision."""
    state = training_state()
    first, second = moments(state)
    first.view(-1)[500:600] = small
    second.view(-1)[500:600] = 0
    heard = audit(save(state, tmp_path / "c.pt"), engine=engine)
    assert (heard.rules(), heard.record["verdict"]) == (set(), "ok")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_formats_are_judged_by_what_they_can_hold(tmp_path: Path, dtype: torch.dtype) -> None:
    state = training_state()
    for kept in state["optimizer_state_dict"]["state"].values():
        for name in ("exp_avg", "exp_avg_sq"):
            kept[name] = kept[name].abs().clamp(min=1e-3).to(dtype)
        kept["exp_avg_sq"].copy_(kept["exp_avg"].double() ** 2)
    first, second = moments(state)
    path = save(state, tmp_path / "c.pt")
    assert "CK045" not in audit(path).rules()
    first.view(-1)[5], second.view(-1)[5] = 0.01, 0
    # Squares of numbers like that are often lost in half precision.
    assert ("CK045" in audit(save(state, path)).rules()) == (dtype != torch.float16)


def test_dead_units_and_words_that_never_occurred_are_sound(tmp_path: Path) -> None:
    torch.manual_seed(3)
    words = torch.nn.Embedding(200, 64)
    optimizer = torch.optim.AdamW(words.parameters())
    for step in range(30):
        optimizer.zero_grad()
        words(torch.arange(0, 200, 2 + step % 3)).square().mean().backward()
        optimizer.step()
    state = {"model_state_dict": words.state_dict(), "optimizer_state_dict": optimizer.state_dict(), "global_step": 30}
    assert audit(save(state, tmp_path / "c.pt")).record["verdict"] == "ok"
