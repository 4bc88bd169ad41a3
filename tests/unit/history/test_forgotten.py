"""Runs that others still refer to are forgotten: nothing that is asked afterwards needs them."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from remoterun.history import History
from remoterun.history.database import FILE_NAME
from tests.support import audits
from tests.support.audits import audited, keep, nan, run, silent

A, B = "kpro6/200", "kpro6/201"


def test_a_target_may_be_silent_for_longer_than_runs_are_kept(tmp_path: Path) -> None:
    first = run(0, audited(A, [3]), audited(B, [3], nan(3)))
    keep(tmp_path, first)
    for day in (1, 2, 3):
        keep(tmp_path, run(day, audited(A, [3]), silent(B)))
    with History.open(tmp_path) as history:
        assert history.forget(datetime.now(UTC) - audits.START - timedelta(days=0.5)) == 1
        last, before, _ = history.runs()
        found = history.difference(before, last)
        assert found.changes == ()
        assert [(each.target, each.runs) for each in found.silent] == [(B, 3)]
        assert [each.since.run_id for each in found.unknown] == [first.run_id]
        keep(tmp_path, run(4, audited(A, [3]), audited(B, [3])))
        back = history.difference(last, history.find("last"))
    assert [change.target for change in back.changes] == [B, B]


def test_a_history_of_which_most_is_forgotten_takes_less_of_the_disk(tmp_path: Path) -> None:
    for day in range(2):
        large = audited(A, [3])
        lines = tuple({"kind": "line", "text": os.urandom(2000).hex()} for _ in range(1000 if day == 0 else 10))
        keep(tmp_path, run(day, replace(large, records=lines)))
    before = (tmp_path / FILE_NAME).stat().st_size
    assert before > 2_000_000
    with History.open(tmp_path) as history:
        assert history.forget(datetime.now(UTC) - audits.START - timedelta(days=0.5)) == 1
    assert (tmp_path / FILE_NAME).stat().st_size < before / 5
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert database.execute("PRAGMA freelist_count").fetchone() == (0,)
