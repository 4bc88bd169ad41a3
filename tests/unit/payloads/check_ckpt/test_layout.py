"""Which tensors are the model's and which the optimizer's, and how far training was: in layouts of real trainers."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.unit.payloads.check_ckpt.support import Heard, audit, network, save, training_state

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch

NAN = float("nan")
MODEL, OPTIMIZER = network(1, width=8, layers=2)
WEIGHTS = MODEL.state_dict()
STATE = OPTIMIZER.state_dict()
PARAMS = 2 * (8 * 8 + 8)


def poisoned() -> dict[str, Any]:
    """Return an optimizer's state with one NaN."""
    return {"state": {0: {"exp_avg": torch.tensor([NAN, 1.0])}}, "param_groups": [{"lr": 1e-3, "params": [0]}]}


def found(value: object, tmp_path: Path) -> Heard:
    save(value, tmp_path / "c.pt")
    return audit(tmp_path / "c.pt")


LAYOUTS: dict[str, Any] = {
    "usual": {"model_state_dict": WEIGHTS, "optimizer_state_dict": poisoned()},
    "short": {"model": WEIGHTS, "optimizer": poisoned()},
    "net": {"net": WEIGHTS, "optim": poisoned(), "lr_scheduler": {"last_epoch": 3}},
    "lightning": {
        "state_dict": {f"net.{name}": value for name, value in WEIGHTS.items()},
        "optimizer_states": [poisoned()],
        "lr_schedulers": [{"last_epoch": 3, "_step_count": 4}],
        "loops": {"fit_loop": {"epoch_loop.state_dict": {}}},
        "callbacks": {"ModelCheckpoint": {"best_model_score": torch.tensor(0.5), "kth_value": torch.tensor(0.1)}},
        "pytorch-lightning_version": "2.4",
        "hyper_parameters": {"lr": 1},
    },
    "composer": {
        "state": {"model": WEIGHTS, "optimizers": {"AdamW": poisoned()}},
        "rng": [{"torch": torch.get_rng_state()}],
    },
    "deepspeed": {"module": WEIGHTS, "optimizer": poisoned(), "ds_version": "0.15", "buffer_names": []},
    "mmcv": {"meta": {"iter": 5}, "state_dict": WEIGHTS, "optimizer": poisoned()},
    "two networks": {"generator_state_dict": WEIGHTS, "opt_g": poisoned()},
    "unnamed network": {"fancy": WEIGHTS, "adam": poisoned(), "scaler": {"scale": 1.0}},
    "trainer object": {"trainer": {"model": WEIGHTS, "optimizer": poisoned()}},
    "whole objects": {"model": MODEL, "opt": poisoned()},
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_model_and_optimizer_are_told_apart(tmp_path: Path, name: str) -> None:
    record = found(LAYOUTS[name], tmp_path).record
    assert record["params"] == PARAMS
    assert (record["nan_weights"], record["nan_optimizer"]) == (0, 1)
    assert record["findings"] in (["CK003"], ["CK003", "CK120"])


@pytest.mark.parametrize(
    "value",
    [
        WEIGHTS,
        dict(WEIGHTS),
        {f"module._orig_mod.{name}": tensor for name, tensor in WEIGHTS.items()},
        {"epoch": 3, **WEIGHTS},
        list(WEIGHTS.values()),
        MODEL,
        {"ema": WEIGHTS},
        {"weights": {"nested": WEIGHTS}},
    ],
)
def test_weights_alone_are_the_model(tmp_path: Path, value: object) -> None:
    record = found(value, tmp_path).record
    assert (record["params"], record["verdict"], record["nan_optimizer"]) == (PARAMS, "ok", 0)


def test_an_optimizer_alone_has_no_parameters(tmp_path: Path) -> None:
    record = found(STATE, tmp_path).record
    assert (record["params"], record["verdict"], record["tensors"]) == (0, "ok", 12)
    assert found(poisoned(), tmp_path).record["nan_optimizer"] == 1


def test_averaged_weights_are_weights_but_no_parameters(tmp_path: Path) -> None:
    ema = {name: tensor.clone() for name, tensor in WEIGHTS.items()}
    ema["0.bias"][0] = NAN
    heard = found({"model": WEIGHTS, "model_ema": ema}, tmp_path)
    assert (heard.record["params"], heard.record["nan_weights"]) == (PARAMS, 1)
    assert "averaged weights model_ema.0.bias" in heard.of("CK001")["message"]


def test_the_same_object_under_two_keys_keeps_its_better_name(tmp_path: Path) -> None:
    record = found({"last": WEIGHTS, "model": WEIGHTS}, tmp_path).record
    assert record["params"] == PARAMS


def test_the_kind_of_optimizer_state_is_told(tmp_path: Path) -> None:
    heard = found({"model": WEIGHTS, "optimizer": poisoned()}, tmp_path)
    assert heard.of("CK003")["data"]["state"] == "exp_avg"
    assert heard.of("CK003")["data"]["tensor"] == "optimizer.state.0.exp_avg"


@pytest.mark.parametrize(
    ("value", "step"),
    [
        ({"global_step": 5}, 5),
        ({"step": 5}, 5),
        ({"iteration": 5}, 5),
        ({"iter": 5}, 5),
        ({"steps": 5, "global_step": 6}, 6),
        ({"step": 5.0}, 5),
        ({"step": 5.5}, None),
        ({"step": True}, None),
        ({"step": "5"}, None),
        ({"step": NAN}, None),
        ({"step": np.int64(5)}, 5),
        ({"step": np.float32(5)}, 5),
        ({"step": torch.tensor(5)}, 5),
        ({"step": torch.tensor(5.0)}, 5),
        ({"step": torch.tensor([5], dtype=torch.int32)}, 5),
        ({"step": torch.tensor(5, dtype=torch.bfloat16)}, 5),
        ({"step": torch.tensor([1, 2])}, None),
        ({"train_state": {"step": torch.tensor(5)}}, 5),
        ({"trainer_state": {"global_step": 5}}, 5),
        ({"meta": {"iter": 5}}, 5),
        ({"state": argparse.Namespace(global_step=5)}, 5),
        ({"args": argparse.Namespace(global_step=5), "config": {"steps": 9}}, None),
        ({"lr_scheduler": {"step": 5}}, None),
        ({"optimizer": {"step": 5}}, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_the_step_is_found_at_the_usual_keys(
    tmp_path: Path, value: dict[str, Any], step: int | None, protocol: int
) -> None:
    save({"model": WEIGHTS, **value}, tmp_path / "c.pt", pickle_protocol=protocol)
    assert audit(tmp_path / "c.pt").record["step"] == step


@pytest.mark.parametrize(
    ("value", "epoch"),
    [
        ({"epoch": 3}, 3),
        ({"epoch": 0.57}, 0.57),
        ({"current_epoch": 3}, 3),
        ({"meta": {"epoch": 3}}, 3),
        ({"epochs": 9}, None),
    ],
)
def test_the_epoch_is_found(tmp_path: Path, value: dict[str, Any], epoch: float | None) -> None:
    assert found({"model": WEIGHTS, **value}, tmp_path).record["epoch"] == epoch


def test_a_step_from_the_name_says_so(tmp_path: Path) -> None:
    save({"model": WEIGHTS}, tmp_path / "step_0042" / "c.pt")
    record = audit(tmp_path).record
    assert (record["step"], record["step_from"]) == (42, "name")
    save(training_state(), tmp_path / "step_0042" / "c.pt")
    record = audit(tmp_path).record
    assert record["step"] == 2000
    assert "step_from" not in record
