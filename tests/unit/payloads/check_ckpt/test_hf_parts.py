"""Checkpoints whose weights lie in folders inside: those of diffusers' scripts, and models of sentence-transformers."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from tests.unit.payloads.check_ckpt.layouts import (
    accelerate,
    adapter,
    index,
    save_json,
    save_safetensors,
    settle_all,
    trainer,
    weights,
)
from tests.unit.payloads.check_ckpt.support import audit, save

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.payloads.check_ckpt.layouts import State
    from tests.unit.payloads.check_ckpt.support import Heard

pytestmark = pytest.mark.torch

PARAMS = sum(tensor.numel() for tensor in weights().values())
DENSE: State = {"linear.weight": torch.randn(8, 16), "linear.bias": torch.randn(8)}


def model(folder: Path, *, seed: int = 0) -> Path:
    """Lay out one of the models of a pipeline."""
    save_safetensors(weights(seed), folder / "diffusion_pytorch_model.safetensors")
    return save_json({"_class_name": "UNet2DConditionModel"}, folder / "config.json")


def diffusers(folder: Path, *, seed: int = 0) -> Path:
    """Lay out what the training scripts of diffusers save: accelerate's state, and each model in a folder."""
    accelerate(folder, ranks=1, seed=seed)
    (folder / "model.safetensors").unlink()
    model(folder / "unet", seed=seed)
    model(folder / "unet_ema", seed=seed)
    return settle_all(folder)


def sentences(folder: Path) -> Path:
    """Put a pooling and a dense layer beside a transformer, as sentence-transformers does."""
    save_json([{"idx": 0, "path": ""}, {"idx": 2, "path": "2_Dense"}], folder / "modules.json")
    save_json({"word_embedding_dimension": 16}, folder / "1_Pooling" / "config.json")
    save_safetensors(DENSE, folder / "2_Dense" / "model.safetensors")
    save_json({"in_features": 16, "out_features": 8}, folder / "2_Dense" / "config.json")
    return settle_all(folder)


def spoil(path: Path) -> None:
    """Put a NaN where the last tensor of a file ends."""
    data = bytearray(path.read_bytes())
    data[-4:] = b"\0\0\xc0\x7f"
    path.write_bytes(data)
    settle_all(path.parent)


def verdicts(heard: Heard) -> dict[str, str]:
    """Return the verdict of each checkpoint by its name."""
    return {record["name"]: record["verdict"] for record in heard.records}


def test_models_in_folders_are_the_weights_of_accelerates_state(tmp_path: Path) -> None:
    for step in (500, 1000):
        diffusers(tmp_path / f"checkpoint-{step}", seed=step)
    heard = audit(tmp_path)
    assert heard.rules(above_info=True) == set(), heard.findings
    assert verdicts(heard) == {"checkpoint-1000": "ok", "checkpoint-500": "ok"}
    assert {record["params"] for record in heard.records} == {PARAMS}, "averaged ones do not count"
    assert all(record["bytes_checked"] == record["bytes"] for record in heard.records)
    assert heard.summary["resume_from"] == "checkpoint-1000"


@pytest.mark.parametrize("part", ["unet", "unet_ema"])
def test_nan_in_a_folder_inside_is_the_checkpoints(tmp_path: Path, part: str) -> None:
    for step in (500, 1000):
        diffusers(tmp_path / f"checkpoint-{step}", seed=step)
    spoil(tmp_path / "checkpoint-1000" / part / "diffusion_pytorch_model.safetensors")
    heard = audit(tmp_path)
    assert verdicts(heard) == {"checkpoint-1000": "bad", "checkpoint-500": "ok"}
    found = heard.of("CK001")
    assert found["data"]["tensor"].startswith(f"{part}.")
    assert ("averaged" in found["message"]) == (part == "unet_ema")
    assert heard.summary["resume_from"] == "checkpoint-500"


def test_averaged_weights_alone_are_no_weights(tmp_path: Path) -> None:
    shutil.rmtree(diffusers(tmp_path) / "unet")
    heard = audit(tmp_path)
    assert heard.record["verdict"] == "bad"
    assert heard.rules(above_info=True) == {"CK060"}


def test_what_lies_in_a_folder_beside_weights_is_another_checkpoint(tmp_path: Path) -> None:
    accelerate(tmp_path / "run")
    model(tmp_path / "run" / "exported")
    settle_all(tmp_path)
    assert verdicts(audit(tmp_path)) == {"run": "ok", "exported": "ok"}


def test_steps_in_the_folder_of_a_state_are_checkpoints_of_their_own(tmp_path: Path) -> None:
    diffusers(tmp_path)
    model(tmp_path / "checkpoint-500")
    settle_all(tmp_path)
    assert verdicts(audit(tmp_path)) == {tmp_path.name: "ok", "checkpoint-500": "ok"}


def test_an_adapter_of_a_diffusion_model(tmp_path: Path) -> None:
    accelerate(tmp_path, ranks=1)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_lora_weights.safetensors")
    settle_all(tmp_path)
    heard = audit(tmp_path)
    assert (heard.record["verdict"], heard.record["params"]) == ("ok", PARAMS), heard.findings


def test_adapters_in_folders_are_weights_too(tmp_path: Path) -> None:
    accelerate(tmp_path, ranks=1)
    (tmp_path / "model.safetensors").unlink()
    adapter(tmp_path / "transformer")
    settle_all(tmp_path)
    heard = audit(tmp_path)
    assert (heard.record["verdict"], heard.record["params"]) == ("ok", 256), heard.findings


@pytest.mark.parametrize("training", [False, True])
def test_further_layers_of_a_sentence_transformer_are_parts_of_it(tmp_path: Path, *, training: bool) -> None:
    folder = tmp_path / "checkpoint-10"
    if training:
        trainer(folder, 10)
    else:
        save_safetensors(weights(), folder / "model.safetensors")
        save_json({"model_type": "bert"}, folder / "config.json")
    sentences(folder)
    heard = audit(tmp_path)
    assert verdicts(heard) == {"checkpoint-10": "ok"}, heard.findings
    assert heard.record["params"] == PARAMS + sum(tensor.numel() for tensor in DENSE.values())
    spoil(folder / "2_Dense" / "model.safetensors")
    heard = audit(tmp_path)
    assert verdicts(heard) == {"checkpoint-10": "bad"}
    assert heard.of("CK001")["data"]["tensor"].startswith("2_Dense.linear.")
    assert heard.summary["resume_from"] is None


def test_an_optimizer_kept_as_safetensors_is_no_model(tmp_path: Path) -> None:
    """LeRobot keeps the weights and the optimizer in two folders of a step."""
    step = tmp_path / "checkpoints" / "000300"
    save_safetensors(weights(), step / "pretrained_model" / "model.safetensors")
    save_json({"type": "act"}, step / "pretrained_model" / "config.json")
    moments = {f"state/{number}/exp_avg": torch.randn(4, 4) for number in range(3)}
    moments["state/1/exp_avg"][0, 0] = torch.nan
    save_safetensors(moments, step / "training_state" / "optimizer_state.safetensors")
    save_safetensors(weights(), tmp_path / "optimized" / "optimized_model.safetensors")
    heard = audit(settle_all(tmp_path))
    found = heard.of("CK003")
    assert (found["data"]["tensor"], found["data"]["state"]) == ("state/1/exp_avg", "exp_avg")
    assert "CK001" not in heard.rules()
    record = next(each for each in heard.records if each["path"].endswith("optimizer_state.safetensors"))
    assert (record["params"], record["nan_optimizer"], record["step"]) == (0, 1, 300)
    assert heard.summary["resume_from"] != record["name"]
    assert [each["params"] for each in heard.records].count(PARAMS) == 2


def test_the_index_of_an_optimizer_names_no_tensors(tmp_path: Path) -> None:
    """ColossalAI writes one, of the numbers of parameters."""
    for number in (0, 1):
        save({number: {"exp_avg": torch.randn(4, 4)}}, tmp_path / f"pytorch_optim-{number + 1:05d}.bin")
    index(
        tmp_path,
        {"0": "pytorch_optim-00001.bin", "1": "pytorch_optim-00002.bin"},
        1,
        stem="pytorch_optim",
        extension="bin",
    )
    heard = audit(settle_all(tmp_path))
    assert heard.rules(above_info=True) == set(), heard.findings
    assert len(heard.records) == 2


def test_adapters_of_mlx_stand_for_themselves(tmp_path: Path) -> None:
    """They have an adapter_config.json, too, and no adapter_model.safetensors."""
    tensors = {f"layers.{number}.lora_a": torch.randn(8, 8) for number in range(2)}
    for name in ("0000100_adapters", "adapters"):
        save_safetensors(tensors, tmp_path / "lora" / f"{name}.safetensors")
    save_json({"fine_tune_type": "lora"}, tmp_path / "lora" / "adapter_config.json")
    heard = audit(settle_all(tmp_path))
    assert heard.rules(above_info=True) == set(), heard.findings
    assert len(heard.records) == 2


def test_the_step_that_ai_toolkit_tells(tmp_path: Path) -> None:
    info = json.dumps({"step": 250, "epoch": 3}, indent=4)
    save_file(weights(), tmp_path / "lora_000000250.safetensors", metadata={"format": "pt", "training_info": info})
    record = audit(tmp_path).record
    assert (record["step"], record["epoch"], record.get("step_from")) == (250, 3, None)
