"""Known ways in which checkpoints of many files, and series of them, are damaged: R8, R9, R13, R10 in every format."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from tests.unit.payloads.check_ckpt.layouts import (
    adapter,
    nanochat,
    save_json,
    settle_all,
    sharded,
    trainer,
    verl,
)
from tests.unit.payloads.check_ckpt.support import (
    ENGINES,
    Heard,
    audit,
    count_with_torch,
    network,
    save,
    training_state,
    write,
)

pytestmark = pytest.mark.torch

NAN = float("nan")


# --- R8: torch.distributed.checkpoint -------------------------------------------------------------------------------


@pytest.fixture
def distributed(tmp_path: Path) -> Path:
    """Save in two files, as one rank does with two threads."""
    model, optimizer = network()
    path = tmp_path / "step_3"
    writer = FileSystemWriter(path, single_file_per_rank=False, thread_count=2)
    state = {"model": model.state_dict(), "optim": optimizer.state_dict(), "step": 3}
    save_distributed(state, storage_writer=writer, no_dist=True)
    return settle_all(path)


def largest(path: Path) -> Path:
    return max(path.glob("*.distcp"), key=lambda each: each.stat().st_size)


R8: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file is missing": (lambda path: largest(path).unlink(), "CK060"),
    "a file is cut off": (lambda path: write(largest(path), largest(path).read_bytes()[:-999]), "CK061"),
    "a file is empty": (lambda path: write(largest(path), b""), "CK061"),
    "the metadata is missing": (lambda path: (path / ".metadata").unlink(), "CK063"),
    "the metadata was never renamed": (lambda path: (path / ".metadata").rename(path / ".metadata.tmp"), "CK066"),
}


@pytest.mark.parametrize("name", R8)
def test_r8_a_distributed_checkpoint_that_is_not_whole(distributed: Path, name: str) -> None:
    """Chunks that leave a gap are in test_dcp.py, with other metadata."""
    damage, rule = R8[name]
    assert audit(distributed).record["verdict"] == "ok"
    damage(distributed)
    heard = audit(settle_all(distributed).parent)
    assert (heard.record["verdict"], rule in heard.rules()) == ("bad", True), heard.findings


def test_r8_an_empty_file_to_which_nothing_refers_is_information(distributed: Path) -> None:
    write(distributed / "__9_0.distcp", b"")
    heard = audit(distributed)
    assert (heard.record["verdict"], heard.rules(above_info=True)) == ("ok", set())


# --- R9: other layouts ----------------------------------------------------------------------------------------------


def deepspeed(path: Path) -> Path:
    """Save as DeepSpeed does with ZeRO 2 on four ranks."""
    (model, optimizer), folder = network(), path / "global_step3"
    options: dict[str, Any] = {"zero_stage": 2, "partition_count": 4, "base_optimizer_state": optimizer.state_dict()}
    for rank in range(4):
        share = {**options, "single_partition_of_fp32_groups": [torch.randn(99)], "ds_version": "0.16.0"}
        save({"optimizer_state_dict": share}, folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    whole = {"module": model.state_dict(), "global_steps": 3, "dp_world_size": 4, "ds_version": "0.16.0"}
    save(whole, folder / "mp_rank_00_model_states.pt")
    write(path / "latest", b"global_step3")
    return folder


def megatron(path: Path) -> Path:
    """Save as Megatron-LM does on two by two ranks."""
    folder = path / "iter_0000003"
    for tensor in range(2):
        for pipeline in range(2):
            rank = f"mp_rank_{tensor:02}_{pipeline:03}"
            save({"model": network(tensor)[0].state_dict(), "iteration": 3}, folder / rank / "model_optim_rng.pt")
    write(path / "latest_checkpointed_iteration.txt", b"3")
    return folder


def nemo(path: Path) -> Path:
    """Leave NeMo's marker of a save that did not end."""
    save(training_state(), path / "step_3" / "c.pt")
    write(path / "step_3-unfinished", b"")
    return path / "step_3"


def orbax(path: Path) -> Path:
    folder = path / "3.orbax-checkpoint-tmp-7"
    write(folder / "_CHECKPOINT_METADATA", b'{"item_handlers": {}}')
    write(folder / "default" / "manifest.ocdbt", bytes(9))
    return folder


def stray(path: Path) -> Path:
    """Save in shards, and leave one of another save beside them."""
    sharded(path)
    save_file({"other": torch.ones(9)}, path / "model-00004-of-00003.safetensors", metadata={"format": "pt"})
    return path


def another_index(path: Path) -> Path:
    """Save in shards, and have the index name a weight that none of them has."""
    sharded(path)
    index = path / "model.safetensors.index.json"
    said = json.loads(index.read_text())
    said["weight_map"]["lost.weight"] = next(iter(said["weight_map"].values()))
    save_json(said, index)
    return path


def of_trainer(path: Path) -> Path:
    return trainer(path / "checkpoint-3", 3)


def of_nanochat(path: Path) -> None:
    nanochat(path, 3, ranks=3)


def nothing(_: Path) -> None:
    """Leave it as it is."""


def remove(name: str) -> Callable[[Path], object]:
    return lambda path: (path / name).unlink()


def points_to(name: str, text: str) -> Callable[[Path], object]:
    return lambda path: write(path / name, text.encode())


Change = Callable[[Path], object]
R9: dict[str, tuple[Change, Change, str, str]] = {
    "a rank of DeepSpeed": (
        deepspeed,
        remove("global_step3/zero_pp_rank_3_mp_rank_00_optim_states.pt"),
        "CK060",
        "bad",
    ),
    "a tag of DeepSpeed": (deepspeed, points_to("latest", "global_step9"), "CK065", "ok"),
    "a shard": (sharded, remove("model-00002-of-00003.safetensors"), "CK060", "bad"),
    "a weight in the index": (another_index, nothing, "CK064", "bad"),
    "a trainer's state": (of_trainer, remove("checkpoint-3/trainer_state.json"), "CK063", "bad"),
    "a rank of Megatron": (megatron, remove("iter_0000003/mp_rank_01_001/model_optim_rng.pt"), "CK060", "bad"),
    "a tracker of Megatron": (megatron, points_to("latest_checkpointed_iteration.txt", "9"), "CK065", "ok"),
    "the end of NeMo's save": (nemo, nothing, "CK066", "bad"),
    "the end of orbax's save": (orbax, nothing, "CK026", "in_progress"),
    "a rank of verl": (verl, remove("actor/model_world_size_2_rank_1.pt"), "CK060", "bad"),
    "a rank of nanochat": (of_nanochat, remove("optim_000003_rank1.pt"), "CK060", "bad"),
    "the weights of an adapter": (adapter, remove("adapter_model.safetensors"), "CK060", "bad"),
}


@pytest.mark.parametrize("name", R9)
def test_r9_what_a_layout_lacks_is_named(tmp_path: Path, name: str) -> None:
    """Digests that are wrong are in test_megatron.py, where the manifest is; the shares' sizes in test_deepspeed.py."""
    make, damage, rule, verdict = R9[name]
    make(tmp_path)
    damage(tmp_path)
    heard = audit(settle_all(tmp_path))
    assert rule in heard.rules(), heard.findings
    assert heard.record["verdict"] == verdict


def test_r9_a_shard_that_no_index_names_is_told(tmp_path: Path) -> None:
    stray(tmp_path)
    heard = audit(settle_all(tmp_path))
    assert "CK064" in heard.rules(), heard.findings


# --- R10: NaN and infinity in every format --------------------------------------------------------------------------

FLOATS = ("float64", "float32", "float16", "bfloat16", "complex64", "float8_e4m3fn", "float8_e5m2")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["one", "all", "scalar", "last"])
@pytest.mark.parametrize("name", FLOATS)
def test_r10_what_is_not_finite_is_counted_in_every_format(tmp_path: Path, engine: str, kind: str, name: str) -> None:
    """All bit patterns of the small formats are in test_counting.py, sparse and quantised ones in test_torch_zip.py."""
    dtype = getattr(torch, name)
    values = torch.ones(() if kind == "scalar" else 70_001).to(torch.complex64 if dtype.is_complex else torch.float32)
    if kind in ("all", "scalar"):
        values.fill_(NAN)
    else:
        values[-1 if kind == "last" else 4096] = NAN
    path = save({"model": {"w": values.to(dtype)}}, tmp_path / "c.pt")
    heard = audit(path, engine=engine)
    assert (heard.record["nan_weights"], heard.record["inf_weights"]) == count_with_torch(values.to(dtype))
    assert heard.of("CK001")["evidence"]["nan"] == (70_001 if kind == "all" else 1)
    assert heard.record["verdict"] == "bad"


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16", "complex64", "float8_e5m2"])
def test_r10_an_infinity_is_counted_in_every_format_that_has_one(tmp_path: Path, name: str) -> None:
    dtype = getattr(torch, name)
    wide = torch.ones(999, dtype=torch.complex64 if dtype.is_complex else torch.float32)
    wide[7] = float("-inf")
    values = wide.to(dtype)
    heard = audit(save({"model": {"w": values}}, tmp_path / "c.pt"))
    assert (heard.record["nan_weights"], heard.record["inf_weights"]) == count_with_torch(values) == (0, 1)


# --- R13: series ----------------------------------------------------------------------------------------------------


def series(folder: Path, change: Callable[[dict[int, dict[str, Any]]], object]) -> Heard:
    """Save steps 100 to 400 of a training, changed before."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters())
    states = {}
    for step in (100, 200, 300, 400):
        for _ in range(3):
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter) if parameter.requires_grad else None
            optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "global_step": step}
        states[step] = copy.deepcopy(state)
    change(states)
    for step, state in states.items():
        save(state, folder / f"step_{step}" / "c.pt")
    return audit(folder)


def copied(states: dict[int, dict[str, Any]]) -> None:
    states[300] = {**copy.deepcopy(states[200]), "global_step": 300}


def copied_optimizer(states: dict[int, dict[str, Any]]) -> None:
    states[300]["optimizer"] = copy.deepcopy(states[200]["optimizer"])


def gone_back(states: dict[int, dict[str, Any]]) -> None:
    states[400]["model"] = copy.deepcopy(states[100]["model"])


def frozen(states: dict[int, dict[str, Any]]) -> None:
    """Let one layer be frozen: it stays as it is, and the optimizer knows nothing of it."""
    for state in states.values():
        state["model"]["1.weight"] = states[100]["model"]["1.weight"].clone()
        del state["optimizer"]["state"][2]


@pytest.mark.parametrize(
    ("change", "rule", "severity"),
    [(copied, "CK081", "bad"), (copied_optimizer, "CK081", "bad"), (gone_back, "CK084", "bad"), (frozen, "", "")],
)
def test_r13_a_series_that_does_not_move_on(
    tmp_path: Path, change: Callable[[dict[int, dict[str, Any]]], object], rule: str, severity: str
) -> None:
    heard = series(tmp_path, change)
    if rule:
        assert heard.of(rule)["severity"] == severity
    else:
        assert heard.rules(above_info=True) == set()
        assert {each["verdict"] for each in heard.records} == {"ok"}
