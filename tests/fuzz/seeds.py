"""Small sound checkpoints, one for each reader, made by the libraries themselves where there is one."""

from __future__ import annotations

import argparse
import functools
import io
import json
import pickle
import struct
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import save as save_safetensors
from torch.distributed.checkpoint.filesystem import FileSystemWriter, SerializationFormat
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

Files = Mapping[str, bytes]
# The name of a checkpoint that is one file.
ALONE = "checkpoint.pt"


def _state() -> dict[str, Any]:
    weights = {"a": torch.ones(40), "b": torch.ones(3).bfloat16(), "c": torch.arange(3), "d": torch.ones(6, 4).t()}
    moments = {"step": torch.tensor(3.0), "exp_avg": torch.ones(5), "exp_avg_sq": torch.ones(5)}
    groups = [{"lr": 1e-3, "betas": (0.9, 0.999), "params": [0]}]
    return {"model": weights, "optimizer": {"state": {0: moments}, "param_groups": groups}, "step": 4}


def _saved(value: object, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def _alike() -> dict[str, Any]:
    """Return so many tensors that are like each other that the readers' shortcuts are taken."""
    weights = {f"layers.{number}.weight": torch.full((5,), 0.5) for number in range(60)}
    return {"model": weights, "lr": 0.1, "rate": 0.1, "name": "a", "label": "b"}


def _jagged() -> dict[str, Any]:
    offsets, values = torch.tensor([0, 2, 5]), torch.ones(5, 3)
    return {"model": {"w": torch.nested.nested_tensor_from_jagged(values, offsets)}, "step": 4}


def _script() -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(torch.nn.Linear(3, 3)), buffer)
    return buffer.getvalue()


def _plain() -> bytes:
    table = np.ones((4, 5), dtype=np.float32)
    return pickle.dumps({"model": {"w": torch.ones(5)}, "table": table, "step": np.int64(3)}, 4)


def _safetensors() -> bytes:
    tensors = {"a": torch.ones(7), "b": torch.ones(3, 4).half(), "c": torch.arange(5)}
    return save_safetensors(tensors, metadata={"format": "pt", "step": "3"})


def _gguf() -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    pairs = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        text("general.alignment") + struct.pack("<II", 4, 32),
        text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 3) + text("a") + text("bb") + text(""),
        text("tokenizer.ggml.scores") + struct.pack("<IIQ3f", 9, 6, 3, 1, 2, 3),
    ]
    infos = [
        text("token_embd.weight") + struct.pack("<IQQIQ", 2, 4, 4, 0, 0),
        text("blk.0.weight") + struct.pack("<IQQIQ", 2, 32, 2, 2, 64),
        text("output.weight") + struct.pack("<IQIQ", 1, 8, 1, 128),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(pairs)) + b"".join(pairs) + b"".join(infos)
    data = np.ones(16, dtype="<f4").tobytes() + bytes(range(36)) + bytes(28) + np.ones(8, dtype="<f2").tobytes()
    return head + bytes(-len(head) % 32) + data + bytes(16)


def _nemo() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in (("./model_config.yaml", b"a: 1\n"), ("./model_weights.ckpt", _saved(_state()))):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def _baselines() -> bytes:
    """Return an agent as Stable-Baselines3 saves it."""
    state = _state()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("data", '{"num_timesteps": 128}')
        for name, value in (("policy.pth", state["model"]), ("policy.optimizer.pth", state["optimizer"])):
            archive.writestr(name, _saved(value))
        archive.writestr("_stable_baselines3_version", "2.9.2")
    return buffer.getvalue()


def _distributed(form: SerializationFormat, value: dict[str, Any] | None = None) -> Files:
    with tempfile.TemporaryDirectory(prefix="remoterun-fuzz-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        writer = FileSystemWriter(folder, single_file_per_rank=True, thread_count=1, serialization_format=form)
        state = value or _state()
        state["model"].pop("d", None)  # safetensors takes no turned tensors
        save(state, storage_writer=writer, no_dist=True)
        return _files(Path(folder))


def _files(folder: Path) -> Files:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _shards() -> Files:
    parts = {f"model-0000{number}-of-00002.safetensors": {f"w{number}": torch.ones(5)} for number in (1, 2)}
    places = {name: file for file, tensors in parts.items() for name in tensors}
    index = {"metadata": {"total_size": 40}, "weight_map": places}
    files = {file: save_safetensors(tensors, metadata={"format": "pt"}) for file, tensors in parts.items()}
    return {**files, "model.safetensors.index.json": json.dumps(index).encode(), "config.json": b"{}"}


def _ranks() -> Files:
    """Lay out what two ranks save by HuggingFaceStorageWriter."""
    return {
        f"shard-0000{rank}-model-00001-of-00001.safetensors": save_safetensors(
            {"w": torch.ones(3, 4), "b": torch.ones(2)} if rank == 1 else {"w": torch.ones(3, 4)},
            metadata={"format": "pt", "DCP_SHARDING_INFO": json.dumps({"w": {"saved_offsets": [3 * (rank - 1), 0]}})},
        )
        for rank in (1, 2)
    }


def _trainer() -> Files:
    state = _state()
    return {
        "model.safetensors": save_safetensors({"a": torch.ones(4)}, metadata={"format": "pt"}),
        "optimizer.pt": _saved(state["optimizer"]),
        "scheduler.pt": _saved({"last_epoch": 4, "_step_count": 5, "base_lrs": [0.1]}),
        "trainer_state.json": json.dumps({"global_step": 4, "epoch": 1.0, "log_history": []}).encode(),
    }


def _adapter() -> Files:
    tensors = {"base.lora_A.weight": torch.ones(2, 4), "base.lora_B.weight": torch.ones(4, 2)}
    config = {"peft_type": "LORA", "r": 2, "target_modules": ["base"]}
    return {"adapter_model.safetensors": save_safetensors(tensors), "adapter_config.json": json.dumps(config).encode()}


def _zero() -> Files:
    shapes = {"w": torch.Size([8])}
    common = {"global_steps": 4, "dp_world_size": 2, "mp_world_size": 1, "param_shapes": [shapes], "ds_version": "0.15"}
    files = {"latest": b"global_step4", "global_step4/mp_rank_00_model_states.pt": _saved({"module": {}, **common})}
    for rank in (0, 1):
        flat = {"state": {0: {"step": 4, "exp_avg": torch.ones(4), "exp_avg_sq": torch.ones(4)}}, "param_groups": []}
        inner = {"zero_stage": 2, "partition_count": [2], "single_partition_of_fp32_groups": [torch.ones(4)]}
        optimizer = {"optimizer_state_dict": {**inner, "base_optimizer_state": flat, "group_paddings": [0]}}
        files[f"global_step4/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"] = _saved(optimizer)
    return files


def _universal() -> Files:
    parts = {key: _saved({"param": torch.ones(8)}) for key in ("fp32", "exp_avg", "exp_avg_sq")}
    common = {"global_steps": 4, "param_shapes": [{"w": torch.Size([8])}], "ds_version": "0.15"}
    files = {f"global_step4/zero/w/{key}.pt": data for key, data in {**parts, "step": _saved(4)}.items()}
    return {"latest": b"global_step4", "global_step4/mp_rank_00_model_states.pt": _saved(common), **files}


def _megatron() -> Files:
    sizes = argparse.Namespace(tensor_model_parallel_size=1, pipeline_model_parallel_size=1)
    state = {"args": sizes, "checkpoint_version": 3.0, "iteration": 4, "model": {"language_model": _state()["model"]}}
    tracker, name = b"4", "iter_0000004/mp_rank_00/model_optim_rng.pt"
    optimizer = {"optimizer": _state()["optimizer"], "grad_scaler": None}
    return {"latest_checkpointed_iteration.txt": tracker, name: _saved({**state, "optimizer": optimizer})}


def _nanochat() -> Files:
    state = _state()
    return {
        "model_000004.pt": _saved(state["model"]),
        "optim_000004_rank0.pt": _saved(state["optimizer"]),
        "meta_000004.json": b'{"step": 4, "val_bpb": 1.5}',
    }


def _verl() -> Files:
    """Save DTensors, as FSDP has them."""
    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (1,))

        def shared(value: torch.Tensor) -> torch.Tensor:
            return DTensor.from_local(value, mesh, [Shard(0)], run_check=False) if value.dim() else value

        state = _state()
        model = {name: shared(value) for name, value in state["model"].items()}
        state["optimizer"]["state"] = {0: {key: shared(each) for key, each in state["optimizer"]["state"][0].items()}}
        parts = {"model": model, "optim": state["optimizer"], "extra_state": {"lr_scheduler": {"last_epoch": 4}}}
        return {f"actor/{part}_world_size_1_rank_0.pt": _saved(value) for part, value in parts.items()}
    finally:
        dist.destroy_process_group()


_MAKERS: Mapping[str, Callable[[], bytes | Files]] = {
    "zip": lambda: _saved(_state()),
    "zip4": lambda: _saved(_state(), pickle_protocol=4),
    "torchscript": _script,
    "legacy": lambda: _saved(_state(), _use_new_zipfile_serialization=False),
    "pickle": _plain,
    "safetensors": _safetensors,
    "gguf": _gguf,
    "nemo": _nemo,
    "baselines": _baselines,
    "alike": lambda: _saved(_alike()),
    "jagged": lambda: _saved(_jagged()),
    "dcp": lambda: _distributed(SerializationFormat.TORCH_SAVE),
    "dcp-safetensors": lambda: _distributed(SerializationFormat.SAFETENSORS),
    "dcp-alike": lambda: _distributed(SerializationFormat.TORCH_SAVE, _alike()),
    "shards": _shards,
    "ranks": _ranks,
    "trainer": _trainer,
    "adapter": _adapter,
    "zero": _zero,
    "universal": _universal,
    "megatron": _megatron,
    "nanochat": _nanochat,
    "verl": _verl,
}
READERS = tuple(_MAKERS)
# Of one file each, which is all that they read.
SINGLE = READERS[:11]


@functools.cache
def seed(reader: str) -> Files:
    """Return the files of a sound checkpoint."""
    made = _MAKERS[reader]()
    return {ALONE: made} if isinstance(made, bytes) else made
