"""Weights of which each rank saved its own part as safetensors: one checkpoint, and what is missing of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from tests.unit.payloads.check_ckpt.layouts import save_json, settle_all, weights
from tests.unit.payloads.check_ckpt.support import audit

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch

PARAMS = sum(tensor.numel() for tensor in weights().values())
RANKS = 3


def sharded(folder: Path, *, files: int = 1, seed: int = 0) -> Path:
    """Lay out what three ranks save, as torch names it and describes it; what has few rows is the first rank's."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(RANKS):
        for file in range(files):
            share, info = {}, {}
            for number, (name, tensor) in enumerate(weights(seed).items()):
                parts = tensor.chunk(RANKS) if tensor.dim() > 1 else (tensor,)
                if number % files == file and rank < len(parts):
                    share[name] = parts[rank].contiguous()
                    begin = sum(len(part) for part in parts[:rank])
                    info[name] = {"saved_offsets": [begin, *[0] * (tensor.dim() - 1)]}
            path = folder / f"shard-{rank + 1:05d}-model-{file + 1:05d}-of-{files:05d}.safetensors"
            told = {"format": "pt", "DCP_SHARDING_INFO": json.dumps(info), "DCP_VERSION": "1.0"}
            if share:
                save_file(share, path, metadata=told)
    return settle_all(folder)


@pytest.mark.parametrize("files", [1, 2])
def test_the_parts_of_all_ranks_are_one_checkpoint(tmp_path: Path, files: int) -> None:
    sharded(tmp_path / "step-10", files=files)
    heard = audit(tmp_path)
    assert heard.rules(above_info=True) == set(), heard.findings
    record = heard.record
    assert (record["name"], record["format"], record["params"]) == ("step-10", "hf-ranks", PARAMS)
    assert record["bytes_checked"] == record["bytes"]
    assert heard.summary["resume_from"] == "step-10"


def test_what_torch_writes(tmp_path: Path) -> None:
    writer = HuggingFaceStorageWriter(str(tmp_path), save_distributed=True)
    save_distributed(weights(), storage_writer=writer, no_dist=True)
    record = audit(settle_all(tmp_path)).record
    assert (record["format"], record["verdict"], record["params"]) == ("hf-ranks", "ok", PARAMS)


@pytest.mark.parametrize("rank", [1, 2])
def test_the_file_of_a_rank_is_missing(tmp_path: Path, rank: int) -> None:
    sharded(tmp_path)
    (tmp_path / f"shard-{rank:05d}-model-00001-of-00001.safetensors").unlink()
    heard = audit(tmp_path)
    assert heard.record["verdict"] == "bad"
    assert heard.rules(above_info=True) == {"CK062"}
    assert "leave a gap" in heard.of("CK062")["message"]
    assert heard.summary["resume_from"] is None


def test_all_files_of_a_number_are_missing(tmp_path: Path) -> None:
    sharded(tmp_path, files=2)
    for path in tmp_path.glob("*-model-00001-of-*"):
        path.unlink()
    heard = audit(tmp_path)
    assert heard.of("CK060")["data"]["missing"] == ["shard-*-model-00001-of-00002.safetensors"]
    assert heard.record["verdict"] == "bad"


def test_nan_in_the_file_of_a_rank(tmp_path: Path) -> None:
    sharded(tmp_path)
    path = tmp_path / "shard-00002-model-00001-of-00001.safetensors"
    data = bytearray(path.read_bytes())
    data[-4:] = b"\0\0\xc0\x7f"
    path.write_bytes(data)
    heard = audit(settle_all(tmp_path))
    assert heard.of("CK001")["data"]["file"] == str(path)
    assert heard.record["nan_weights"] == 1


def test_the_consolidated_weights_are_a_checkpoint_of_their_own(tmp_path: Path) -> None:
    sharded(tmp_path / "sharded")
    save_file(weights(), tmp_path / "model.safetensors", metadata={"format": "pt"})
    save_json({"model_type": "llama"}, tmp_path / "config.json")
    heard = audit(settle_all(tmp_path))
    assert {record["format"] for record in heard.records} == {"hf-model", "hf-ranks"}
    assert heard.rules(above_info=True) == set()


@pytest.mark.parametrize(
    "info",
    [
        "[" * 10_000,
        "[]",
        "{",
        json.dumps({"a": 1, "b": {"saved_offsets": [-1, 0]}, "w": {"saved_offsets": [1 << 70, 0]}}),
        json.dumps({"w": {"saved_offsets": [1]}}),
        json.dumps({"w": {"saved_offsets": [1 << 61, 1 << 61]}}),
        json.dumps({"w": {"saved_offsets": ["x", None]}}),
    ],
)
def test_hostile_descriptions(tmp_path: Path, info: str) -> None:
    path = tmp_path / "shard-00001-model-00001-of-00001.safetensors"
    save_file({"w": torch.randn(4, 4)}, path, metadata={"format": "pt", "DCP_SHARDING_INFO": info})
    heard = audit(settle_all(tmp_path))
    assert heard.record["verdict"] in {"ok", "bad"}
    assert "CK030" not in heard.rules(), heard.findings
