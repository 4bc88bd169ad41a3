"""The demo's story, played through real transports by the API."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from remoterun import Outcome, Project, Run, Status
from remoterun.api import Choice, carry_out
from remoterun.lab import Lab
from remoterun.lab.demo import HOST, PLAYBOOK, departures, lay_out


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Run]]:
    folder = tmp_path_factory.mktemp("demo")
    with Lab.start(folder, lay_out(folder), host=HOST):
        plan = Project.load(folder).plan_play(PLAYBOOK, Choice(use_cache=False))
        yield folder, asyncio.run(carry_out(plan))


def outcome(run: Run, target: str) -> Outcome:
    return next(item for item in run.outcomes if item.target == target)


def verdicts(run: Run, target: str) -> dict[str, str]:
    records = outcome(run, target).records
    return {str(record["name"]): str(record["verdict"]) for record in records if record["kind"] == "checkpoint"}


def test_it_goes_as_told(played: tuple[Path, Run]) -> None:
    _, run = played
    assert departures(run) == []
    assert [item.target for item in run.outcomes] == ["kpro6/200", "kpro6/201", "kpro6/202"]


def test_every_checkpoint_is_judged(played: tuple[Path, Run]) -> None:
    _, run = played
    assert verdicts(run, "kpro6/201") == {"step_1000": "ok", "step_500": "ok"}
    # What benchmarks/make_demo_checkpoints.py has done to them.
    assert verdicts(run, "kpro6/200") == {
        "step_5000": "bad",  # cut off
        "step_4500": "bad",  # torn by a concurrent step
        "step_4001": "bad",  # NaN in a weight
        "step_4000": "ok",
        "step_3000": "bad",  # NaN in the optimizer's state
        "step_2000": "ok",
        "step_1000": "ok",
    }
    counts = {
        record["name"]: (record["nan_weights"], record["nan_optimizer"])
        for record in outcome(run, "kpro6/200").records
        if record["kind"] == "checkpoint"
    }
    assert counts["step_4001"] == (3, 0)
    assert counts["step_3000"] == (0, 3)


def test_a_training_wrote_them_one_after_another(played: tuple[Path, Run]) -> None:
    folder, run = played
    for vmid in ("200", "201"):
        times = {path.name: path.stat().st_mtime for path in (folder / "guests" / vmid / "checkpoints").iterdir()}
        steps = {
            str(record["name"]): record["step"]
            for record in outcome(run, f"kpro6/{vmid}").records
            if record["kind"] == "checkpoint" and record["step"] is not None
        }
        assert len(steps) > 1
        assert sorted(steps, key=lambda name: times[name]) == sorted(steps, key=lambda name: int(str(steps[name])))
        assert max(times.values()) < time.time() - 60


def test_another_end_is_told(played: tuple[Path, Run]) -> None:
    _, run = played
    first, *others = run.outcomes
    healed = replace(run, outcomes=(replace(first, status=Status.OK), *others))
    assert departures(healed) == ["kpro6/200 should have ended as findings, and ended as ok"]
    assert departures(replace(run, outcomes=())) == [
        "kpro6/200 should have ended as findings, and ended as nothing at all",
        "kpro6/201 should have ended as ok, and ended as nothing at all",
        "kpro6/202 should have ended as failed guest_stopped, and ended as nothing at all",
    ]
