"""What audits of a project keep goes along when it moves."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from remoterun.audit.ledger import Event, Told
from remoterun.audit.lock import BusyError, Lock, audit_folder
from remoterun.audit.moving import move
from remoterun.audit.state import Reported, State, Waiting, load_state, save_state
from remoterun.errors import ConfigError
from remoterun.history import History
from tests.support.audits import audited, keep, run

OLD, NEW = Path("/srv/gone/fleet"), Path("/srv/fleet")


def event(subject: str) -> Event:
    return Event(template="new", target="a", subject=subject)


def told(run_id: str, *subjects: str) -> Reported:
    return Reported(run_id=run_id, told=Told(findings={f'["a", "{each}"]': event(each) for each in subjects}))


def waiting(subject: str, at: float) -> Waiting:
    return Waiting(events=(event(subject),), dropped=1, sent=(at,))


EARLIER = State(
    reported={"look": told("1", "gone", "both"), "other": told("2", "x")},
    failing=event("failed"),
    waiting={"chat": waiting("first", 1.0), "mail": waiting("mail", 2.0)},
)
LATER = State(reported={"look": told("3", "both", "new")}, waiting={"chat": waiting("second", 3.0)})


@pytest.fixture
def state(tmp_path: Path) -> Path:
    keep(tmp_path, run(0, audited("a", [1])), project=str(OLD))
    return tmp_path


def put(state: Path, project: Path, kept: State) -> None:
    folder = audit_folder(state, project)
    folder.mkdir(parents=True)
    save_state(folder, kept)


def test_what_people_know_by_either_is_no_news(state: Path) -> None:
    put(state, OLD, EARLIER)
    put(state, NEW, LATER)
    assert move(state, OLD, NEW) == 1
    assert load_state(audit_folder(state, OLD)) == State()
    assert load_state(audit_folder(state, NEW)) == State(
        reported={"look": told("3", "gone", "both", "new"), "other": told("2", "x")},
        failing=event("failed"),
        waiting={
            "chat": Waiting(events=(event("first"), event("second")), dropped=2, sent=(1.0, 3.0)),
            "mail": waiting("mail", 2.0),
        },
    )


def test_a_move_that_was_cut_can_be_done_once_more(state: Path) -> None:
    put(state, OLD, EARLIER)
    put(state, NEW, LATER)
    with closing(sqlite3.connect(state / "history.sqlite3")) as other:
        other.execute("BEGIN IMMEDIATE")  # nobody else may write
        with pytest.raises(ConfigError, match="can't be written: database is locked"):
            move(state, OLD, NEW)
        other.execute("ROLLBACK")
    assert move(state, OLD, NEW) == 1
    waiting_events = load_state(audit_folder(state, NEW)).waiting["chat"].events
    assert waiting_events == (event("first"), event("second"))
    assert load_state(audit_folder(state, OLD)) == State()


def test_nothing_moves_while_an_audit_goes_on(state: Path) -> None:
    put(state, OLD, EARLIER)
    with Lock.take(audit_folder(state, OLD), OLD), pytest.raises(BusyError, match=f"process {os.getpid()} on"):
        move(state, OLD, NEW)
    assert load_state(audit_folder(state, OLD)) == EARLIER
    with History.open(state) as history:
        assert [kept.project for kept in history.runs()] == [str(OLD)]


def test_nothing_moves_when_something_is_damaged(state: Path) -> None:
    put(state, OLD, EARLIER)
    (audit_folder(state, OLD) / "state.json").write_text("{")
    with pytest.raises(ConfigError, match="what audits have told people can't be taken over"):
        move(state, OLD, NEW)
    with History.open(state) as history:
        assert [kept.project for kept in history.runs()] == [str(OLD)]
