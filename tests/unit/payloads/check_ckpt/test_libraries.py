"""What the real libraries save is sound, and says so; a NaN in it, or a file cut short, is found."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.unit.payloads.check_ckpt.support import audit, save, settle

pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[4]
NAN = float("nan")
# What each saved: the format it is told to be, and how many checkpoints there are.
SAVED = {
    "torch": ("torch-zip", 3),
    "safetensors": ("safetensors", 1),
    "accelerate/safe": ("accelerate", 1),
    "accelerate/pickled": ("accelerate", 1),
    "trainer/whole": ("hf-trainer", 3),
    "trainer/mixed": ("hf-trainer", 3),
    "trainer/bfloat16": ("hf-trainer", 3),
    "trainer/weights": ("hf-trainer", 3),
    "trainer/adapter": ("hf-trainer", 3),
    "transformers/sharded": ("hf-model", 1),
    "transformers/half": ("hf-model", 1),
    "lightning": ("lightning", 4),
    "peft": ("peft", 2),
}
WEIGHTS = {
    "torch": "step_6.pt",
    "safetensors": "model.safetensors",
    "accelerate/safe": "step_4/model.safetensors",
    "accelerate/pickled": "step_4/pytorch_model.bin",
    "trainer/whole": "checkpoint-6/model.safetensors",
    "trainer/mixed": "checkpoint-6/model.safetensors",
    "trainer/bfloat16": "checkpoint-6/model.safetensors",
    "trainer/weights": "checkpoint-6/model.safetensors",
    "trainer/adapter": "checkpoint-6/adapter_model.safetensors",
    "transformers/sharded": "model-00003-of-00006.safetensors",
    "transformers/half": "model.safetensors",
    "lightning": "step=6.ckpt",
    "peft": "checkpoint-4/adapter_model.safetensors",
}
OPTIMIZERS = {
    "accelerate/safe": "step_4/optimizer.bin",
    "accelerate/pickled": "step_4/optimizer.bin",
    "trainer/whole": "checkpoint-6/optimizer.pt",
    "trainer/mixed": "checkpoint-6/optimizer.pt",
    "trainer/bfloat16": "checkpoint-6/optimizer.pt",
    "trainer/adapter": "checkpoint-6/optimizer.pt",
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what all of them saved, long ago."""
    folder = tmp_path_factory.mktemp("library")
    program = [sys.executable, "-m", "tests.unit.payloads.check_ckpt.library_checkpoints", str(folder)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    for path in folder.rglob("*"):
        settle(path)
    return folder


@pytest.fixture
def copied(library: Path, tmp_path: Path, name: str) -> Path:
    """Return a copy of what one of them saved."""
    shutil.copytree(library / name, tmp_path / name)
    return tmp_path / name


def named(path: str) -> str:
    """Return the name of the checkpoint that a file is of, as the record has it."""
    return path.partition("/")[0]


@pytest.mark.parametrize("name", SAVED)
def test_what_a_library_saved_is_ok(library: Path, name: str) -> None:
    heard = audit(library / name)
    told, number = SAVED[name]
    assert [(each["verdict"], each["format"]) for each in heard.records] == [("ok", told)] * number
    assert heard.rules(above_info=True) == set()
    assert {each["params"] for each in heard.records} == {json.loads((library / "sizes.json").read_text())[name]}
    assert all(each["bytes_checked"] == each["bytes"] and not each["unchecked"] for each in heard.records)
    assert heard.summary["resume_from"] is not None


def poison(path: Path) -> None:
    """Make the first element of the first tensor that has many NaN, and save as it was saved."""
    if path.suffix == ".safetensors":
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
        tensors = load_file(path)
        first_of(tensors).view(-1)[0] = NAN
        save_file(tensors, path, metadata)
        settle(path)
    else:
        state = torch.load(path, weights_only=False)
        first_of(state).view(-1)[0] = NAN
        save(state, path)


def first_of(state: Any) -> torch.Tensor:
    """Return the first tensor that is more than a scalar."""
    waiting = [state]
    while waiting:
        each = waiting.pop()
        if isinstance(each, torch.Tensor) and each.is_floating_point() and each.numel() > 1:
            return each
        if isinstance(each, dict | list | tuple):
            waiting += reversed(list(each.values() if isinstance(each, dict) else each))
    raise AssertionError("no tensor")


@pytest.mark.parametrize("name", SAVED)
def test_a_nan_in_the_weights_is_found(copied: Path, name: str) -> None:
    poison(copied / WEIGHTS[name])
    heard = audit(copied)
    (record,) = [each for each in heard.records if each["verdict"] != "ok"]
    assert record["verdict"] == "bad"
    assert (record["nan_weights"], record["nan_optimizer"]) == (1, 0)
    assert heard.of("CK001")["subject"] == record["name"]
    assert heard.summary["resume_from"] != record["name"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_nan_in_the_optimizer_is_found(copied: Path, name: str) -> None:
    poison(copied / OPTIMIZERS[name])
    heard = audit(copied)
    record = heard.record_of(named(OPTIMIZERS[name]))
    assert (record["nan_weights"], record["nan_optimizer"], record["verdict"]) == (0, 1, "bad")
    assert heard.of("CK003")["subject"] == record["name"]


@pytest.mark.parametrize("name", SAVED)
def test_a_file_cut_short_is_found(copied: Path, name: str) -> None:
    path = copied / WEIGHTS[name]
    os.truncate(path, path.stat().st_size * 2 // 3)
    settle(path)
    heard = audit(copied)
    (record,) = [each for each in heard.records if each["verdict"] != "ok"]
    assert (record["verdict"], heard.of("CK020")["subject"]) == ("bad", record["name"])
    assert (heard.of("CK020")["data"]["file"]).endswith(WEIGHTS[name])
