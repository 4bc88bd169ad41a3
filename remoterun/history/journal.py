"""The journal of a run: everything that arrives is written down before it is shown."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

from remoterun.events import Event, OutcomeReady, RecordArrived, RunFinished, RunStarted
from remoterun.history.alive import Alive
from remoterun.history.database import NO_PROJECT, NewerHistoryError, connect, transaction, trouble
from remoterun.history.retention import KEEP, before, forget, unfollow
from remoterun.history.values import pack_outcome, pack_plan, pack_record, unpack_outcome, unpack_plan
from remoterun.model import RunStatus, Status, judge
from remoterun.report.documents import plain
from remoterun.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from remoterun.model import Job, Outcome, Run


_ENDED: Final = frozenset({RunStatus.INTERRUPTED, RunStatus.TERMINATED})


class Journal:
    """Write a run's events down as they come; call it with each.

    A process that is killed has lost nothing that it was called with. What can't be written (a full disk, a read-only
    or locked database) is told once, and from then on nothing is written: the run itself goes on.

    Args:
        folder: where the history lies.
        on_trouble: takes the one sentence about what can't be written.
        earlier: what a run that is taken up again already has; all else of it that is asked for is written anew.
    """

    def __init__(self, folder: Path, on_trouble: Callable[[str], None], earlier: Run | None = None) -> None:
        self._folder = folder
        self._on_trouble = on_trouble
        self._earlier = earlier
        self._entry: _Entry | None = None

    def __call__(self, event: Event) -> None:
        """Write one event down."""
        try:
            if isinstance(event, RunStarted):
                self._entry = _Entry.begin(self._folder, event, self._earlier)
            elif self._entry is not None:
                self._entry.take(event)
        except (sqlite3.Error, OSError, NewerHistoryError) as error:
            lacks = "this run" if self._entry is None else "the rest of this run"
            self._on_trouble(trouble(self._folder, f"written, so it lacks {lacks}", error))
            self.close()

    def close(self) -> None:
        """Let go of the database; later events are not written."""
        entry, self._entry = self._entry, None
        if entry is not None:
            entry.close()


class _Entry:
    """Hold one run in the database."""

    def __init__(self, database: sqlite3.Connection, alive: Alive, folder: Path) -> None:
        self._database = database
        self._alive = alive
        self._folder = folder
        self._jobs: dict[tuple[str, int], int] = {}
        # How many jobs of the run are not among these, and what the run was before it was taken up.
        self._others = 0
        self._status_before: str | None = None
        self._records: dict[int, int] = {}
        # The outcomes that jobs had before, and whether one of these had to do once more.
        self._former: dict[int, bytes | None] = {}
        self._has_former = False
        self._run = 0

    @classmethod
    def begin(cls, folder: Path, event: RunStarted, earlier: Run | None) -> Self:
        alive = Alive.begin(folder, event.plan.run_id)
        try:
            database = connect(folder, create=True)
        except BaseException:
            alive.end()
            raise
        entry = cls(database, alive, folder)
        try:
            with transaction(database):
                entry._begin(event, earlier)
            # What can't be, on a disk that is nearly full, is forgotten another time: this run is what counts.
            with suppress(sqlite3.OperationalError):
                forget(database, folder, before(KEEP))
        except BaseException:
            entry.close()
            raise
        return entry

    def take(self, event: Event) -> None:
        match event:
            case RecordArrived():
                job = self._jobs[event.target, event.step]
                self._begin_anew(job)
                number = self._records.get(job, 0)
                self._put_record(job, number, pack_record(event.record))
                self._records[job] = number + 1
            case OutcomeReady() if event.outcome.status is not Status.RUNNING:
                self._put_outcome(event.outcome)
            case RunFinished():
                self._finish(event.run)

    def _finish(self, run: Run) -> None:
        at_work = any(outcome.status is Status.RUNNING for outcome in run.outcomes)
        if self._others and self._has_open_jobs():
            status = RunStatus.DETACHED.value if at_work else self._status_before
            self._database.execute("UPDATE runs SET status = ? WHERE number = ?", (status, self._run))
            return
        if self._others or self._has_former:
            run = self._as_kept(run)
        self._database.execute(
            "UPDATE runs SET finished_at = ?, status = ? WHERE number = ?",
            (None if at_work else run.finished_at, (RunStatus.DETACHED if at_work else run.status).value, self._run),
        )
        if not at_work:
            # Not before: starting a run takes long enough.
            from remoterun.history import index

            with transaction(self._database):
                index.follow(self._database, self._run, run)

    def _has_open_jobs(self) -> bool:
        row = self._database.execute("SELECT 1 FROM jobs WHERE run = ? AND outcome IS NULL", (self._run,)).fetchone()
        return row is not None

    def _as_kept(self, run: Run) -> Run:
        """Return a run of which only a part was asked for, or heard of, with what was known of all else."""
        from remoterun.history.reading import History, HistoryError

        try:
            with History.open(self._folder) as history:
                whole = history.run(history.find(run.run_id))
        except HistoryError as error:
            raise sqlite3.DatabaseError(str(error)) from error
        ended_as = run.status if run.status in _ENDED else None
        return replace(whole, finished_at=run.finished_at, status=judge(whole.outcomes, ended_as=ended_as))

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._database.close()
        self._alive.end()

    def _begin(self, event: RunStarted, earlier: Run | None) -> None:
        """Begin a run, or take up one that is here, of which all is done anew that is asked for and not known."""
        row = self._database.execute("SELECT number, status FROM runs WHERE id = ?", (event.plan.run_id,)).fetchone()
        if row is None:
            self._start(event)
        else:
            self._run, self._status_before = row
            self._go_on(event, earlier)

    def _start(self, event: RunStarted) -> None:
        plan, database = event.plan, self._database
        body, packs = pack_plan(plan)
        run = database.execute(
            "INSERT INTO runs (id, project, playbook, playbook_sha256, remoterun, started_at, plan) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                *(plan.run_id, plain(plan.project) or NO_PROJECT, plain(plan.playbook), plan.playbook_sha256),
                *(VERSION, event.started_at, body),
            ),
        )
        self._run = run.lastrowid or 0
        database.executemany("INSERT OR IGNORE INTO packs VALUES (?, ?)", packs.items())
        database.executemany("INSERT INTO packs_of_runs VALUES (?, ?)", [(self._run, sha) for sha in packs])
        self._add_jobs(event)

    def _go_on(self, event: RunStarted, earlier: Run | None) -> None:
        database = self._database
        rows = database.execute("SELECT target, step, job FROM jobs WHERE run = ?", (self._run,)).fetchall()
        known = {(target, step): number for target, step, number in rows}
        for job in event.plan.jobs:
            number = known.get((str(plain(job.target.id)), job.step))
            if number is not None:
                self._jobs[job.target.id, job.step] = number
        self._others = len(known) - len(self._jobs)
        kept = {(outcome.target, outcome.step) for outcome in (earlier.outcomes if earlier is not None else ())}
        anew = {number for job, number in self._jobs.items() if job not in kept}
        # What had arrived stays until more is heard: it may be too late for that.
        former = database.execute("SELECT job, outcome FROM jobs WHERE run = ?", (self._run,))
        self._former = {number: outcome for number, outcome in former if number in anew}
        database.executemany(
            "UPDATE jobs SET status = NULL, outcome = NULL WHERE run = ? AND job = ?",
            [(self._run, number) for number in anew],
        )
        database.execute("UPDATE runs SET status = NULL, finished_at = NULL WHERE number = ?", (self._run,))
        if new := self._add_jobs(event):
            self._widen_plan(new)
        unfollow(database, [self._run])

    def _widen_plan(self, new: Sequence[Job]) -> None:
        """Add jobs to the plan that is kept, unless it can't be read any more."""
        packs = self._database.execute(
            "SELECT packs.sha256, data FROM packs JOIN packs_of_runs USING (sha256) WHERE run = ?", (self._run,)
        )
        (body,) = self._database.execute("SELECT plan FROM runs WHERE number = ?", (self._run,)).fetchone()
        plan = unpack_plan(body, dict(packs.fetchall()))
        if plan is not None:
            body, _ = pack_plan(replace(plan, jobs=(*plan.jobs, *new)))
            self._database.execute("UPDATE runs SET plan = ? WHERE number = ?", (body, self._run))

    def _add_jobs(self, event: RunStarted) -> list[Job]:
        """Add those jobs that the run does not have, and return them."""
        new = [job for job in event.plan.jobs if (job.target.id, job.step) not in self._jobs]
        for number, job in enumerate(new, self._others + len(self._jobs)):
            self._jobs[job.target.id, job.step] = number
        self._database.executemany(
            "INSERT INTO jobs (run, job, target, name, step) VALUES (?, ?, ?, ?, ?)",
            [
                (self._run, self._jobs[job.target.id, job.step], plain(job.target.id), plain(job.target.name), job.step)
                for job in new
            ],
        )
        return new

    def _begin_anew(self, job: int) -> None:
        """Drop what had arrived of a job before, now that it says all of it once more, or something else."""
        if job in self._former:
            del self._former[job]
            self._database.execute("DELETE FROM records WHERE run = ? AND job = ?", (self._run, job))

    def _with_former(self, outcome: Outcome, job: int) -> Outcome:
        """Return the outcome of a job that nothing more was heard of, with what had arrived before."""
        body = self._former.pop(job)
        self._has_former = True
        try:
            former = None if body is None else unpack_outcome(body, ())
        except sqlite3.DatabaseError:  # it is damaged
            former = None
        if former is None:
            return outcome
        return replace(
            outcome,
            payload=outcome.payload or former.payload,
            facts=outcome.facts or former.facts,
            findings=former.findings,
            stdout=former.stdout,
            stderr=former.stderr,
            log=former.log,
        )

    def _put_record(self, job: int, number: int, body: bytes) -> None:
        self._database.execute("INSERT INTO records VALUES (?, ?, ?, ?)", (self._run, job, number, body))

    def _put_outcome(self, outcome: Outcome) -> None:
        job = self._jobs[outcome.target, outcome.step]
        with transaction(self._database):
            # It is None where nothing was started, and nothing found that goes on.
            if job in self._former and outcome.resumable is None and not outcome.status.has_result:
                outcome = self._with_former(outcome, job)
            else:
                self._begin_anew(job)
            # What was never told as an event is written with its outcome.
            for number in range(self._records.get(job, 0), len(outcome.records)):
                self._put_record(job, number, pack_record(outcome.records[number]))
            self._database.execute(
                "UPDATE jobs SET status = ?, outcome = ? WHERE run = ? AND job = ?",
                (outcome.status.value, pack_outcome(outcome), self._run, job),
            )
