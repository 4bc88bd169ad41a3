"""Playbooks that a program has made, which no schema has checked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import remoterun
from remoterun import Playbook, Severity, Step
from tests.support.project import Project


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Project(folder=tmp_path)
    (tmp_path / "inventory.yaml").write_text(f"hosts: {{a: {{transport: local, python: {sys.executable}}}}}\n", "utf-8")
    made.payload("find", "def run(ctx):\n    ctx.finding('F1', 'suspect', 'x', 'y')\n")
    monkeypatch.chdir(tmp_path)


def _play(whole: Any, **step: Any) -> remoterun.Run:
    return remoterun.play(Playbook(name="made", steps=(Step(payload="find", **step),), limits=whole), on=["a"])


@pytest.mark.parametrize(("fail_on", "status"), [("bad", "ok"), ("suspect", "findings"), (Severity.BAD, "ok")])
def test_limits_and_severities_may_be_texts_as_in_a_file(fail_on: str, status: str) -> None:
    run = _play({"stall": "2m"}, limits={"run": "1m", "total": 90}, fail_on=fail_on)
    assert (run.status, run.outcomes[0].error) == (status, None)


@pytest.mark.parametrize(
    ("step", "path", "words"),
    [
        ({"limits": {"run": "soon"}}, "steps.0.limits run", "'soon' is not a duration"),
        ({"limits": {"nope": 1.0}}, "steps.0.limits", "there is no limit 'nope'"),
        ({"fail_on": "wrong"}, "steps.0.fail_on", "must be info, suspect, bad, not 'wrong'"),
        ({"env": {"OMP_NUM_THREADS": 4}}, "env OMP_NUM_THREADS", "must be text, not 4"),
    ],
)
def test_what_is_none_is_told_before_anything_starts(step: dict[str, Any], path: str, words: str) -> None:
    with pytest.raises(remoterun.ConfigError) as caught:
        _play({}, **step)
    (problem,) = caught.value.problems
    assert problem.path == path
    assert words in problem.message


def test_a_single_pattern_of_targets_may_be_a_text() -> None:
    run = remoterun.play(Playbook(name="made", targets="all", steps=(Step(payload="find"),)))  # type: ignore[arg-type]
    assert [outcome.target for outcome in run.outcomes] == ["a"]


def test_limits_of_the_whole_are_read_too() -> None:
    with pytest.raises(remoterun.ConfigError, match="limits run: 'soon' is not a duration"):
        _play({"run": "soon"})
