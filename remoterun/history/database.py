"""The database of runs: where it lies, its tables, and how an older one becomes a newer one."""

from __future__ import annotations

import errno
import os
import sqlite3
import zlib
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from remoterun.store import KEY_NAME, make_private

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE_NAME: Final = "history.sqlite3"
NO_PROJECT: Final = "-"
"""What stands for the folder of a project where there is none."""
# Writers of other runs hold the database for moments; who holds it longer hangs.
_BUSY_S: Final = 5.0
_ELSEWHERE: Final = "let XDG_STATE_HOME name another folder"
_ELSEWHERE_HELPS: Final = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR})
_ELSEWHERE_HELPS_SYSTEM: Final = frozenset({errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS})

# One script for each version of the tables, run in their order; a script that was released is never changed.
_SCRIPTS: Final = (
    """
    CREATE TABLE runs (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        playbook TEXT NOT NULL,
        playbook_sha256 TEXT,
        remoterun TEXT NOT NULL,
        started_at TEXT NOT NULL,
        finished_at TEXT,
        status TEXT,
        plan BLOB NOT NULL
    );
    CREATE INDEX runs_by_time ON runs (started_at);
    CREATE TABLE jobs (
        run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
        job INTEGER NOT NULL,
        target TEXT NOT NULL,
        name TEXT,
        step INTEGER NOT NULL,
        status TEXT,
        outcome BLOB,
        PRIMARY KEY (run, job)
    ) WITHOUT ROWID;
    CREATE TABLE records (
        run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
        job INTEGER NOT NULL,
        record INTEGER NOT NULL,
        body BLOB NOT NULL,
        PRIMARY KEY (run, job, record)
    ) WITHOUT ROWID;
    CREATE TABLE packs (
        sha256 TEXT PRIMARY KEY,
        data BLOB NOT NULL
    );
    CREATE TABLE packs_of_runs (
        run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
        sha256 TEXT NOT NULL REFERENCES packs,
        PRIMARY KEY (run, sha256)
    ) WITHOUT ROWID;
    """,
    # What runs of one playbook leave behind for the next: made from the tables above, and made again when these change.
    """
    ALTER TABLE runs ADD COLUMN followed INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX runs_to_follow ON runs (playbook, number) WHERE followed = 0;
    CREATE INDEX runs_by_playbook ON runs (playbook, number);
    CREATE TABLE targets (
        number INTEGER PRIMARY KEY,
        playbook TEXT NOT NULL,
        target TEXT NOT NULL,
        name TEXT,
        UNIQUE (playbook, target)
    );
    CREATE TABLE entries (
        target INTEGER NOT NULL REFERENCES targets ON DELETE CASCADE,
        run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
        status TEXT NOT NULL,
        heard INTEGER,
        silence TEXT,
        checkpoints INTEGER NOT NULL,
        newest INTEGER,
        PRIMARY KEY (target, run)
    ) WITHOUT ROWID;
    CREATE INDEX entries_by_run ON entries (run);
    CREATE TABLE spells (
        number INTEGER PRIMARY KEY,
        target INTEGER NOT NULL REFERENCES targets ON DELETE CASCADE,
        finding TEXT NOT NULL,
        since_id TEXT NOT NULL,
        since_at TEXT NOT NULL
    );
    CREATE INDEX spells_by_target ON spells (target);
    CREATE TABLE wordings (
        number INTEGER PRIMARY KEY,
        spell INTEGER NOT NULL REFERENCES spells ON DELETE CASCADE,
        body BLOB NOT NULL
    );
    CREATE INDEX wordings_by_spell ON wordings (spell);
    CREATE TABLE standing (
        run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
        wording INTEGER NOT NULL REFERENCES wordings ON DELETE CASCADE,
        known INTEGER NOT NULL,
        PRIMARY KEY (run, wording)
    ) WITHOUT ROWID;
    CREATE INDEX standing_by_wording ON standing (wording);
    """,
    # Which project runs are of: empty for those of older versions, also of one that is still at work.
    """
    ALTER TABLE runs ADD COLUMN project TEXT NOT NULL DEFAULT '';
    DROP INDEX runs_to_follow;
    DROP INDEX runs_by_playbook;
    CREATE INDEX runs_to_follow ON runs (project, playbook, number) WHERE followed = 0;
    CREATE INDEX runs_by_playbook ON runs (playbook, project, number);
    CREATE TABLE targets_of_projects (
        number INTEGER PRIMARY KEY,
        project TEXT NOT NULL DEFAULT '',
        playbook TEXT NOT NULL,
        target TEXT NOT NULL,
        name TEXT,
        UNIQUE (playbook, project, target)
    );
    INSERT INTO targets_of_projects SELECT number, '', playbook, target, name FROM targets;
    DROP TABLE targets;
    ALTER TABLE targets_of_projects RENAME TO targets;
    """,
)


class NewerHistoryError(Exception):
    """Say that a newer remoterun has written the database."""

    def __init__(self, version: int) -> None:
        super().__init__(f"a newer remoterun has written it (version {version} of its tables)")


def trouble(folder: Path, cannot: str, error: Exception) -> str:
    """Say what cannot be done with the history of a folder, why, and what there is to do about it."""
    way_out = _way_out(folder, error)
    return f"the history in {folder} can't be {cannot}: {error}{f'; {way_out}' if way_out else ''}"


def _way_out(folder: Path, error: Exception) -> str | None:
    if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
        return f"a new one begins when {FILE_NAME} is moved away"
    if isinstance(error, NewerHistoryError):
        return f"update this one, or {_ELSEWHERE}"
    number = error.errno if isinstance(error, OSError) else None
    # Extended codes have the plain one in their last byte.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if (
        code == sqlite3.SQLITE_FULL
        or number in {errno.ENOSPC, errno.EDQUOT}
        or (code in _ELSEWHERE_HELPS and _is_full(folder))
    ):
        return "make room there"
    # Others pass: a lock, too many open files.
    return _ELSEWHERE if code in _ELSEWHERE_HELPS or number in _ELSEWHERE_HELPS_SYSTEM else None


def _is_full(folder: Path) -> bool:
    try:
        return os.statvfs(folder).f_bavail == 0
    except OSError:
        return False


@contextmanager
def reading() -> Iterator[None]:
    """Tell what cannot be made sense of as what it is: a damaged database, not a bug.

    Raises:
        sqlite3.DatabaseError: a value is not what was written there.
    """
    try:
        yield
    except (zlib.error, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise sqlite3.DatabaseError(f"a value in it is damaged ({type(error).__name__}: {error})") from error


def project_name(project: str) -> str | None:
    """Return the folder of a project, None where there is none, or nobody knows it."""
    return None if project in {"", NO_PROJECT} else project


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Write several things or none."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        # On a full disk it may be gone already, and that is not what went wrong.
        with suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        raise


def default_folder() -> Path:
    """Return the folder that holds the database of this user."""
    import platformdirs

    return platformdirs.user_state_path("remoterun")


def own_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files that nothing else may take the place of, with what they are."""
    # What sqlite has not yet put into the first stands in the second; the third says what is where in that.
    yield from (("the history", folder / f"{FILE_NAME}{part}") for part in ("", "-wal", "-shm"))
    yield "the key that signs what is kept", folder / KEY_NAME


def connect(folder: Path, *, create: bool) -> sqlite3.Connection:
    """Open the database, made or brought up to date if need be; it is nobody else's to read.

    Raises:
        sqlite3.Error, OSError: when it can't be opened.
        FileNotFoundError: when there is none, and none is to be made.
        NewerHistoryError: when its tables are of a later version than this code knows.
    """
    path = folder / FILE_NAME
    if create:
        make_private(folder)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    else:
        path.stat()
    try:
        return _opened(path)
    except sqlite3.OperationalError:
        if create or (database := _opened_for_reading(path)) is None:
            raise
        return database


def _opened_for_reading(path: Path) -> sqlite3.Connection | None:
    """Open a database beside which nothing can be written: on a full disk, or where nobody may write.

    None where that would not show all of it: it is not brought up to date, or something of it stands beside it.
    """
    with suppress(FileNotFoundError):
        if path.with_name(f"{path.name}-wal").stat().st_size:
            return None
    database = sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True, isolation_level=None)
    with suppress(sqlite3.Error):
        if _version(database) == len(_SCRIPTS):
            return database
    database.close()
    return None


def _opened(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
    try:
        # Where the names of its tables are damaged, the words for that can't be read either.
        with reading():
            database.execute("PRAGMA synchronous = NORMAL")
            # Not before: a table that is made anew would take with it what refers to it.
            _bring_up_to_date(database)
            database.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        database.close()
        raise
    return database


def _bring_up_to_date(database: sqlite3.Connection) -> None:
    if _version(database) == len(_SCRIPTS):
        return
    # Neither can be set inside a transaction. Where the file system can't do WAL, sqlite stays with its journal.
    database.execute("PRAGMA auto_vacuum = INCREMENTAL")
    database.execute("PRAGMA journal_mode = WAL")
    with transaction(database):
        version = _version(database)
        if version > len(_SCRIPTS):
            raise NewerHistoryError(version)
        for number in range(version, len(_SCRIPTS)):
            for statement in _SCRIPTS[number].split(";"):
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {number + 1}")


def _version(database: sqlite3.Connection) -> int:
    row: tuple[int] = database.execute("PRAGMA user_version").fetchone()
    return row[0]
