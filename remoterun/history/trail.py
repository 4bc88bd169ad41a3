"""Runs of a playbook one after the other: which one came before, what is different, and how targets fared."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from remoterun import compare
from remoterun.compare import Moment, Silence, Standing, State
from remoterun.compare.seen import see
from remoterun.compare.views import views
from remoterun.history import index
from remoterun.history.database import reading, transaction
from remoterun.model import Status
from remoterun.records import dataclass

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from remoterun.compare import Difference
    from remoterun.compare.numbers import Tolerance
    from remoterun.compare.seen import Seen
    from remoterun.compare.views import View
    from remoterun.history.index import Entry, Line
    from remoterun.model import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Tell how a target fared in one run: the worst status of its steps, how many checkpoints, the newest step."""

    run: Moment
    status: Status
    checkpoints: int
    newest: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Tell of a finding that is gone: `last` is the last run that had it, `gone` the first that did not."""

    standing: Standing
    last: Moment
    gone: Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Trail:
    """Tell how a target fared in the runs of a playbook: `stops` are the newest ones, the newest first.

    `project` is as `project_name` reads it; `standing` are the findings after the last of them, `ended` those that went
    away during these runs.
    """

    project: str
    playbook: str
    target: str
    name: str | None
    stops: tuple[Stop, ...]
    standing: tuple[Standing, ...]
    ended: tuple[Ended, ...]
    silence: Silence | None


# --- following --------------------------------------------------------------------------------------------------------


_OF_LINE: Final = "project = ? AND playbook = ?"


def catch_up(
    database: sqlite3.Connection, ended: Callable[[int], Run | None], on_step: Callable[[int, int], None] | None = None
) -> None:
    """Follow the runs that were not followed when they ended: those that were cut, and those of older versions.

    Each is followed whole or not at all: what was done stays done when this process is killed, and another one that
    does the same at the same time takes turns with it.

    Args:
        database: the history.
        ended: returns the run of a number, or None while it goes on.
        on_step: takes how many runs of how many were looked at.
    """
    (waiting,) = database.execute("SELECT count(*) FROM runs WHERE followed = 0").fetchone()
    done = 0
    # Runs of older versions come first: others may take them over.
    for line in database.execute(
        "SELECT DISTINCT project, playbook FROM runs WHERE followed = 0 ORDER BY project"
    ).fetchall():
        follower = _Follower(database)
        # All after the first one followed from a state that lacked it: they come to wait as well.
        while (number := _next_waiting(database, line, follower.last)) is not None:
            follower.follow(number, ended)
            done += 1
            if on_step is not None:
                on_step(done, max(waiting, done))


def _next_waiting(database: sqlite3.Connection, line: tuple[str, str], last: int) -> int | None:
    (number,) = database.execute(
        f"SELECT min(number) FROM runs WHERE {_OF_LINE} AND followed = 0 AND number > ?",  # noqa: S608  # our own
        (*line, last),
    ).fetchone()
    return number if isinstance(number, int) else None


class _Follower:
    """Follow runs of a line one after the other, and remember what the next one needs as long as nobody else writes."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._known: dict[str, Entry] | None = None
        self._version = -1
        self.last = 0

    def follow(self, number: int, ended: Callable[[int], Run | None]) -> None:
        """Follow a run that has ended, unless another process has done so meanwhile."""
        self.last = number
        run = ended(number)
        if run is None:
            return
        with transaction(self._database):
            self._follow(number, run)

    def _follow(self, number: int, run: Run) -> None:
        # It changes with what others write.
        (version,) = self._database.execute("PRAGMA data_version").fetchone()
        known = self._known if version == self._version else None
        self._known, self._version = None, version
        if self._database.execute("SELECT 1 FROM runs WHERE number = ? AND followed = 0", (number,)).fetchone():
            self._known = index.follow(self._database, number, run, known)


# --- what came before -------------------------------------------------------------------------------------------------

_PREVIOUS: Final = """
    SELECT max((
        SELECT run FROM entries CROSS JOIN runs ON runs.number = run
        WHERE entries.target = targets.number AND run < :run
        AND runs.status IS NOT NULL AND runs.status <> 'detached'
        ORDER BY run DESC LIMIT 1
    ))
    FROM targets
    WHERE project = :project AND playbook = :playbook AND target IN (SELECT target FROM jobs WHERE run = :run)
"""


def previous(database: sqlite3.Connection, run: int) -> int | None:
    """Return the last run of a line before another one that ended by itself and has a target in common with it."""
    line = index.line_of(database, run)
    (number,) = database.execute(_PREVIOUS, {**line._asdict(), "run": run}).fetchone()
    return number if isinstance(number, int) else None


def difference(
    database: sqlite3.Connection,
    before: tuple[int, Run] | None,
    after: tuple[int, Run],
    run_of: Callable[[int], Run],
    tolerances: Sequence[Tolerance] = (),
) -> Difference:
    """Tell what is different in a run from an earlier one of the same line, or from nothing.

    Args:
        database: the history, caught up.
        before: number and run of the earlier one.
        after: those of the run.
        run_of: returns a run by its number.
        tolerances: how far numbers may move, instead of what is their own.
    """
    number, run = after
    line = index.line_of(database, number)
    latest = State(targets={name: each.state({}) for name, each in index.entries(database, line, number - 1).items()})
    if before is None:
        return compare.difference(State(), run, latest)
    known = index.entries(database, line, before[0])
    return compare.difference(_state_after(known, before[1], run_of), run, latest, tolerances)


def _state_after(entries: Mapping[str, Entry], run: Run, run_of: Callable[[int], Run]) -> State:
    """Return what was known after a run: what the index knows, and what the last results of each target say."""
    heard: dict[int, dict[str, View]] = {}
    seen_by = views(run)
    seen = {target: _seen(view) for target, view in seen_by.items()}
    for target, entry in entries.items():
        view = seen_by.get(target)
        if entry.heard is not None and (view is None or view.silent is not None or not view.told):
            if entry.heard not in heard:
                heard[entry.heard] = views(run_of(entry.heard))
            last = heard[entry.heard].get(target)
            seen[target] = {**(_seen(last) if last is not None else {}), **seen.get(target, {})}
    return State(
        last=Moment(run_id=run.run_id, at=run.started_at),
        asked=frozenset(seen_by),
        targets={target: entry.state(seen.get(target, {})) for target, entry in entries.items()},
    )


def _seen(view: View) -> dict[str, Seen]:
    return {payload: see(own) for payload, own in view.told.items()}


# --- trails -----------------------------------------------------------------------------------------------------------


def trails(
    database: sqlite3.Connection, lines: Iterable[Line], pattern: str | None, most: int, *, with_ended: bool
) -> Iterator[Trail]:
    """Yield the trails of the targets of lines, line by line.

    Args:
        database: the history, caught up.
        lines: whose runs.
        pattern: only of targets whose id or name is like this.
        most: how many runs to tell of, the newest.
        with_ended: tell which findings went away.
    """
    for line in lines:
        (last,) = database.execute(f"SELECT max(number) FROM runs WHERE {_OF_LINE} AND followed = 1", line).fetchone()  # noqa: S608  # our own
        for target, entry in index.entries(database, line, last).items():
            if pattern is None or any(fnmatchcase(text, pattern) for text in (target, entry.name or "")):
                stops = tuple(_stops(database, entry.number, most))
                yield Trail(
                    **line._asdict(),
                    target=target,
                    name=entry.name,
                    stops=tuple(stop for _, stop in stops),
                    standing=entry.standing,
                    ended=tuple(_ended(database, entry, stops[-1][0])) if with_ended else (),
                    silence=entry.silence,
                )


def _stops(database: sqlite3.Connection, target: int, most: int) -> Iterator[tuple[int, Stop]]:
    for number, run_id, at, status, checkpoints, newest in database.execute(
        "SELECT run, id, started_at, entries.status, checkpoints, newest FROM entries "
        "CROSS JOIN runs ON runs.number = run WHERE target = ? ORDER BY run DESC LIMIT ?",
        (target, most),
    ):
        with reading():
            known = Status(status)
        yield number, Stop(run=Moment(run_id=run_id, at=at), status=known, checkpoints=checkpoints, newest=newest)


_ENDED: Final = """
    SELECT finding, since_id, since_at, body, last_run.id, last_run.started_at, gone_run.id, gone_run.started_at
    FROM (
        SELECT spells.number AS spell, finding, since_id, since_at, body,
            max((SELECT max(run) FROM standing WHERE wording = wordings.number)) AS last
        FROM spells CROSS JOIN wordings ON spell = spells.number WHERE target = :target GROUP BY spells.number
    )
    CROSS JOIN runs AS last_run ON last_run.number = last
    CROSS JOIN runs AS gone_run
    ON gone_run.number = (SELECT min(run) FROM entries WHERE target = :target AND run > last)
    WHERE gone_run.number >= :oldest
    ORDER BY gone_run.number DESC, spell
"""


def _ended(database: sqlite3.Connection, entry: Entry, oldest: int) -> Iterator[Ended]:
    for key, since_id, since_at, body, last_id, last_at, gone_id, gone_at in database.execute(
        _ENDED, {"target": entry.number, "oldest": oldest}
    ):
        since = Moment(run_id=since_id, at=since_at)
        yield Ended(
            standing=index.read_standing(key, body, since, known=False),
            last=Moment(run_id=last_id, at=last_at),
            gone=Moment(run_id=gone_id, at=gone_at),
        )
