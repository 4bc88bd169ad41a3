"""DeepSpeed's folders, made by hand as its ZeRO optimizers lay them out: the same model at every stage."""

from __future__ import annotations

import argparse
import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch

from tests.unit.payloads.check_ckpt.support import network, save

if TYPE_CHECKING:
    from pathlib import Path

STEP = 10


class Training:
    """Hold a model in bfloat16, its float32 copy, and what AdamW keeps of that, at one step."""

    def __init__(self, layers: int = 3, width: int = 7) -> None:
        model, optimizer = network(width=width, layers=layers)
        self.master = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        states = [optimizer.state[weight] for weight in model.parameters()]
        self.moments = {
            key: {name: each[key].clone() for name, each in zip(self.master, states, strict=True)}
            for key in ("exp_avg", "exp_avg_sq")
        }

    @property
    def model(self) -> dict[str, torch.Tensor]:
        """Return the weights as the model has them."""
        return OrderedDict((name, weight.bfloat16()) for name, weight in self.master.items())

    @property
    def shapes(self) -> list[dict[str, torch.Size]]:
        """Return param_shapes: one group, in order."""
        return [OrderedDict((name, weight.shape) for name, weight in self.master.items())]

    @property
    def params(self) -> int:
        """Count the parameters."""
        return sum(weight.numel() for weight in self.master.values())


def model_states(training: Training, module: dict[str, torch.Tensor], ranks: int, **more: object) -> dict[str, Any]:
    """Return what a model's file holds."""
    return {
        "module": module,
        "buffer_names": [],
        "optimizer": None,
        "param_shapes": training.shapes,
        "frozen_param_shapes": None,
        "shared_params": {},
        "frozen_param_fragments": None,
        "lr_scheduler": {"last_epoch": STEP, "base_lrs": [1e-3]},
        "skipped_steps": 0,
        "global_steps": STEP,
        "global_samples": 8 * STEP,
        "dp_world_size": ranks,
        "mp_world_size": 1,
        "ds_config": {"train_batch_size": 8},
        "ds_version": "0.17.0",
        **more,
    }


def base_state(flats: dict[str, list[torch.Tensor]], step: int) -> dict[str, Any]:
    """Return the state of the optimizer that works on flat tensors."""
    count = len(flats["exp_avg"])
    return {
        "state": {
            number: {"step": torch.tensor(float(step)), **{key: flats[key][number] for key in flats}}
            for number in range(count)
        },
        "param_groups": [
            {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "amsgrad": False, "params": list(range(count))}
        ],
    }


def flattened(tensors: dict[str, torch.Tensor], ranks: int) -> list[torch.Tensor]:
    """Share out tensors as ZeRO-1 and 2 do: in one row, filled up at its end."""
    row = torch.cat([tensor.flatten() for tensor in tensors.values()])
    padded = math.ceil(row.numel() / (2 * ranks)) * 2 * ranks
    row = torch.cat([row, torch.zeros(padded - row.numel())])
    return [part.clone() for part in row.chunk(ranks)]


def cut(tensors: dict[str, torch.Tensor], ranks: int) -> list[torch.Tensor]:
    """Share out tensors as ZeRO-3 does: each cut into equal parts, the last filled up."""
    shares: list[list[torch.Tensor]] = [[] for _ in range(ranks)]
    for tensor in tensors.values():
        share = math.ceil(tensor.numel() / ranks)
        row = torch.cat([tensor.flatten(), torch.zeros(share * ranks - tensor.numel())])
        for rank in range(ranks):
            shares[rank].append(row[rank * share : (rank + 1) * share])
    return [torch.cat(each).clone() for each in shares]


def save_zero_2(path: Path, training: Training, ranks: int = 2, prefix: str = "bf16_", **more: object) -> Path:
    """Save as ZeRO-2 does: the model once, and a share of the optimizer from each rank."""
    save(model_states(training, training.model, ranks, **more), path / "mp_rank_00_model_states.pt")
    master = flattened(training.master, ranks)
    moments = {key: flattened(each, ranks) for key, each in training.moments.items()}
    padding = ranks * master[0].numel() - training.params
    for rank in range(ranks):
        last = rank == ranks - 1
        optimizer = {
            "loss_scaler": argparse.Namespace(cur_scale=1.0),
            "overflow": False,
            "base_optimizer_state": base_state({key: [each[rank]] for key, each in moments.items()}, STEP),
            "single_partition_of_fp32_groups": [master[rank][: -padding or None].clone() if last else master[rank]],
            "zero_stage": 2,
            "group_paddings": [padding if last else 0],
            "partition_count": [ranks],
            "ds_version": "0.17.0",
        }
        name = f"{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        save({"optimizer_state_dict": optimizer, "ds_config": {}, "ds_version": "0.17.0"}, path / name)
    return path


def save_zero_3(path: Path, training: Training, ranks: int = 2, groups: int = 1) -> Path:
    """Save as ZeRO-3 does: placeholders in each rank's model file, the weights with the optimizer."""
    placeholders = {name: torch.empty(0, dtype=torch.bfloat16) for name in training.master}
    small = {name: weight for name, weight in training.model.items() if name.endswith("bias")}
    master, moments = cut(training.master, ranks), {key: cut(each, ranks) for key, each in training.moments.items()}
    for rank in range(ranks):
        module = OrderedDict({**placeholders, **small, "scale": torch.ones(3)})
        save(model_states(training, module, ranks), path / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        size = math.ceil(master[rank].numel() / groups)

        def split(flat: torch.Tensor, size: int = size) -> list[torch.Tensor]:
            return [flat[at : at + size].clone() for at in range(0, flat.numel(), size)]

        optimizer = {
            "zero_stage": 3,
            "partition_count": ranks,
            "optimizer_state_dict": base_state({key: split(each[rank]) for key, each in moments.items()}, STEP),
            "fp32_flat_groups": split(master[rank]),
        }
        name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        save({"optimizer_state_dict": optimizer, "ds_version": "0.17.0"}, path / name)
    return path
