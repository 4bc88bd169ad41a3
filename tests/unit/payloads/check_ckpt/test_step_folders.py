"""Steps whose parts lie in folders of their own: a damaged one spoils the step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.unit.payloads.check_ckpt.layouts import save_json, save_safetensors, settle_all, weights
from tests.unit.payloads.check_ckpt.support import audit, save, training_state

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


def lerobot(folder: Path, step: int) -> Path:
    """Lay out a step of LeRobot; return the file of the optimizer."""
    place = folder / "checkpoints" / f"{step:06d}"
    save_safetensors(weights(step), place / "pretrained_model" / "model.safetensors")
    save_json({"type": "act"}, place / "pretrained_model" / "config.json")
    moments = {f"state/{number}/exp_avg": torch.randn(4, 4) for number in range(3)}
    return save_safetensors(moments, place / "training_state" / "optimizer_state.safetensors")


def test_a_step_is_spoiled_by_each_of_its_parts(tmp_path: Path) -> None:
    lerobot(tmp_path, 100)
    path = lerobot(tmp_path, 200)
    settle_all(tmp_path)
    assert audit(tmp_path).summary["resume_path"].endswith("000200/pretrained_model")
    save_safetensors({"state/0/exp_avg": torch.full((4, 4), torch.nan)}, path)
    assert audit(tmp_path).summary["resume_path"].endswith("000100/pretrained_model")


def test_checkpoints_of_a_numbered_run_are_no_parts_of_one(tmp_path: Path) -> None:
    """A sweep may number its runs, each with a folder of checkpoints."""
    best, last = training_state(global_step=100), training_state(global_step=200)
    last["model_state_dict"]["1.weight"][0, 0] = torch.nan
    save(best, tmp_path / "1" / "checkpoints" / "best.pt")
    save(last, tmp_path / "1" / "checkpoints" / "last.pt")
    assert audit(tmp_path).summary["resume_path"].endswith("best.pt")
