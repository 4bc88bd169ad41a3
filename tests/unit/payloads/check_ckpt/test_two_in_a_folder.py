"""Checkpoints of two families in one folder of a step: each has a name of its own, and the audit goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.payloads.check_ckpt.layouts import adapter, save_json, save_safetensors, settle_all, sharded, trainer
from tests.unit.payloads.check_ckpt.layouts import weights as some_weights
from tests.unit.payloads.check_ckpt.support import audit

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


def test_an_adapter_beside_the_model_that_it_was_merged_into(tmp_path: Path) -> None:
    adapter(tmp_path / "checkpoint-100")
    save_safetensors(some_weights(), tmp_path / "checkpoint-100/model.safetensors")
    save_json({"model_type": "gpt2"}, tmp_path / "checkpoint-100/config.json")
    heard = audit(settle_all(tmp_path))
    assert {record["name"]: record["format"] for record in heard.records} == {
        "checkpoint-100": "peft",
        "checkpoint-100/model.safetensors": "hf-model",
    }


def test_shards_of_another_format_beside_a_training(tmp_path: Path) -> None:
    trainer(tmp_path / "checkpoint-100", 100)
    sharded(tmp_path / "checkpoint-100", extension="bin")
    trainer(tmp_path / "checkpoint-200", 200)
    heard = audit(settle_all(tmp_path))
    assert {record["name"]: record["format"] for record in heard.records} == {
        "checkpoint-100": "hf-trainer",
        "checkpoint-100/pytorch_model-00001-of-00003.bin": "hf-model",
        "checkpoint-200": "hf-trainer",
    }
