"""DeepSpeed's checkpoints, at every stage of ZeRO, and what becomes of them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch

from remoterun.payloads.check_ckpt.readers import deepspeed
from remoterun.payloads.check_ckpt.rules.training import pairs
from tests.unit.payloads.check_ckpt.support import audit, save, settle, training_state, write
from tests.unit.payloads.check_ckpt.test_dcp import folder_of
from tests.unit.payloads.check_ckpt.zero_layout import (
    STEP,
    Training,
    base_state,
    flattened,
    model_states,
    save_zero_2,
    save_zero_3,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.torch


def change(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Load a file, change what is in it, and save it again."""
    value = torch.load(path, weights_only=False)
    edit(value)
    save(value, path)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_zero_2_is_ok_and_its_flat_tensors_have_names(tmp_path: Path, ranks: int) -> None:
    training = Training()
    path = save_zero_2(tmp_path / "global_step10", training, ranks)
    heard = audit(path)
    assert heard.rules(above_info=True) == set()
    record = heard.record
    assert (record["verdict"], record["format"], record["step"]) == ("ok", "deepspeed", STEP)
    assert record["params"] == training.params
    training.master["1.weight"][2, 3] = torch.nan
    training.moments["exp_avg"]["2.bias"][1] = torch.inf
    heard = audit(save_zero_2(tmp_path / "bad", training, ranks))
    assert heard.record["verdict"] == "bad"
    messages = [each["message"] for each in heard.findings if each["rule"] == "CK003"]
    assert any("1.weight: 1 NaN" in message for message in messages)
    assert any("2.bias: 1 infinite" in message for message in messages)


@pytest.mark.parametrize(("ranks", "groups"), [(1, 1), (2, 1), (3, 1), (2, 3)])
def test_zero_3_has_its_weights_with_the_optimizer(tmp_path: Path, ranks: int, groups: int) -> None:
    training = Training()
    heard = audit(save_zero_3(tmp_path / "global_step10", training, ranks, groups))
    assert heard.rules(above_info=True) == set()
    assert heard.record["verdict"] == "ok"
    assert heard.record["params"] == training.params + 3
    assert heard.of("CK009")["severity"] == "info"
    assert "optimizer's files" in heard.of("CK009")["message"]
    training.master["2.weight"][6, 6] = torch.nan
    heard = audit(save_zero_3(tmp_path / "bad", training, ranks, groups))
    assert "2.weight: 1 NaN" in heard.of("CK001")["message"]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("kept", [save_zero_2, save_zero_3])
def test_moments_are_held_against_each_other(tmp_path: Path, kept: Callable[..., Path], ranks: int) -> None:
    """Of every parameter all elements, wherever they lie."""
    training = Training()
    checkpoint = deepspeed.read(folder_of(kept(tmp_path / "global_step10", training, ranks)))
    held: dict[str, int] = {}
    for first, second, _ in pairs(checkpoint):
        one, other = checkpoint.tensors[first], checkpoint.tensors[second]
        assert (one.name, one.key, other.key) == (other.name, "exp_avg", "exp_avg_sq")
        held[one.name] = held.get(one.name, 0) + one.numel
    assert held == {name: weight.numel() for name, weight in training.master.items()}


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("ranks", [1, 3])
def test_the_model_is_its_float32_weights_rounded(tmp_path: Path, ranks: int, half: torch.dtype) -> None:
    training = Training()
    path = save_zero_2(tmp_path / "global_step10", training, ranks)
    file = path / "mp_rank_00_model_states.pt"
    rounded = {name: weight.to(half) for name, weight in training.master.items()}
    change(file, lambda value: value.update(module=rounded))
    assert audit(path).rules(above_info=True) == set()
    bits = rounded["1.weight"].view(torch.int16)
    bits[2, 3] += 1
    bits[6, 6] -= 1
    change(file, lambda value: value.update(module=rounded))
    heard = audit(path)
    assert heard.record["verdict"] == "bad"
    assert heard.of("CK042")["evidence"]["unequal"] == 2
    assert heard.of("CK042")["evidence"]["compared"] == training.params
    assert set(heard.of("CK042")["data"]["tensors"]) == {"module.1.weight"}


def test_a_model_of_an_earlier_step_is_told(tmp_path: Path) -> None:
    training, earlier = Training(), Training()
    for weight in training.master.values():
        weight.add_(0.001)
    path = save_zero_2(tmp_path / "global_step10", training, 2)
    change(path / "mp_rank_00_model_states.pt", lambda value: value.update(module=earlier.model))
    assert "CK042" in audit(path).rules()


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    path = save_zero_2(tmp_path / "global_step10", Training(), 4)
    (path / "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt").unlink()
    heard = audit(path)
    assert heard.record["verdict"] == "bad"
    assert heard.of("CK060")["data"]["missing"] == ["bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt"]


def test_ranks_of_another_save_are_told(tmp_path: Path) -> None:
    path, training = tmp_path / "global_step10", Training()
    save_zero_2(path, training, 4)
    save_zero_2(path, training, 2)
    heard = audit(path)
    assert (heard.record["verdict"], heard.rules(above_info=True)) == ("suspect", {"CK064"})
    assert len(heard.of("CK064")["data"]["files"]) == 2


def test_missing_files_of_zero_3_are_named(tmp_path: Path) -> None:
    path = save_zero_3(tmp_path / "global_step10", Training(), 3)
    names = ["zero_pp_rank_1_mp_rank_00_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"]
    for name in names:
        (path / name).unlink()
    heard = audit(path)
    assert heard.record["verdict"] == "bad"
    assert sorted(heard.of("CK060")["data"]["missing"]) == sorted(names)


def test_without_any_share_the_model_says_that_there_were_some(tmp_path: Path) -> None:
    path = save_zero_3(tmp_path / "global_step10", Training(), 2)
    for file in path.glob("*optim_states.pt"):
        file.unlink()
    heard = audit(path)
    assert heard.record["verdict"] == "bad"
    assert {"CK060", "CK009"} <= heard.rules(above_info=True)


def test_files_of_different_steps_are_told(tmp_path: Path) -> None:
    path = save_zero_3(tmp_path / "global_step10", Training(), 2)
    change(path / "zero_pp_rank_1_mp_rank_00_model_states.pt", lambda value: value.update(global_steps=8))
    heard = audit(path)
    assert heard.record["verdict"] == "bad"
    assert "CK043" in heard.rules()


def test_shares_of_different_steps_are_told(tmp_path: Path) -> None:
    path = save_zero_2(tmp_path / "global_step10", Training(), 2)

    def later(value: dict[str, Any]) -> None:
        value["optimizer_state_dict"]["base_optimizer_state"]["state"][0]["step"] += 1

    change(path / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", later)
    heard = audit(path)
    assert heard.record["verdict"] == "bad"
    assert "rank 1" in heard.of("CK043")["message"]


@pytest.mark.parametrize("taken", [30, -30])
@pytest.mark.parametrize("stage", [2, 3])
def test_shares_of_another_size_are_told(tmp_path: Path, taken: int, stage: int) -> None:
    path = (save_zero_2 if stage == 2 else save_zero_3)(tmp_path / "global_step10", Training(), 2)

    def cut(value: dict[str, Any]) -> None:
        optimizer = value["optimizer_state_dict"]
        groups = optimizer["single_partition_of_fp32_groups" if stage == 2 else "fp32_flat_groups"]
        flat = groups[0]
        groups[0] = flat[taken:].clone() if taken > 0 else torch.cat([flat, flat[:-taken]])

    change(path / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", cut)
    heard = audit(path)
    assert heard.record["verdict"] == "bad"
    assert "CK062" in heard.rules()


def test_a_damaged_share_is_named_with_its_file(tmp_path: Path) -> None:
    path = save_zero_2(tmp_path / "global_step10", Training(), 3)
    file = path / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    file.write_bytes(file.read_bytes()[:-1000])
    settle(file)
    heard = audit(path)
    assert heard.record["verdict"] == "bad"
    assert heard.of("CK020")["data"]["file"].endswith(file.name)
    assert "CK062" not in heard.rules()


def test_shares_of_a_layout_that_is_not_known_are_still_checked(tmp_path: Path) -> None:
    training = Training()
    training.master["1.weight"][2, 3] = torch.nan
    path = save_zero_3(tmp_path / "global_step10", training, 2)
    for file in path.glob("*model_states.pt"):
        change(file, lambda value: value.update(param_shapes=None))
    heard = audit(path)
    assert heard.rules(above_info=True) == {"CK001"}
    assert "fp32_flat_groups.0" in heard.of("CK001")["message"]


def test_weights_that_are_not_trained_are_counted_once(tmp_path: Path) -> None:
    """Each rank of ZeRO-3 has its share of them beside the placeholders."""
    training = Training()
    path = save_zero_3(tmp_path / "global_step10", training, 2)
    for rank in range(2):

        def freeze(value: dict[str, Any], rank: int = rank) -> None:
            value["frozen_param_shapes"] = {"frozen": torch.Size([3, 3])}
            flat = torch.arange(1.0, 11.0)[5 * rank : 5 * rank + 5].clone()
            flat[4] = torch.nan if rank else flat[4]
            value["frozen_param_fragments"] = {"frozen": flat}
            value["module"]["frozen"] = torch.empty(0)

        change(path / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt", freeze)
    heard = audit(path)
    assert heard.rules(above_info=True) == set()
    assert heard.record["params"] == training.params + 3 + 9


def test_layers_of_a_pipeline_lack_no_part(tmp_path: Path) -> None:
    path = tmp_path / "global_step10"
    training = Training()
    for layer in (1, 2, 4):
        for part in range(2):
            save({"weight": torch.ones(3, 3)}, path / f"layer_{layer:02d}-model_{part:02d}-model_states.pt")
    for rank in range(2):
        state = {"module": None, "global_steps": STEP, "dp_world_size": 1, "mp_world_size": 2, "param_shapes": None}
        save(state, path / f"mp_rank_{rank:02d}_model_states.pt")
    heard = audit(path)
    assert (heard.record["verdict"], heard.rules(above_info=True)) == ("ok", set())
    assert heard.record["params"] == 54
    assert training.params
    (path / "layer_04-model_00-model_states.pt").unlink()
    (path / "mp_rank_01_model_states.pt").unlink()
    heard = audit(path)
    assert sorted(heard.of("CK060")["data"]["missing"]) == [
        "layer_04-model_00-model_states.pt",
        "mp_rank_01_model_states.pt",
    ]


def test_experts_lie_in_files_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "global_step10"
    state = {"module": {"gate": torch.ones(3)}, "global_steps": STEP, "dp_world_size": 2, "param_shapes": None}
    save(state, path / "mp_rank_00_model_states.pt")
    for layer in range(2):
        for expert in range(4):
            name = f"layer_{layer}_expert_{expert}_mp_rank_00_model_states.pt"
            save({f"moe.experts.{expert}.weight": torch.ones(3, 3)}, path / name)
    for rank in range(2):
        save({"optimizer": {"state": {}, "param_groups": []}}, path / f"expp_rank_{rank}_mp_rank_00_optim_states.pt")
    heard = audit(path)
    assert heard.rules(above_info=True) == set()
    assert heard.record["params"] == 3 + 8 * 9
    (path / "layer_1_expert_2_mp_rank_00_model_states.pt").unlink()
    assert audit(path).of("CK060")["data"]["missing"] == ["layer_1_expert_2_mp_rank_00_model_states.pt"]


def test_the_optimizer_for_bfloat16_names_no_stage(tmp_path: Path) -> None:
    """It keeps what fills a group up, too."""
    training = Training()
    path = save_zero_2(tmp_path / "global_step10", training, 2)
    for rank, flat in enumerate(flattened(training.master, 2)):

        def bare(value: dict[str, Any], flat: torch.Tensor = flat) -> None:
            del value["optimizer_state_dict"]["zero_stage"]
            value["optimizer_state_dict"]["single_partition_of_fp32_groups"] = [flat]

        change(path / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", bare)
    heard = audit(path)
    assert (heard.record["verdict"], heard.rules(above_info=True)) == ("ok", set())


def test_without_zero_all_is_in_the_model_s_file(tmp_path: Path) -> None:
    state = training_state()
    value = {
        "module": state["model_state_dict"],
        "optimizer": state["optimizer_state_dict"],
        "global_steps": STEP,
        "dp_world_size": 8,
        "mp_world_size": 1,
        "param_shapes": None,
    }
    save(value, tmp_path / "global_step10/mp_rank_00_model_states.pt")
    heard = audit(tmp_path)
    assert (heard.record["verdict"], heard.findings) == ("ok", [])
    assert heard.record["step"] == STEP


def test_a_pointer_to_a_step_that_is_not_there_is_told(tmp_path: Path) -> None:
    save_zero_2(tmp_path / "global_step10", Training())
    write(tmp_path / "latest", b"global_step20")
    heard = audit(tmp_path)
    assert "CK065" in heard.rules()
    write(tmp_path / "latest", b"global_step10")
    heard = audit(tmp_path)
    assert (heard.record["name"], heard.rules(above_info=True)) == ("global_step10", set())


def test_a_trainer_s_folder_holds_it_as_a_part(tmp_path: Path) -> None:
    training = Training()
    path = tmp_path / "checkpoint-10"
    save_zero_2(path / "global_step10", training)
    shutil.copy(path / "global_step10/mp_rank_00_model_states.pt", tmp_path / "copy.pt")
    write(path / "latest", b"global_step10")
    write(path / "trainer_state.json", b'{"global_step": 10, "epoch": 1.0, "log_history": []}')
    (tmp_path / "copy.pt").unlink()
    heard = audit(tmp_path)
    assert heard.rules(above_info=True) == set()
    assert (heard.record["name"], heard.record["verdict"]) == ("checkpoint-10", "ok")


def test_a_universal_checkpoint_has_a_folder_for_each_parameter(tmp_path: Path) -> None:
    training = Training()
    path = tmp_path / "global_step10_universal"
    save(model_states(training, training.model, 4), path / "mp_rank_00_model_states.pt")
    for name, weight in training.master.items():
        folder = path / "zero" / name
        for key, tensor in {"fp32": weight, **{key: each[name] for key, each in training.moments.items()}}.items():
            save({"param": tensor, "cat_dim": 0}, folder / f"{key}.pt")
        save(torch.tensor(float(STEP)), folder / "step.pt")
    groups = base_state({"exp_avg": []}, STEP)["param_groups"]
    save({"param_groups": groups, "ds_version": "0.17.0"}, path / "zero/optimizer_state.pt")
    heard = audit(path)
    assert (heard.record["verdict"], heard.rules(above_info=True)) == ("ok", set())
    assert (heard.record["params"], heard.record["step"]) == (training.params, STEP)
    (path / "zero/1.weight/exp_avg_sq.pt").unlink()
    broken = training.moments["exp_avg_sq"]["2.weight"]
    save({"param": torch.full_like(broken, torch.nan)}, path / "zero/2.weight/exp_avg_sq.pt")
    heard = audit(path)
    assert heard.of("CK060")["data"]["missing"] == ["zero/1.weight/exp_avg_sq.pt"]
    assert "2.weight" in heard.of("CK003")["message"]
    (path / "mp_rank_00_model_states.pt").unlink()
    heard = audit(path)
    assert "mp_rank_00_model_states.pt" in str([each["data"].get("missing") for each in heard.findings])
