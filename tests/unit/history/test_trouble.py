"""What is said where the history can't be read or written: why, and what to do about it."""

from __future__ import annotations

import ast
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import remoterun
from remoterun.history import History, HistoryError, Journal
from tests.support.audits import audited, events, keep, run

ELSEWHERE = "let XDG_STATE_HOME name another folder"


def _newer(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "history.sqlite3")) as database:
        database.execute("PRAGMA user_version = 99")


def _no_database(folder: Path) -> None:
    (folder / "history.sqlite3").write_bytes(b"no database, but long enough to be taken for one" * 99)


def _a_folder(folder: Path) -> None:
    (folder / "history.sqlite3").mkdir()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_newer, f"a newer remoterun has written it (version 99 of its tables); update this one, or {ELSEWHERE}"),
        (_no_database, "file is not a database; a new one begins when history.sqlite3 is moved away"),
        (_a_folder, f"unable to open database file; {ELSEWHERE}"),
    ],
)
def test_a_history_that_cannot_be_used(tmp_path: Path, spoil: Callable[[Path], None], why: str) -> None:
    spoil(tmp_path)
    with pytest.raises(HistoryError) as refused:
        History.open(tmp_path)
    assert str(refused.value) == f"the history in {tmp_path} can't be read: {why}"


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file/state"
    because = f"[Errno 20] Not a directory: '{folder}{{}}'; {ELSEWHERE}"
    with pytest.raises(HistoryError) as refused:
        History.open(folder)
    assert str(refused.value) == f"the history in {folder} can't be read: {because.format('/history.sqlite3')}"
    told: list[str] = []
    Journal(folder, told.append)(events(run(0, audited("one", [1])))[0])
    assert told == [f"the history in {folder} can't be written, so it lacks this run: {because.format('/running')}"]


def test_what_was_written_before_is_there(tmp_path: Path) -> None:
    told: list[str] = []
    journal = Journal(tmp_path, told.append)
    first, *rest = events(run(0, audited("one", [1])))
    journal(first)
    with closing(sqlite3.connect(tmp_path / "history.sqlite3")) as database, database:
        database.execute("DROP TABLE records")
    for event in rest:
        journal(event)
    assert told == [
        f"the history in {tmp_path} can't be written, so it lacks the rest of this run: no such table: records"
    ]


def test_what_cannot_be_forgotten_costs_no_other_run_its_place(tmp_path: Path) -> None:
    old = run(-90, audited("one", [1]))
    keep(tmp_path, old)
    with closing(sqlite3.connect(tmp_path / "history.sqlite3")) as database, database:
        # It needs room in the log of the database, which a nearly full disk may not have: here, it fails for good.
        database.execute("CREATE TRIGGER t BEFORE DELETE ON runs BEGIN SELECT abs(-9223372036854775808); END")
        with pytest.raises(sqlite3.OperationalError):
            database.execute("DELETE FROM runs")
    new = run(0, audited("one", [1]))
    keep(tmp_path, new)
    with History.open(tmp_path) as history:
        assert [kept.run_id for kept in history.runs()] == [new.run_id, old.run_id]
        assert history.run(history.find(new.run_id)).outcomes[0].records == new.outcomes[0].records


def test_placeholders_have_no_numbers() -> None:
    """Python 3.12.0 to 3.12.3 take `?1` for a name, warn of values without names, and announce an error."""
    texts = [
        node.value
        for path in Path(remoterun.__path__[0], "history").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert [text for text in texts if re.search(r"\?\d", text)] == []
