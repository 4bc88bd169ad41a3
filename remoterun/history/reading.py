"""The history as its readers want it: the runs there are, one of them whole, and what is old thrown away."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Self

from remoterun.errors import ConfigError, TargetError
from remoterun.history.alive import is_running, sweep
from remoterun.history.database import NO_PROJECT, NewerHistoryError, connect, project_name, reading, trouble
from remoterun.history.retention import before, forget
from remoterun.history.stored import stored_records
from remoterun.history.values import is_signed, unpack_outcome, unpack_plan
from remoterun.model import ErrorInfo, Outcome, Phase, Plan, Run, RunStatus, Status, judge
from remoterun.records import dataclass
from remoterun.report.documents import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import timedelta
    from pathlib import Path

    from remoterun.compare import Difference
    from remoterun.compare.numbers import Tolerance
    from remoterun.history.index import Line
    from remoterun.history.trail import Trail
    from remoterun.model import Json

LAST: Final = "last"
"""What a person may say instead of the id of the newest run."""
_MOST_NAMED: Final = 5
# Runs of one's own programs and scripts are those that need no pack: they are chosen by their name only.
_CHOSEN: Final = (
    "(playbook = :playbook OR (:playbook IS NULL AND EXISTS (SELECT 1 FROM packs_of_runs WHERE run = number))) "
    "AND (:project IS NULL OR project = :project)"
)


class HistoryError(ConfigError):
    """Say that the history can't be read, or has no such run."""


class PlanError(HistoryError):
    """Say that nobody knows any more what a run was to do, and why: mostly, another version of remoterun planned it."""

    def __init__(self, run: Kept, why: str) -> None:
        super().__init__(
            f"the plan of {run.run_id} can't be read any more ({why}): run {run.playbook} anew; "
            f"what is still at work is fetched by `remoterun collect {run.run_id} --on TARGET`, or ended by `cancel`"
        )
        self.run_id = run.run_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Describe one run of the history; `status` is None for one that was cut, `running` while it goes on.

    `project` is the folder that it comes from; see `project_name`.
    `counts` are its outcomes by status; `jobs` says how many there ought to be, and `targets` on how many targets;
    `target` is the only one of these, None for several.
    """

    run_id: str
    project: str
    playbook: str
    started_at: str
    finished_at: str | None
    status: RunStatus | None
    running: bool
    target: str | None
    targets: int
    jobs: int
    counts: Mapping[Status, int]


class History:
    """Read the runs that were kept. Use as a context manager."""

    def __init__(
        self, folder: Path, database: sqlite3.Connection, on_step: Callable[[int, int], None] | None = None
    ) -> None:
        self._folder = folder
        self._database = database
        self._on_step = on_step

    @classmethod
    def open(cls, folder: Path, on_step: Callable[[int, int], None] | None = None) -> Self:
        """Open the history of a folder.

        `on_step` takes how many runs of how many were looked at, where the first question has to wait for that.

        Raises:
            HistoryError: when there is none, or it can't be read.
        """
        sweep(folder)
        try:
            return cls(folder, connect(folder, create=False), on_step)
        except FileNotFoundError as error:
            raise HistoryError(f"no run has been kept in {folder} yet") from error
        except (sqlite3.Error, OSError, NewerHistoryError) as error:
            raise HistoryError(trouble(folder, "read", error)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close it; what of it could not be read is an error that can be told.

        Raises:
            HistoryError: the database failed, or is damaged.
        """
        self._database.close()
        if isinstance(error, sqlite3.Error):
            raise HistoryError(trouble(self._folder, "read", error)) from error

    def runs(self, limit: int | None = None) -> list[Kept]:
        """List the runs, the newest first."""
        return self._select("ORDER BY number DESC LIMIT ?", -1 if limit is None else limit)

    def newest(self, *, playbook: str | None = None, project: str | None = None) -> Kept | None:
        """Return the newest run of any playbook or payload, in any project, or of these."""
        which = f"WHERE {_CHOSEN} ORDER BY number DESC LIMIT 1"
        return next(iter(self._select(which, playbook=plain(playbook), project=project)), None)

    def find(self, name: str) -> Kept:
        """Return the run of an id, of an id's unique beginning, or the last one.

        Raises:
            HistoryError: when there is none, or more than one.
        """
        if not name:
            # As a variable that is not set: it must not stand for the only run there is.
            raise HistoryError(f"a run is named by its id, by how that begins, or by {LAST}")
        found = self.runs(1) if name == LAST else self._beginning_with(str(plain(name)))
        if len(found) == 1:
            return found[0]
        if found:
            raise HistoryError(f"{name} is the beginning of several runs: {', '.join(run.run_id for run in found)}")
        newest = ", ".join(run.run_id for run in self.runs(3)) or "none"
        raise HistoryError(f"no run {name} has been kept; the newest are: {newest}")

    def _beginning_with(self, name: str) -> list[Kept]:
        found = self._select("WHERE substr(id, 1, ?) = ? ORDER BY number DESC LIMIT 4", len(name), name)
        return [run for run in found if run.run_id == name] or found

    def _select(self, which: str, *values: object, **named: object) -> list[Kept]:
        columns = "number, id, project, playbook, started_at, finished_at, status"
        rows = self._database.execute(f"SELECT {columns} FROM runs {which}", named or values)  # noqa: S608  # our own
        return [self._kept(*row) for row in rows.fetchall()]

    def _kept(
        self,
        number: int,
        run_id: str,
        project: str,
        playbook: str,
        started_at: str,
        finished_at: str | None,
        status: str | None,
    ) -> Kept:
        counted = self._database.execute(
            "SELECT status, count(*) FROM jobs WHERE run = ? GROUP BY status", (number,)
        ).fetchall()
        targets, first = self._database.execute(
            "SELECT count(DISTINCT target), min(target) FROM jobs WHERE run = ?", (number,)
        ).fetchone()
        with reading():
            known = None if status is None else RunStatus(status)
            counts = {Status(each): count for each, count in counted if each is not None}
        return Kept(
            run_id=run_id,
            project=project,
            playbook=playbook,
            started_at=started_at,
            finished_at=finished_at,
            status=known,
            running=status is None and is_running(self._folder, run_id),
            target=first if targets == 1 else None,
            targets=targets,
            jobs=sum(count for _, count in counted),
            counts=counts,
        )

    # --- one run ---

    def run(self, kept: Kept) -> Run:
        """Return a run as it was, or as far as it came: what has no outcome is lost, with the records that came."""
        row = self._database.execute(
            "SELECT number, playbook_sha256, started_at, finished_at FROM runs WHERE id = ?", (kept.run_id,)
        ).fetchone()
        number, sha, started, finished = _still_there(row, kept.run_id)
        outcomes = tuple(self._outcomes(number, kept))
        return Run(
            run_id=kept.run_id,
            playbook=kept.playbook,
            playbook_sha256=sha,
            started_at=started,
            finished_at=finished or started,
            status=kept.status or judge(outcomes),
            outcomes=outcomes,
        )

    def _outcomes(self, number: int, kept: Kept) -> Iterable[Outcome]:
        records = stored_records(self._database, self._folder, number)
        for job, target, name, step, outcome in self._database.execute(
            "SELECT job, target, name, step, outcome FROM jobs WHERE run = ? ORDER BY job", (number,)
        ):
            got = records.get(job, ())
            yield unpack_outcome(outcome, got) if outcome else _without_outcome(kept, target, name, step, got)

    # --- one run after the other ---

    def previous(self, kept: Kept) -> Kept | None:
        """Return the run to compare a run with: the last one before it of its playbook that ended by itself.

        It is of the same project, and has at least one target in common with it.
        """
        from remoterun.history.trail import previous

        self._catch_up()
        number = previous(self._database, self._number(kept))
        return None if number is None else self._kept_of(number)

    def comparable(self, *, playbook: str | None = None, project: str | None = None) -> tuple[Kept, Kept] | None:
        """Return the newest run that has one to compare it with, and that one first; chosen as by `newest`."""
        ended = self._database.execute(
            f"SELECT number FROM runs WHERE status IS NOT NULL AND status <> 'detached' AND {_CHOSEN} "  # noqa: S608  # our own
            "ORDER BY number DESC",
            {"playbook": plain(playbook), "project": project},
        ).fetchall()
        pairs = ((self.previous(kept), kept) for kept in (self._kept_of(number) for (number,) in ended))
        return next(((before, after) for before, after in pairs if before is not None), None)

    def came_before(self, one: Kept, other: Kept) -> bool:
        """Tell whether a run began before another one."""
        return self._number(one) < self._number(other)

    def difference(self, before: Kept | None, after: Kept, tolerances: Sequence[Tolerance] = ()) -> Difference:
        """Tell what is different in a run from an earlier one of its playbook and project, or from nothing.

        Since when findings are there, and for how many runs targets were silent, is told by all runs before it.
        `tolerances` say how far numbers may move, instead of what is their own.

        Raises:
            HistoryError: when the two can't be compared.
        """
        from remoterun.history.trail import difference

        self._catch_up()
        number, run = self._number(after), self._comparable(after)
        if before is None:
            return difference(self._database, None, (number, run), self._run_of)
        earlier = self._comparable(before)
        if before.playbook == after.playbook and before.project != after.project:
            one, other = (_project(kept) for kept in (before, after))
            raise HistoryError(
                f"{before.run_id} is a run of {one}, {after.run_id} of {other}: runs of one project can be compared"
            )
        if before.playbook != after.playbook:
            raise HistoryError(
                f"{before.run_id} is a run of {before.playbook}, {after.run_id} one of {after.playbook}: "
                "runs of one playbook can be compared"
            )
        if self._number(before) >= number:
            raise HistoryError(f"{before.run_id} did not come before {after.run_id}")
        return difference(self._database, (self._number(before), earlier), (number, run), self._run_of, tolerances)

    def trails(
        self,
        *,
        project: str | None = None,
        playbook: str | None = None,
        target: str | None = None,
        most: int = 30,
        with_ended: bool = False,
        programs: bool = True,
    ) -> list[Trail]:
        """Tell how targets fared in the newest runs of each playbook and project; see `history.trail.trails`."""
        from remoterun.history.trail import trails

        self._catch_up()
        lines = [
            line
            for line in self.lines()
            if project in (None, line.project)
            and playbook in (None, line.playbook)
            and (programs or not self.is_program(line))
        ]
        return list(trails(self._database, lines, target, most, with_ended=with_ended))

    def lines(self) -> list[Line]:
        """Return which runs can be compared with each other, those of the newest run first."""
        from remoterun.history.index import Line

        found = self._database.execute(
            "SELECT project, playbook FROM runs WHERE followed = 1 GROUP BY project, playbook ORDER BY max(number) DESC"
        )
        return [Line(*row) for row in found.fetchall()]

    def is_program(self, line: Line) -> bool:
        """Tell whether runs are those of a person's own program or script: these need no pack."""
        packed = "SELECT 1 FROM runs JOIN packs_of_runs ON run = number WHERE project = ? AND playbook = ? LIMIT 1"
        return self._database.execute(packed, line).fetchone() is None

    def _catch_up(self) -> None:
        from remoterun.history.trail import catch_up

        try:
            catch_up(self._database, self._ended, self._on_step)
        except sqlite3.Error as error:
            raise HistoryError(trouble(self._folder, "brought up to date", error)) from error

    def _ended(self, number: int) -> Run | None:
        found = self._select("WHERE number = ?", number)
        # Another process may have forgotten it since.
        over = found and not found[0].running and found[0].status is not RunStatus.DETACHED
        return self.run(found[0]) if over else None

    def _run_of(self, number: int) -> Run:
        return self.run(self._kept_of(number))

    def _comparable(self, kept: Kept) -> Run:
        if kept.running or kept.status is RunStatus.DETACHED:
            raise HistoryError(f"run {kept.run_id} has not ended yet, so it can't be compared")
        return self.run(kept)

    def _kept_of(self, number: int) -> Kept:
        found = self._select("WHERE number = ?", number)
        kept: Kept = _still_there(tuple(found) or None, f"number {number}")[0]
        return kept

    def _number(self, kept: Kept) -> int:
        row = self._database.execute("SELECT number FROM runs WHERE id = ?", (kept.run_id,)).fetchone()
        (number,) = _still_there(row, kept.run_id)
        return int(number)

    # --- what is left to do ---

    def plan(self, kept: Kept) -> Plan:
        """Return what a run was to do.

        Raises:
            PlanError: when another version of remoterun planned it, or this user's key is another one now.
        """
        row = self._database.execute("SELECT number, remoterun, plan FROM runs WHERE id = ?", (kept.run_id,)).fetchone()
        number, version, body = _still_there(row, kept.run_id)
        packs = dict(
            self._database.execute(
                "SELECT packs.sha256, data FROM packs JOIN packs_of_runs USING (sha256) WHERE run = ?", (number,)
            )
        )
        plan = unpack_plan(body, packs)
        if plan is None:
            made = f"remoterun {version} made it"
            raise PlanError(kept, made if is_signed(body) else "the key that it was signed with is gone")
        return plan

    # --- projects that have moved ---

    def gone_projects(self, project: str) -> list[str]:
        """Return the projects that are not there any more and may have been this one; see `history.moving.gone`."""
        from remoterun.history.moving import gone

        self._catch_up()
        return gone(self._database, project)

    def move(self, old: str, new: str) -> int:
        """Let a project go on with the runs of another folder, and return how many these are.

        Raises:
            HistoryError: it has none.
        """
        from remoterun.history.moving import move

        with self._writing():
            count = move(self._database, old, new)
        if not count:
            projects = self._database.execute(
                "SELECT project FROM runs WHERE project NOT IN ('', ?, ?) GROUP BY project ORDER BY max(number) DESC",
                (NO_PROJECT, new),
            )
            known = ", ".join(name for (name,) in projects.fetchmany(_MOST_NAMED)) or "none"
            raise HistoryError(f"no run of {old} has been kept; other projects with runs, the newest first: {known}")
        return count

    def forget(self, age: timedelta) -> int:
        """Remove runs that started longer ago than this and are not going on; return how many."""
        with self._writing():
            return forget(self._database, self._folder, before(age))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise HistoryError(trouble(self._folder, "written", error)) from error


def _project(kept: Kept) -> str:
    name = project_name(kept.project)
    return "no project" if name is None else f"the project {name}"


def _still_there(row: tuple[Any, ...] | None, run: str) -> tuple[Any, ...]:
    """Return what is kept of a run, which another process may have thrown away since it was found."""
    if row is None:
        raise HistoryError(f"run {run} has been forgotten meanwhile")
    return row


def _without_outcome(
    kept: Kept, target: str, name: str | None, step: int, records: Sequence[Mapping[str, Json]]
) -> Outcome:
    error: TargetError | None = None
    if kept.running:
        error = TargetError("still_running", f"run {kept.run_id} is going on")
    elif kept.status is not RunStatus.DETACHED:
        error = TargetError("run_cut", f"run {kept.run_id} ended before {target} was done")
    return Outcome(
        target=target,
        name=name,
        step=step,
        status=Status.LOST if error else Status.RUNNING,
        phase=Phase.RUN if records or not error else Phase.PLAN,
        error=ErrorInfo.of(error, run_id=kept.run_id) if error else None,
        records=records,
    )
