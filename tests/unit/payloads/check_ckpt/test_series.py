"""Series of checkpoints as audits see them: stale copies, steps back, and all the things that only look like them."""

from __future__ import annotations

import copy
import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
from safetensors.torch import save_file

from remoterun.payloads import check_ckpt
from tests.unit.payloads.check_ckpt.support import (
    ENGINES,
    LONG_AGO,
    Heard,
    NothingError,
    audit,
    overwrite,
    place_of,
    save,
)

if TYPE_CHECKING:
    from remoterun.remote.runtime import Context

pytestmark = pytest.mark.torch

WARM = 10.0
State = dict[str, Any]


class Training:
    """Train four layers with AdamW, and say what a training script saves."""

    def __init__(self, seed: int = 0, lr: float = 1e-3, width: int = 32) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(4)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)
        self.width = width

    def train_to(self, step: int) -> State:
        """Train some steps, which all count as many of the global ones; return what is to be saved."""
        for _ in range(3):
            self.optimizer.zero_grad()
            self.model(torch.randn(4, self.width)).pow(2).mean().backward()
            self.optimizer.step()
        return copy.deepcopy(
            {
                "model_state_dict": self.model.state_dict(),
                "optimizer_state_dict": self.optimizer.state_dict(),
                "global_step": step,
                "epoch": 0,
            }
        )


def trained(*steps: int, **options: Any) -> list[State]:
    """Return what a training run has to save at some steps."""
    training = Training(**options)
    return [training.train_to(step) for step in steps]


def lay_out(folder: Path, states: list[State], name: str = "step_{}.pt") -> Path:
    """Save checkpoints an hour after each other."""
    for state in states:
        path = save(state, folder / name.format(state["global_step"]))
        when = LONG_AGO + 36 * state["global_step"]
        os.utime(path, (when, when))
    return folder


def verdicts(heard: Heard) -> dict[str, str]:
    return {record["name"].removesuffix(".pt"): record["verdict"] for record in heard.records}


def of_series(heard: Heard) -> list[tuple[str, str, str]]:
    """Return the findings that comparisons have made."""
    return sorted(
        (each["subject"].removesuffix(".pt"), each["rule"], each["severity"])
        for each in heard.findings
        if "CK080" <= each["rule"] <= "CK087"
    )


# --- R13 ---


def test_a_copy_under_a_later_step_is_bad(tmp_path: Path) -> None:
    one, two, _, four = trained(100, 200, 300, 400)
    lay_out(tmp_path, [one, two, {**two, "global_step": 300}, four])
    heard = audit(tmp_path)
    assert of_series(heard) == [("step_300", "CK081", "bad")]
    assert verdicts(heard) == {"step_400": "ok", "step_300": "bad", "step_200": "ok", "step_100": "ok"}
    found = heard.of("CK081")
    assert found["message"] == "all weights and the optimizer's moments are bit-identical to those of step_200.pt"
    assert found["data"]["compared_path"] == str(tmp_path / "step_200.pt")
    assert "series" not in {record["kind"] for record in heard.emitted}


def test_a_copy_of_the_optimizer_alone_is_bad(tmp_path: Path) -> None:
    one, two, three = trained(100, 200, 300)
    lay_out(tmp_path, [one, two, {**three, "optimizer_state_dict": two["optimizer_state_dict"]}])
    heard = audit(tmp_path)
    assert of_series(heard) == [("step_300", "CK081", "bad")]
    assert heard.of("CK081")["message"].startswith("the optimizer's moments are bit-identical to those of step_200.pt")


def gone_back(folder: Path) -> Path:
    """Lay out four checkpoints, of which the newest has the weights of the oldest."""
    one, two, three, four = trained(100, 200, 300, 400)
    return lay_out(folder, [one, two, three, {**four, "model_state_dict": one["model_state_dict"]}])


def test_the_first_audit_says_of_weights_of_long_ago_what_the_next_one_says(tmp_path: Path) -> None:
    gone_back(tmp_path)
    cold, warm = audit(tmp_path, later=WARM), audit(tmp_path, later=2 * WARM)
    for heard in (cold, warm):
        assert of_series(heard) == [("step_400", "CK084", "bad")]
        assert [(each["name"], each["verdict"]) for each in heard.records] == [
            ("step_400.pt", "bad"),
            *((f"step_{step}.pt", "ok") for step in (300, 200, 100)),
        ]
        assert heard.records[0]["findings"] == ["CK084"]
        assert heard.summary["resume_from"] == "step_300.pt"
        assert heard.summary["verdicts"] == {"bad": 1, "ok": 3}
        assert {record["kind"] for record in heard.emitted} == {"checkpoint", "summary"}
    assert ["cached" in each for each in (*cold.records, *warm.records)] == [False] * 4 + [True] * 4
    assert cold.findings == warm.findings


class Watching(Heard):
    """Notes how far the audit is when records come."""

    def emit(self, record: dict[str, Any]) -> None:
        """Take a record."""
        record["progress"] = len(self.steps)
        super().emit(record)


def test_what_waits_to_be_reported_is_bounded(tmp_path: Path) -> None:
    """Ten thousand findings do not wait for the oldest checkpoint."""
    broken = {f"w{number}": torch.full((2,), float("nan")) for number in range(20)}
    for step in range(500):
        save_file(broken, tmp_path / f"step_{step}.safetensors")
    heard = Watching({"root": str(tmp_path), "depth": 6, "engine": "auto", "cache": False})
    check_ckpt.run(cast("Context", heard), lambda: LONG_AGO + 60 * 60)
    records = [record for record in heard.emitted if record["kind"] == "checkpoint"]
    assert (len(records), records[0]["name"]) == (500, "step_499.safetensors")
    assert records[0]["progress"] < records[-1]["progress"]


def test_a_long_audit_reports_what_it_has_read_and_tells_the_rest_behind(tmp_path: Path) -> None:
    """By the time the oldest was read, the newest had been reported."""
    heard = Heard({"root": str(gone_back(tmp_path)), "depth": 6, "engine": "auto", "cache": False})
    minutes = itertools.count()
    check_ckpt.run(cast("Context", heard), lambda: LONG_AGO + 60 * 60 + 60.0 * next(minutes))
    assert of_series(heard) == [("step_400", "CK084", "bad")]
    assert verdicts(heard)["step_400"] == "ok"
    assert [record for record in heard.emitted if record["kind"] == "series"] == [
        {
            "kind": "series",
            "name": "step_#.pt",
            "checkpoints": ["step_400.pt"],
            "verdict": "bad",
            "findings": ["CK084"],
        }
    ]
    assert heard.summary["resume_from"] == "step_300.pt"
    assert heard.summary["verdicts"] == {"bad": 1, "ok": 3}


@pytest.mark.parametrize(("source", "expected"), [(0, ("CK084", "bad")), (2, ("CK081", "suspect"))])
def test_a_schedule_that_ends_at_zero_excuses_no_older_weights(
    tmp_path: Path, source: int, expected: tuple[str, str]
) -> None:
    states = trained(100, 200, 300, 400)
    states[3]["optimizer_state_dict"]["param_groups"][0]["lr"] = 0.0
    assert_quiet(lay_out(tmp_path / "sound", states))
    states[3]["model_state_dict"] = states[source]["model_state_dict"]
    heard = audit(lay_out(tmp_path / "stale", states))
    assert of_series(heard) == [("step_400", *expected)]
    assert heard.summary["resume_from"] == "step_300.pt"


def test_a_weight_that_became_zero_is_suspect_at_any_rate(tmp_path: Path) -> None:
    states = trained(100, 200)
    states[1]["optimizer_state_dict"]["param_groups"][0]["lr"] = 0.0
    assert_quiet(lay_out(tmp_path / "sound", states))
    states[1]["model_state_dict"]["2.weight"].zero_()
    heard = audit(lay_out(tmp_path / "emptied", states))
    assert of_series(heard) == [("step_200", "CK082", "suspect")]
    assert heard.of("CK082")["data"]["tensors"] == ["model_state_dict.2.weight"]


def test_an_adapter_that_begins_again_is_quiet(tmp_path: Path) -> None:
    """Once it is merged into the model, its second factor is zero again."""
    states = trained(100, 200)
    for state in states:
        state["model_state_dict"]["up.lora_B.weight"] = torch.randn(64, 8)
    states[1]["model_state_dict"]["up.lora_B.weight"].zero_()
    assert of_series(audit(lay_out(tmp_path, states))) == []


def test_weights_of_an_earlier_step_in_a_torn_save_are_no_finding_of_their_own(tmp_path: Path) -> None:
    one, two = trained(100, 200)
    two["model_state_dict"]["0.weight"] = one["model_state_dict"]["0.weight"]
    lay_out(tmp_path, [one, two])
    assert of_series(audit(tmp_path)) == [("step_200", "CK080", "suspect")]
    offset, size = place_of(tmp_path / "step_200.pt", "data/2")
    overwrite(tmp_path / "step_200.pt", offset, (torch.randn(size // 4) / 32).numpy().tobytes())
    heard = audit(tmp_path)
    assert heard.rules() == {"CK022", "CK041", "CK069", "CK086"}, "and not CK080"


def test_a_frozen_layer_is_no_fault(tmp_path: Path) -> None:
    training = Training()
    training.model[0].requires_grad_(False)
    lay_out(tmp_path, [training.train_to(step) for step in (100, 200, 300)])
    heard = audit(tmp_path)
    assert of_series(heard) == [("step_200", "CK080", "info"), ("step_300", "CK080", "info")]
    assert set(verdicts(heard).values()) == {"ok"}


def test_a_weight_that_stands_still_is_suspect(tmp_path: Path) -> None:
    one, two = trained(100, 200)
    two["model_state_dict"]["2.weight"] = one["model_state_dict"]["2.weight"]
    lay_out(tmp_path, [one, two])
    heard = audit(tmp_path)
    assert of_series(heard) == [("step_200", "CK080", "suspect")]
    assert heard.of("CK080")["data"]["tensors"] == ["model_state_dict.2.weight"]


def test_a_flipped_exponent_bit_leaps(tmp_path: Path) -> None:
    one, two = trained(100, 200)
    weight = two["model_state_dict"]["2.weight"]
    weight[1, 1] = weight[1, 1] * 2.0**100
    lay_out(tmp_path, [one, two])
    heard = audit(tmp_path)
    assert ("step_200", "CK082", "suspect") in of_series(heard)
    assert verdicts(heard)["step_100"] == "ok"


def test_a_series_that_is_cast_midway_is_suspect(tmp_path: Path) -> None:
    one, two = trained(100, 200)
    two["model_state_dict"] = {name: value.bfloat16() for name, value in two["model_state_dict"].items()}
    lay_out(tmp_path, [one, two])
    assert of_series(audit(tmp_path)) == [("step_200", "CK083", "suspect")]


def test_the_first_checkpoint_with_nan_is_named(tmp_path: Path) -> None:
    states = trained(100, 200, 300, 400)
    for state in states[2:]:
        state["model_state_dict"]["0.weight"][0, 0] = float("nan")
    lay_out(tmp_path, states)
    heard = audit(tmp_path)
    assert [each for each in of_series(heard) if each[1] == "CK085"] == [("step_300", "CK085", "info")]
    assert verdicts(heard) == {"step_400": "bad", "step_300": "bad", "step_200": "ok", "step_100": "ok"}


# --- what is no fault ---


def assert_quiet(folder: Path) -> Heard:
    """Audit cold and warm; nothing above information is found of a series, and both say the same."""
    cold, warm = audit(folder, later=WARM), audit(folder, later=2 * WARM)
    for heard in (cold, warm):
        assert [each for each in of_series(heard) if each[2] != "info"] == []
        assert set(verdicts(heard).values()) == {"ok"}
    assert of_series(cold) == of_series(warm)
    return cold


def test_training_is_quiet(tmp_path: Path) -> None:
    heard = assert_quiet(lay_out(tmp_path, trained(*range(100, 700, 100))))
    assert of_series(heard) == []
    assert [record["name"] for record in heard.records] == [f"step_{step}.pt" for step in range(600, 0, -100)]


class Tied(torch.nn.Module):
    """Predict tokens with the weights that embed them; most tokens never come."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(200, 8)
        self.head = torch.nn.Linear(8, 200, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding((rows[:, 0] * 3).long() % 10))  # type: ignore[no-any-return]


class Adapted(torch.nn.Module):
    """Train a low-rank adapter beside frozen weights."""

    def __init__(self) -> None:
        super().__init__()
        self.base = torch.nn.Linear(16, 16).requires_grad_(requires_grad=False)
        self.lora_A = torch.nn.Linear(16, 4, bias=False)
        self.lora_B = torch.nn.Linear(4, 16, bias=False)
        torch.nn.init.zeros_(self.lora_B.weight)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.base(rows) + self.lora_B(self.lora_A(rows))  # type: ignore[no-any-return]


class Forsaken(torch.nn.Module):
    """Stop using a part, whose moments fade away."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.forsaken, self.batches = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16), 0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.batches += 1
        return self.used(rows) + self.forsaken(rows) * (self.batches < 5)  # type: ignore[no-any-return]


def _normalized() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 16))


@pytest.mark.parametrize("make", [Tied, Adapted, Forsaken, _normalized])
@pytest.mark.parametrize(
    ("dtype", "rate"), [(torch.float32, 1e-7), (torch.float32, 0.1), (torch.bfloat16, 1e-4), (torch.bfloat16, 0.1)]
)
def test_models_of_all_kinds_are_quiet(
    tmp_path: Path, make: Callable[[], torch.nn.Module], dtype: torch.dtype, rate: float, seed: int
) -> None:
    torch.manual_seed(seed)
    model = make().to(dtype)
    parameters = [each for each in model.parameters() if each.requires_grad]
    groups = [{"params": [each]} for each in parameters if each.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": [each for each in parameters if each.dim() > 1]}, *groups], lr=rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 3) * max(0.0, 1 - step / 60))
    for step in range(61):
        if step in (0, 1, 2, 5, 30, 60):
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "global_step": step}
            save(state, tmp_path / f"step_{step}.pt")
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        model(torch.randn(8, 16, dtype=dtype)).float().pow(2).mean().backward()
        optimizer.step()
        schedule.step()
    heard = audit(tmp_path)
    assert [each for each in of_series(heard) if each[2] != "info"] == []


def test_weights_alone_and_whole_states_may_take_turns(tmp_path: Path) -> None:
    states = trained(*range(100, 700, 100))
    for state in states[::2]:
        del state["optimizer_state_dict"]
    assert_quiet(lay_out(tmp_path, states))


def test_copies_called_best_and_last_are_quiet(tmp_path: Path) -> None:
    lay_out(tmp_path, trained(100, 200, 300))
    shutil.copy2(tmp_path / "step_200.pt", tmp_path / "best.pt")
    shutil.copy2(tmp_path / "step_300.pt", tmp_path / "last.pt")
    shutil.copy2(tmp_path / "step_200.pt", tmp_path / "best_step_200.pt")
    (tmp_path / "latest.pt").symlink_to("step_300.pt")
    assert_quiet(tmp_path)


def test_averaged_weights_beside_are_quiet(tmp_path: Path) -> None:
    states = trained(100, 200, 300)
    lay_out(tmp_path, states)
    for decay in (0.99, 0.9999):
        averaged = copy.deepcopy(states[0]["model_state_dict"])
        for state in states:
            for name, value in averaged.items():
                value.lerp_(state["model_state_dict"][name], 1 - decay)
            save({"ema": dict(averaged)}, tmp_path / f"ema_{decay}_step_{state['global_step']}.pt")
    assert_quiet(tmp_path)


def test_saves_that_were_renamed_and_saved_again_are_quiet(tmp_path: Path) -> None:
    states = trained(100, 200, 300, 400)
    lay_out(tmp_path, states)
    (tmp_path / "step_100.pt").unlink()
    save(states[0], tmp_path / "step_0100.pt", fresh=True)
    assert_quiet(tmp_path)


def test_a_run_that_was_started_again_in_the_same_folder_is_quiet(tmp_path: Path) -> None:
    lay_out(tmp_path, trained(100, 200, 300, 400))
    for state in trained(100, 200, seed=1):
        save(state, tmp_path / f"step_{state['global_step']}.pt", fresh=True)
    assert_quiet(tmp_path)


def test_a_fine_tuning_with_a_fresh_optimizer_is_quiet(tmp_path: Path) -> None:
    training = Training()
    states = [training.train_to(step) for step in (100, 200, 300)]
    training.optimizer = torch.optim.AdamW(training.model.parameters(), lr=1e-5)
    assert_quiet(lay_out(tmp_path, [*states, training.train_to(400), training.train_to(500)]))


def test_the_end_of_a_schedule_is_quiet(tmp_path: Path) -> None:
    training = Training()
    states = [training.train_to(100)]
    training.optimizer.param_groups[0]["lr"] = 0.0
    states[0]["optimizer_state_dict"]["param_groups"][0]["lr"] = 0.0
    assert_quiet(lay_out(tmp_path, [*states, training.train_to(200), training.train_to(300)]))


def test_two_runs_side_by_side_are_two_series(tmp_path: Path) -> None:
    states = trained(100, 200, 300)
    for run in ("a", "b"):
        lay_out(tmp_path / run, states, "step_{}/checkpoint.pt")
    assert_quiet(tmp_path)


def test_a_part_of_a_pipeline_that_is_not_trained_is_quiet(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        torch.manual_seed(0)
        save(torch.nn.Linear(32, 32).state_dict(), tmp_path / f"epoch_{step}" / "vae" / "model.pt")
        torch.manual_seed(step)
        save(torch.nn.Linear(32, 32).state_dict(), tmp_path / f"epoch_{step}" / "unet" / "model.pt")
    assert_quiet(tmp_path)


def _trainer_folder(folder: Path, state: State) -> None:
    """Save what the Trainer of transformers does."""
    folder.mkdir(parents=True)
    save_file(state["model_state_dict"], folder / "model.safetensors", metadata={"format": "pt"})
    save(state["optimizer_state_dict"], folder / "optimizer.pt")
    save({"last_epoch": state["global_step"], "_step_count": state["global_step"] + 1}, folder / "scheduler.pt")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": state["global_step"], "epoch": 0.5}))
    (folder / "config.json").write_text("{}")


def test_checkpoints_of_many_files_are_compared_as_one(tmp_path: Path) -> None:
    one, two, three, four = trained(3, 6, 9, 12)
    for state in (one, two, three, four):
        _trainer_folder(tmp_path / f"checkpoint-{state['global_step']}", state)
    heard = assert_quiet(tmp_path)
    assert [record["name"] for record in heard.records] == [f"checkpoint-{step}" for step in (12, 9, 6, 3)]
    shutil.rmtree(tmp_path / "checkpoint-12")
    _trainer_folder(tmp_path / "checkpoint-12", {**four, "model_state_dict": two["model_state_dict"]})
    heard = audit(tmp_path, later=3 * WARM)
    assert [bool(record.get("cached")) for record in heard.records] == [False, True, True, True]
    assert of_series(heard) == [("checkpoint-12", "CK084", "bad")]
    assert heard.summary["resume_from"] == "checkpoint-9"


def test_one_changed_file_of_many_is_read_with_the_others(tmp_path: Path) -> None:
    (state,) = trained(3)
    _trainer_folder(tmp_path / "checkpoint-3", state)
    audit(tmp_path, later=WARM)
    save({"last_epoch": 3, "_step_count": 4, "base_lrs": [0.1]}, tmp_path / "checkpoint-3" / "scheduler.pt")
    assert "cached" not in audit(tmp_path, later=2 * WARM).record
    (tmp_path / "checkpoint-3" / "rng_state.pth").write_bytes((tmp_path / "checkpoint-3" / "scheduler.pt").read_bytes())
    assert "cached" not in audit(tmp_path, later=3 * WARM).record


# --- from audit to audit ---


def test_a_new_checkpoint_is_held_against_what_is_remembered(tmp_path: Path) -> None:
    one, two, three, four = trained(100, 200, 300, 400)
    lay_out(tmp_path, [one, two, three])
    audit(tmp_path, later=WARM)
    lay_out(tmp_path, [{**four, "model_state_dict": one["model_state_dict"]}])
    heard = audit(tmp_path, later=2 * WARM)
    assert [bool(record.get("cached")) for record in heard.records] == [False, True, True, True]
    assert verdicts(heard)["step_400"] == "bad"
    assert of_series(heard) == [("step_400", "CK084", "bad")]


@pytest.mark.parametrize("engines", [ENGINES, ENGINES[::-1]])
def test_what_one_engine_saw_is_held_against_what_another_sees(tmp_path: Path, engines: tuple[str, str]) -> None:
    one, two, three = trained(100, 200, 300)
    two["model_state_dict"]["2.weight"] = one["model_state_dict"]["2.weight"]
    lay_out(tmp_path, [one, two])
    audit(tmp_path, later=WARM, engine=engines[0])
    lay_out(tmp_path, [{**three, "model_state_dict": two["model_state_dict"]}])
    heard = audit(tmp_path, later=2 * WARM, engine=engines[1])
    assert [bool(record.get("cached")) for record in heard.records] == [False, True, True]
    assert of_series(heard) == [("step_200", "CK080", "suspect"), ("step_300", "CK081", "bad")]


def test_a_comparison_is_made_again_when_the_one_before_is_another(tmp_path: Path) -> None:
    one, two, three = trained(100, 200, 300)
    three["model_state_dict"]["2.weight"] = two["model_state_dict"]["2.weight"]
    lay_out(tmp_path, [one, two, three])
    for later in (WARM, 2 * WARM):
        assert of_series(audit(tmp_path, later=later)) == [("step_300", "CK080", "suspect")]
    (tmp_path / "step_200.pt").unlink()
    for later in (3 * WARM, 4 * WARM):
        heard = audit(tmp_path, later=later)
        assert all(record["cached"] for record in heard.records)
        assert of_series(heard) == []


def test_without_a_cache_comparisons_are_the_same(tmp_path: Path) -> None:
    one, two, three = trained(100, 200, 300)
    lay_out(tmp_path, [one, {**one, "global_step": 200}, {**three, "model_state_dict": two["model_state_dict"]}])
    with_it, without = audit(tmp_path, later=WARM), audit(tmp_path, later=WARM, cache=False)
    assert of_series(with_it) == of_series(without) == [("step_200", "CK081", "bad")]


def test_very_many_trainings_that_wait_for_each_other_are_compared(tmp_path: Path) -> None:
    """The newest of each comes first, so that all of them wait for the one before."""
    one, two, three = trained(100, 200, 300)
    three["model_state_dict"]["2.weight"] = two["model_state_dict"]["2.weight"]
    for number in range(20):
        lay_out(tmp_path / f"run-{number}", [one, two, three])
    heard = audit(tmp_path, later=WARM)
    newest = sorted(f"run-{number}/step_300" for number in range(20))
    assert sorted(record["name"] for record in heard.records[:20]) == [f"{name}.pt" for name in newest]
    assert of_series(heard) == [(name, "CK080", "suspect") for name in newest]
    assert of_series(audit(tmp_path, later=2 * WARM)) == of_series(heard)


# --- headers alone, and parts of a series ---


def test_headers_alone_show_a_change_of_form(tmp_path: Path) -> None:
    one, two = trained(100, 200)
    two["model_state_dict"]["2.weight"] = torch.zeros(32, 33)
    lay_out(tmp_path, [one, two])
    heard = audit(tmp_path, deep=False)
    assert of_series(heard) == [("step_200", "CK083", "suspect")]
    assert verdicts(heard) == {"step_200": "suspect", "step_100": "unchecked"}
    assert heard.summary["resume_from"] is None


def test_headers_alone_are_never_called_ok(tmp_path: Path) -> None:
    lay_out(tmp_path, trained(100, 200))
    heard = audit(tmp_path, deep=False)
    for record in heard.records:
        assert (record["verdict"], record["bytes_checked"], record["nan_weights"]) == ("unchecked", 0, None)
        assert (record["step"], record["params"]) == (int(record["name"][5:8]), 4224)
    assert {(each["rule"], each["severity"]) for each in heard.findings} == {("CK126", "info")}


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        (LONG_AGO + 7200.0, ["step_300.pt", "step_200.pt"]),
        (-1e7, []),
        (0.0, ["step_300.pt", "step_200.pt", "step_100.pt"]),
    ],
)
def test_only_what_was_written_since_then(tmp_path: Path, since: float, expected: list[str]) -> None:
    lay_out(tmp_path, trained(100, 200, 300))
    if expected:
        assert [record["name"] for record in audit(tmp_path, since=since).records] == expected
    else:
        with pytest.raises(NothingError, match="was written since then; the newest was"):
            audit(tmp_path, since=since)


def test_since_counts_back_from_now(tmp_path: Path) -> None:
    lay_out(tmp_path, trained(100))
    save(trained(200)[0], tmp_path / "step_200.pt", fresh=True)
    assert audit(tmp_path, since=-3600.0).record["name"] == "step_200.pt"
    assert audit(tmp_path, since=-3600.0, newest=1, match="step_2*").record["name"] == "step_200.pt"
