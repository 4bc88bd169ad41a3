"""Checkpoints with a file for each rank: nanochat's, verl's and Composer's."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.unit.payloads.check_ckpt.layouts import nanochat, save_json, trainer, verl, weights
from tests.unit.payloads.check_ckpt.support import audit, network, save, stored_zip, training_state, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch.distributed.device_mesh import DeviceMesh

pytestmark = pytest.mark.torch

PARAMS = sum(tensor.numel() for tensor in weights().values())


# --- nanochat: all steps in one folder -------------------------------------------------------------------------------


def test_steps_in_one_folder_are_checkpoints_of_their_own(tmp_path: Path) -> None:
    for step in (100, 200):
        nanochat(tmp_path / "d20", step)
    heard = audit(tmp_path)
    assert heard.rules(above_info=True) == set(), heard.findings
    assert [(record["name"], record["step"]) for record in heard.records] == [("d20/000200", 200), ("d20/000100", 100)]
    for record in heard.records:
        assert (record["verdict"], record["format"], record["params"]) == ("ok", "nanochat", PARAMS)
        assert record["bytes_checked"] == record["bytes"]
        assert record["path"] == str(tmp_path / "d20")
    assert heard.records[1]["files"] == [
        "meta_000100.json",
        "model_000100.pt",
        "optim_000100_rank0.pt",
        "optim_000100_rank1.pt",
    ]
    assert heard.summary["resume_from"] == "d20/000200"
    assert audit(tmp_path / "d20").records[0]["name"] == "000200"


@pytest.mark.parametrize(
    ("name", "rule"),
    [("model_000200.pt", "CK060"), ("meta_000200.json", "CK063"), ("optim_000200_rank1.pt", "CK060")],
)
def test_a_file_of_a_step_is_missing(tmp_path: Path, name: str, rule: str) -> None:
    nanochat(tmp_path, 100, ranks=3)
    nanochat(tmp_path, 200, ranks=3)
    (tmp_path / name).unlink()
    heard = audit(tmp_path)
    assert {record["name"]: record["verdict"] for record in heard.records} == {"000200": "bad", "000100": "ok"}
    assert name in heard.of(rule)["message"]
    assert heard.summary["resume_from"] == "000100"


def test_damage_to_one_step_leaves_the_others_alone(tmp_path: Path) -> None:
    nanochat(tmp_path, 100)
    nanochat(tmp_path, 200)
    state = network(200)[1].state_dict()
    state["state"][0]["exp_avg"][0, :3] = float("nan")
    save([state], tmp_path / "optim_000200_rank1.pt")
    heard = audit(tmp_path)
    assert {record["name"]: record["nan_optimizer"] for record in heard.records} == {"000200": 3, "000100": 0}
    assert heard.of("CK003")["data"]["file"] == str(tmp_path / "optim_000200_rank1.pt")


def test_a_numbered_model_alone_is_a_file(tmp_path: Path) -> None:
    save(training_state(), tmp_path / "model_100.pt")
    assert audit(tmp_path).record["path"] == str(tmp_path / "model_100.pt")


# --- verl ------------------------------------------------------------------------------------------------------------


def test_ranks_of_several_networks_are_one_checkpoint(tmp_path: Path) -> None:
    verl(tmp_path / "global_step_10", networks=("actor", "critic"))
    verl(tmp_path / "global_step_20", networks=("actor", "critic"), seed=10)
    write(tmp_path / "latest_checkpointed_iteration.txt", b"20")
    heard = audit(tmp_path)
    assert heard.rules(above_info=True) == set(), heard.findings
    assert [record["name"] for record in heard.records] == ["global_step_20", "global_step_10"]
    first = heard.records[0]
    assert (first["verdict"], first["format"], first["step"], first["params"]) == ("ok", "verl", 20, 4 * PARAMS)
    assert first["bytes_checked"] == first["bytes"]
    assert len(first["files"]) == 13
    assert audit(tmp_path / "global_step_10" / "actor").record["params"] == 2 * PARAMS


@pytest.mark.parametrize("kind", ["model", "optim", "extra_state"])
def test_a_ranks_file_is_missing(tmp_path: Path, kind: str) -> None:
    verl(tmp_path / "global_step_10", world=3)
    name = f"{kind}_world_size_3_rank_2.pt"
    (tmp_path / "global_step_10" / "actor" / name).unlink()
    heard = audit(tmp_path)
    assert heard.record["verdict"] == "bad"
    assert heard.of("CK060")["data"]["missing"] == [f"actor/{name}"]


def test_files_of_two_runs_lie_together(tmp_path: Path) -> None:
    verl(tmp_path / "global_step_10", world=2)
    verl(tmp_path / "global_step_10", world=1)
    heard = audit(tmp_path)
    assert heard.record["verdict"] == "suspect"
    assert "1 and 2 ranks" in heard.of("CK064")["message"]


def test_a_world_of_a_million_ranks_is_bounded(tmp_path: Path) -> None:
    save(weights(), tmp_path / "model_world_size_999999_rank_0.pt")
    finding = audit(tmp_path).of("CK060")
    assert len(finding["data"]["missing"]) == 20
    assert finding["data"]["count"] >= 99_999


# --- Composer --------------------------------------------------------------------------------------------------------


def composer(folder: Path, batch: int, ranks: int) -> None:
    model, optimizer = network(batch)
    state = {"model": model.state_dict(), "optimizers": {"AdamW": optimizer.state_dict()}}
    state["timestamp"] = {"Timestamp": {"batch": batch, "epoch": 0}}
    for rank in range(ranks):
        save({"state": state, "rng": []}, folder / f"ep0-ba{batch}-rank{rank}.pt")


def test_composers_ranks_and_its_links(tmp_path: Path) -> None:
    composer(tmp_path, 10, 2)
    composer(tmp_path, 20, 2)
    for rank in range(2):
        (tmp_path / f"latest-rank{rank}.pt").symlink_to(f"ep0-ba20-rank{rank}.pt")
    heard = audit(tmp_path)
    assert heard.rules(above_info=True) == set(), heard.findings
    assert [(record["name"], record["step"]) for record in heard.records] == [("ep0-ba20", 20), ("ep0-ba10", 10)]
    assert heard.records[0]["format"] == "composer"
    (tmp_path / "ep0-ba20-rank0.pt").unlink()
    heard = audit(tmp_path)
    assert heard.of("CK060")["data"]["missing"] == ["ep0-ba20-rank0.pt"]
    assert heard.of("CK065")["subject"] == "latest-rank0.pt"


# --- all together ----------------------------------------------------------------------------------------------------


def test_layouts_do_not_get_into_each_others_way(tmp_path: Path) -> None:
    nanochat(tmp_path / "runs" / "d20", 100)
    verl(tmp_path / "runs" / "rl" / "global_step_10")
    trainer(tmp_path / "runs" / "sft" / "checkpoint-10", 10)
    save(training_state(), tmp_path / "runs" / "mine" / "step_10" / "c.pt")
    save_json({}, tmp_path / "runs" / "config.json")
    save(torch.zeros(4), tmp_path / "runs" / "stray.pt")
    heard = audit(tmp_path)
    assert heard.rules(above_info=True) == set(), heard.findings
    assert {record["name"]: record["format"] for record in heard.records} == {
        "runs/d20/000100": "nanochat",
        "global_step_10": "verl",
        "checkpoint-10": "hf-trainer",
        "step_10": "torch-zip",
        "runs": "torch-zip",
    }


# --- DTensors: each rank has its rows ---------------------------------------------------------------------------------


def sharded(
    folder: Path, world: int, damage: Callable[[int, dict[Any, Any]], None] = lambda rank, moments: None
) -> Path:
    """Save what verl does under FSDP: of each tensor but the scalars, every rank has some rows, or none."""
    model, optimizer = network(width=4)
    for rank in range(world):
        dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
        try:
            mesh = init_device_mesh("cpu", (world,))
            weights_of_rank = {name: rows(tensor, rank, mesh) for name, tensor in model.state_dict().items()}
            states = copy.deepcopy(optimizer.state_dict())
            damage(rank, states["state"])
            for state in states["state"].values():
                state.update({key: rows(value, rank, mesh) for key, value in state.items()})
            save(weights_of_rank, folder / "actor" / f"model_world_size_{world}_rank_{rank}.pt")
            save(states, folder / "actor" / f"optim_world_size_{world}_rank_{rank}.pt")
        finally:
            dist.destroy_process_group()
    return folder


def rows(tensor: torch.Tensor, rank: int, mesh: DeviceMesh) -> torch.Tensor:
    """Return what a rank has of a tensor, as fully_shard makes it."""
    if not tensor.dim():
        return tensor
    parts = [*torch.chunk(tensor.detach(), mesh.size()), *([tensor.detach()[:0]] * mesh.size())]
    local = parts[rank].clone()
    return DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=tensor.shape, stride=tensor.stride())


@pytest.mark.parametrize("world", [1, 3])
def test_ranks_that_hold_dtensors_make_one_checkpoint(tmp_path: Path, world: int) -> None:
    """With three ranks, the last has nothing of four rows, cut as torch cuts them."""
    heard = audit(sharded(tmp_path / "global_step_1", world).parent)
    assert heard.rules(above_info=True) == set(), heard.findings
    assert heard.record["params"] == sum(tensor.numel() for tensor in network(width=4)[0].state_dict().values())
    assert heard.record["bytes_checked"] == heard.record["bytes"]


def test_what_is_wrong_with_a_dtensor_is_told_by_its_own_name(tmp_path: Path) -> None:
    """It belongs to the state of its parameter, so that the rules of optimizers look at it."""

    def negative(rank: int, moments: dict[Any, Any]) -> None:
        if not rank:
            moments[2]["exp_avg_sq"][0, 1] = -1.0

    heard = audit(sharded(tmp_path / "global_step_1", 2, negative).parent)
    assert heard.record["verdict"] == "bad"
    assert "exp_avg_sq" in heard.of("CK044")["message"]
    assert "_local_tensor" not in str(heard.findings)


def test_a_parameter_may_be_a_dtensor(tmp_path: Path) -> None:
    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (1,))
        save({"w": torch.nn.Parameter(rows(torch.tensor([1.0, float("nan")]), 0, mesh))}, tmp_path / "c.pt")
    finally:
        dist.destroy_process_group()
    heard = audit(tmp_path)
    assert heard.record["nan_weights"] == 1
    assert heard.of("CK001")["data"]["tensor"] == "w"


@pytest.mark.parametrize(
    "state", [b"N", b"}", b"N}\x86", b"}X\x0d\x00\x00\x00_local_tensorNs", b"(NNNt", b"X\x01\x00\x00\x00s"]
)
def test_a_dtensor_without_a_tensor_is_none(tmp_path: Path, state: bytes) -> None:
    data = b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_wrapper_subclass\n"
    data += b"ctorch.distributed.tensor\nDTensor\n)" + state + b"tR."
    heard = audit(write(tmp_path / "c.pt", stored_zip({"archive/data.pkl": data, "archive/version": b"3\n"})))
    assert heard.record["verdict"] == "unsupported"
    assert "audit itself" not in str(heard.findings)
