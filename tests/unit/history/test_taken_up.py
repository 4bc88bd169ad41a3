"""Parts of a run that are fetched one after the other: the history puts them together."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from remoterun.errors import TargetError
from remoterun.events import Event, OutcomeReady, RecordArrived, RunFinished, RunStarted
from remoterun.history import History, Journal
from remoterun.model import (
    Captured,
    ErrorInfo,
    ExecWork,
    Finding,
    Host,
    Job,
    OtherWork,
    Outcome,
    Phase,
    Plan,
    Run,
    RunStatus,
    Severity,
    Status,
    Target,
    judge,
)

RUN = "20260101T000000Z-00000001"
AT = "2026-01-01T00:00:00.000Z"


def over(playbook: str, outcomes: tuple[Outcome, ...], ended_as: RunStatus | None = None) -> Run:
    """Return a run that has these outcomes."""
    return Run(
        run_id=RUN,
        playbook=playbook,
        playbook_sha256=None,
        started_at=AT,
        finished_at=AT,
        status=judge(outcomes, ended_as=ended_as),
        outcomes=outcomes,
    )


def part(folder: Path, ended_as: RunStatus | None = None, **statuses: Status) -> list[str]:
    """Fetch what some targets have by now, and return what was told of the history."""
    told: list[str] = []
    targets = [Target(id=name, host=Host(key=name, address="", transport="local")) for name in statuses]
    jobs = tuple(Job(target=target, step=0, work=OtherWork()) for target in targets)
    plan = Plan(run_id=RUN, playbook="attached", playbook_sha256=None, jobs=jobs)
    outcomes = tuple(
        Outcome(target=name, name=None, step=0, status=status, phase=Phase.COLLECT) for name, status in statuses.items()
    )
    run = over("attached", outcomes, ended_as)
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


def _lost(code: str, **more: Any) -> Outcome:
    error = ErrorInfo.of(TargetError(code, "m"))
    return Outcome(target="one", name=None, step=0, status=Status.LOST, phase=Phase.RUN, error=error, **more)


FOUND = Finding(rule="R1", severity=Severity.BAD, subject="s", message="m")
CUT = _lost(
    "connection_lost",
    records=({"n": 1}, {"n": 2}),
    findings=(FOUND,),
    stdout=Captured(head=b"said", total=4),
    log=("l",),
)


def _taken_up(folder: Path, first: Outcome | None, *events: RecordArrived | OutcomeReady) -> Outcome:
    """Return what is kept of a target whose run was cut, with that outcome if it had one, and taken up once more."""
    target = Target(id="one", host=Host(key="one", address="", transport="local"))
    plan = Plan(
        run_id=RUN, playbook="p", playbook_sha256=None, jobs=(Job(target=target, step=0, work=ExecWork(argv=(b"p",))),)
    )
    told: list[str] = []
    before: list[Event] = [*_records(1, 2), *([] if first is None else [OutcomeReady(outcome=first)])]
    for turn in (before, events):
        journal = Journal(folder, told.append)
        journal(RunStarted(plan=plan, started_at=AT))
        for event in turn:
            journal(event)
        # The second turn comes to its end.
        if turn is events:
            outcomes = tuple(event.outcome for event in events if isinstance(event, OutcomeReady))
            journal(RunFinished(run=over("p", outcomes)))
        journal.close()
    assert told == []
    with History.open(folder) as history:
        (outcome,) = history.run(history.find(RUN)).outcomes
        standing = [each.finding.rule for trail in history.trails() for each in trail.standing]
    assert standing == [finding.rule for finding in outcome.findings]
    return outcome


def _records(*numbers: int) -> list[RecordArrived]:
    return [RecordArrived(target="one", step=0, record={"n": number}) for number in numbers]


@pytest.mark.parametrize("first", [None, CUT])
@pytest.mark.parametrize("second", [_lost("lease_expired"), _lost("connection_lost", connections=1)])
def test_who_comes_too_late_takes_nothing_away(first: Outcome | None, second: Outcome, tmp_path: Path) -> None:
    outcome = _taken_up(tmp_path, first, OutcomeReady(outcome=second))
    assert outcome.error == second.error
    assert list(outcome.records) == [{"n": 1}, {"n": 2}]
    if first is not None:
        assert (outcome.findings, outcome.stdout, outcome.log) == (first.findings, first.stdout, first.log)


@pytest.mark.parametrize(
    ("second", "records"),
    [
        (Outcome(target="one", name=None, step=0, status=Status.OK, phase=Phase.COLLECT), []),
        (_lost("payload_killed", resumable=True), []),
        (_lost("connection_lost", resumable=True, records=({"n": 3},)), [3]),
    ],
)
def test_what_is_done_anew_takes_the_place_of_what_had_arrived(
    second: Outcome, records: list[int], tmp_path: Path
) -> None:
    outcome = _taken_up(tmp_path, CUT, *_records(*records), OutcomeReady(outcome=second))
    assert list(outcome.records) == [{"n": number} for number in records]
    assert (outcome.findings, outcome.stdout.total) == ((), 0)


def test_a_former_outcome_that_is_damaged_keeps_the_records(tmp_path: Path) -> None:
    _taken_up(tmp_path, CUT, OutcomeReady(outcome=_lost("lease_expired")))
    with closing(sqlite3.connect(tmp_path / "history.sqlite3")) as database, database:
        database.execute("UPDATE jobs SET outcome = x'00'")
    assert part(tmp_path, one=Status.LOST) == []
    with History.open(tmp_path) as history:
        (outcome,) = history.run(history.find(RUN)).outcomes
    assert list(outcome.records) == [{"n": 1}, {"n": 2}]


def test_a_part_that_is_damaged_is_told_and_ends_nothing(tmp_path: Path) -> None:
    part(tmp_path, one=Status.OK, two=Status.RUNNING)
    with closing(sqlite3.connect(tmp_path / "history.sqlite3")) as database, database:
        database.execute("UPDATE jobs SET outcome = x'00' WHERE target = 'one'")
    (told,) = part(tmp_path, two=Status.OK)
    assert "can't be written, so it lacks the rest of this run" in told
