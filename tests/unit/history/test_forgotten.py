"""Runs that others still refer to are forgotten: nothing that is asked afterwards needs them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from remoterun.history import History
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
