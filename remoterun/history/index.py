"""What runs of a playbook leave behind for the next: which findings stand since when, and which targets are silent.

It is made from the runs themselves, each after those before it: when a run ends or, where that was not to be, when
somebody asks. So it may be thrown away at any time.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from remoterun.compare import Identity, Kind, Moment, Silence, Standing, TargetState
from remoterun.compare.seen import see
from remoterun.compare.standing import advance, silence
from remoterun.compare.views import views
from remoterun.history.database import reading
from remoterun.history.retention import unfollow
from remoterun.history.values import pack_json, unpack_json
from remoterun.model import Finding, Severity, Status
from remoterun.records import dataclass
from remoterun.report.documents import plain

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping

    from remoterun.compare.seen import Seen
    from remoterun.compare.views import View
    from remoterun.model import Json, Run

_WORST: Final = (
    *(Status.UNREACHABLE, Status.LOST, Status.TIMEOUT, Status.FAILED, Status.CANCELLED, Status.NOT_STARTED),
    *(Status.RUNNING, Status.FINDINGS, Status.OK),
)
"""Of several steps, the first of these stands for the target."""


class Line(NamedTuple):
    """Name runs that can be compared: those of one playbook in one project, or in none; see `NO_PROJECT`.

    Runs of older versions know nothing of that: their project is empty.
    """

    project: str
    playbook: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Hold where a finding that stands is written: its spell, and the words of it, of which `said` was made."""

    spell: int
    wording: int
    body: bytes
    said: Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Hold what is known of a target after some run, and where that is written.

    `run` is the last one that had it, `heard` the last one that gave all its results: None when it is there no more.
    `rows` are by the key of the finding.
    """

    number: int
    name: str | None
    run: int
    heard: int | None
    standing: tuple[Standing, ...]
    silence: Silence | None
    rows: Mapping[str, Row]

    def state(self, seen: Mapping[str, Seen]) -> TargetState:
        """Return what is known, for a comparison."""
        return TargetState(name=self.name, standing=self.standing, silence=self.silence, seen=seen)


# --- reading ----------------------------------------------------------------------------------------------------------

_ENTRIES: Final = """
    SELECT targets.number, targets.target, name, run, (SELECT number FROM runs WHERE number = heard), silence
    FROM targets CROSS JOIN entries ON entries.target = targets.number
    AND run = (SELECT max(run) FROM entries WHERE entries.target = targets.number AND run <= ?)
    WHERE playbook = ? AND project = ?
"""
_STANDING: Final = """
    SELECT spells.target, finding, since_id, since_at, spells.number, wordings.number, body, known
    FROM standing CROSS JOIN wordings ON wordings.number = wording CROSS JOIN spells ON spells.number = spell
    WHERE run = ? ORDER BY wording
"""


def entries(database: sqlite3.Connection, line: Line, run: int) -> dict[str, Entry]:
    """Return what is known of every target of a line after a run and those before it."""
    found = database.execute(_ENTRIES, (run, line.playbook, line.project)).fetchall()
    standing = {last: _standing(database, last) for last in {row[3] for row in found}}
    return {
        target: Entry(
            number=number,
            name=name,
            run=last,
            heard=heard,
            standing=tuple(each for each, _ in standing[last].get(number, ())),
            silence=None if silent is None else _read_silence(target, name, silent),
            rows={each.identity.key: row for each, row in standing[last].get(number, ())},
        )
        for number, target, name, last, heard, silent in found
    }


def _standing(database: sqlite3.Connection, run: int) -> dict[int, list[tuple[Standing, Row]]]:
    found: dict[int, list[tuple[Standing, Row]]] = {}
    for target, key, since_id, since_at, spell, wording, body, known in database.execute(_STANDING, (run,)):
        since = Moment(run_id=since_id, at=since_at)
        standing = read_standing(key, body, since, known=bool(known))
        row = Row(spell=spell, wording=wording, body=body, said=standing)
        found.setdefault(target, []).append((standing, row))
    return found


def read_standing(key: str, body: bytes, since: Moment, *, known: bool) -> Standing:
    """Read a finding that stands from what is written of it."""
    with reading():
        target, payload, rule, subject, path, tensor = json.loads(key)
        value = unpack_json(body)
        finding = value["finding"]
        return Standing(
            identity=Identity(target=target, payload=payload, rule=rule, subject=subject, path=path, tensor=tensor),
            finding=Finding(**{**finding, "severity": Severity(finding["severity"])}),
            since=since,
            known=known,
            checked=value["checked"],
        )


def _read_silence(target: str, name: str | None, text: str) -> Silence:
    kinds: dict[str, Any] = {kind.value: kind for kind in (Kind.TARGET_UNREACHABLE, Kind.TARGET_FAILED)}
    with reading():
        value = json.loads(text)
        read = {"kind": kinds[value["kind"]], "status": Status(value["status"]), "since": Moment(**value["since"])}
        return Silence(target=target, name=name, **{**value, **read})


# --- writing ----------------------------------------------------------------------------------------------------------


def follow(
    database: sqlite3.Connection, number: int, run: Run, known: Mapping[str, Entry] | None = None
) -> dict[str, Entry]:
    """Write what a run leaves behind, after all before it were followed; later ones have to be followed anew.

    `known` is what is known of the targets before it, where that has been read already. Returns what is known then.
    """
    line = line_of(database, number)
    _adopt(database, line, number)
    later = database.execute(
        "SELECT number FROM runs WHERE playbook = ? AND project = ? AND number >= ? AND followed = 1",
        (line.playbook, line.project, number),
    ).fetchall()
    unfollow(database, [row[0] for row in later])
    after = dict(entries(database, line, number) if known is None else known)
    now = Moment(run_id=run.run_id, at=run.started_at)
    for view in views(run).values():
        entry = after.get(view.target) or _new_entry(database, line, view.target)
        after[view.target] = _follow_target(database, number, entry, view, now)
    database.execute("UPDATE runs SET followed = 1 WHERE number = ?", (number,))
    return after


def line_of(database: sqlite3.Connection, number: int) -> Line:
    """Return which runs a run can be compared with."""
    with reading():  # it may have been forgotten meanwhile
        return Line(*database.execute("SELECT project, playbook FROM runs WHERE number = ?", (number,)).fetchone())


def _adopt(database: sqlite3.Connection, line: Line, number: int) -> None:
    """Take over runs of older versions for the first run of a project: those of its targets, and of theirs.

    A history that began anew would tell people everything once more.
    """
    known = "SELECT 1 FROM runs WHERE playbook = ? AND project = ? AND followed = 1 AND number <> ? LIMIT 1"
    if not line.project or database.execute(known, (line.playbook, line.project, number)).fetchone():
        return
    targets_of: dict[int, set[str]] = {}
    for run, target in database.execute(
        "SELECT number, target FROM runs CROSS JOIN jobs ON run = number WHERE playbook = ? AND project = ''",
        (line.playbook,),
    ):
        targets_of.setdefault(run, set()).add(target)
    targets = {target for (target,) in database.execute("SELECT target FROM jobs WHERE run = ?", (number,))}
    adopted: list[int] = []
    while more := [run for run, its in targets_of.items() if not targets.isdisjoint(its)]:
        targets.update(*(targets_of.pop(run) for run in more))
        adopted += more
    if not adopted:
        return
    each = [(line.project, line.playbook, target) for target in targets]
    # What is left of an entry that was thrown away holds the name of the target.
    database.executemany("DELETE FROM targets WHERE project = ? AND playbook = ? AND target = ?", each)
    database.executemany("UPDATE targets SET project = ? WHERE playbook = ? AND project = '' AND target = ?", each)
    database.executemany("UPDATE runs SET project = ? WHERE number = ?", [(line.project, run) for run in adopted])


def _new_entry(database: sqlite3.Connection, line: Line, target: str) -> Entry:
    # The target may be there already, without any run.
    key = (line.project, line.playbook, target)
    database.execute("INSERT OR IGNORE INTO targets (project, playbook, target) VALUES (?, ?, ?)", key)
    (number,) = database.execute(
        "SELECT number FROM targets WHERE project = ? AND playbook = ? AND target = ?", key
    ).fetchone()
    return Entry(number=number, name=None, run=0, heard=None, standing=(), silence=None, rows={})


def _follow_target(database: sqlite3.Connection, number: int, entry: Entry, view: View, now: Moment) -> Entry:
    seen = {payload: see(own, numbered=False) for payload, own in view.told.items()}
    standing, _ = advance(entry.standing, view, seen, now)
    silent = silence(entry.silence, view, now)
    checkpoints = [checkpoint for each in seen.values() for checkpoint in each.checkpoints.values()]
    # Numbers of sqlite have 64 bits.
    steps = [each.step for each in checkpoints if each.step is not None and abs(each.step) < 1 << 63]
    if view.name != entry.name and view.name is not None:
        database.execute("UPDATE targets SET name = ? WHERE number = ?", (view.name, entry.number))
    heard = number if view.told and view.silent is None else entry.heard
    database.execute(
        "INSERT INTO entries (target, run, status, heard, silence, checkpoints, newest) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            entry.number,
            number,
            min(view.statuses, key=_WORST.index).value,
            heard,
            None if silent is None else _write_silence(silent),
            len(checkpoints),
            max(steps, default=None),
        ),
    )
    rows = {each.identity.key: _row(database, entry, each) for each in standing}
    database.executemany(
        "INSERT INTO standing VALUES (?, ?, ?)",
        [(number, rows[each.identity.key].wording, each.known) for each in standing],
    )
    return Entry(
        number=entry.number,
        name=view.name or entry.name,
        run=number,
        heard=heard,
        standing=standing,
        silence=silent,
        rows=rows,
    )


def _row(database: sqlite3.Connection, entry: Entry, standing: Standing) -> Row:
    """Return the row of a finding's words, which is a new one where they have changed."""
    key = standing.identity.key
    row = entry.rows.get(key)
    if row is not None and row.said.finding == standing.finding and row.said.checked == standing.checked:
        return row
    body = _write_standing(standing)
    if row is not None and row.body == body:
        return row
    spell = row.spell if row is not None else None
    if spell is None:
        spell = database.execute(
            "INSERT INTO spells (target, finding, since_id, since_at) VALUES (?, ?, ?, ?)",
            (entry.number, key, standing.since.run_id, standing.since.at),
        ).lastrowid
    wording = database.execute("INSERT INTO wordings (spell, body) VALUES (?, ?)", (spell, body)).lastrowid
    return Row(spell=spell or 0, wording=wording or 0, body=body, said=standing)


def _write_standing(standing: Standing) -> bytes:
    finding: dict[str, Json] = {item.name: plain(getattr(standing.finding, item.name)) for item in fields(Finding)}
    return pack_json({"finding": finding, "checked": standing.checked})


def _write_silence(silent: Silence) -> str:
    return json.dumps(
        {
            "kind": silent.kind,
            "step": silent.step,
            "status": silent.status,
            "code": silent.code,
            "message": plain(silent.message),
            "runs": silent.runs,
            "since": {"run_id": silent.since.run_id, "at": silent.since.at},
        }
    )
