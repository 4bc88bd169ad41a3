"""A project that has moved goes on with its history, once somebody says that it is the same one."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remoterun.history import History, HistoryError
from remoterun.history.document import trails_document
from remoterun.model import Run
from tests.support import audits
from tests.support.audits import audited, keep, nan, run

A, B = "kpro6/200", "kpro6/201"
OLD, NEW, OTHER = "/srv/gone/fleet", "/srv/fleet", "/srv/gone/other"


@settings(max_examples=25)
@given(st.lists(audits.sequences(1), min_size=1, max_size=6), st.data())
def test_runs_that_were_moved_are_as_if_they_had_always_been_there(days: list[list[Run]], data: st.DataObject) -> None:
    one_a_day = [run(number, *each.outcomes) for number, (each,) in enumerate(days)]
    where = [data.draw(st.sampled_from([OLD, NEW])) for _ in one_a_day]
    with tempfile.TemporaryDirectory() as name:
        moved, stayed = Path(name) / "moved", Path(name) / "stayed"
        for each, project in zip(one_a_day, where, strict=True):
            keep(moved, each, project=project)
            keep(stayed, each, project=NEW)
        with History.open(moved) as history, History.open(stayed) as other:
            if OLD in where:
                assert history.move(OLD, NEW) == where.count(OLD)
            assert trails_document(history.trails(with_ended=True)) == trails_document(other.trails(with_ended=True))
        with closing(sqlite3.connect(moved / "history.sqlite3")) as database:
            assert database.execute("PRAGMA foreign_key_check").fetchall() == []


def test_since_when_a_finding_is_there_outlasts_a_move_and_a_forgotten_run(tmp_path: Path) -> None:
    days = [run(day, audited(A, [3], nan(3))) for day in range(3)]
    for each, project in zip(days, (OLD, OLD, NEW), strict=True):
        keep(tmp_path, each, project=project)
    with closing(sqlite3.connect(tmp_path / "history.sqlite3")) as database, database:
        database.execute("PRAGMA foreign_keys = ON")
        database.execute("DELETE FROM runs WHERE id = ?", (days[0].run_id,))
    with History.open(tmp_path) as history:
        history.move(OLD, NEW)
        (trail,) = history.trails()
        last = history.find("last")
        before = history.previous(last)
    assert [each.since.run_id for each in trail.standing] == [days[0].run_id]
    assert (trail.project, len(trail.stops)) == (NEW, 2)
    assert before is not None
    assert before.run_id == days[1].run_id


def test_only_folders_that_are_gone_and_have_the_same_targets_come_into_question(tmp_path: Path) -> None:
    here, empty = tmp_path / "fleet", tmp_path / "empty"
    here.mkdir()
    empty.mkdir()
    for day, (target, project) in enumerate(((A, OLD), (B, OTHER), (A, str(here)), (A, ""), (A, str(tmp_path)))):
        keep(tmp_path, run(day, audited(target, [1])), project=project)
    with History.open(tmp_path) as history:
        assert history.gone_projects(str(here)) == [OLD]
        assert history.gone_projects(str(empty)) == [OTHER, OLD]
        assert [history.gone_projects(project) for project in (OLD, "", "-")] == [[], [], []]


def test_what_a_demo_has_left_is_no_project_that_has_moved(tmp_path: Path) -> None:
    here = tmp_path / "fleet"
    here.mkdir()
    for day, project in enumerate(("/tmp/remoterun-demo-k3j_x9w1", OLD, str(here))):
        keep(tmp_path, run(day, audited(A, [1])), project=project)
    with History.open(tmp_path) as history:
        assert history.gone_projects(str(here)) == [OLD]


def test_a_project_without_runs_is_an_error_that_names_those_with_some(tmp_path: Path) -> None:
    keep(tmp_path, run(0, audited(A, [1])), project=OLD)
    with History.open(tmp_path) as history:
        with pytest.raises(HistoryError, match=f"no run of {OTHER} has been kept; .*: {OLD}$"):
            history.move(OTHER, NEW)
        assert [kept.project for kept in history.runs()] == [OLD]
