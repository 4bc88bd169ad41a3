"""Where to resume each of several trainings below one root."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch

from tests.unit.payloads.check_ckpt.support import audit, save, training_state, write

if TYPE_CHECKING:
    from pathlib import Path

W = {"model": {"w": torch.ones(8, 8)}}


def told(root: Path) -> dict[str, str | None]:
    """Return where each training is to be resumed, by its folder: paths below the root."""
    heard = audit(root)
    trainings = heard.summary["trainings"]
    assert sum(each["checkpoints"] for each in trainings) == heard.summary["checkpoints"]
    for each in trainings:
        known = [record["path"] for record in heard.records if record["name"] == each["resume_from"]]
        assert known == ([each["resume_path"]] if each["resume_path"] else [])
    best = {each["folder"]: each["resume_path"] for each in trainings}
    return {folder: path and os.path.relpath(path, root) for folder, path in best.items()}


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["step_1.pt", "step_2.pt"], {".": "step_2.pt"}),
        (["step_1/c.pt", "step_2/c.pt"], {".": "step_2/c.pt"}),
        (["a/step_1.pt", "a/step_2.pt", "b/step_7.pt"], {"a": "a/step_2.pt", "b": "b/step_7.pt"}),
        (["a/step_9/m.pt", "b/step_9/m.pt"], {"a": "a/step_9/m.pt", "b": "b/step_9/m.pt"}),
        (
            ["a/x/epoch=1.ckpt", "a/x/epoch=2.ckpt", "b/x/epoch=1.ckpt"],
            {"a/x": "a/x/epoch=2.ckpt", "b/x": "b/x/epoch=1.ckpt"},
        ),
        # The weights and the optimizer of one checkpoint, networks of one training.
        (["step_1/model.pt", "step_1/optim.pt"], {".": "step_1/model.pt"}),
        (["netG_step_3.pt", "netD_step_3.pt"], {".": "netD_step_3.pt"}),
        # What has no step of its own goes with the training in whose folder it is.
        (["a/step_1.pt", "a/best.pt", "a/kept/last.pt", "b/step_1.pt"], {"a": "a/step_1.pt", "b": "b/step_1.pt"}),
        (["step_1.pt", "best/c.pt"], {".": "step_1.pt"}),
        (["a/model.pt", "b/model.pt"], {"a": "a/model.pt", "b": "b/model.pt"}),
        (["final.pt", "a/step_1.pt", "b/step_2.pt"], {".": "final.pt", "a": "a/step_1.pt", "b": "b/step_2.pt"}),
    ],
)
def test_trainings_are_told_apart_by_their_folders(tmp_path: Path, paths: list[str], expected: dict[str, str]) -> None:
    for path in paths:
        save({**W, "step": int("".join(filter(str.isdigit, path)) or 0)}, tmp_path / path)
    assert told(tmp_path) == expected


def test_a_folder_of_trainer_goes_with_the_checkpoints_in_it(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    for run in ("a", "b"):
        for folder in (run, f"{run}/checkpoint-10", f"{run}/checkpoint-20"):
            (tmp_path / folder).mkdir()
            save_file({"w": torch.ones(4, 4)}, tmp_path / folder / "model.safetensors")
            write(tmp_path / folder / "config.json", b'{"model_type": "llama"}')
    assert set(told(tmp_path)) == {"a", "b"}


def test_each_training_falls_back_by_itself(tmp_path: Path) -> None:
    """A newer one of another training is no reason to pass over the last good one."""
    for run, steps in (("a", (1, 2)), ("b", (500, 600)), ("c", (7,))):
        for step in steps:
            save(training_state(step, global_step=step), tmp_path / run / f"step_{step}.pt")
    for name in ("b/step_600.pt", "c/step_7.pt"):
        write(tmp_path / name, (tmp_path / name).read_bytes()[:9000])
    assert told(tmp_path) == {"b": "b/step_500.pt", "a": "a/step_2.pt", "c": None}
    heard = audit(tmp_path)
    assert heard.summary["resume_from"] == "b/step_500.pt", "of all together, as ever"
    assert [(each["subject"], each["data"]["resume_from"]) for each in heard.findings if each["rule"] == "CK069"] == [
        ("b/step_600.pt", "b/step_500.pt")
    ]


def without_optimizer(root: Path, *steps: int) -> None:
    """Save checkpoints of these steps as weights alone."""
    for step in steps:
        state = training_state(step, global_step=step)
        save({"model_state_dict": state["model_state_dict"], "global_step": step}, root / f"step_{step}.pt")


def with_optimizer(root: Path, *steps: int) -> None:
    """Save whole checkpoints of these steps."""
    for step in steps:
        save(training_state(step, global_step=step), root / f"step_{step}.pt")


def test_a_checkpoint_that_lost_its_optimizer_is_not_resumed_from(tmp_path: Path) -> None:
    with_optimizer(tmp_path, 1, 2, 3)
    without_optimizer(tmp_path, 4)
    heard = audit(tmp_path)
    assert heard.record_of("step_4.pt")["verdict"] == "ok"
    assert heard.summary["resume_from"] == "step_3.pt"
    (found,) = [each for each in heard.findings if each["rule"] == "CK069"]
    assert (found["subject"], found["severity"]) == ("step_4.pt", "info")
    assert found["message"].endswith("this one is newer, but has no optimizer, as others before it have")
    assert found["data"]["resume_from"] == "step_3.pt"


def test_weights_alone_are_resumed_from_where_that_is_what_a_training_saves(tmp_path: Path) -> None:
    with_optimizer(tmp_path, 1)
    without_optimizer(tmp_path, 2, 3, 4)
    heard = audit(tmp_path)
    assert heard.summary["resume_from"] == "step_4.pt"
    assert "CK069" not in heard.rules()


def test_an_optimizer_of_another_training_is_not_asked_for(tmp_path: Path) -> None:
    with_optimizer(tmp_path / "a", 1, 2)
    without_optimizer(tmp_path / "b", 3, 4)
    assert told(tmp_path) == {"a": "a/step_2.pt", "b": "b/step_4.pt"}
    assert audit(tmp_path).summary["resume_from"] == "b/step_4.pt"


def test_exported_models_do_not_outvote_whole_checkpoints(tmp_path: Path) -> None:
    with_optimizer(tmp_path, 1, 2)
    for step in (1, 2):
        for kind in ("ema", "half"):
            save({**W, "global_step": step}, tmp_path / f"{kind}_step_{step}.pt")
    heard = audit(tmp_path)
    assert heard.summary["resume_from"] == "step_2.pt"
    assert "CK069" not in heard.rules()


def test_an_optimizer_in_a_file_beside_the_weights_counts(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        state = training_state(step)
        save(state["model_state_dict"], tmp_path / f"step_{step}" / "model.pt")
        if step < 3:
            save(state["optimizer_state_dict"], tmp_path / f"step_{step}" / "optim.pt")
    assert audit(tmp_path).summary["resume_from"] == "step_2/model.pt"


def test_very_many_trainings_are_counted(tmp_path: Path) -> None:
    data = save(W, tmp_path / "c.dat").read_bytes()
    for number in range(105):
        write(tmp_path / "all" / f"run-{number}" / "step_1.pt", data)
    summary = audit(tmp_path / "all").summary
    assert (len(summary["trainings"]), summary["trainings_count"]) == (100, 105)
