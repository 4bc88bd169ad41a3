"""Runs one after the other: what the database keeps of them says the same as the runs themselves."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import unicodedata
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from remoterun.compare import Difference, Kind, State, difference, difference_document, difference_text
from remoterun.history import History, HistoryError, Journal
from remoterun.history.database import _SCRIPTS
from remoterun.history.document import history_schema, trails_document
from remoterun.history.text import trails_text
from remoterun.history.trail import Trail
from remoterun.model import Outcome, Run, Severity, Status
from remoterun.report import table
from remoterun.report.junit import junit
from tests.support import audits
from tests.support.audits import audited, keep, nan, run, silent
from tests.support.compared import follow
from tests.support.project import strict_json
from tests.support.runs import HOSTILE

A, B, C = "kpro6/200", "kpro6/201", "kpro7/300"
OLDER = Path(__file__).parents[2] / "data/history"
VERSION_1, VERSION_2 = (OLDER / f"version-{number}.sqlite3" for number in (1, 2))


def _found(history: History, earlier: str | None, later: str) -> Difference:
    return history.difference(None if earlier is None else history.find(earlier), history.find(later))


def _pure(days: list[Run], earlier: int | None, later: int) -> Difference:
    """Tell the difference by the runs alone."""
    states = [State()]
    for each in days[:later]:
        states.append(follow(states[-1], each))
    state = states[0] if earlier is None else states[earlier + 1]
    return difference(state, days[later], states[-1])


# --- the same as the runs say -----------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(audits.sequences(), st.data())
def test_the_database_and_the_runs_say_the_same(days: list[Run], data: st.DataObject) -> None:
    later = data.draw(st.integers(0, len(days) - 1))
    earlier = data.draw(st.one_of(st.none(), st.integers(0, later - 1)) if later else st.none())
    with tempfile.TemporaryDirectory() as name:
        for each in days:
            keep(Path(name), each)
        for again in (False, True):
            if again:  # as if every run had been cut
                with closing(sqlite3.connect(f"{name}/history.sqlite3")) as database, database:
                    for table in ("standing", "entries"):
                        database.execute(f"DELETE FROM {table}")
                    database.execute("UPDATE runs SET followed = 0")
            with History.open(Path(name)) as history:
                found = _found(history, None if earlier is None else days[earlier].run_id, days[later].run_id)
            assert difference_document(found) == difference_document(_pure(days, earlier, later))


@pytest.mark.parametrize("last", [silent(A), audited(A, [1, 2])], ids=["unknown", "gone"])
def test_findings_that_a_run_does_not_tell_come_in_one_order(tmp_path: Path, last: Outcome) -> None:
    one, two = nan(1), nan(2)
    days = [run(0, audited(A, [1, 2], two, one)), run(1, audited(A, [1, 2], one, two)), run(2, last)]
    for each in days:
        keep(tmp_path, each)
    with History.open(tmp_path) as history:
        found = _found(history, days[1].run_id, days[2].run_id)
    assert difference_document(found) == difference_document(_pure(days, 1, 2))


def test_a_run_that_is_taken_up_again_changes_what_came_after(tmp_path: Path) -> None:
    days = [run(0, audited(A, [3])), run(1, audited(A, [3], nan(3))), run(2, audited(A, [3], nan(3)))]
    keep(tmp_path, days[0])
    keep(tmp_path, days[1], most=1)
    keep(tmp_path, days[2])
    with History.open(tmp_path) as history:
        found = _found(history, days[0].run_id, days[2].run_id)
    assert [each.since.run_id for each in found.changes if each.kind is Kind.FINDING_NEW] == [days[2].run_id]
    again = Journal(tmp_path, pytest.fail, replace(days[1], outcomes=()))
    for event in audits.events(days[1]):
        again(event)
    again.close()
    with History.open(tmp_path) as history:
        found = _found(history, days[1].run_id, days[2].run_id)
    assert [each.since.run_id for each in found.persisting] == [days[1].run_id]


def test_a_run_that_was_cut_counts_as_far_as_it_came(tmp_path: Path) -> None:
    bad = run(1, audited(A, [3], nan(3)), audited(B, [3], nan(3)))
    events_of_a = 1 + len(bad.outcomes[0].records) + 1
    keep(tmp_path, run(0, audited(A, [3]), audited(B, [3])))
    keep(tmp_path, bad, most=events_of_a)
    keep(tmp_path, run(2, audited(A, [3], nan(3)), audited(B, [3], nan(3))))
    with History.open(tmp_path) as history:
        (last, cut, first) = history.runs()
        assert cut.status is None
        assert history.previous(last) == first
        found = history.difference(first, last)
        partly = history.difference(first, cut)
    assert [(each.target, each.since.run_id) for each in found.changes if each.kind is Kind.FINDING_NEW] == [
        (A, cut.run_id),
        (B, last.run_id),
    ]
    assert [each.target for each in partly.changes] == [A]
    assert partly.silent == ()


def test_runs_that_go_on_are_left_out(tmp_path: Path) -> None:
    keep(tmp_path, run(0, audited(A, [3])))
    journal = Journal(tmp_path, pytest.fail)
    journal(audits.events(run(1, audited(A, [3])))[0])
    keep(tmp_path, run(2, audited(A, [4, 3])))
    with History.open(tmp_path) as history:
        last, going_on, first = history.runs()
        assert history.comparable() == (first, last)
        with pytest.raises(HistoryError, match="has not ended yet"):
            history.difference(first, going_on)
    journal.close()


def test_a_run_that_ends_after_later_ones_counts_where_it_began(tmp_path: Path) -> None:
    days = [run(0, audited(A, [3])), run(1, audited(A, [3], nan(3))), run(2, audited(A, [3], nan(3)))]
    keep(tmp_path, days[0])
    slow = Journal(tmp_path, pytest.fail)
    begun, *rest = audits.events(days[1])
    slow(begun)
    keep(tmp_path, days[2])
    for event in rest:
        slow(event)
    slow.close()
    with History.open(tmp_path) as history:
        found = _found(history, days[1].run_id, days[2].run_id)
        assert found.changes == ()
        assert [each.since.run_id for each in found.persisting] == [days[1].run_id]


# --- which runs are compared ------------------------------------------------------------------------------------------


def test_runs_of_one_playbook_with_common_targets_are_compared(tmp_path: Path) -> None:
    days = [
        run(0, audited(A, [3]), audited(B, [3])),
        run(1, audited(A, [3]), playbook="other"),
        run(2, audited(C, [3])),
        run(3, audited(B, [3])),
    ]
    for each in days:
        keep(tmp_path, each)
    with History.open(tmp_path) as history:
        kept = {each.run_id: each for each in history.runs()}
        own = [kept[each.run_id] for each in days]
        assert [history.previous(each) for each in own] == [None, None, None, own[0]]
        assert history.comparable() == (own[0], own[3])
        assert history.comparable(playbook="other") is None
        with pytest.raises(HistoryError, match=f"{own[1].run_id} is a run of other, {own[3].run_id} one of check-ckpt"):
            history.difference(own[1], own[3])
        with pytest.raises(HistoryError, match="did not come before"):
            history.difference(own[3], own[0])


# --- how targets fared ------------------------------------------------------------------------------------------------


def _three_days(folder: Path) -> list[Run]:
    days = [
        run(0, audited(A, [3], nan(3)), audited(B, [30, 20], nan(20)), audited(C, [1])),
        run(1, audited(A, [4, 3], nan(3)), audited(B, [30, 20], nan(20)), silent(C)),
        run(2, audited(A, [5, 4, 3], nan(3), name="train"), audited(B, [30]), silent(C)),
    ]
    for each in days:
        keep(folder, each)
    return days


def test_trails_tell_runs_findings_and_silence(tmp_path: Path) -> None:
    days = _three_days(tmp_path)
    with History.open(tmp_path) as history:
        found = {trail.target: trail for trail in history.trails(with_ended=True)}
        assert [[stop.status for stop in found[each].stops] for each in (A, B, C)] == [
            [Status.FINDINGS, Status.FINDINGS, Status.FINDINGS],
            [Status.OK, Status.FINDINGS, Status.FINDINGS],
            [Status.UNREACHABLE, Status.UNREACHABLE, Status.OK],
        ]
        assert [(stop.checkpoints, stop.newest) for stop in found[A].stops] == [(3, 5), (2, 4), (1, 3)]
        assert [(each.identity.subject, each.since.run_id) for each in found[A].standing] == [
            ("step_3", days[0].run_id)
        ]
        assert [(each.standing.identity.subject, each.last.run_id, each.gone.run_id) for each in found[B].ended] == [
            ("step_20", days[1].run_id, days[2].run_id)
        ]
        silence = found[C].silence
        assert silence is not None
        assert (silence.runs, silence.since.run_id) == (2, days[1].run_id)
        assert found[A].name == "train"
        assert [trail.target for trail in history.trails(target="tr*in")] == [A]
        assert [trail.target for trail in history.trails(target="kpro6/*", most=1)] == [A, B]
        assert [len(trail.stops) for trail in history.trails(most=1)] == [1, 1, 1]
        assert history.trails(playbook="other") == []


def test_the_text_of_trails_lines_up(tmp_path: Path) -> None:
    _three_days(tmp_path)
    with History.open(tmp_path) as history:
        trails = history.trails(with_ended=True)
    lines = trails_text(trails, width=100, color=False).splitlines()
    assert lines[1:5] == [
        "  kpro6/200  train  !!!  step 5   findings  1 bad",
        "  kpro6/201         !!.  step 30  ok",
        f"  kpro7/300         .UU  step 1   unreachable since {trails[2].stops[1].run.at[:10]}",
        "  . ok  ! findings  U unreachable",
    ]
    assert "findings that went away" in lines
    for width in (40, 80):
        assert max(map(len, trails_text(trails, width=width, color=False).splitlines())) <= width


def test_paths_are_called_as_they_were_written_where_that_is_one_of_them(tmp_path: Path) -> None:
    written = {"/srv/fleet/runs/one": "runs/one", "/srv/fleet/a/ckpt": "ckpt", "/srv/fleet/b/ckpt": "ckpt"}
    keep(tmp_path, run(0, *(replace(audited(path, [1]), name=name) for path, name in written.items())))
    with History.open(tmp_path) as history:
        trails = history.trails()
    lines = trails_text(trails, width=80, color=False).splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["/srv/fleet/a/ckpt", "/srv/fleet/b/ckpt", "runs/one"]
    # On a narrow terminal, what does not fit goes on in a column that is wide enough to be read.
    assert len(trails_text(trails, width=40, color=False).splitlines()) <= 10


def test_what_nobody_looked_at_is_counted_apart(tmp_path: Path) -> None:
    # The newest run looked at the third checkpoint only, so nobody knows what became of the first.
    keep(tmp_path, run(0, audited(A, [1, 3], nan(1), nan(3), nan(3, "model.b")), audited(B, [1], nan(1))))
    newest = audited(A, [3], nan(3), nan(3, "model.b"))
    records = (*newest.records[:-1], {**newest.records[-1], "found": 2})
    keep(tmp_path, run(1, replace(newest, records=records), silent(B)))
    with History.open(tmp_path) as history:
        lines = trails_text(history.trails(), width=100, color=False).splitlines()
    assert lines[1].endswith("findings  1 bad  1 unknown")
    assert lines[2].endswith("  1 unknown")
    assert " bad" not in lines[2]


def _fleet(tmp_path: Path) -> None:
    """Keep runs of 60 targets, every tenth with findings, and of four other playbooks."""
    for day, name in enumerate(("probe", "disks", "links", "clocks")):
        keep(tmp_path, run(day, audited(A, []), playbook=name))
    many = [nan(3, f"layer.{number}") for number in range(30)]
    found = [audited(f"kpro6/{guest}", [3], *([] if guest % 10 else many)) for guest in range(200, 260)]
    keep(tmp_path, run(4, *found))


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("height", [24, 50])
def test_the_first_screen_says_what_it_leaves_out(tmp_path: Path, width: int, height: int) -> None:
    _fleet(tmp_path)
    notes = ["runs outside of this project are left out; --all shows them"]
    with History.open(tmp_path) as history:
        trails = history.trails()
    lines = trails_text(trails, width=width, color=False, height=height, notes=notes).splitlines()
    assert height - 5 <= len(lines) < height
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("check-ckpt  1 run")
    # What is wrong comes first.
    assert [line.split()[0] for line in lines[1:7]] == [f"kpro6/{guest}" for guest in range(200, 260, 10)]
    text = "\n".join(lines)
    left = re.search(r"\.\.\. and (\d+) targets more: (\d+) ok; -v shows all", text)
    assert left is not None
    assert int(left[1]) == int(left[2]) == 60 - len(re.findall(r"^  kpro6/2\d\d +[.!]", text, re.MULTILINE))
    shown = len(re.findall(r"^  bad .*since \d{4}-\d\d-\d\d$", text, re.MULTILINE))
    assert f"... and {30 - shown} more; -v shows all" in text
    for name in ("probe", "disks", "links", "clocks"):
        assert any(line.startswith(f"{name}  20") and line.endswith("1 ok; --playbook shows it") for line in lines)
    assert lines[-1] == notes[0]
    whole = trails_text(trails, width=width, color=False, verbose=1, height=height)
    assert all(f"layer.{number}:" in whole for number in range(30))


def test_what_fits_on_the_screen_is_shown_whole(tmp_path: Path) -> None:
    keep(tmp_path, run(0, audited(A, [3], *(nan(3, f"layer.{number}", rule=f"CK{number:03}") for number in range(30)))))
    keep(tmp_path, run(1, audited(A, []), playbook="probe"))
    with History.open(tmp_path) as history:
        trails = history.trails()
    whole = trails_text(trails, width=80, color=False)
    assert trails_text(trails, width=80, color=False, height=whole.count("\n") + 1) == whole
    assert trails_text(trails, width=80, color=False, height=whole.count("\n")) != whole
    # Of less room, both playbooks still get their targets.
    lines = trails_text(trails, width=80, color=False, height=24).splitlines()
    assert [line.split()[0] for line in lines if "  1 run" in line] == ["probe", "check-ckpt"]
    assert len(lines) == 23


def test_programs_are_told_from_payloads(tmp_path: Path) -> None:
    keep(tmp_path, run(0, audited(A, [1])))
    with History.open(tmp_path) as history:
        (line,) = history.lines()
        assert not history.is_program(line)
        assert len(history.trails(programs=False)) == 1
    with closing(sqlite3.connect(tmp_path / "history.sqlite3")) as database, database:
        database.execute("DELETE FROM packs_of_runs")
    with History.open(tmp_path) as history:
        assert history.is_program(line)
        assert (history.trails(programs=False), len(history.trails())) == ([], 1)


def test_table_history_and_junit_count_the_same(tmp_path: Path) -> None:
    calm = nan(2, rule="CK069", severity=Severity.INFO)
    odd = nan(4, rule="CK050", severity=Severity.SUSPECT)
    found = run(
        0, audited(A, [1, 2, 3, 4], nan(1), nan(1, "model.b"), nan(3), calm, odd, replace(calm, subject="step_3"))
    )
    keep(tmp_path, found)
    with History.open(tmp_path) as history:
        lines = trails_text(history.trails(), width=100, color=False).splitlines()
    assert lines[1].endswith("findings  2 bad  1 suspect  1 info")
    assert (
        table(found, width=100, color=False).splitlines()[0].endswith("4 checkpoints, 2 bad, 1 suspect, 1 info, 3.0 s")
    )
    assert b'message="2 bad, 1 suspect, 1 info"' in junit([found])


def test_the_document_of_trails_follows_its_schema(tmp_path: Path) -> None:
    _three_days(tmp_path)
    Draft202012Validator.check_schema(history_schema())
    with History.open(tmp_path) as history:
        document = trails_document(history.trails(with_ended=True))
    Draft202012Validator(history_schema()).validate(document)
    assert len(document["trails"]) == 3  # type: ignore[arg-type]


def test_no_text_of_a_target_reaches_a_terminal_as_it_is(tmp_path: Path) -> None:
    hostile = [
        audited(
            f"{number}{text}", [3], nan(3, rule=text, subject=text, message=text, next_step=text), name=text or None
        )
        for number, text in enumerate(HOSTILE)
    ]
    keep(tmp_path, run(0, *hostile))
    keep(tmp_path, run(1, *(silent(each.target, code="connect_refused") for each in hostile)))
    with History.open(tmp_path) as history:
        trails = history.trails(with_ended=True)
        found = _found(history, *(each.run_id for each in reversed(history.runs())))
    assert len(trails) == len(hostile)
    texts = [
        trails_text(trails, width=90, color=False, verbose=1),
        difference_text(found, width=90, color=False, verbose=1),
    ]
    for text in texts:
        assert {unicodedata.category(char) for char in text.replace("\n", "")}.isdisjoint({"Cc", "Cf", "Cs"})
    Draft202012Validator(history_schema()).validate(trails_document(trails))
    strict_json(json.dumps(trails_document(trails)).encode("ascii"))


# --- older databases, forgotten runs ----------------------------------------------------------------------------------


def test_a_database_of_the_first_version_is_followed_from_its_beginning(tmp_path: Path) -> None:
    shutil.copy(VERSION_1, tmp_path / "history.sqlite3")
    with History.open(tmp_path) as history:
        last, cut, second, first = history.runs()
        assert (cut.status, history.previous(last)) == (None, second)
        found = history.difference(first, last)
        trails = {trail.target: trail for trail in history.trails()}
    assert [(each.kind, each.target) for each in found.changes[:2]] == [
        (Kind.FINDING_NEW, A),
        (Kind.TARGET_UNREACHABLE, C),
    ]
    assert [each.since.run_id for each in trails[A].standing] == [second.run_id]
    assert [(each.runs, each.since.run_id) for each in found.silent] == [(2, second.run_id)]
    with closing(sqlite3.connect(tmp_path / "history.sqlite3")) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (len(_SCRIPTS),)
        assert database.execute("SELECT count(*) FROM runs WHERE followed = 0").fetchone() == (0,)


def test_a_database_of_the_second_version_keeps_what_it_knew(tmp_path: Path) -> None:
    """Its first run has been forgotten, but not since when things are as they are."""
    shutil.copy(VERSION_2, tmp_path / "history.sqlite3")
    with History.open(tmp_path) as history:
        trails = {trail.target: trail for trail in history.trails()}
        assert [len(trail.stops) for trail in trails.values()] == [2, 2, 1]
        assert [each.since.run_id for each in trails[A].standing] == ["20261031T020000Z-00000000"]
        last, _, first = history.runs()
        assert (last.project, history.previous(last)) == ("", first)
    with closing(sqlite3.connect(tmp_path / "history.sqlite3")) as database:
        assert database.execute("PRAGMA foreign_key_check").fetchall() == []
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        # What that version writes while it is still at work.
        database.execute("INSERT OR IGNORE INTO targets (playbook, target) VALUES ('check-ckpt', 'new')")
        assert database.execute("SELECT count(*) FROM targets WHERE target = 'new'").fetchone() == (1,)


@pytest.mark.parametrize("version", [VERSION_1, VERSION_2])
def test_the_first_project_with_their_targets_takes_over_runs_of_older_versions(tmp_path: Path, version: Path) -> None:
    shutil.copy(version, tmp_path / "history.sqlite3")
    with closing(sqlite3.connect(tmp_path / "history.sqlite3")) as database, database:
        # What is too old is forgotten when a run begins.
        database.execute("UPDATE runs SET started_at = ?", (run(0).started_at,))
    keep(tmp_path, run(40, audited(A, [3], nan(3))), project="/srv/one")
    keep(tmp_path, run(41, audited(A, [3], nan(3))), project="/srv/two")
    keep(tmp_path, run(42, audited(C, [1])), project="/srv/three")
    with History.open(tmp_path) as history:
        third, second, first, *older = history.runs()
        before = history.previous(first)
        assert before is not None
        assert before.project == "/srv/one"
        found = history.difference(before, first)
        since = [] if version is VERSION_1 else ["20261031T020000Z-00000000"]
        assert [standing.since.run_id for standing in found.persisting] == since
        assert history.previous(second) is None
        # Of version 1, one run had all of these targets; of version 2, a run of C alone knew no other.
        assert (history.previous(third) is None) is (version is VERSION_1)
        assert {kept.project for kept in older} <= {"/srv/one", "/srv/three"}
    with closing(sqlite3.connect(tmp_path / "history.sqlite3")) as database:
        assert database.execute("PRAGMA foreign_key_check").fetchall() == []


def test_runs_of_two_projects_are_not_mixed(tmp_path: Path) -> None:
    ours, theirs = (
        [run(day + more, audited(A, [3], *found)) for day in (0, 2)] for more, found in ((0, [nan(3)]), (1, []))
    )
    for each, project in zip((ours[0], theirs[0], ours[1], theirs[1]), ("/srv/one", "/srv/two") * 2, strict=True):
        keep(tmp_path, each, project=project)
    with History.open(tmp_path) as history:
        found = [history.find(each.run_id) for each in (*ours, *theirs)]
        assert [history.previous(each) for each in found] == [None, found[0], None, found[2]]
        assert history.comparable() == (found[2], found[3])
        assert history.comparable(project="/srv/one") == (found[0], found[1])
        assert not history.difference(found[0], found[1]).changed
        trails = history.trails()
        assert [(trail.project, len(trail.stops), len(trail.standing)) for trail in trails] == [
            ("/srv/two", 2, 0),
            ("/srv/one", 2, 1),
        ]
        assert history.trails(project="/srv/one") == trails[1:]
        with pytest.raises(
            HistoryError, match=r"is a run of the project /srv/one, .* of the project /srv/two: runs of"
        ):
            history.difference(found[0], found[3])
    text = trails_text(trails, width=90, color=False)
    assert "check-ckpt of /srv/two  2 runs" in text
    assert "check-ckpt of" not in trails_text(trails[1:], width=90, color=False)


def test_runs_without_a_project_stay_so_once_it_has_its_own(tmp_path: Path) -> None:
    keep(tmp_path, run(0, audited(A, [3], nan(3))), project="/srv/one")
    keep(tmp_path, run(1, audited(A, [3])))
    keep(tmp_path, run(2, audited(A, [3], nan(3))), project="/srv/one")
    for again in (False, True):
        if again:  # as if what they leave behind had been thrown away
            with closing(sqlite3.connect(tmp_path / "history.sqlite3")) as database, database:
                for table in ("standing", "entries"):
                    database.execute(f"DELETE FROM {table}")
                database.execute("UPDATE runs SET followed = 0")
        with History.open(tmp_path) as history:
            last, without, first = history.runs()
            assert (history.previous(last), history.previous(without)) == (first, None)


CATCH_UP = """\
import os, signal, sys
from pathlib import Path
from remoterun.history import History

def step(done, total):
    if done == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

with History.open(Path(sys.argv[1]), step) as history:
    history.trails()
"""


def _catching_up(folder: Path, killed_at: int = 0) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CATCH_UP, str(folder), str(killed_at)])


def _unfollowed(folder: Path, days: int = 30) -> list[Trail]:
    """Keep runs as an older version did, and return what ought to become of them."""
    for day in range(days):
        findings = [nan(3)] * (day % 7 > 2)
        keep(folder, run(day, audited(A, [3, day], *findings), audited(B, [3]) if day % 5 else silent(B)))
    with History.open(folder) as history:
        expected = history.trails(most=days, target="*", with_ended=True)
    with closing(sqlite3.connect(folder / "history.sqlite3")) as database, database:
        for table in ("standing", "entries", "wordings", "spells", "targets"):
            database.execute(f"DELETE FROM {table}")
        database.execute("UPDATE runs SET followed = 0")
    return expected


def test_who_is_killed_while_catching_up_leaves_what_was_done(tmp_path: Path) -> None:
    expected = _unfollowed(tmp_path)
    for killed_at, left in ((7, 23), (20, 3)):
        assert _catching_up(tmp_path, killed_at).wait() == -signal.SIGKILL
        with closing(sqlite3.connect(tmp_path / "history.sqlite3")) as database:
            assert database.execute("SELECT count(*) FROM runs WHERE followed = 0").fetchone() == (left,)
    steps: list[tuple[int, int]] = []
    with History.open(tmp_path, lambda *step: steps.append(step)) as history:
        assert history.trails(most=30, target="*", with_ended=True) == expected
    assert steps == [(1, 3), (2, 3), (3, 3)]


def test_those_who_catch_up_at_once_take_turns(tmp_path: Path) -> None:
    expected = _unfollowed(tmp_path)
    processes = [_catching_up(tmp_path) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    with History.open(tmp_path) as history:
        assert history.trails(most=30, target="*", with_ended=True) == expected


def test_since_when_outlives_the_runs_that_are_forgotten(tmp_path: Path) -> None:
    days = [run(day, audited(A, [3], nan(3)), silent(B)) for day in range(4)]
    for each in days:
        keep(tmp_path, each)
    with History.open(tmp_path) as history:
        assert history.forget(datetime.now(UTC) - audits.START - timedelta(days=1.5)) == 2
        previous = history.previous(history.find("last"))
        assert previous is not None
        found = history.difference(previous, history.find("last"))
        assert [each.since.run_id for each in found.persisting] == [days[0].run_id]
        assert [(each.runs, each.since.run_id) for each in found.silent] == [(4, days[0].run_id)]
        history.forget(timedelta(days=1))
    with closing(sqlite3.connect(tmp_path / "history.sqlite3")) as database:
        for name in ("targets", "entries", "spells", "wordings", "standing"):
            assert database.execute(f"SELECT count(*) FROM {name}").fetchone() == (0,), name


def test_words_that_stay_the_same_are_written_once(tmp_path: Path) -> None:
    for day in range(6):
        keep(tmp_path, run(day, audited(A, [3], nan(3, count=152 if day < 3 else 200))))
    with closing(sqlite3.connect(tmp_path / "history.sqlite3")) as database:
        counts = [
            database.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
            for name in ("spells", "wordings", "standing")
        ]
    assert counts == [1, 2, 6]


def test_no_question_reads_a_whole_table(tmp_path: Path) -> None:
    """Whatever has a row for each target of each run, or more, is looked into by an index."""
    days = _three_days(tmp_path)
    asked: list[str] = []
    with History.open(tmp_path) as history:
        last = history.find(days[2].run_id)
        history._database.set_trace_callback(asked.append)
        history.difference(history.previous(last), last)
        history.comparable()
        history.trails(target="kpro6/*", with_ended=True)
        history._database.set_trace_callback(None)
        steps = [
            step.split()
            for statement in asked
            for *_, step in history._database.execute(f"EXPLAIN QUERY PLAN {statement}")
        ]
    large = {"jobs", "records", "entries", "standing", "spells", "wordings"}
    assert {words[1] for words in steps if words[0] == "SCAN"}.isdisjoint(large)
    assert large <= {words[1] for words in steps if words[0] == "SEARCH"}
