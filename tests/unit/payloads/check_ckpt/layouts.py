"""Checkpoints of many files, laid out as the libraries lay them out; the tensors are saved by torch and safetensors."""

from __future__ import annotations

import json
import random
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.unit.payloads.check_ckpt.support import network, save, settle, write

State = dict[str, torch.Tensor]


def weights(seed: int = 0) -> State:
    """Return the state dict of a small network that was trained for one step."""
    return dict(network(seed)[0].state_dict())


def settle_all(folder: Path) -> Path:
    """Make all files in a folder ones that were last written long ago."""
    for path in folder.rglob("*"):
        if path.is_file():
            settle(path)
    return folder


def save_json(value: object, path: Path) -> Path:
    """Write JSON as Python's libraries do."""
    return write(path, json.dumps(value, indent=2).encode())


def save_safetensors(tensors: State, path: Path) -> Path:
    """Write tensors as transformers does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, metadata={"format": "pt"})
    return settle(path)


def sharded(folder: Path, count: int = 3, *, extension: str = "safetensors", seed: int = 0) -> dict[str, str]:
    """Lay out a model in shards with an index, and return the index's weight_map."""
    stem = "model" if extension == "safetensors" else "pytorch_model"
    tensors = weights(seed)
    names = list(tensors)
    places: dict[str, str] = {}
    for number in range(count):
        file = f"{stem}-{number + 1:05d}-of-{count:05d}.{extension}"
        share = {name: tensors[name] for name in names[number::count]}
        if extension == "safetensors":
            save_safetensors(share, folder / file)
        else:
            save(share, folder / file)
        places |= dict.fromkeys(share, file)
    index(folder, places, sum(tensor.nbytes for tensor in tensors.values()), stem=stem, extension=extension)
    save_json({"model_type": "gpt2"}, folder / "config.json")
    return places


def index(
    folder: Path, places: Mapping[str, str], total: int, *, stem: str = "model", extension: str = "safetensors"
) -> Path:
    """Write the index of a model in shards."""
    value = {"metadata": {"total_size": total}, "weight_map": places}
    return save_json(value, folder / f"{stem}.{extension}.index.json")


def trainer_state(step: int, **more: object) -> dict[str, object]:
    """Return what transformers' Trainer writes last."""
    log = [{"epoch": 0.1, "loss": 2.5, "step": step // 2}, {"epoch": 0.2, "loss": float("nan"), "step": step}]
    return {"epoch": 1.5, "global_step": step, "log_history": log, "max_steps": 1000, **more}


def trainer(folder: Path, step: int, *, ranks: int = 1) -> Path:
    """Lay out a checkpoint of transformers' Trainer."""
    model, optimizer = network(step)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    scheduler.last_epoch = step
    save_safetensors(dict(model.state_dict()), folder / "model.safetensors")
    save_json({"model_type": "gpt2"}, folder / "config.json")
    state = optimizer.state_dict()
    for each in state["state"].values():
        each["step"] = torch.tensor(float(step))
    save(state, folder / "optimizer.pt")
    save(scheduler.state_dict(), folder / "scheduler.pt")
    for rank in range(ranks):
        save(random_state(), folder / ("rng_state.pth" if ranks == 1 else f"rng_state_{rank}.pth"))
    save(Namespace(lr=1e-3, output_dir="run"), folder / "training_args.bin")
    save_json(trainer_state(step), folder / "trainer_state.json")
    return folder


def random_state() -> dict[str, object]:
    """Return the states of random number generators, as libraries keep them."""
    return {"python": random.getstate(), "cpu": torch.get_rng_state()}


def accelerate(folder: Path, *, ranks: int = 2, seed: int = 0) -> Path:
    """Lay out what accelerate's save_state writes."""
    model, optimizer = network(seed)
    save_safetensors(dict(model.state_dict()), folder / "model.safetensors")
    save(optimizer.state_dict(), folder / "optimizer.bin")
    save({"last_epoch": 1, "_step_count": 2}, folder / "scheduler.bin")
    for rank in range(ranks):
        save({"step": 0, "random_state": random.getstate()}, folder / f"random_states_{rank}.pkl")
    save(torch.nn.Linear(4, 4).state_dict(), folder / "custom_checkpoint_0.pkl")
    return folder


def adapter(folder: Path, *, tensors: State | None = None, kind: str = "LORA") -> Path:
    """Lay out a PEFT adapter that was trained."""
    torch.manual_seed(1)
    if tensors is None:
        names = [
            f"base_model.model.h.{layer}.attn.{part}.weight" for layer in range(2) for part in ("lora_A", "lora_B")
        ]
        tensors = {name: torch.randn(8, 8) for name in names}
    save_safetensors(tensors, folder / "adapter_model.safetensors")
    save_json({"peft_type": kind, "r": 8}, folder / "adapter_config.json")
    return folder


def nanochat(folder: Path, step: int, *, ranks: int = 2) -> Path:
    """Lay out one step as nanochat saves it: all steps lie in one folder."""
    model, optimizer = network(step)
    save(model.state_dict(), folder / f"model_{step:06d}.pt")
    for rank in range(ranks):
        save([optimizer.state_dict()], folder / f"optim_{step:06d}_rank{rank}.pt")
    save_json({"step": step, "val_bpb": 0.9, "model_config": {"n_layer": 4}}, folder / f"meta_{step:06d}.json")
    return folder


def verl(folder: Path, *, world: int = 2, networks: tuple[str, ...] = ("actor",), seed: int = 0) -> Path:
    """Lay out one step as verl saves it."""
    for name in networks:
        for rank in range(world):
            model, optimizer = network(seed + rank)
            end = f"world_size_{world}_rank_{rank}.pt"
            save(model.state_dict(), folder / name / f"model_{end}")
            save(optimizer.state_dict(), folder / name / f"optim_{end}")
            extra: dict[str, Any] = {"lr_scheduler": {"last_epoch": 1}, "rng": random_state()}
            save(extra, folder / name / f"extra_state_{end}")
    save({"_snapshot": {"_num_yielded": 3}}, folder / "data.pt")
    return folder
