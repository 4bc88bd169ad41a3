"""How programs count, name and save, and what of it is sound: series as real training leaves them."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from tests.unit.payloads.check_ckpt.support import LONG_AGO, audit, save, settle, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.unit.payloads.check_ckpt.support import Heard

pytestmark = pytest.mark.torch

_WIDTH = 32


class _Training:
    """Be a training that goes on, step by step."""

    def __init__(self, rate: Callable[[int], float] = lambda _: 1.0) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.BatchNorm1d(_WIDTH), nn.Linear(_WIDTH, 8))
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters())
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, rate)

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.optimizer.zero_grad()
            self.model(torch.randn(16, _WIDTH)).square().mean().backward()
            self.optimizer.step()

    def state(self, **more: object) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), **more}


def _written(path: Path, seconds: int) -> None:
    os.utime(path, (LONG_AGO + seconds, LONG_AGO + seconds))


def _loud(heard: Heard) -> list[tuple[str, str, str]]:
    return [(each["rule"], each["subject"], each["message"]) for each in heard.findings if each["severity"] != "info"]


# --- steps that begin anew with each epoch ----------------------------------------------------------------------------


def _epochs(steps: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Yield the epoch, the step in it and the step of all where something is saved: the last epoch goes on."""
    for made, (epoch, step) in enumerate(((epoch, step) for epoch in range(3) for step in steps), 1):
        if made < 3 * len(steps):
            yield epoch, step, 10 * made


def _save_epochs(folder: Path, name: str, keys: tuple[str, ...]) -> list[Path]:
    training, paths = _Training(), []
    for epoch, step, made in _epochs((10, 20, 30)):
        training.step(10)
        counts = {"epoch": epoch, "step": step, "global_step": made}
        path = folder / name.format(epoch=epoch, step=step)
        paths.append(save(training.state(**{key: counts[key] for key in keys}), path))
        _written(path, made)
    return paths


@pytest.mark.parametrize("name", ["epoch_{epoch}_step_{step}.pt", "checkpoint_{epoch}_{step}.pt", "e{epoch}/{step}.pt"])
@pytest.mark.parametrize("keys", [("epoch", "step"), ("epoch", "step", "global_step"), ("epoch", "global_step")])
def test_steps_may_begin_anew_with_each_epoch(tmp_path: Path, name: str, keys: tuple[str, ...]) -> None:
    paths = _save_epochs(tmp_path, name, keys)
    heard = audit(tmp_path)
    assert _loud(heard) == []
    assert heard.summary["resume_path"] == str(paths[-1])


@pytest.mark.parametrize("name", ["epoch_{epoch}_step_{step}.pt", "epoch_{epoch}/step_{step}.pt"])
def test_the_epoch_may_be_in_the_name_alone(tmp_path: Path, name: str) -> None:
    paths = _save_epochs(tmp_path, name, ("step",))
    heard = audit(tmp_path)
    assert (_loud(heard), heard.summary["resume_path"]) == ([], str(paths[-1]))


def test_the_newest_of_an_epoch_is_damaged(tmp_path: Path) -> None:
    paths = _save_epochs(tmp_path, "epoch_{epoch}_step_{step}.pt", ("epoch", "step"))
    write(paths[1], paths[1].read_bytes()[:9000])
    assert audit(tmp_path).rules() & {"CK020", "CK069"} == {"CK020"}, "it has more steps, and is older"
    write(paths[-1], paths[-1].read_bytes()[:9000])
    heard = audit(tmp_path)
    assert heard.summary["resume_path"] == str(paths[-2])


def test_epochs_may_begin_anew_while_the_steps_go_on(tmp_path: Path) -> None:
    training = _Training()
    for number, epoch in enumerate((0, 1, 2, 0, 1)):
        training.step(10)
        path = save(training.state(epoch=epoch, global_step=10 * number), tmp_path / f"step_{10 * number}.pt")
        _written(path, number)
    heard = audit(tmp_path)
    assert (_loud(heard), heard.summary["resume_from"]) == ([], "step_40.pt")


def test_a_missing_checkpoint_is_told_where_the_name_has_an_epoch_too(tmp_path: Path) -> None:
    training = _Training()
    for number in range(1, 10):
        training.step(5)
        if number != 8:
            save(
                training.state(epoch=number // 2, global_step=number),
                tmp_path / f"epoch={number // 2}-step={number}.ckpt",
            )
    (gap,) = [each for each in audit(tmp_path).findings if each["rule"] == "CK086"]
    assert gap["message"] == "it follows epoch=3-step=7.ckpt by 2, where 1 is usual: some in between are missing"


# --- schedules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_schedule_of_epochs_may_begin_at_zero(tmp_path: Path, epochs: int) -> None:
    """All steps of the first epoch are then without effect, and the biases of a normalisation still zero."""
    training = _Training(lambda epoch: epoch / 20)
    for _ in range(epochs):
        training.step(7)
        training.schedule.step()
    if epochs == 2:
        training.model.state_dict()["1.bias"].zero_()
    save(training.state(scheduler=training.schedule.state_dict(), epoch=epochs), tmp_path / "epoch.pt")
    assert [rule for rule, _, _ in _loud(audit(tmp_path))] == ["CK006"] * (epochs - 1)


_SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]] = {
    "one cycle": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=40),
    "restarts": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 7),
    "exponential": lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95),
    "lambda": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) ** -0.5),
    "warm-up and cosine": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [torch.optim.lr_scheduler.LinearLR(optimizer), torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)],
        [10],
    ),
}


@pytest.mark.filterwarnings("ignore:.*lr_scheduler")
@pytest.mark.parametrize(("kind", "first"), [(torch.optim.AdamW, 1), (torch.optim.AdamW, 0), (torch.optim.SGD, 1)])
@pytest.mark.parametrize("name", _SCHEDULES)
def test_a_scheduler_of_another_step_is_suspect(
    tmp_path: Path, name: str, kind: type[torch.optim.Optimizer], first: int
) -> None:
    training = _Training()
    training.optimizer = kind(training.model.parameters(), lr=1e-3)  # type: ignore[call-arg]
    schedule, states = _SCHEDULES[name](training.optimizer), []
    for step in (10, 20, 30):
        for _ in range(10):
            training.step()
            schedule.step()
        states.append(training.state(scheduler=copy.deepcopy(schedule.state_dict()), global_step=step - 1 + first))
        save(states[-1], tmp_path / f"step_{step}.pt")
    assert _loud(audit(tmp_path)) == []
    save({**states[-1], "scheduler": states[-2]["scheduler"]}, tmp_path / "step_30.pt")
    (found,) = _loud(audit(tmp_path))
    assert found[:2] == ("CK048", "step_30.pt")
    assert found[2].endswith("its learning rate is not the one that was set last")


@pytest.mark.parametrize("schedules", [1, 2, 8])
def test_a_rate_that_was_set_by_hand_is_none_of_another_step(tmp_path: Path, schedules: int) -> None:
    """A scheduler that is asked at every part of a batch is ahead, whatever the rate is."""
    training = _Training(lambda step: 0.99**step)
    for _ in range(30):
        training.step()
        for _ in range(schedules):
            training.schedule.step()
    training.optimizer.param_groups[0]["lr"] = 1e-5
    save(training.state(scheduler=training.schedule.state_dict(), global_step=30), tmp_path / "step_30.pt")
    assert _loud(audit(tmp_path)) == []


def test_an_optimizer_that_was_begun_anew_has_the_rate_of_its_scheduler(tmp_path: Path) -> None:
    training = _Training(lambda step: 0.99**step)
    for step in range(30):
        if step == 8:
            training.optimizer.state.clear()
        training.step()
        training.schedule.step()
    save(training.state(scheduler=training.schedule.state_dict(), global_step=30), tmp_path / "step_30.pt")
    assert _loud(audit(tmp_path)) == []


@pytest.mark.parametrize(("gone", "expected"), [("scheduler.pt", ["CK060"]), ("optimizer.pt", [])])
def test_trainer_needs_the_scheduler_to_load_the_optimizer(tmp_path: Path, gone: str, expected: list[str]) -> None:
    """Without either of the two, it begins with both anew and says nothing; a model is published without the other."""
    from safetensors.torch import save_file

    training = _Training()
    training.step(10)
    training.schedule.step()
    write(tmp_path / "trainer_state.json", b'{"epoch": 1.0, "global_step": 10, "log_history": []}')
    write(tmp_path / "config.json", b'{"model_type": "llama"}')
    save_file(training.model.state_dict(), tmp_path / "model.safetensors", {"format": "pt"})
    settle(tmp_path / "model.safetensors")
    states = {"optimizer": training.optimizer.state_dict(), "scheduler": training.schedule.state_dict()}
    for name, state in states.items():
        save({**state, "last_epoch": 10} if name == "scheduler" else state, tmp_path / f"{name}.pt")
    (tmp_path / gone).unlink()
    heard = audit(tmp_path, later=1e6)
    assert [rule for rule, _, _ in _loud(heard)] == expected


# --- averages at the end ----------------------------------------------------------------------------------------------


def _save_averages(folder: Path, apart: int, last: int) -> None:
    """Save while weights and optimizer go on, then while the optimizer stands still."""
    training = _Training()
    for step in (10, 20, 30):
        training.step(10)
        save(training.state(global_step=step), folder / f"step_{step}.pt")
    for count in range(1, last + 1):
        with torch.no_grad():
            for each in training.model.parameters():
                each.mul_(0.9)
        save(training.state(global_step=30 + count * apart), folder / f"step_{30 + count * apart}.pt")


def test_weights_may_be_averaged_at_the_end(tmp_path: Path) -> None:
    _save_averages(tmp_path, apart=1, last=1)
    heard = audit(tmp_path)
    assert _loud(heard) == []
    assert heard.of("CK081")["severity"] == "info"
    assert heard.summary["resume_from"] == "step_31.pt"


@pytest.mark.parametrize(("apart", "last"), [(10, 1), (1, 2)])
def test_an_optimizer_that_stands_still_is_told(tmp_path: Path, apart: int, last: int) -> None:
    _save_averages(tmp_path, apart, last)
    assert ("CK081", f"step_{30 + apart * last}.pt") in {(rule, subject) for rule, subject, _ in _loud(audit(tmp_path))}


@pytest.mark.parametrize("stale", [(3,), (2, 4), (5,)])
def test_an_optimizer_that_stands_still_while_training_goes_on_is_told(tmp_path: Path, stale: tuple[int, ...]) -> None:
    """As where it is saved every other time: each of its states is there once more, and no more often."""
    training, states = _Training(), []
    for step in range(1, 7):
        training.step(1)
        states.append(copy.deepcopy(training.state(global_step=step)))
        if step in stale:
            states[-1]["optimizer"] = states[-2]["optimizer"]
        save(states[-1], tmp_path / f"step_{step}.pt")
    told = {subject for rule, subject, _ in _loud(audit(tmp_path)) if rule == "CK081"}
    assert told == {f"step_{step}.pt" for step in stale}


# --- variances --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copy", ["model", "ema"])
def test_a_running_variance_below_zero_is_damage(tmp_path: Path, copy: str) -> None:
    """It is normalised by its square root; all is finite in the file, and nothing is behind the layer."""
    training = _Training()
    training.step(3)
    state = training.state(step=3, ema={name: value.clone() for name, value in training.model.state_dict().items()})
    save(state, tmp_path / "step_3.pt")
    assert _loud(audit(tmp_path)) == []
    state[copy]["1.running_var"][5] *= -1
    save(state, tmp_path / "step_3.pt")
    found = audit(tmp_path).of("CK044")
    assert (found["severity"], found["data"]["tensor"]) == ("bad", f"{copy}.1.running_var")
    assert "optimizer" not in found["next_step"]


# --- what lies beside -------------------------------------------------------------------------------------------------


def _save_speech(folder: Path) -> None:
    """Save as SpeechBrain does: whatever it is, it has the same extension."""
    training = _Training()
    for epoch in (1, 2):
        training.step(5)
        place = folder / f"CKPT+2026-11-{epoch:02d}+12-00-00+00"
        texts = {
            "counter": str(epoch),
            "brain": f"avg_train_loss: 1.5\noptimizer_step: {5 * epoch}\n",
            "dataloader-TRAIN": "9",
        }
        for name, text in texts.items():
            write(place / f"{name}.ckpt", text.encode())
        write(place / "CKPT.yaml", b"WER: 12.5\nend-of-epoch: true\n")
        states = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
        states["lr_annealing"] = {"losses": [1.5], "anneal_point": 0}
        for name, state in states.items():
            save(state, place / f"{name}.ckpt")
            _written(place / f"{name}.ckpt", epoch)


def test_texts_among_checkpoints_of_speechbrain(tmp_path: Path) -> None:
    _save_speech(tmp_path)
    heard = audit(tmp_path)
    assert _loud(heard) == []
    assert heard.summary["resume_path"] == str(tmp_path / "CKPT+2026-11-02+12-00-00+00" / "model.ckpt")
    (skipped,) = heard.summary["skipped"]
    assert skipped["reason"] == "a text beside weights, as SpeechBrain keeps it (and 5 more)"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("model.ckpt", b"5"),
        ("counter.ckpt", b"version https://git-lfs.github.com/spec/v1\n"),
        ("counter.ckpt", b""),
        ("brain.ckpt", b"\0" * 99),
    ],
)
def test_what_is_no_text_of_a_counter_is_told(tmp_path: Path, name: str, data: bytes) -> None:
    _save_speech(tmp_path)
    path = write(tmp_path / "CKPT+2026-11-02+12-00-00+00" / name, data)
    assert {each["data"]["file"] for each in audit(tmp_path).findings if each["severity"] == "bad"} == {str(path)}


def _save_parts(folder: Path, name: str, state: object) -> None:
    training = _Training()
    for step in (10, 20):
        training.step(10)
        place = folder / f"step_{step}"
        save(training.model.state_dict(), place / "model.pt")
        save(training.optimizer.state_dict(), place / "optimizer.pt")
        save(state, place / name)


@pytest.mark.parametrize("name", ["trainer.pt", "state.pth", "state_20.pth", "meta.pt"])
def test_counters_in_a_file_of_their_own_go_with_the_weights(tmp_path: Path, name: str) -> None:
    _save_parts(tmp_path, name, {"epoch": 1, "best": 0.5})
    heard = audit(tmp_path)
    assert _loud(heard) == []
    assert heard.summary["resume_path"] == str(tmp_path / "step_20" / "model.pt")
    assert heard.summary["companions"] == [f"step_20/{name}", f"step_10/{name}"]


def test_a_file_of_such_a_name_that_has_tensors_is_a_checkpoint(tmp_path: Path) -> None:
    _save_parts(tmp_path, "trainer.pt", _Training().state(step=0))
    assert len(audit(tmp_path).records) == 6


def test_a_file_of_counters_by_itself_is_no_checkpoint(tmp_path: Path) -> None:
    path = save({"epoch": 1}, tmp_path / "state.pt")
    assert audit(path).record["verdict"] == "unsupported"
    assert audit(tmp_path).nothing_judged


# --- files of ranks ---------------------------------------------------------------------------------------------------


def _save_ranks(folder: Path, ranks: dict[int, int]) -> None:
    training = _Training()
    for step, count in ranks.items():
        training.step(10)
        for rank in range(count):
            save(training.state(step=step), folder / f"step_{step}" / f"rank_{rank}.pt")


def test_a_rank_whose_file_all_others_have_is_missing(tmp_path: Path) -> None:
    _save_ranks(tmp_path, {10: 2, 20: 2, 30: 1})
    heard = audit(tmp_path)
    (found,) = _loud(heard)
    assert found[0] == "CK066"
    assert found[2] == "rank_1.pt is not there, which all 2 checkpoints beside it have: the save may not have ended"
    assert heard.summary["resume_from"].startswith("step_20")


@pytest.mark.parametrize("ranks", [{10: 2, 20: 2, 30: 2}, {10: 1, 20: 1, 30: 2}, {10: 4, 20: 4, 30: 2, 40: 2}])
def test_more_ranks_or_fewer_from_one_step_on_are_quiet(tmp_path: Path, ranks: dict[int, int]) -> None:
    _save_ranks(tmp_path, ranks)
    assert _loud(audit(tmp_path)) == []
