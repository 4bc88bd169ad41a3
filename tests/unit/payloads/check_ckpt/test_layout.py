"""What is the model's and what the optimizer's, and how far training was: in layouts of real trainers."""

from __future__ import annotations

import argparse
import collections
import copy
import json
import sys
import time
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remoterun.payloads.check_ckpt.readers.reader import read_torch_file
from remoterun.payloads.check_ckpt.rules.catalogue import RULES
from remoterun.payloads.check_ckpt.rules.parameters import matched
from remoterun.payloads.check_ckpt.source import Source
from tests.unit.payloads.check_ckpt.support import Heard, audit, network, save, training_state

if TYPE_CHECKING:
    from remoterun.payloads.check_ckpt.model import Checkpoint, Progress

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


def test_weights_that_lightning_averages_are_no_parameters(tmp_path: Path) -> None:
    """Its callback saves them where the model's usually are, and those beside them."""
    averaged = {name: value / 2 for name, value in WEIGHTS.items()}
    state = {"state_dict": averaged, "current_model_state": WEIGHTS, "averaging_state": {"n_averaged": torch.tensor(3)}}
    heard = found({**state, "pytorch-lightning_version": "2.6.6", "global_step": 3}, tmp_path)
    assert (heard.record["params"], heard.record["verdict"]) == (PARAMS, "ok")


def test_every_weight_keeps_its_role_where_two_state_dicts_share_them(tmp_path: Path) -> None:
    """At the first step, averaged weights may be the model's own."""
    weights = {f"w{number}": torch.full((2,), float(number)) for number in range(1_500)}
    record = found({"ema": dict(weights), "model": weights}, tmp_path).record
    assert (record["params"], record["tensors"], record["verdict"]) == (3_000, 3_000, "ok")


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
        ({"iter_num": 5, "best_val_loss": 1.0}, 5),
        ({"iter_num": 10, "step_count": 5}, 5),
        ({"num_updates": 5, "config": {"completed_steps": 9}}, 5),
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
        ({"epochs_run": 3, "total_epochs": 9}, 3),
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


# --- optimizers -----------------------------------------------------------------------------------------------------


def read(value: object, tmp_path: Path) -> Checkpoint:
    with Source(str(save(value, tmp_path / "c.pt"))) as source:
        return read_torch_file(source).checkpoint


def places(checkpoint: Checkpoint, what: str) -> dict[str, float]:
    told: list[Progress] = checkpoint.progress
    return {each.where: each.value for each in told if each.what == what}


def test_an_optimizer_is_read_with_its_groups_and_states(tmp_path: Path) -> None:
    checkpoint = read({"model": WEIGHTS, "optimizer": STATE}, tmp_path)
    (optimizer,) = checkpoint.optimizers
    assert optimizer.name == "optimizer"
    (group,) = optimizer.groups
    assert group.params == ("0", "1", "2", "3")
    assert group.options["betas"] == (0.9, 0.999)
    assert group.options["lr"] == 1e-3
    assert group.options["amsgrad"] is False
    assert list(optimizer.states) == ["0", "1", "2", "3"]
    for key, state in optimizer.states.items():
        assert set(state.tensors) == {"step", "exp_avg", "exp_avg_sq"}
        assert state.dtypes == {"step": "float32", "exp_avg": "float32", "exp_avg_sq": "float32"}
        assert state.numbers == {"step": 1}
        assert checkpoint.tensors[state.tensors["exp_avg_sq"]].name == f"optimizer.state.{key}.exp_avg_sq"
    assert checkpoint.parts == {"model", "optimizer"}


def optimizers(layout: str) -> tuple[object, list[str]]:
    """Return optimizers as trainers save them, and what they are to be called."""
    two = copy.deepcopy(STATE)
    layouts: dict[str, tuple[object, list[str]]] = {
        "alone": (STATE, [""]),
        "lightning": (
            {"state_dict": WEIGHTS, "optimizer_states": [STATE, two]},
            ["optimizer_states.0", "optimizer_states.1"],
        ),
        "composer": ({"state": {"model": WEIGHTS, "optimizers": {"AdamW": STATE}}}, ["state.optimizers.AdamW"]),
        "megatron": (
            {"model": WEIGHTS, "optimizer": {"optimizer": STATE, "fp32_from_fp16_params": [list(WEIGHTS.values())]}},
            ["optimizer.optimizer"],
        ),
        "adversaries": ({"G": WEIGHTS, "opt_g": STATE, "opt_d": two}, ["opt_g", "opt_d"]),
        "objects": ({"model": MODEL, "opt": OPTIMIZER}, ["opt"]),
        "deep": ({"a": {"b": {"c": {"d": {"e": STATE}}}}}, []),
    }
    return layouts[layout]


@pytest.mark.parametrize("layout", ["alone", "lightning", "composer", "megatron", "adversaries", "objects", "deep"])
def test_optimizers_are_found_where_trainers_put_them(tmp_path: Path, layout: str) -> None:
    value, names = optimizers(layout)
    checkpoint = read(value, tmp_path)
    assert [each.name for each in checkpoint.optimizers] == names
    for optimizer in checkpoint.optimizers:
        assert [each.numbers for each in optimizer.states.values()] == [{"step": 1}] * 4
        assert set(optimizer.states) == set(optimizer.groups[0].params)
    masters = [tensor.name for tensor in checkpoint.tensors if tensor.role == "master"]
    assert len(masters) == (4 if layout == "megatron" else 0)


def test_state_of_other_kinds_is_read(tmp_path: Path) -> None:
    states = {
        0: {"step": 5, "exp_avg": torch.zeros(2, 2), "exp_avg_sq": torch.zeros(2, 2)},
        1: {"step": torch.tensor([7.0]), "momentum_buffer": None},
        2: {"state1": torch.zeros(4, dtype=torch.uint8), "qmap1": torch.zeros(256), "step": np.int64(9)},
        3: {"exp_avg_sq_row": torch.zeros(2), "RMS": 0.5, "projector": argparse.Namespace(rank=4)},
    }
    groups = [
        {"params": [0, 1], "lr": torch.tensor(0.5)},
        {"params": [2, 3], "lr": np.float64(0.25), "betas": [0.9, 0.95]},
    ]
    (optimizer,) = read({"state": states, "param_groups": groups}, tmp_path).optimizers
    assert [group.options for group in optimizer.groups] == [{"lr": 0.5}, {"lr": 0.25, "betas": (0.9, 0.95)}]
    assert [state.numbers for state in optimizer.states.values()] == [
        {"step": 5},
        {"step": 7},
        {"step": 9},
        {"RMS": 0.5},
    ]
    assert optimizer.states["2"].dtypes == {"state1": "uint8", "qmap1": "float32", "step": "?"}
    assert optimizer.states["3"].dtypes == {"exp_avg_sq_row": "float32", "projector": "?"}


def pairs_of(checkpoint: Checkpoint, *, path: str = "c.pt") -> list[dict[str, str]]:
    """Return the names of the parameters by their ids."""
    found = matched(checkpoint, [path])
    return [{key: checkpoint.tensors[index].name for key, index in each.items()} for each in found]


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(9, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.head = torch.nn.Linear(4, 9)
        self.head.weight = self.words.weight


def trained(model: torch.nn.Module, groups: Any) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(groups)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def test_parameters_are_known_by_their_order(tmp_path: Path) -> None:
    """Buffers and the second name of tied weights are left out."""
    model = Tied()
    checkpoint = read(trained(model, model.parameters()), tmp_path)
    names = ["model.words.weight", "model.norm.weight", "model.norm.bias", "model.head.bias"]
    assert pairs_of(checkpoint) == [dict(zip("0123", names, strict=True))]
    checkpoint.format = "hf-trainer"
    assert pairs_of(checkpoint, path="pytorch_model.bin") == [dict(zip("0123", names, strict=True))]
    assert pairs_of(checkpoint, path="model.safetensors") == [{}]


def test_parameters_are_known_by_their_order_within_groups(tmp_path: Path) -> None:
    """As trainers do that spare vectors the weight decay."""
    model, _ = network(1, width=8, layers=3)
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    checkpoint = read(trained(model, [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]), tmp_path)
    order = ["0.weight", "1.weight", "2.weight", "0.bias", "1.bias", "2.bias"]
    assert pairs_of(checkpoint) == [{str(key): f"model.{name}" for key, name in enumerate(order)}]


def test_parameters_are_known_by_their_names(tmp_path: Path) -> None:
    model, _ = network(1, width=8, layers=3)
    for parameter in model.get_submodule("1").parameters():
        parameter.requires_grad = False
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    state = trained(model, named)
    state["model"] = {f"module._orig_mod.{name}": tensor for name, tensor in state["model"].items()}
    order = ["0.weight", "0.bias", "2.weight", "2.bias"]
    expected = [{str(key): f"model.module._orig_mod.{name}" for key, name in enumerate(order)}]
    assert pairs_of(read(state, tmp_path)) == expected
    state["optimizer"]["state"] = {order[key]: value for key, value in state["optimizer"]["state"].items()}
    state["optimizer"]["param_groups"] = [{"params": order, "lr": 1e-3}]
    expected = [{name: f"model.module._orig_mod.{name}" for name in order}]
    assert pairs_of(read(state, tmp_path)) == expected


def test_parameters_are_not_guessed(tmp_path: Path) -> None:
    """Layers that are frozen, and groups that could be dealt out in more than one way."""
    model, _ = network(1, width=8, layers=3)
    frozen = trained(model, list(model.parameters())[2:])
    every = list(model.parameters())
    halves = trained(model, [{"params": every[:2]}, {"params": every[2:]}])
    assert pairs_of(read(frozen, tmp_path)) == [{}]
    assert pairs_of(read(halves, tmp_path)) == [{}]


# --- what goes with them --------------------------------------------------------------------------------------------


def test_parts_are_told(tmp_path: Path) -> None:
    scheduler = torch.optim.lr_scheduler.StepLR(torch.optim.AdamW(MODEL.parameters()), 3)
    checkpoint = read(
        training_state(
            lr_schedulers=[scheduler.state_dict()],
            scaler={"scale": torch.tensor(2.0), "growth_factor": 2.0, "_growth_tracker": 1},
            rng_state=torch.get_rng_state(),
            sampler_state={"position": 5},
        ),
        tmp_path,
    )
    assert checkpoint.parts == {"model", "optimizer", "scheduler", "scaler", "rng", "dataloader"}
    assert checkpoint.schedulers[0]["last_epoch"] == 0
    assert checkpoint.scalers == [{"scale": 2.0, "growth_factor": 2.0, "_growth_tracker": 1}]


def test_what_is_empty_is_no_part(tmp_path: Path) -> None:
    checkpoint = read(
        {"state_dict": WEIGHTS, "lr_schedulers": [], "scaler": {}, "rng": None, "optimizer": None}, tmp_path
    )
    assert checkpoint.parts == {"model"}


def test_every_place_that_tells_how_far_training_was(tmp_path: Path) -> None:
    progress = {"optimizer": {"step": {"total": {"ready": 7, "completed": 7}}}}
    checkpoint = read(
        {
            "state_dict": WEIGHTS,
            "global_step": 7,
            "epoch": 2,
            "trainer_state": {"global_step": 8, "epoch": 2.5},
            "loops": {"fit_loop": {"epoch_loop.automatic_optimization.optim_progress": progress}},
        },
        tmp_path,
    )
    assert places(checkpoint, "step") == {
        "global_step": 7,
        "trainer_state.global_step": 8,
        "loops.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed": 7,
    }
    assert places(checkpoint, "epoch") == {"epoch": 2, "trainer_state.epoch": 2.5}
    clock = {"Timestamp": {"epoch": 1, "batch": 40}}
    checkpoint = read({"state": {"model": WEIGHTS, "timestamp": clock}}, tmp_path)
    assert (checkpoint.step, checkpoint.epoch) == (40, 1)


def test_references_without_end_cost_little(tmp_path: Path) -> None:
    """A mapping that is referred to ten thousand times, by mappings that are referred to ten thousand times."""
    state = {str(key): float(key) for key in range(2_000)}
    states = dict.fromkeys(range(10_000), state)
    optimizer = {"state": states, "param_groups": [{"params": [0], "more": dict.fromkeys(range(10_000), states)}]}
    started = time.process_time()
    checkpoint = read({"model": WEIGHTS, **{f"optimizer_{number}": {**optimizer} for number in range(50)}}, tmp_path)
    assert time.process_time() - started < 5
    assert len(checkpoint.optimizers) < 50
    assert "optimizer" in checkpoint.parts


WORDS = (
    "state",
    "param_groups",
    "param_names",
    "last_epoch",
    "scale",
    "growth_factor",
    "global_step",
    "epoch",
    "loops",
)
KEYS = [*WORDS, *STATE["state"][0], *STATE["param_groups"][0], "model", "lora_B.weight", "fp32_from_fp16", 0, 1]
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=3),
    st.sampled_from([torch.zeros(3, 3), torch.tensor(NAN), torch.tensor(2.0, dtype=torch.bfloat16), torch.zeros(0)]),
    st.sampled_from([WEIGHTS, STATE, STATE["state"], STATE["param_groups"], STATE["param_groups"][0]]),
)
OBJECTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
    ),
    max_leaves=25,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    value=st.fixed_dictionaries(
        {
            "optimizer": st.fixed_dictionaries({"state": OBJECTS, "param_groups": OBJECTS}),
            "model": OBJECTS,
            "more": OBJECTS,
        }
    )
)
def test_no_object_makes_the_audit_fail(tmp_path: Path, value: dict[str, Any]) -> None:
    heard = found(value, tmp_path)
    assert heard.rules() <= set(RULES) - {"CK030"}
    assert heard.record["step"] is None or isinstance(heard.record["step"], int)


# --- R16: classes that nobody has ------------------------------------------------------------------------------------


class Conf:
    """Be like a node of omegaconf: content that is set by __setstate__, and a parent that leads back."""

    def __init__(self, **content: object) -> None:
        self._content = content
        self._parent = self


def test_r16_objects_of_other_classes_are_information(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("trainer_of_last_year")
    gone = type("Clock", (), {"__module__": module.__name__})
    module.Clock = gone  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    clock = gone()
    clock.global_step, clock.epoch = np.int64(1990), np.float64(2.5)
    state = training_state(
        global_step=None,
        epoch=None,
        trainer_clock=clock,
        args=argparse.Namespace(lr=1e-3, out=Path("/somewhere"), steps=9),
        best=np.float64(0.5),
        numpy_rng=[np.random.default_rng(0).bit_generator.state, np.random.RandomState(0).get_state()],
        losses=collections.deque([1.0, 0.5], maxlen=100),
        cfg=Conf(batch=32, inner=Conf(width=64)),
    )
    save(state, tmp_path / "c.pt")
    monkeypatch.undo()
    heard = audit(tmp_path / "c.pt")
    assert (heard.rules(), heard.record["verdict"]) == ({"CK120"}, "ok")
    assert heard.of("CK120")["severity"] == "info"
    assert "trainer_of_last_year.Clock" in json.dumps(heard.of("CK120"))
    assert (heard.record["step"], heard.record["epoch"]) == (1990, 2.5)
    assert heard.record["params"] == 4 * (64 * 64 + 64)
    assert heard.record["bytes_checked"] == heard.record["bytes"]
