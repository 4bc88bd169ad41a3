"""The files that describe a model beside its weights: one that transformers can't read is told, none is not missed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.unit.payloads.check_ckpt.layouts import adapter, save_json, save_safetensors, settle_all, sharded, trainer
from tests.unit.payloads.check_ckpt.layouts import weights as some_weights
from tests.unit.payloads.check_ckpt.support import audit, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.torch

# What was written moments ago is not remembered.
LATER = 100_000
DAMAGED = {
    "empty": (b"", "CK021"),
    "zeros": (bytes(700), "CK021"),
    "cut off": (b'{\n  "model_type": "gp', "CK020"),
    "no JSON": (b"model_type: gpt2}", "CK025"),
    "no object": (b"[]", "CK025"),
}


def whole(folder: Path) -> None:
    save_safetensors(some_weights(), folder / "model.safetensors")
    save_json({"model_type": "gpt2"}, folder / "config.json")


def in_shards(folder: Path) -> None:
    sharded(folder)


def of_a_trainer(folder: Path) -> None:
    trainer(folder, 100)


def of_diffusers(folder: Path) -> None:
    save_safetensors(some_weights(), folder / "diffusion_pytorch_model.safetensors")
    save_json({"_class_name": "UNet2DModel"}, folder / "config.json")


def of_an_adapter(folder: Path) -> None:
    adapter(folder)


MADE: tuple[tuple[Callable[[Path], None], str], ...] = (
    (whole, "config.json"),
    (in_shards, "config.json"),
    (of_a_trainer, "config.json"),
    (of_diffusers, "config.json"),
    (of_an_adapter, "adapter_config.json"),
)


@pytest.mark.parametrize(("data", "rule"), DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize(("make", "name"), MADE, ids=[make.__name__ for make, _ in MADE])
def test_a_config_without_which_nothing_is_loaded_is_bad(
    tmp_path: Path, make: Callable[[Path], None], name: str, data: bytes, rule: str
) -> None:
    make(tmp_path / "model")
    write(tmp_path / "model" / name, data)
    settle_all(tmp_path)
    heard = audit(tmp_path)
    assert (heard.record["verdict"], heard.rules(above_info=True)) == ("bad", {rule})
    (found,) = [each for each in heard.findings if each["rule"] == rule]
    assert found["message"].startswith(name)
    assert found["data"]["file"] == str(tmp_path / "model" / name)


@pytest.mark.parametrize("name", ["generation_config.json", "tokenizer_config.json"])
@pytest.mark.parametrize(("data", "rule"), DAMAGED.values(), ids=DAMAGED)
def test_one_without_which_the_weights_are_loaded_is_suspect(tmp_path: Path, name: str, data: bytes, rule: str) -> None:
    trainer(tmp_path / "checkpoint-100", 100)
    write(tmp_path / "checkpoint-100" / name, data)
    heard = audit(settle_all(tmp_path))
    assert (heard.record["verdict"], heard.rules(above_info=True)) == ("suspect", {rule})
    assert "another checkpoint" in heard.of(rule)["next_step"]


@pytest.mark.parametrize(("make", "name"), MADE, ids=[make.__name__ for make, _ in MADE])
def test_a_config_that_changes_is_read_again(tmp_path: Path, make: Callable[[Path], None], name: str) -> None:
    make(tmp_path / "model")
    settle_all(tmp_path)
    first = audit(tmp_path, later=LATER)
    assert (first.record["verdict"], first.record["bytes_checked"]) == ("ok", first.record["bytes"])
    assert name in first.record["files"]
    assert audit(tmp_path, later=LATER).record.get("cached") is True
    write(tmp_path / "model" / name, b"")
    settle_all(tmp_path)
    again = audit(tmp_path, later=LATER)
    assert (again.record["verdict"], "cached" in again.record) == ("bad", False)


def test_weights_that_are_kept_alone_need_no_config(tmp_path: Path) -> None:
    save_safetensors(some_weights(), tmp_path / "alone" / "model.safetensors")
    sharded(tmp_path / "shards")
    (tmp_path / "shards/config.json").unlink()
    trainer(tmp_path / "checkpoint-100", 100)
    (tmp_path / "checkpoint-100/config.json").unlink()
    # What describes something else is nobody's.
    write(tmp_path / "torch" / "config.json", b"")
    save_safetensors(some_weights(), tmp_path / "torch" / "step_5.safetensors")
    heard = audit(settle_all(tmp_path))
    assert {record["verdict"] for record in heard.records} == {"ok"}
    assert heard.rules(above_info=True) == set()


@pytest.mark.parametrize(("data", "_"), DAMAGED.values(), ids=DAMAGED)
def test_transformers_does_as_it_is_told_here(tmp_path: Path, data: bytes, _: str) -> None:
    """Without the config there is no model; what can't be decoded of the other is passed over without a word."""
    from transformers import GPT2Config, GPT2LMHeadModel

    made = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=8, bos_token_id=1, eos_token_id=1))
    made.save_pretrained(tmp_path)
    config = (tmp_path / "config.json").read_bytes()
    assert json.loads(config)["model_type"] == "gpt2"
    (tmp_path / "config.json").write_bytes(data)
    with pytest.raises((OSError, TypeError)):
        GPT2LMHeadModel.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_bytes(config)
    if data != b"[]":
        (tmp_path / "generation_config.json").write_bytes(data)
    assert GPT2LMHeadModel.from_pretrained(tmp_path) is not None
