"""The history: whatever is told of a run can be read again, however the run ended."""

from __future__ import annotations

import io
import pickle
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields, is_dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from remoterun.events import Event, OutcomeReady, RecordArrived, RunFinished, RunStarted
from remoterun.history import History, HistoryError, Journal, PlanError
from remoterun.history.retention import KEEP, before
from remoterun.history.values import make_again
from remoterun.model import Json, Pack, PayloadRef, PayloadWork, Plan, Records, Run, RunStatus, Status
from remoterun.report import table, to_json
from remoterun.store import sign
from remoterun.version import VERSION
from tests.support import runs as samples


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


def _plan(run: Run) -> Plan:
    """Plan what a run is the result of."""
    plan = samples.plan_of("a")
    job = plan.jobs[0]
    jobs = [
        replace(job, target=replace(job.target, id=each.target, name=each.name), step=each.step)
        for each in run.outcomes
    ]
    return replace(
        plan, run_id=run.run_id, playbook=run.playbook, playbook_sha256=run.playbook_sha256, jobs=tuple(jobs)
    )


def _events(run: Run) -> Iterator[Event]:
    yield RunStarted(plan=_plan(run), started_at=run.started_at)
    for outcome in run.outcomes:
        for record in outcome.records:
            yield RecordArrived(target=outcome.target, step=outcome.step, record=record)
        yield OutcomeReady(outcome=outcome)
    yield RunFinished(run=run)


def _keep(folder: Path, run: Run) -> None:
    troubles: list[str] = []
    journal = Journal(folder, troubles.append)
    for event in _events(run):
        journal(event)
    journal.close()
    assert troubles == []


def _named(run_id: str, started_at: str | None = None) -> Run:
    return replace(samples.mixed_run(), run_id=run_id, started_at=started_at or before(timedelta(hours=1)))


# --- what is kept -----------------------------------------------------------------------------------------------------


@given(samples.runs())
def test_a_run_reads_as_it_was(run: Run) -> None:
    # A run has one outcome of each target and step.
    run = replace(run, outcomes=tuple(replace(each, step=number) for number, each in enumerate(run.outcomes)))
    with tempfile.TemporaryDirectory() as name:
        _keep(Path(name), run)
        with History.open(Path(name)) as history:
            found = history.run(history.find("last"))
    assert to_json(found) == to_json(run)
    assert [(each.stdout, each.stderr, each.noise) for each in found.outcomes] == [
        (each.stdout, each.stderr, each.noise) for each in run.outcomes
    ]


def test_a_run_looks_as_it_did(folder: Path) -> None:
    run = samples.mixed_run()
    _keep(folder, run)
    with History.open(folder) as history:
        found = history.run(history.find("last"))
    assert table(found, width=100, color=True, verbose=2) == table(run, width=100, color=True, verbose=2)


def _large() -> Run:
    """Make a run of which two outcomes have more records than memory is for."""
    run = _named("large")
    much: list[dict[str, Json]] = [{"kind": "norms", "n": number, "text": f"{number:0100000}"} for number in range(200)]
    lists: dict[str, Json] = {"lists": [[]] * 100_000}
    first, second, third, *rest = run.outcomes
    return replace(run, outcomes=(first, replace(second, records=tuple(much)), replace(third, records=(lists,)), *rest))


def test_records_that_are_too_many_for_memory_are_read_when_they_are_asked_for(folder: Path) -> None:
    run = _large()
    _keep(folder, run)
    with History.open(folder) as history:
        found = history.run(history.find("last"))
    kinds = [isinstance(outcome.records, Records) for outcome in found.outcomes]
    assert kinds == [False, True, True, False, False, False]
    assert [outcome.records for outcome in found.outcomes] == [outcome.records for outcome in run.outcomes]
    assert to_json(found) == to_json(run)
    assert found.outcomes[1].records[150:152] == run.outcomes[1].records[150:152]
    assert pickle.loads(pickle.dumps(found.outcomes[2])) == run.outcomes[2]


def test_a_reader_that_takes_its_time_keeps_nobody_from_writing(folder: Path) -> None:
    _keep(folder, _large())
    with closing(sqlite3.connect(folder / "history.sqlite3")) as database:
        # As where the file system can't do WAL: there, whoever reads keeps others from writing.
        database.execute("PRAGMA journal_mode = DELETE")
    with History.open(folder) as history:
        found = history.run(history.find("last"))
    reading = iter(found.outcomes[1].records)
    assert next(reading)["n"] == 0
    _keep(folder, _named("another"))
    assert [record["n"] for record in reading] == list(range(1, 200))


def test_records_that_are_forgotten_while_they_are_read_are_missed(folder: Path) -> None:
    _keep(folder, _large())
    with History.open(folder) as history:
        found = history.run(history.find("last"))
        reading = iter(found.outcomes[1].records)
        next(reading)
        history.forget(timedelta(0))
    with pytest.raises(OSError, match="no longer in the history"):
        list(reading)
    (folder / "history.sqlite3").unlink()
    with pytest.raises(FileNotFoundError):
        list(found.outcomes[1].records)


def test_the_plan_reads_as_it_was(folder: Path) -> None:
    run = samples.mixed_run()
    data = b"PK some code" * 100
    ref = PayloadRef(name="look", version="1.0.0", sha256="5" * 64)
    work = PayloadWork(
        pack=Pack(ref=ref, data=data, entry="look:run", code_size=7), params={"root": "/x", "deep": None}
    )
    plan = _plan(run)
    plan = replace(plan, jobs=tuple(replace(job, work=work, env={"A": "\udcff"}) for job in plan.jobs))
    for number in ("1", "2"):
        journal = Journal(folder, pytest.fail)
        journal(RunStarted(plan=replace(plan, run_id=number), started_at=before(timedelta(0))))
        journal.close()
    with History.open(folder) as history:
        for number in ("1", "2"):
            assert history.plan(history.find(number)) == replace(plan, run_id=number)
    with closing(sqlite3.connect(folder / "history.sqlite3")) as database:
        assert database.execute("SELECT count(*) FROM packs").fetchone() == (1,)


def test_a_plan_that_somebody_else_wrote_is_not_taken(folder: Path) -> None:
    _keep(folder, samples.mixed_run())
    with closing(sqlite3.connect(folder / "history.sqlite3")) as database, database:
        (body,) = database.execute("SELECT plan FROM runs").fetchone()
        database.execute("UPDATE runs SET plan = ?", (bytes([body[0] ^ 1]) + body[1:],))
    with History.open(folder) as history:
        kept = history.find("last")
        assert to_json(history.run(kept)) == to_json(samples.mixed_run())
        with pytest.raises(PlanError, match=r"can't be read any more \(the key that it was signed with is gone\)"):
            history.plan(kept)


class _OlderPickler(pickle.Pickler):
    """Write a plan as a version did that had other fields."""

    def __init__(self, stream: io.BytesIO, lacks: str, has: str) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self._lacks, self._has = lacks, has

    def reducer_override(self, value: object) -> Any:
        if not is_dataclass(value) or isinstance(value, type):
            return NotImplemented
        own = {item.name: getattr(value, item.name) for item in fields(value) if item.name != self._lacks}
        if self._has and isinstance(value, Plan):
            own[self._has] = 3
        return make_again, (type(value), tuple(own), *own.values())


@pytest.mark.parametrize(
    ("lacks", "has", "reads"),
    [("", "", True), ("project", "", True), ("use_cache", "", True), ("jobs", "", False), ("", "no_more", False)],
)
def test_a_plan_of_another_version(folder: Path, lacks: str, has: str, reads: bool) -> None:
    run = samples.mixed_run()
    _keep(folder, run)
    stream = io.BytesIO()
    _OlderPickler(stream, lacks, has).dump(_plan(run))
    with closing(sqlite3.connect(folder / "history.sqlite3")) as database, database:
        database.execute("UPDATE runs SET plan = ?", (sign("history", zlib.compress(stream.getvalue())),))
    with History.open(folder) as history:
        if reads:
            assert history.plan(history.find("last")) == _plan(run)
        else:
            why = rf"\(remoterun {VERSION} made it\).*`remoterun collect {run.run_id} --on TARGET`"
            with pytest.raises(PlanError, match=why):
                history.plan(history.find("last"))


def test_it_is_nobody_elses_to_read(folder: Path) -> None:
    _keep(folder, samples.mixed_run())
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.rglob("*"))


# --- runs that are cut, or going on -----------------------------------------------------------------------------------


def test_every_moment_of_a_run_is_there(folder: Path) -> None:
    run = samples.mixed_run()
    journal = Journal(folder, pytest.fail)
    told_records, told_outcomes = 0, 0
    for event in _events(run):
        journal(event)
        told_records += isinstance(event, RecordArrived)
        told_outcomes += isinstance(event, OutcomeReady)
        with History.open(folder) as history:
            kept = history.find(run.run_id)
            found = history.run(kept)
        assert kept.running == (not isinstance(event, RunFinished))
        assert len(found.outcomes) == kept.jobs == len(run.outcomes)
        assert sum(len(each.records) for each in found.outcomes) == told_records
        left = [each for each in found.outcomes if each.error is not None and each.error.code == "still_running"]
        assert len(left) == len(run.outcomes) - told_outcomes
    journal.close()


def test_what_a_cut_run_has_is_told_as_that(folder: Path) -> None:
    run = samples.mixed_run()
    journal = Journal(folder, pytest.fail)
    events = list(_events(run))
    for event in events[:2]:
        journal(event)
    journal.close()
    with History.open(folder) as history:
        kept = history.find("last")
        found = history.run(kept)
    assert (kept.status, kept.running, kept.counts) == (None, False, {})
    assert found.status is RunStatus.INCOMPLETE
    assert {each.status for each in found.outcomes} == {Status.LOST}
    assert {each.error.code for each in found.outcomes if each.error} == {"run_cut"}
    assert [len(each.records) for each in found.outcomes][:2] == [1, 0]


def test_a_run_is_taken_up_again(folder: Path) -> None:
    run = samples.mixed_run()
    journal = Journal(folder, pytest.fail)
    first = len(run.outcomes[0].records) + 2
    events = list(_events(run))
    for event in events[: first + 1]:
        journal(event)
    journal.close()
    with History.open(folder) as history:
        earlier = history.run(history.find("last"))
    earlier = replace(earlier, outcomes=earlier.outcomes[:1])
    again = Journal(folder, pytest.fail, earlier)
    for event in (events[0], *events[first:]):
        again(event)
    again.close()
    with History.open(folder) as history:
        assert len(history.runs()) == 1
        assert to_json(history.run(history.find("last"))) == to_json(run)


def test_one_run_is_carried_out_by_one_process(folder: Path) -> None:
    run = samples.mixed_run()
    started = next(_events(run))
    first = Journal(folder, pytest.fail)
    first(started)
    troubles: list[str] = []
    second = Journal(folder, troubles.append, replace(run, outcomes=()))
    second(started)
    assert len(troubles) == 1
    first.close()
    third = Journal(folder, pytest.fail, replace(run, outcomes=()))
    third(started)
    third.close()


# --- trouble ----------------------------------------------------------------------------------------------------------


def _a_file(folder: Path) -> None:
    folder.write_text("")


def _no_database(folder: Path) -> None:
    folder.mkdir()
    (folder / "history.sqlite3").write_text("this is no database, but long enough to be taken for one" * 20)


def _a_newer_one(folder: Path) -> None:
    _keep(folder, samples.mixed_run())
    with closing(sqlite3.connect(folder / "history.sqlite3")) as database:
        database.execute("PRAGMA user_version = 99")


@pytest.mark.parametrize("spoil", [_a_file, _no_database, _a_newer_one])
def test_trouble_is_told_once_and_stops_nothing(folder: Path, spoil: object) -> None:
    spoil(folder)  # type: ignore[operator]
    troubles: list[str] = []
    journal = Journal(folder, troubles.append)
    for event in _events(_named("another")):
        journal(event)
    journal.close()
    assert len(troubles) == 1
    assert str(folder) in troubles[0]
    with pytest.raises(HistoryError, match=r"history in|no run"):
        History.open(folder)


def test_a_database_that_goes_bad_on_the_way_is_told_once(folder: Path) -> None:
    troubles: list[str] = []
    journal = Journal(folder, troubles.append)
    events = list(_events(samples.mixed_run()))
    journal(events[0])
    with closing(sqlite3.connect(folder / "history.sqlite3")) as database:
        database.execute("DROP TABLE records")
    for event in events[1:]:
        journal(event)
    assert len(troubles) == 1
    assert "records" in troubles[0]


def test_nothing_kept_yet_is_told(folder: Path) -> None:
    with pytest.raises(HistoryError, match="no run has been kept"):
        History.open(folder)


# --- finding and forgetting -------------------------------------------------------------------------------------------


def test_runs_are_found_by_how_their_ids_begin(folder: Path) -> None:
    for name in ("20260101-aa", "20260101-ab", "20260202-aa"):
        _keep(folder, _named(name))
    with History.open(folder) as history:
        assert [run.run_id for run in history.runs()] == ["20260202-aa", "20260101-ab", "20260101-aa"]
        assert [run.run_id for run in history.runs(1)] == ["20260202-aa"]
        assert history.find("last").run_id == history.find("202602").run_id == "20260202-aa"
        assert history.find("20260101-aa").run_id == "20260101-aa"
        with pytest.raises(HistoryError, match="several runs: 20260101-ab, 20260101-aa"):
            history.find("202601")
        with pytest.raises(HistoryError, match="no run 2027 has been kept; the newest are: 20260202-aa"):
            history.find("2027")
        with pytest.raises(HistoryError, match="no run"):
            history.find("2026%")
        with pytest.raises(HistoryError, match="no run"):
            history.find("\udcff")
        assert history.newest(playbook="\udcff") is None
        assert history.comparable(playbook="\udcff") is None


def test_a_name_that_is_empty_is_no_beginning_of_the_only_run(folder: Path) -> None:
    _keep(folder, _named("20260101-aa"))
    with History.open(folder) as history, pytest.raises(HistoryError, match="named by its id, by how that begins"):
        history.find("")


def test_old_runs_are_forgotten_with_all_they_had(folder: Path) -> None:
    day = timedelta(days=1)
    for name, age in (("young", 2), ("old", 60)):
        _keep(folder, _named(name, before(age * day)))
    going_on = Journal(folder, pytest.fail)
    going_on(next(_events(_named("going on", before(61 * day)))))
    with History.open(folder) as history:
        assert history.forget(30 * day) == 1
        assert [run.run_id for run in history.runs()] == ["going on", "young"]
        going_on.close()
        assert history.forget(30 * day) == 1
        assert history.forget(day) == 1
    with closing(sqlite3.connect(folder / "history.sqlite3")) as database:
        for name in ("runs", "jobs", "records", "packs", "packs_of_runs"):
            assert database.execute(f"SELECT count(*) FROM {name}").fetchone() == (0,), name


def test_every_run_forgets_what_is_older_than_is_kept(folder: Path) -> None:
    for name, age in (("old", KEEP + timedelta(days=1)), ("kept", KEEP - timedelta(days=1)), ("new", timedelta(0))):
        _keep(folder, _named(name, before(age)))
    with History.open(folder) as history:
        assert [run.run_id for run in history.runs()] == ["new", "kept"]
