"""What is thrown away: runs that nobody will ask for any more."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from remoterun.history.alive import is_running
from remoterun.model.times import moment_text

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence
    from pathlib import Path

KEEP: Final = timedelta(days=90)
"""How long runs are kept when nobody says anything else."""
_PAGES_AT_ONCE: Final = 1000


def before(age: timedelta) -> str:
    """Return the moment that lies so long back, as the history writes moments."""
    try:
        return moment_text(datetime.now(UTC) - age)
    except OverflowError:  # before there were years
        return ""


def forget(database: sqlite3.Connection, folder: Path, moment: str) -> int:
    """Remove runs that started before a moment and are not going on, with all they had; return how many."""
    old = database.execute("SELECT number, id FROM runs WHERE started_at < ?", (moment,)).fetchall()
    ended = [(number,) for number, run_id in old if not is_running(folder, run_id)]
    if ended:
        database.executemany("DELETE FROM runs WHERE number = ?", ended)
        database.execute("DELETE FROM packs WHERE sha256 NOT IN (SELECT sha256 FROM packs_of_runs)")
        _sweep(database)
        _shrink(database)
    return len(ended)


def unfollow(database: sqlite3.Connection, runs: Sequence[int]) -> None:
    """Throw away what runs left behind; they have to be followed anew."""
    each = [(number,) for number in runs]
    database.executemany("DELETE FROM standing WHERE run = ?", each)
    database.executemany("DELETE FROM entries WHERE run = ?", each)
    database.executemany("UPDATE runs SET followed = 0 WHERE number = ?", each)


def _sweep(database: sqlite3.Connection) -> None:
    """Remove what no run refers to any more."""
    database.execute("DELETE FROM wordings WHERE NOT EXISTS (SELECT 1 FROM standing WHERE wording = wordings.number)")
    database.execute("DELETE FROM spells WHERE NOT EXISTS (SELECT 1 FROM wordings WHERE spell = spells.number)")
    database.execute("DELETE FROM targets WHERE NOT EXISTS (SELECT 1 FROM entries WHERE target = targets.number)")


def _shrink(database: sqlite3.Connection) -> None:
    """Give room that nothing needs any more back to the disk, a little at a time: other runs are written meanwhile."""
    free, before = _free_pages(database), 0
    while free and free != before:
        # As a script, or only one page is given back: of other statements, Python takes one step.
        database.executescript(f"PRAGMA incremental_vacuum({_PAGES_AT_ONCE})")
        free, before = _free_pages(database), free


def _free_pages(database: sqlite3.Connection) -> int:
    (count,) = database.execute("PRAGMA freelist_count").fetchone()
    return int(count)
