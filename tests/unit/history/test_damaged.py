"""A history that was damaged on its disk, that a later version wrote into, or that others throw runs away from."""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from remoterun.history import History, HistoryError
from remoterun.history.database import FILE_NAME
from remoterun.report import to_json
from tests.support import audits


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a history that knows of findings, and of a target that is silent."""
    audits.keep(tmp_path, audits.run(0, audits.audited("a", [1], audits.nan(1)), audits.silent("b")))
    audits.keep(tmp_path, audits.run(1, audits.audited("a", [1, 2], audits.nan(1)), audits.silent("b")))
    return tmp_path


def _spoil(folder: Path, *statements: str) -> None:
    with closing(sqlite3.connect(folder / FILE_NAME)) as database, database:
        for statement in statements:
            database.execute(statement)


def _show(history: History) -> object:
    return to_json(history.run(history.find("last")))


def _compare(history: History) -> object:
    return history.comparable(), history.difference(None, history.find("last"))


_READERS: Sequence[Callable[[History], object]] = (_show, _compare, lambda history: history.trails(with_ended=True))


def _told(folder: Path) -> list[bool]:
    """Read a history in every way, and return which of them said that it can't be read; nothing else may come out."""
    told = []
    for read in _READERS:
        try:
            with History.open(folder) as history:
                read(history)
        except HistoryError as error:
            told.append("can't be read" in str(error))
        else:
            told.append(False)
    return told


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("UPDATE jobs SET outcome = x'00ff'", [True, True, False]),
        ("UPDATE jobs SET outcome = (SELECT body FROM records LIMIT 1)", [True, True, False]),
        ("UPDATE records SET body = x'01'", [True, True, False]),
        ("UPDATE runs SET status = 'of-tomorrow'", [True, True, False]),
        ("UPDATE jobs SET status = 'of-tomorrow'", [True, True, False]),
        ("UPDATE entries SET status = 'of-tomorrow'", [False, False, True]),
        ("UPDATE wordings SET body = x'01'", [False, True, True]),
        ("UPDATE spells SET finding = '['", [False, True, True]),
        ("UPDATE spells SET finding = CAST(x'ff' AS TEXT)", [False, True, True]),
        ("UPDATE entries SET silence = '{}' WHERE silence IS NOT NULL", [False, True, True]),
        ("DROP TABLE entries", [False, True, True]),
    ],
)
def test_what_cannot_be_made_sense_of_is_told(folder: Path, statement: str, told: list[bool]) -> None:
    _spoil(folder, "PRAGMA foreign_keys = OFF", statement)
    assert _told(folder) == told


def test_bytes_that_went_bad_are_told_or_not_met(folder: Path) -> None:
    with closing(sqlite3.connect(folder / FILE_NAME)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    whole = (folder / FILE_NAME).read_bytes()
    chance = random.Random(7)
    met = 0
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(chance.choice([1, 20, 300])):
            data[chance.randrange(len(data))] = chance.randrange(256)
        (folder / FILE_NAME).write_bytes(data)
        met += any(_told(folder))
    assert met > 10


def test_a_run_that_is_thrown_away_while_it_is_read_is_missed(folder: Path) -> None:
    with History.open(folder) as history, History.open(folder) as other:
        newest = history.find("last")
        other.forget(timedelta(0))
        for read in (history.run, history.plan, history.previous, lambda kept: history.difference(None, kept)):
            with pytest.raises(HistoryError, match="forgotten meanwhile"):
                read(newest)


def test_a_run_that_is_thrown_away_while_others_are_followed_is_passed_over(folder: Path) -> None:
    _spoil(folder, "DELETE FROM entries", "DELETE FROM standing", "UPDATE runs SET followed = 0")
    with History.open(folder) as other:
        last = other.find("last")

        def forget_the_last(done: int, _total: int) -> None:
            if done == 1:
                other._database.execute("DELETE FROM runs WHERE id = ?", (last.run_id,))

        with History.open(folder, forget_the_last) as history:
            assert [len(trail.stops) for trail in history.trails()] == [1, 1]


READ = """\
import resource, signal, sys
from pathlib import Path
from remoterun.history import History
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), -1))
with History.open(Path(sys.argv[1])) as history:
    print(len(history.trails()))
"""


@pytest.mark.parametrize("most", [100, 20_000, 40_000])
def test_where_a_full_disk_ends_a_migration_that_is_told_and_nothing_lost(tmp_path: Path, most: int) -> None:
    shutil.copy(Path(__file__).parents[2] / "data/history/version-2.sqlite3", tmp_path / FILE_NAME)
    done = subprocess.run([sys.executable, "-c", READ, str(tmp_path), str(most)], capture_output=True, check=False)
    assert b"can't be read" in done.stderr
    assert b"rollback" not in done.stderr.splitlines()[-1]
    with History.open(tmp_path) as history:
        assert len(history.trails()) == 3


def test_nothing_is_older_than_all_time(folder: Path) -> None:
    with History.open(folder) as history:
        assert history.forget(timedelta.max) == 0
        assert history.forget(timedelta(0)) == 2


def test_a_history_can_be_read_where_nothing_can_be_written_beside_it(folder: Path) -> None:
    """As on a full disk, or in a folder of somebody else: sqlite has no room for what it keeps beside a database."""
    with History.open(folder) as history:
        shown, compared = _show(history), _compare(history)
    (folder / f"{FILE_NAME}-shm").mkdir()
    with History.open(folder) as history:
        assert (_show(history), _compare(history)) == (shown, compared)
        with pytest.raises(HistoryError, match=r"can't be written: .*; let XDG_STATE_HOME name another folder"):
            history.forget(timedelta(0))
        with pytest.raises(HistoryError, match=r"can't be written: .*; let XDG_STATE_HOME name another folder"):
            history.move("/srv/one", "/srv/two")


def test_the_way_out_of_a_damaged_history_is_said(folder: Path) -> None:
    (folder / FILE_NAME).write_bytes(b"no database " * 1000)
    with pytest.raises(HistoryError, match=rf"not a database; a new one begins when {FILE_NAME} is moved away$"):
        History.open(folder)
    (folder / FILE_NAME).rename(folder / "damaged")
    with pytest.raises(HistoryError, match="no run has been kept"):
        History.open(folder)


def test_a_history_is_not_read_in_part(folder: Path) -> None:
    (folder / f"{FILE_NAME}-shm").mkdir()
    (folder / f"{FILE_NAME}-wal").write_bytes(b"what a process that was killed had written")
    assert _told(folder) == [True] * len(_READERS)


def test_an_older_history_is_not_read_where_it_can_not_be_brought_up_to_date(folder: Path) -> None:
    _spoil(folder, "PRAGMA user_version = 1")
    (folder / f"{FILE_NAME}-shm").mkdir()
    assert _told(folder) == [True] * len(_READERS)
