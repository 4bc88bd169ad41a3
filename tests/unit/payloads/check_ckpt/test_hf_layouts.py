"""Checkpoints as Hugging Face's libraries lay them out: one record each, and what is wrong with the whole."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from remoterun.payloads.check_ckpt import run
from tests.unit.payloads.check_ckpt.layouts import (
    accelerate,
    adapter,
    index,
    save_json,
    save_safetensors,
    settle_all,
    sharded,
    trainer,
    weights,
)
from tests.unit.payloads.check_ckpt.support import Heard, audit, count_with_torch, save, training_state, write

pytestmark = pytest.mark.torch

PARAMS = sum(tensor.numel() for tensor in weights().values())
EXTENSIONS = ("safetensors", "bin")


def assert_clean(heard: Heard) -> None:
    """Find nothing to complain of, and every byte looked at."""
    assert heard.rules(above_info=True) == set(), heard.findings
    for record in heard.records:
        assert record["verdict"] == "ok", record
        assert record["bytes_checked"] == record["bytes"] > 0


# --- shards and their index ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_shards_are_one_checkpoint(tmp_path: Path, extension: str) -> None:
    places = sharded(tmp_path / "final", extension=extension)
    heard = audit(tmp_path)
    assert_clean(heard)
    record = heard.record
    assert (record["name"], record["format"], record["params"]) == ("final", "hf-model", PARAMS)
    assert record["path"] == str(tmp_path / "final")
    stem = {"safetensors": "model", "bin": "pytorch_model"}[extension]
    assert record["files"] == ["config.json", *sorted(set(places.values())), f"{stem}.{extension}.index.json"]
    assert record["bytes"] == sum((tmp_path / "final" / file).stat().st_size for file in record["files"])
    assert heard.summary["resume_path"] == str(tmp_path / "final")


def test_the_folder_may_be_the_root(tmp_path: Path) -> None:
    sharded(tmp_path / "final")
    for root in (tmp_path / "final", f"{tmp_path}/final/"):
        for depth in (0, 6):
            heard = audit(root, depth=depth)
            assert_clean(heard)
            assert heard.record["name"] == "final"


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_nan_in_a_shard_is_counted_and_named(tmp_path: Path, extension: str) -> None:
    places = sharded(tmp_path, extension=extension)
    name = next(iter(places))
    tensor = weights()[name]
    tensor[0, :7] = float("nan")
    share = {key: tensor if key == name else value for key, value in weights().items() if places[key] == places[name]}
    (save_safetensors if extension == "safetensors" else save)(share, tmp_path / places[name])
    heard = audit(tmp_path)
    assert heard.record["verdict"] == "bad"
    assert heard.record["nan_weights"] == count_with_torch(share)[0] == 7
    assert heard.of("CK001")["data"]["file"] == str(tmp_path / places[name])
    assert heard.of("CK001")["data"]["tensor"] == name


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_a_shard_that_the_index_names_is_missing(tmp_path: Path, extension: str) -> None:
    places = sharded(tmp_path, extension=extension)
    gone = places["0.bias"]
    (tmp_path / gone).unlink()
    heard = audit(tmp_path)
    assert heard.record["verdict"] == "bad"
    assert heard.of("CK060")["data"]["missing"] == [gone]
    assert heard.rules(above_info=True) == {"CK060"}
    assert heard.record["params"] is None, "what is missing is not counted"
    assert heard.record["nan_weights"] == 0, "what is there is"
    assert heard.summary["resume_from"] is None


def test_only_the_index_is_there(tmp_path: Path) -> None:
    places = sharded(tmp_path)
    for file in set(places.values()):
        (tmp_path / file).unlink()
    heard = audit(tmp_path)
    assert heard.record["verdict"] == "bad"
    assert heard.of("CK060")["data"]["count"] == 3


def test_the_index_is_missing(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    heard = audit(tmp_path)
    assert heard.rules(above_info=True) == {"CK063"}
    assert heard.record["verdict"] == "bad"
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    heard = audit(tmp_path)
    assert heard.rules(above_info=True) == {"CK060", "CK063"}
    assert heard.of("CK060")["data"]["missing"] == ["model-00002-of-00003.safetensors"]


def test_an_index_of_another_save(tmp_path: Path) -> None:
    places = sharded(tmp_path)
    total = sum(tensor.nbytes for tensor in weights().values())
    swapped = places | {"0.weight": places["0.bias"], "0.bias": places["0.weight"]}
    index(tmp_path, swapped, total)
    heard = audit(tmp_path)
    assert heard.record["verdict"] == "bad"
    told = [each for each in heard.findings if each["rule"] == "CK064"]
    assert {each["severity"] for each in told} == {"bad", "suspect"}
    assert told[0]["data"]["tensors"] == ["0.weight", "0.bias"]
    assert told[0]["data"]["count"] == 2


def test_what_the_index_does_not_name(tmp_path: Path) -> None:
    places = sharded(tmp_path)
    total = sum(tensor.nbytes for tensor in weights().values())
    index(tmp_path, {name: file for name, file in places.items() if name != "2.bias"}, total)
    heard = audit(tmp_path)
    assert heard.record["verdict"] == "suspect"
    assert heard.of("CK064")["data"]["tensors"] == ["2.bias"]
    index(tmp_path, places, total)
    save_safetensors(weights(3), tmp_path / "model-00004-of-00004.safetensors")
    heard = audit(tmp_path)
    assert heard.record["verdict"] == "suspect"
    assert heard.of("CK064")["data"]["files"] == ["model-00004-of-00004.safetensors"]
    assert heard.record["params"] == PARAMS, "a left-over shard is no part of the model"


def test_a_wrong_total_is_only_information(tmp_path: Path) -> None:
    places = sharded(tmp_path)
    index(tmp_path, places, 17)
    heard = audit(tmp_path)
    assert_clean(heard)
    assert heard.of("CK064")["severity"] == "info"


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "sub/../../outside.safetensors"])
def test_an_index_never_leads_out_of_its_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "root" / "model"
    places = sharded(folder)
    save_safetensors(weights(), tmp_path / "root" / "outside.safetensors")
    save_safetensors(weights(), tmp_path / "outside.safetensors")
    index(folder, places | {"0.bias": name}, 1)
    heard = audit(folder)
    assert heard.of("CK104")["data"]["path"] == name
    assert heard.record["verdict"] == "bad"
    assert heard.record["files"] == ["config.json", *sorted(set(places.values())), "model.safetensors.index.json"]


def test_an_index_may_name_its_files_otherwise(tmp_path: Path) -> None:
    shares = list(weights().items())
    places: dict[str, str] = {}
    for number, file in enumerate(("weights.00.safetensors", "parts/weights.01.safetensors")):
        save_safetensors(dict(shares[number::2]), tmp_path / file)
        places |= dict.fromkeys(dict(shares[number::2]), file)
    index(tmp_path, places, sum(tensor.nbytes for tensor in weights().values()))
    heard = audit(tmp_path)
    assert_clean(heard)
    assert heard.record["params"] == PARAMS
    assert "parts/weights.01.safetensors" in heard.record["files"]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (b"", "CK021"),
        (bytes(300), "CK021"),
        (b'{"weight_map": {"0.bias": ', "CK020"),
        (b"<!DOCTYPE html>", "CK020"),
        (b"[" * 200_000 + b"]", "CK025"),
        (b'{"weight_map": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001, "CK025"),
        (b'{"weight_map": [1, 2]}', "CK025"),
        (b'{"weight_map": {"a": 3}}', "CK025"),
        (b"[]", "CK025"),
        (b'{"weight_map": {"a": "\xff"}}', "CK025"),
        (b'{"n": 1' + b"0" * 5000 + b"}", "CK025"),
        (b"[" + b"{}," * 700_000 + b"{}]", "CK103"),
        (b'{"weight_map": {' + b'"a":"",' * 1_500_000 + b'"a":""}}', "CK103"),
    ],
)
def test_hostile_indices(tmp_path: Path, text: bytes, rule: str) -> None:
    sharded(tmp_path)
    write(tmp_path / "model.safetensors.index.json", text)
    heard = audit(tmp_path)
    assert rule in heard.rules(above_info=True)
    assert heard.record["verdict"] in ("bad", "suspect")
    assert "the audit itself failed" not in str(heard.findings)


def test_a_name_twice_in_an_index(tmp_path: Path) -> None:
    places = sharded(tmp_path)
    text = json.dumps({"weight_map": places})
    write(tmp_path / "model.safetensors.index.json", text.replace('{"0', '{"0.bias": "x", "0', 1).encode())
    heard = audit(tmp_path)
    assert heard.record["verdict"] == "suspect"
    assert "twice" in heard.of("CK025")["message"]


def test_one_file_is_loaded_before_shards(tmp_path: Path) -> None:
    """What is left of an older save in shards is looked at by itself."""
    places = sharded(tmp_path / "final")
    save_safetensors(weights(), tmp_path / "final" / "model.safetensors")
    heard = audit(tmp_path)
    assert_clean(heard)
    assert heard.record_of("final")["files"] == ["config.json", "model.safetensors"]
    assert heard.record_of("final")["params"] == PARAMS
    assert {record["name"] for record in heard.records} == {"final", *(f"final/{name}" for name in places.values())}


def test_numbered_files_of_others_are_no_shards(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / "tokens" / f"train-{number:05d}-of-00003.bin", bytes(range(200, 256)) * 40)
    heard = audit(tmp_path)
    assert [record["format"] for record in heard.records] == ["unknown"] * 3
    assert heard.rules() == {"CK128"}


def test_many_shards_with_few_descriptors(tmp_path: Path) -> None:
    """More files than a process may have open at once."""
    import resource

    places = {}
    for number in range(300):
        file = f"model-{number + 1:05d}-of-00300.safetensors"
        save_safetensors({f"layer.{number}": torch.full((8,), float(number))}, tmp_path / file)
        places[f"layer.{number}"] = file
    index(tmp_path, places, 300 * 32)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 80, hard))
    try:
        heard = audit(tmp_path, workers=4)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert_clean(heard)
    record = heard.record
    assert (record["params"], record["tensors"], record["files_count"]) == (2400, 300, 301)
    assert len(record["files"]) == 100


def test_a_model_in_one_file(tmp_path: Path) -> None:
    save_safetensors(weights(), tmp_path / "base" / "model.safetensors")
    save_json({"model_type": "gpt2"}, tmp_path / "base" / "config.json")
    heard = audit(tmp_path)
    assert_clean(heard)
    assert (heard.record["name"], heard.record["path"]) == ("base", str(tmp_path / "base"))


def test_the_same_model_in_two_formats_is_two_checkpoints(tmp_path: Path) -> None:
    save_safetensors(weights(), tmp_path / "base" / "model.safetensors")
    save(weights(), tmp_path / "base" / "pytorch_model.bin")
    save_json({"model_type": "gpt2"}, tmp_path / "base" / "config.json")
    heard = audit(tmp_path)
    assert_clean(heard)
    assert {record["name"]: record["params"] for record in heard.records} == {
        "base": PARAMS,
        "base/pytorch_model.bin": PARAMS,
    }


# --- transformers' Trainer -------------------------------------------------------------------------------------------


def test_trainer_folders_are_read_without_false_alarms(tmp_path: Path) -> None:
    for step in (100, 200, 300):
        trainer(tmp_path / f"checkpoint-{step}", step)
    heard = audit(tmp_path)
    assert_clean(heard)
    assert [record["name"] for record in heard.records] == ["checkpoint-300", "checkpoint-200", "checkpoint-100"]
    first = heard.records[0]
    assert (first["format"], first["step"], first["epoch"], first["params"]) == ("hf-trainer", 300, 1.5, PARAMS)
    assert "step_from" not in first
    assert first["files"] == [
        "config.json",
        "model.safetensors",
        "optimizer.pt",
        "rng_state.pth",
        "scheduler.pt",
        "trainer_state.json",
        "training_args.bin",
    ]
    assert heard.summary["resume_from"] == "checkpoint-300"
    assert heard.summary["companions"] == []


def test_the_end_of_a_run_lies_around_its_checkpoints(tmp_path: Path) -> None:
    """Trainer.save_model writes into the folder that the checkpoints are in."""
    for step in (100, 200):
        trainer(tmp_path / "run" / f"checkpoint-{step}", step)
    trainer(tmp_path / "run", 200)
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (tmp_path / "run" / name).unlink()
    heard = audit(tmp_path)
    assert_clean(heard)
    assert {record["name"] for record in heard.records} == {"run", "checkpoint-200", "checkpoint-100"}
    assert heard.summary["resume_from"] == "checkpoint-200", "the model alone is no better"


def test_without_its_state_a_trainer_can_not_resume(tmp_path: Path) -> None:
    folder = trainer(tmp_path / "checkpoint-100", 100)
    (folder / "trainer_state.json").unlink()
    heard = audit(tmp_path)
    assert heard.rules(above_info=True) == {"CK063"}
    assert heard.record["verdict"] == "bad"
    assert heard.record["step"] == 100
    # Programs from before there was a file of random numbers wrote no state at all.
    (folder / "rng_state.pth").unlink()
    heard = audit(tmp_path)
    assert (heard.of("CK063")["severity"], heard.record["verdict"]) == ("suspect", "suspect")
    (folder / "optimizer.pt").unlink()
    heard = audit(tmp_path)
    assert (heard.of("CK063")["severity"], heard.record["verdict"]) == ("info", "ok")


@pytest.mark.parametrize("text", [b"", b'{"global_step": 1', b"{}", b'{"global_step": true}', b"[" * 50_000])
def test_a_trainers_state_that_is_none(tmp_path: Path, text: bytes) -> None:
    folder = trainer(tmp_path / "checkpoint-100", 100)
    write(folder / "trainer_state.json", text)
    heard = audit(tmp_path)
    assert heard.record["verdict"] == "bad"
    assert heard.rules(above_info=True) <= {"CK020", "CK021", "CK025"}


def test_a_trainers_weights_are_missing(tmp_path: Path) -> None:
    folder = trainer(tmp_path / "checkpoint-100", 100)
    (folder / "model.safetensors").unlink()
    heard = audit(tmp_path)
    assert heard.record["verdict"] == "bad"
    assert "no weights" in heard.of("CK060")["message"]


def test_damage_to_any_part_is_the_checkpoints(tmp_path: Path) -> None:
    trainer(tmp_path / "checkpoint-100", 100)
    folder = trainer(tmp_path / "checkpoint-200", 200)
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"):
        whole = (folder / name).read_bytes()
        write(folder / name, whole[: len(whole) // 2])
        heard = audit(tmp_path)
        by_name = {record["name"]: record["verdict"] for record in heard.records}
        assert by_name == {"checkpoint-200": "bad", "checkpoint-100": "ok"}, name
        assert heard.of("CK020")["data"]["file"] == str(folder / name)
        assert heard.summary["resume_from"] == "checkpoint-100"
        assert heard.of("CK069")["subject"] == "checkpoint-200"
        assert "checkpoint-100" in heard.of("CK069")["message"]
        write(folder / name, whole)
    assert_clean(audit(tmp_path))


def test_a_rank_without_its_random_numbers_is_information(tmp_path: Path) -> None:
    folder = trainer(tmp_path / "checkpoint-100", 100, ranks=4)
    assert_clean(audit(tmp_path))
    (folder / "rng_state_2.pth").unlink()
    heard = audit(tmp_path)
    assert_clean(heard)
    assert "rng_state_2.pth" in heard.of("CK060")["message"]


def test_a_trainer_of_an_adapter(tmp_path: Path) -> None:
    folder = trainer(tmp_path / "checkpoint-100", 100)
    (folder / "model.safetensors").unlink()
    adapter(folder)
    heard = audit(tmp_path)
    assert heard.rules(above_info=True) == set()
    assert heard.record["params"] == 4 * 64
    save_safetensors({}, folder / "adapter_model.safetensors")
    heard = audit(tmp_path)
    assert heard.of("CK010")["severity"] == "bad"


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_a_trainer_with_sharded_parts(tmp_path: Path) -> None:
    """FSDP's folders of torch.distributed.checkpoint inside are parts of the checkpoint."""
    folder = trainer(tmp_path / "checkpoint-100", 100)
    (folder / "model.safetensors").unlink()
    (folder / "optimizer.pt").unlink()
    state = training_state()
    save_distributed({"model": state["model_state_dict"]}, checkpoint_id=folder / "pytorch_model_fsdp_0", no_dist=True)
    moments = {str(key): value for key, value in state["optimizer_state_dict"]["state"].items()}
    save_distributed({"optimizer": {"state": moments}}, checkpoint_id=folder / "optimizer_0", no_dist=True)
    settle_all(folder)
    heard = audit(tmp_path)
    assert_clean(heard)
    assert (heard.record["name"], heard.record["params"], heard.record["step"]) == ("checkpoint-100", PARAMS, 100)
    assert "pytorch_model_fsdp_0/.metadata" in heard.record["files"]
    shutil.rmtree(folder / "pytorch_model_fsdp_0")
    assert "no weights" in audit(tmp_path).of("CK060")["message"]


def test_a_trainer_with_deepspeed_counts_the_model_once(tmp_path: Path) -> None:
    folder = trainer(tmp_path / "checkpoint-100", 100)
    (folder / "optimizer.pt").unlink()
    inner = folder / "global_step100"
    save({"module": weights(), "global_steps": 100}, inner / "mp_rank_00_model_states.pt")
    write(folder / "latest", b"global_step100")
    heard = audit(tmp_path)
    assert heard.rules(above_info=True) == set()
    assert heard.record["params"] == PARAMS
    assert heard.record["params_listed"] == 2 * PARAMS
    (folder / "latest").write_text("global_step99")
    assert "global_step99" in audit(tmp_path).of("CK065")["message"]


# --- accelerate and PEFT ---------------------------------------------------------------------------------------------


def test_accelerates_folders(tmp_path: Path) -> None:
    for number in (1, 2):
        accelerate(tmp_path / f"checkpoint_{number}", seed=number)
    heard = audit(tmp_path)
    assert_clean(heard)
    assert [(record["name"], record["step"]) for record in heard.records] == [("checkpoint_2", 2), ("checkpoint_1", 1)]
    assert {(record["format"], record["params"]) for record in heard.records} == {("accelerate", PARAMS)}
    (tmp_path / "checkpoint_2" / "model.safetensors").unlink()
    assert audit(tmp_path).of("CK060")["subject"] == "checkpoint_2"


def test_an_adapter_by_itself(tmp_path: Path) -> None:
    adapter(tmp_path / "lora")
    heard = audit(tmp_path)
    assert_clean(heard)
    assert (heard.record["name"], heard.record["format"], heard.record["params"]) == ("lora", "peft", 256)


ADAPTERS: dict[str, tuple[dict[str, Any], str, str]] = {
    "empty": ({}, "bad", "holds no tensor"),
    "no pair": ({"base_model.model.h.0.bias": torch.ones(4)}, "suspect", "LORA"),
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_that_do_nothing(tmp_path: Path, name: str) -> None:
    tensors, severity, words = ADAPTERS[name]
    adapter(tmp_path / "lora", tensors=tensors)
    heard = audit(tmp_path)
    assert heard.of("CK010")["severity"] == severity
    assert words in heard.of("CK010")["message"]
    assert heard.record["verdict"] == severity


def test_other_kinds_of_adapters_are_not_held_against_lora(tmp_path: Path) -> None:
    adapter(tmp_path / "prompt", tensors={"prompt_embeddings": torch.randn(4, 8)}, kind="PROMPT_TUNING")
    assert_clean(audit(tmp_path))


def test_an_adapter_without_its_weights(tmp_path: Path) -> None:
    (adapter(tmp_path / "lora") / "adapter_model.safetensors").unlink()
    heard = audit(tmp_path)
    assert heard.record["verdict"] == "bad"
    assert heard.of("CK060")["data"]["missing"] == ["adapter_model.safetensors"]


# --- while it is written ---------------------------------------------------------------------------------------------


def test_what_is_missing_may_be_still_to_come(tmp_path: Path) -> None:
    folder = trainer(tmp_path / "checkpoint-100", 100)
    (folder / "trainer_state.json").unlink()
    os.utime(folder / "optimizer.pt")
    heard = audit(tmp_path)
    assert heard.record["verdict"] == "in_progress"
    assert heard.rules() == {"CK026"}


def test_what_came_after_the_search_is_not_called_missing(tmp_path: Path) -> None:
    """However long the checkpoints before it take, and whatever times its files have."""
    trainer(tmp_path / "checkpoint-100", 100)
    folder = trainer(tmp_path / "checkpoint-50", 50)
    state = (folder / "trainer_state.json").read_bytes()
    (folder / "trainer_state.json").unlink()
    assert audit(tmp_path).record_of("checkpoint-50")["verdict"] == "bad"
    heard = Heard({"root": str(tmp_path), "depth": 6, "engine": "stdlib", "workers": 1})
    heard.progress = lambda *_: write(folder / "trainer_state.json", state)  # type: ignore[method-assign, assignment]
    run(cast("Any", heard))
    assert heard.record_of("checkpoint-50")["verdict"] == "in_progress"
    assert "came or went" in heard.of("CK026")["message"]


def test_a_file_that_vanishes_is_the_checkpoints_verdict(tmp_path: Path) -> None:
    """Rotation deletes a checkpoint while a newer one is read."""
    trainer(tmp_path / "checkpoint-100", 100)
    gone = trainer(tmp_path / "checkpoint-50", 50)
    heard = Heard({"root": str(tmp_path), "depth": 6, "engine": "stdlib", "workers": 1})

    heard.progress = lambda *_: shutil.rmtree(gone, ignore_errors=True)  # type: ignore[method-assign]
    run(cast("Any", heard))
    verdicts = {record["name"]: record["verdict"] for record in heard.records}
    assert verdicts == {"checkpoint-100": "ok", "checkpoint-50": "in_progress"}
    assert "deleted" in heard.of("CK026")["message"]


@pytest.mark.parametrize("entries", [20_000, 300_000])
def test_a_trainers_state_with_much_history(tmp_path: Path, entries: int) -> None:
    folder = trainer(tmp_path / "checkpoint-100", 100)
    write(folder / "trainer_state.json", history(entries))
    heard = audit(tmp_path)
    assert_clean(heard)
    assert heard.record["step"] == 100
    write(folder / "trainer_state.json", history(entries)[:-30])
    assert audit(tmp_path).record["verdict"] != "ok", "it is cut off"


def history(entries: int) -> bytes:
    """Write a state with a long history, as the Trainer does: with sorted keys."""
    entry = b'    {\n      "epoch": 0.1,\n      "loss": 2.5,\n      "step": 10\n    }'
    start = b'{\n  "epoch": 1.5,\n  "global_step": 100,\n  "log_history": [\n'
    return start + b",\n".join([entry] * entries) + b'\n  ],\n  "max_steps": 1000\n}\n'
