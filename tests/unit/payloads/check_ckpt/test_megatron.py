"""Checkpoints of Megatron-LM and of NeMo, which is built on it."""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from tests.unit.payloads.check_ckpt.support import audit, network, save, settle, write
from tests.unit.payloads.check_ckpt.test_dcp import metadata_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*no_dist.*"),
    pytest.mark.filterwarnings("ignore:torch.distributed is"),
]

STEP = 100


def of_rank(iteration: int = STEP, **sizes: int) -> dict[str, Any]:
    """Return what one rank of the model saves: half precision, and the optimizer with its float32 weights."""
    model, optimizer = network(width=8, layers=2)
    return {
        "args": argparse.Namespace(**{"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, **sizes}),
        "checkpoint_version": 3.0,
        "iteration": iteration,
        "model": {"language_model": {name: value.bfloat16() for name, value in model.state_dict().items()}},
        "optimizer": {
            "optimizer": optimizer.state_dict(),
            "grad_scaler": None,
            "fp32_from_fp16_params": [[value.detach().clone() for value in model.parameters()]],
        },
        "opt_param_scheduler": {"max_lr": 1e-4, "num_steps": 8 * iteration},
        "rng_state": [{"random_rng_state": 1, "torch_rng_state": torch.get_rng_state()}],
    }


def legacy(path: Path, names: list[str], **more: Any) -> Path:
    for name in names:
        save(of_rank(**more), path / name / "model_optim_rng.pt")
    return path


def test_one_rank_is_ok(tmp_path: Path) -> None:
    heard = audit(legacy(tmp_path / "iter_0000100", ["mp_rank_00"]))
    assert heard.rules(above_info=True) == set()
    record = heard.record
    assert (record["verdict"], record["format"], record["step"]) == ("ok", "megatron", STEP)
    assert record["params"] == 2 * 72
    assert record["name"] == "iter_0000100"


GRID = ["mp_rank_00_000", "mp_rank_00_001", "mp_rank_01_000", "mp_rank_01_001"]


def test_a_grid_of_ranks_lacks_none(tmp_path: Path) -> None:
    path = legacy(tmp_path / "iter_0000100", GRID, tensor_model_parallel_size=2, pipeline_model_parallel_size=2)
    for name in GRID:
        save({0: {torch.float32: {"param": torch.ones(8), "exp_avg": torch.ones(8)}}}, path / name / "distrib_optim.pt")
    heard = audit(path)
    assert heard.rules(above_info=True) == set()
    assert (heard.record["verdict"], heard.record["params"]) == ("ok", 4 * 2 * 72)
    (path / GRID[2] / "model_optim_rng.pt").unlink()
    (path / GRID[3] / "distrib_optim.pt").unlink()
    heard = audit(path)
    assert heard.record["verdict"] == "bad"
    assert sorted(heard.of("CK060")["data"]["missing"]) == [
        "mp_rank_01_000/model_optim_rng.pt",
        "mp_rank_01_001/distrib_optim.pt",
    ]


def test_a_last_rank_that_only_the_arguments_tell_of_is_missed(tmp_path: Path) -> None:
    path = legacy(tmp_path / "iter_0000100", ["mp_rank_00", "mp_rank_01"], tensor_model_parallel_size=3)
    assert audit(path).of("CK060")["data"]["missing"] == ["mp_rank_02/model_optim_rng.pt"]


def test_ranks_of_different_iterations_are_told(tmp_path: Path) -> None:
    path = legacy(tmp_path / "iter_0000100", ["mp_rank_00"])
    legacy(path, ["mp_rank_01"], iteration=90)
    heard = audit(path)
    assert heard.record["verdict"] == "bad"
    assert "CK043" in heard.rules()


def test_a_tracker_that_names_what_is_not_there_is_told(tmp_path: Path) -> None:
    legacy(tmp_path / "iter_0000100", ["mp_rank_00"])
    write(tmp_path / "latest_checkpointed_iteration.txt", b"100")
    assert audit(tmp_path).rules(above_info=True) == set()
    write(tmp_path / "latest_checkpointed_iteration.txt", b"200")
    assert "CK065" in audit(tmp_path).rules()


# --- distributed ----------------------------------------------------------------------------------------------------


def flat_state() -> dict[str, Any]:
    """Return a state dict with the names that Megatron's library gives its tensors: none says model."""
    model, optimizer = network(width=8, layers=2)
    names = ["embedding.weight", "embedding.bias", "decoder.layers.weight", "decoder.layers.bias"]
    weights = dict(zip(names, model.parameters(), strict=True))
    state: dict[str, Any] = {name: weight.detach().bfloat16() for name, weight in weights.items()}
    for name, weight in weights.items():
        state[f"optimizer.state.fp32_param.{name}"] = weight.detach().clone()
        for key in ("exp_avg", "exp_avg_sq"):
            state[f"optimizer.state.{key}.{name}"] = optimizer.state[weight][key]
    return state


def distributed(path: Path, *, common: bool = True) -> Path:
    shared = {"iteration": STEP, "checkpoint_version": 3.0, "args": argparse.Namespace(seed=1)}
    state = flat_state()
    if not common:
        state["common_state/shard_0_1"] = [shared]
    planner = DefaultSavePlanner(flatten_state_dict=False)
    save_distributed(state, storage_writer=FileSystemWriter(path), planner=planner, no_dist=True)
    for file in path.iterdir():
        settle(file)
    if common:
        save(shared, path / "common.pt")
    write(path / "metadata.json", b'{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
    return path


@pytest.mark.parametrize("common", [True, False])
def test_a_distributed_checkpoint_is_ok(tmp_path: Path, common: bool) -> None:
    heard = audit(distributed(tmp_path / "iter_0000100", common=common))
    assert heard.rules(above_info=True) == set()
    record = heard.record
    assert "CK050" not in heard.rules(), "its optimizer lies in tensors alone"
    assert (record["verdict"], record["format"], record["step"]) == ("ok", "megatron-dist", STEP)
    assert record["params"] == 2 * 72
    assert record["bytes_checked"] == record["bytes"]


@pytest.mark.parametrize(("lost", "rule"), [("common.pt", "CK063"), ("metadata.json", "CK063"), (".metadata", "CK063")])
def test_what_says_what_is_in_it_is_missed(tmp_path: Path, lost: str, rule: str) -> None:
    path = distributed(tmp_path / "iter_0000100")
    (path / lost).unlink()
    heard = audit(path)
    assert (heard.record["verdict"], heard.rules(above_info=True)) == ("bad", {rule})
    assert lost in heard.of(rule)["message"]


def manifest(path: Path) -> Path:
    """Write an integrity.json."""
    files = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.iterdir()}
    write(path / "integrity.json", json.dumps({"algorithm": "sha256", "files": files}).encode())
    return path


def test_a_manifest_is_verified(tmp_path: Path) -> None:
    path = manifest(distributed(tmp_path / "iter_0000100"))
    assert audit(path).rules(above_info=True) == set()
    data = bytearray((path / "__0_0.distcp").read_bytes())
    info = next(iter(metadata_of(path).storage_data.values()))
    data[data.index(b"archive/version", info.offset) - 8] ^= 1  # padding in front of a record
    write(path / "__0_0.distcp", bytes(data))
    heard = audit(path)
    assert heard.record["verdict"] == "bad"
    assert heard.of("CK029")["data"]["file"].endswith("__0_0.distcp")


@pytest.mark.parametrize(
    ("text", "rule", "severity"),
    [
        ('{"algorithm": "sha256", "files": {"gone.distcp": "%s"}}' % ("0" * 64), "CK060", "bad"),
        ('{"algorithm": "md5", "files": {"common.pt": "%s"}}' % ("0" * 32), "CK029", "info"),
        ('{"algorithm": "sha256", "files": {"../../x": "%s"}}' % ("0" * 64), "CK104", "bad"),
        ('{"files": 3}', "CK025", "bad"),
        ("[", "CK020", "bad"),
        ("", "CK021", "bad"),
    ],
)
def test_manifests_may_say_anything(tmp_path: Path, text: str, rule: str, severity: str) -> None:
    path = distributed(tmp_path / "iter_0000100")
    write(path / "integrity.json", text.encode())
    assert audit(path).of(rule)["severity"] == severity


def test_zarr_arrays_are_told_unchecked(tmp_path: Path) -> None:
    path = tmp_path / "iter_0000100"
    save({"iteration": STEP}, path / "common.pt")
    write(path / "metadata.json", b'{"sharded_backend": "zarr", "sharded_backend_version": 1}')
    for name in ("decoder.weight", "decoder.bias"):
        write(path / name / ".zarray", b'{"shape": [2], "chunks": [2]}')
        write(path / name / "0", bytes(8))
    heard = audit(tmp_path)
    assert (heard.record["verdict"], heard.record["step"]) == ("unsupported", STEP)
    assert heard.rules(above_info=True) == {"CK128"}


# --- NeMo -----------------------------------------------------------------------------------------------------------


def nemo(tmp_path: Path) -> Path:
    path = tmp_path / "model-step=100"
    distributed(path / "weights")
    write(path / "context/model.yaml", b"a: 1\n")
    write(path / "context/io.json", b"{}")
    return path


def test_nemo_s_folder_is_one_checkpoint(tmp_path: Path) -> None:
    heard = audit(nemo(tmp_path).parent)
    assert heard.rules(above_info=True) == set()
    record = heard.record
    assert (record["verdict"], record["format"], record["name"]) == ("ok", "nemo", "model-step=100")
    assert (record["params"], record["step"]) == (2 * 72, STEP)


def test_nemo_s_marker_says_that_the_save_did_not_end(tmp_path: Path) -> None:
    path = nemo(tmp_path)
    write(tmp_path / "model-step=100-unfinished", b"")
    heard = audit(tmp_path)
    assert (heard.record["verdict"], heard.rules(above_info=True)) == ("bad", {"CK066"})
    shutil.rmtree(path / "context")
    assert "CK066" in audit(tmp_path).rules()


def test_a_damaged_part_of_nemo_s_folder_is_named(tmp_path: Path) -> None:
    path = nemo(tmp_path)
    file = path / "weights/__0_0.distcp"
    file.write_bytes(file.read_bytes()[:3000])
    settle(file)
    heard = audit(tmp_path)
    assert heard.record["verdict"] == "bad"
    assert "CK061" in heard.rules()
