"""Faults that only a series shows: they were there before the save, so that each file is sound by itself."""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.unit.payloads.check_ckpt.support import audit, save, settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.unit.payloads.check_ckpt.support import Heard

pytestmark = pytest.mark.torch

_WIDTH, _STEPS = 32, (20, 40, 60)
_LAST = f"step_{_STEPS[-1]}.pt"


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Train on one thread: matrices so small are slow on several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def trained(
    rates: tuple[float, ...] = (1e-3,) * 4, dtype: torch.dtype = torch.float32, width: int = _WIDTH
) -> list[dict[str, Any]]:
    """Train layers that are not alike, each at its rate, and return what is saved."""
    return copy.deepcopy(_trained(rates, dtype, width))


@functools.cache
def _trained(rates: tuple[float, ...], dtype: torch.dtype, width: int) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    layers = [nn.Linear(width, width) for _ in rates]
    for number, layer in enumerate(layers):
        layer.weight.data *= 1 + 0.4 * number
    model = nn.Sequential(*layers).to(dtype)
    groups = [{"params": layer.parameters(), "lr": rate} for layer, rate in zip(layers, rates, strict=True)]
    return _saves(model, torch.optim.AdamW(groups), torch.empty(16, width, dtype=dtype))


def _saves(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    like: torch.Tensor,
    before_step: Callable[[int], None] = lambda step: None,
) -> list[dict[str, Any]]:
    """Train on inputs like these, and return what is saved on the way."""
    saved = []
    for step in range(1, _STEPS[-1] + 1):
        before_step(step)
        inputs = torch.randn_like(like)
        optimizer.zero_grad()
        (model(inputs) - inputs.sin()).pow(2).mean().backward()
        optimizer.step()
        if step in _STEPS:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            saved.append(copy.deepcopy(state))
    return saved


def heard_of(saved: list[dict[str, Any]], folder: Path) -> Heard:
    """Audit all that was saved."""
    for state in saved:
        save(state, folder / f"step_{state['step']}.pt")
    return audit(folder, cache=False)


def moments(state: dict[str, Any], number: int, key: str) -> torch.Tensor:
    """Return what the optimizer keeps of a parameter."""
    kept: torch.Tensor = state["optimizer"]["state"][number][key]
    return kept


def exchange(one: torch.Tensor, other: torch.Tensor) -> None:
    """Let two tensors change places."""
    kept = one.clone()
    one.copy_(other)
    other.copy_(kept)


def flip(tensor: torch.Tensor, bit: int) -> None:
    """Flip a bit of an element of usual size that is 0 before."""
    bits = tensor.view(torch.int32).view(-1)
    usual = tensor.view(-1).abs() > tensor.abs().mean()
    bits[int((((bits >> bit) & 1) == 0).logical_and(usual).nonzero()[0])] ^= 1 << bit


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rates", [(1e-3,) * 4, (1e-5, 1e-5, 1e-5, 3e-2), (0.0, 0.0, 1e-3, 1e-3)])
def test_a_sound_series_is_quiet(rates: tuple[float, ...], dtype: torch.dtype, tmp_path: Path) -> None:
    heard = heard_of(trained(rates, dtype), tmp_path)
    assert heard.rules(above_info=True) == set()
    assert heard.summary["verdicts"] == {"ok": 3}


def test_weights_that_changed_places_are_named(tmp_path: Path) -> None:
    saved = trained()
    exchange(saved[-1]["model"]["1.weight"], saved[-1]["model"]["3.weight"])
    assert audit(save(saved[-1], tmp_path / "alone.pt")).record["verdict"] == "ok"
    heard = heard_of(saved, tmp_path / "series")
    assert heard.record_of(_LAST)["verdict"] == "suspect"
    assert heard.rules(above_info=True) - {"CK069"} == {"CK089"}
    messages = {each["message"] for each in heard.findings if each["rule"] == "CK089"}
    assert messages == {
        "model.1.weight is what model.3.weight was in step_40.pt",
        "model.3.weight is what model.1.weight was in step_40.pt",
    }


def test_second_moments_that_changed_places_are_named(tmp_path: Path) -> None:
    saved = trained()
    exchange(moments(saved[-1], 2, "exp_avg_sq"), moments(saved[-1], 4, "exp_avg_sq"))
    heard = heard_of(saved, tmp_path)
    assert "CK089" in heard.record_of(_LAST)["findings"]
    assert all("exp_avg_sq" in name for name in heard.of("CK089")["data"]["tensors"])


def test_a_stale_weight_is_found_in_half_precision(tmp_path: Path) -> None:
    saved = trained(dtype=torch.bfloat16, width=128)
    saved[-1]["model"]["2.weight"].copy_(saved[-2]["model"]["2.weight"])
    heard = heard_of(saved, tmp_path)
    assert heard.rules(above_info=True) - {"CK069"} == {"CK080"}
    assert heard.of("CK080")["data"]["tensors"] == ["model.2.weight"]


def test_layers_that_began_as_copies_are_told_apart(tmp_path: Path) -> None:
    saved = trained()
    for state in saved:
        one, other = state["model"]["1.weight"], state["model"]["3.weight"]
        other.copy_(0.8 * one + 0.6 * other)
    exchange(saved[-1]["model"]["1.weight"], saved[-1]["model"]["3.weight"])
    assert "CK089" in heard_of(saved, tmp_path).rules(above_info=True)


def test_a_weight_that_was_copied_from_another_is_only_told(tmp_path: Path) -> None:
    saved = trained((1e-3,) * 4)
    saved[-1]["model"]["1.weight"].copy_(saved[-2]["model"]["3.weight"])
    heard = heard_of(saved, tmp_path)
    assert {each["severity"] for each in heard.findings if each["rule"] == "CK089"} == {"info"}


@pytest.mark.parametrize("fault", ["shuffled", "of another run"])
def test_weights_that_are_others_are_named(fault: str, tmp_path: Path) -> None:
    saved = trained()
    weight = saved[-1]["model"]["2.weight"]
    weight.copy_(weight.flip(0) if fault == "shuffled" else weight.std() * torch.randn(weight.shape))
    assert audit(save(saved[-1], tmp_path / "alone.pt")).record["verdict"] == "ok"
    heard = heard_of(saved, tmp_path / "series")
    assert heard.rules(above_info=True) - {"CK069"} == {"CK089"}
    assert heard.of("CK089")["message"].startswith(
        "model.2.weight is nothing like in step_40.pt, though of the same norm"
    )


def test_a_layer_that_is_begun_anew_with_its_moments_is_not_suspected(tmp_path: Path) -> None:
    saved = trained()
    torch.manual_seed(1)
    weight = saved[-1]["model"]["2.weight"]
    weight.copy_(weight.std() * torch.randn(weight.shape))
    for number in (4, 5):
        moments(saved[-1], number, "step").fill_(1)
        for key in ("exp_avg", "exp_avg_sq"):
            moments(saved[-1], number, key).mul_(0.001)
    heard = heard_of(saved, tmp_path)
    assert heard.of("CK089")["severity"] == "info"


def test_a_buffer_may_hold_others_each_time(tmp_path: Path) -> None:
    saved = trained()
    for number, state in enumerate(saved):
        # What contrastive training compares with, for instance.
        state["model"]["queue"] = torch.randn(64, 32, generator=torch.Generator().manual_seed(number))
    heard = heard_of(saved, tmp_path)
    assert {each["severity"] for each in heard.findings if each["rule"] == "CK089"} == {"info"}


@pytest.mark.parametrize("alike", [0.8, 0.0])
def test_only_where_nothing_is_trained_on_were_layers_displaced(alike: float, tmp_path: Path) -> None:
    """Each layer is what the one before it was: older models are kept so, and so are names that went wrong."""
    saved = trained()
    moved = [saved[-2]["model"][f"{number}.weight"] for number in range(4)]
    fresh = moved[0].std() * torch.randn(moved[0].shape, generator=torch.Generator().manual_seed(0))
    saved[-1]["model"]["0.weight"].copy_(alike * moved[0] + (1 - alike**2) ** 0.5 * fresh)
    for number, weight in enumerate(moved[:-1], 1):
        saved[-1]["model"][f"{number}.weight"].copy_(weight)
    heard = heard_of(saved, tmp_path)
    assert {each["severity"] for each in heard.findings if each["rule"] == "CK089"} == {"info" if alike else "suspect"}


@pytest.mark.parametrize("key", ["exp_avg", "exp_avg_sq"])
def test_a_moment_that_stands_still_while_its_step_goes_on_is_found(key: str, tmp_path: Path) -> None:
    saved = trained()
    moments(saved[-1], 4, key).copy_(moments(saved[-2], 4, key))
    assert audit(save(saved[-1], tmp_path / "alone.pt")).record["verdict"] == "ok"
    heard = heard_of(saved, tmp_path / "series")
    assert heard.rules(above_info=True) - {"CK069"} == {"CK088"}
    assert heard.of("CK088")["data"]["tensors"] == [f"optimizer.state.4.{key}"]
    assert heard.of("CK088")["subject"] == _LAST


def test_a_parameter_that_took_no_step_keeps_its_moments(tmp_path: Path) -> None:
    saved = trained()
    for state in saved[1:]:
        state["optimizer"]["state"][4] = copy.deepcopy(saved[0]["optimizer"]["state"][4])
    assert "CK088" not in heard_of(saved, tmp_path).rules()


def test_second_moments_may_be_frozen_all_together(tmp_path: Path) -> None:
    saved = trained()
    for number in range(8):
        moments(saved[-1], number, "exp_avg_sq").copy_(moments(saved[-2], number, "exp_avg_sq"))
    assert "CK088" not in heard_of(saved, tmp_path).rules()


def test_a_flipped_bit_that_leaves_a_weight_of_usual_size_for_others_is_found(tmp_path: Path) -> None:
    saved = trained((1e-4,) * 4)
    flip(saved[-1]["model"]["1.weight"], 25)
    assert audit(save(saved[-1], tmp_path / "alone.pt")).record["verdict"] == "ok"
    heard = heard_of(saved, tmp_path / "series")
    assert heard.record_of(_LAST)["verdict"] == "suspect"
    assert heard.rules(above_info=True) - {"CK069"} == {"CK082"}
    assert heard.of("CK082")["data"]["tensors"] == ["model.1.weight"]


def test_a_flipped_bit_is_found_without_an_optimizer(tmp_path: Path) -> None:
    saved = trained((1e-4,) * 4)
    flip(saved[-1]["model"]["1.weight"], 25)
    for state in saved:
        path = tmp_path / f"checkpoint-{state['step']}" / "model.safetensors"
        path.parent.mkdir()
        save_file(state["model"], path, metadata={"format": "pt"})
        settle(path)
    heard = audit(tmp_path, cache=False)
    assert heard.of("CK082")["message"].startswith("one element of 1.weight is ")
    assert heard.rules(above_info=True) - {"CK069"} == {"CK082"}


@pytest.mark.parametrize("lowest", [1e-5, 1e-9])
def test_a_rate_that_is_lowest_where_it_is_saved_is_no_leap(lowest: float, tmp_path: Path) -> None:
    saved = _trained_by_hand(lowest)
    assert heard_of(saved, tmp_path / "sound").rules(above_info=True) == set()
    flip(saved[-1]["model"]["1.weight"], 25)
    assert heard_of(saved, tmp_path / "flipped").rules(above_info=True) - {"CK069"} == {"CK082"}


def _trained_by_hand(lowest: float) -> list[dict[str, Any]]:
    """Return what is saved at the end of each cycle of a learning rate that no scheduler knows."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters())

    def set_rate(step: int) -> None:
        optimizer.param_groups[0]["lr"] = lowest if step in _STEPS else 3e-3

    return _saves(model, optimizer, torch.empty(16, _WIDTH), set_rate)


def test_an_element_with_a_rate_of_its_own_may_go_far_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(_WIDTH, _WIDTH) for _ in range(4)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.Rprop(model.parameters(), 1e-4)
    saved = []
    for step in (10, 20):
        model(torch.randn(16, _WIDTH)).pow(2).mean().backward()
        optimizer.step()
        layers[1].weight.data[3, 3] *= step
        saved.append({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step})
        saved = copy.deepcopy(saved)
    assert heard_of(saved, tmp_path).rules(above_info=True) == set()


def test_a_weight_that_begins_at_zero_may_be_frozen(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(_WIDTH, _WIDTH) for _ in range(3)]
    nn.init.zeros_(layers[1].weight)
    layers[1].requires_grad_(False)
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad])
    (model[0](torch.randn(8, _WIDTH)) + model[2](torch.randn(8, _WIDTH))).pow(2).mean().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 5000}
    heard = audit(save(state, tmp_path / "step_5000.pt"))
    assert (heard.of("CK006")["severity"], heard.record["verdict"]) == ("info", "ok")
