"""Projects that have moved: a project is its folder, so its history stays with the old one until somebody says so."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from remoterun.history.database import NO_PROJECT, transaction
from remoterun.history.retention import unfollow

if TYPE_CHECKING:
    import sqlite3

DEMO_PREFIX: Final = "remoterun-demo-"
"""How the names of folders begin that a demo makes and removes: they are nobody's project."""


def gone(database: sqlite3.Connection, project: str) -> list[str]:
    """Return the projects whose folders are gone and whose history may be that of a project, the newest first.

    They have a playbook and a target in common with it, where it has a history of its own. One that is gone is the
    new place of none.
    """
    if _is_gone(project):
        return []
    own = database.execute("SELECT 1 FROM targets WHERE project = ? LIMIT 1", (project,)).fetchone()
    alike = (
        "targets AS own CROSS JOIN targets AS theirs ON theirs.playbook = own.playbook AND theirs.target = own.target "
        "AND own.project = :project"
        if own
        else "targets AS theirs"
    )
    found = database.execute(
        f"SELECT DISTINCT theirs.project FROM {alike} WHERE theirs.project NOT IN (:project, '', :none) "  # noqa: S608  # our own
        "ORDER BY (SELECT max(number) FROM runs WHERE runs.project = theirs.project) DESC",
        {"project": project, "none": NO_PROJECT},
    ).fetchall()
    gone_ones = [folder for (folder,) in found if _is_gone(folder)]
    return [folder for folder in gone_ones if not folder.rpartition("/")[2].startswith(DEMO_PREFIX)]


def _is_gone(folder: str) -> bool:
    # A name that is not UTF-8 is kept as `plain` writes it, by which no folder can be found.
    if "\\udc" in folder:
        return False
    try:
        os.stat(folder)  # noqa: PTH116  # what stands there is no path yet: it may hold anything
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return True
    except OSError:
        return False
    return False


def move(database: sqlite3.Connection, old: str, new: str) -> int:
    """Make the runs of a project those of another one, as if they had always been; return how many there were."""
    with transaction(database):
        first_ones = database.execute(
            "SELECT playbook, min(number) FROM runs WHERE project = ? GROUP BY playbook", (old,)
        ).fetchall()
        for playbook, first in first_ones:
            _join(database, playbook, (old, first), new)
        return database.execute("UPDATE runs SET project = ? WHERE project = ?", (new, old)).rowcount


def _join(database: sqlite3.Connection, playbook: str, old: tuple[str, int], new: str) -> None:
    """Let what the runs of a playbook have left behind be one; what depends on runs of both is made anew."""
    (begun,) = database.execute(
        "SELECT min(number) FROM runs WHERE project = ? AND playbook = ?", (new, playbook)
    ).fetchone()
    if begun is not None:
        both = database.execute(
            "SELECT number FROM runs WHERE project IN (?, ?) AND playbook = ? AND number >= ?",
            (old[0], new, playbook, max(begun, old[1])),
        ).fetchall()
        unfollow(database, [number for (number,) in both])
    # All that is left is of the one that began earlier: nothing of the other one's targets.
    later = new if begun is None or begun > old[1] else old[0]
    database.execute("DELETE FROM targets WHERE project = ? AND playbook = ?", (later, playbook))
    database.execute("UPDATE targets SET project = ? WHERE project = ? AND playbook = ?", (new, old[0], playbook))
