"""The journal of a run: everything that arrives is written down before it is shown."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from remoterun.events import Event, OutcomeReady, RecordArrived, RunFinished, RunStarted
from remoterun.history.alive import Alive
from remoterun.history.database import NO_PROJECT, NewerHistoryError, connect, transaction
from remoterun.history.retention import KEEP, before, forget, unfollow
from remoterun.history.values import pack_outcome, pack_plan, pack_record
from remoterun.model import RunStatus, Status
from remoterun.report.documents import plain
from remoterun.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from remoterun.model import Outcome, Run


class Journal:
    """Write a run's events down as they come; call it with each.

    A process that is killed has lost nothing that it was called with. What can't be written (a full disk, a read-only
    or locked database) is told once, and from then on nothing is written: the run itself goes on.

    Args:
        folder: where the history lies.
        on_trouble: takes the one sentence about what can't be written.
        earlier: what a run that is taken up again already has; all else of it is written anew.
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
        except _KeptError:
            self._on_trouble(f"the history in {self._folder} has this run already, and keeps what it had of it")
        except (sqlite3.Error, OSError, NewerHistoryError) as error:
            self._on_trouble(f"the history in {self._folder} can't be written, so it lacks this run: {error}")
            self.close()

    def close(self) -> None:
        """Let go of the database; later events are not written."""
        entry, self._entry = self._entry, None
        if entry is not None:
            entry.close()


class _KeptError(Exception):
    """Say that a run is kept already: what another version has planned can be looked after, but not taken up."""


class _Entry:
    """Hold one run in the database."""

    def __init__(self, database: sqlite3.Connection, alive: Alive, event: RunStarted) -> None:
        self._database = database
        self._alive = alive
        self._jobs = {(job.target.id, job.step): number for number, job in enumerate(event.plan.jobs)}
        self._records: dict[int, int] = {}
        self._run = 0

    @classmethod
    def begin(cls, folder: Path, event: RunStarted, earlier: Run | None) -> Self:
        alive = Alive.begin(folder, event.plan.run_id)
        try:
            database = connect(folder, create=True)
        except BaseException:
            alive.end()
            raise
        entry = cls(database, alive, event)
        try:
            with transaction(database):
                entry._go_on(event, earlier) if earlier is not None else entry._start(event)
            forget(database, folder, before(KEEP))
        except BaseException:
            entry.close()
            raise
        return entry

    def take(self, event: Event) -> None:
        match event:
            case RecordArrived():
                job = self._jobs[event.target, event.step]
                number = self._records.get(job, 0)
                self._put_record(job, number, pack_record(event.record))
                self._records[job] = number + 1
            case OutcomeReady() if event.outcome.status is not Status.RUNNING:
                self._put_outcome(event.outcome)
            case RunFinished():
                at_work = any(outcome.status is Status.RUNNING for outcome in event.run.outcomes)
                status = RunStatus.DETACHED if at_work else event.run.status
                self._database.execute(
                    "UPDATE runs SET finished_at = ?, status = ? WHERE number = ?",
                    (None if at_work else event.run.finished_at, status.value, self._run),
                )
                if not at_work:
                    # Not before: starting a run takes long enough.
                    from remoterun.history import index

                    with transaction(self._database):
                        index.follow(self._database, self._run, event.run)

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._database.close()
        self._alive.end()

    def _start(self, event: RunStarted) -> None:
        plan, database = event.plan, self._database
        if database.execute("SELECT 1 FROM runs WHERE id = ?", (plan.run_id,)).fetchone():
            raise _KeptError
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
        database.executemany(
            "INSERT INTO jobs (run, job, target, name, step) VALUES (?, ?, ?, ?, ?)",
            [
                (self._run, number, plain(job.target.id), plain(job.target.name), job.step)
                for number, job in enumerate(plan.jobs)
            ],
        )

    def _go_on(self, event: RunStarted, earlier: Run) -> None:
        """Take up a run again, without what is done anew."""
        database = self._database
        (self._run,) = database.execute("SELECT number FROM runs WHERE id = ?", (event.plan.run_id,)).fetchone()
        kept = {(outcome.target, outcome.step) for outcome in earlier.outcomes}
        anew = [(self._run, number) for job, number in self._jobs.items() if job not in kept]
        database.executemany("DELETE FROM records WHERE run = ? AND job = ?", anew)
        database.executemany("UPDATE jobs SET status = NULL, outcome = NULL WHERE run = ? AND job = ?", anew)
        database.execute("UPDATE runs SET status = NULL, finished_at = NULL WHERE number = ?", (self._run,))
        unfollow(database, [self._run])

    def _put_record(self, job: int, number: int, body: bytes) -> None:
        self._database.execute("INSERT INTO records VALUES (?, ?, ?, ?)", (self._run, job, number, body))

    def _put_outcome(self, outcome: Outcome) -> None:
        job = self._jobs[outcome.target, outcome.step]
        with transaction(self._database):
            # What was never told as an event is written with its outcome.
            for number in range(self._records.get(job, 0), len(outcome.records)):
                self._put_record(job, number, pack_record(outcome.records[number]))
            self._database.execute(
                "UPDATE jobs SET status = ?, outcome = ? WHERE run = ? AND job = ?",
                (outcome.status.value, pack_outcome(outcome), self._run, job),
            )
