"""Parts of a run that are fetched one after the other: the history puts them together."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from remoterun.events import OutcomeReady, RunFinished, RunStarted
from remoterun.history import History, Journal
from remoterun.model import Host, Job, OtherWork, Outcome, Phase, Plan, Run, RunStatus, Status, Target, judge

RUN = "20260101T000000Z-00000001"
AT = "2026-01-01T00:00:00.000Z"


def part(folder: Path, ended_as: RunStatus | None = None, **statuses: Status) -> list[str]:
    """Fetch what some targets have by now, and return what was told of the history."""
    told: list[str] = []
    targets = [Target(id=name, host=Host(key=name, address="", transport="local")) for name in statuses]
    jobs = tuple(Job(target=target, step=0, work=OtherWork()) for target in targets)
    plan = Plan(run_id=RUN, playbook="attached", playbook_sha256=None, jobs=jobs)
    outcomes = tuple(
        Outcome(target=name, name=None, step=0, status=status, phase=Phase.COLLECT) for name, status in statuses.items()
    )
    run = Run(
        run_id=RUN,
        playbook="attached",
        playbook_sha256=None,
        started_at=AT,
        finished_at=AT,
        status=judge(outcomes, ended_as=ended_as),
        outcomes=outcomes,
    )
    journal = Journal(folder, told.append)
    journal(RunStarted(plan=plan, started_at=AT))
    for outcome in outcomes:
        journal(OutcomeReady(outcome=outcome))
    journal(RunFinished(run=run))
    journal.close()
    return told


def kept(folder: Path) -> dict[str, str]:
    with History.open(folder) as history:
        found = history.find(RUN)
        run = history.run(found)
        assert {job.target.id for job in history.plan(found).jobs} == {outcome.target for outcome in run.outcomes}
    return {"run": str(found.status), **{outcome.target: outcome.status for outcome in run.outcomes}}


def test_a_run_is_over_when_all_of_it_is_known(tmp_path: Path) -> None:
    assert part(tmp_path, one=Status.RUNNING) == []
    assert part(tmp_path, two=Status.OK) == []
    assert kept(tmp_path) == {"run": "detached", "one": "running", "two": "ok"}
    assert part(tmp_path, one=Status.OK) == []
    assert kept(tmp_path) == {"run": "ok", "one": "ok", "two": "ok"}


@pytest.mark.parametrize(
    ("first", "second", "ended_as", "status"),
    [
        (Status.FAILED, Status.OK, None, "incomplete"),
        (Status.OK, Status.FINDINGS, None, "findings"),
        (Status.OK, Status.CANCELLED, RunStatus.INTERRUPTED, "interrupted"),
    ],
)
def test_its_status_is_that_of_all_parts(
    first: Status, second: Status, ended_as: RunStatus | None, status: str, tmp_path: Path
) -> None:
    part(tmp_path, one=first, two=Status.RUNNING)
    assert part(tmp_path, ended_as, two=second) == []
    assert kept(tmp_path)["run"] == status


def test_a_part_that_is_damaged_is_told_and_ends_nothing(tmp_path: Path) -> None:
    part(tmp_path, one=Status.OK, two=Status.RUNNING)
    with closing(sqlite3.connect(tmp_path / "history.sqlite3")) as database, database:
        database.execute("UPDATE jobs SET outcome = x'00' WHERE target = 'one'")
    (told,) = part(tmp_path, two=Status.OK)
    assert "can't be written, so it lacks this run" in told
