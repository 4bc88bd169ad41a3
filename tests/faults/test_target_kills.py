"""Limits, cancellation, lost connections and killed processes: what is told, and that nothing of a run survives it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from remoterun.model import Json, Limits, Outcome, Status
from remoterun.remote import wire
from remoterun.runner import Control
from tests.support.here import ENDS, alive, leg, payload, play, program, script, wait_until

oldest_and_newest = pytest.mark.parametrize("python", ENDS)

# A family that is hard to kill: it ignores TERM, in sessions of their own, orphaned, and one without any environment.
_FAMILY = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
pids = [os.getpid()]

def born(deed):
    back, forth = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(forth, b"%d" % os.getpid())
            os.close(forth)
            deed()
            os._exit(0)
        os._exit(0)
    os.wait()
    pids.append(int(os.read(back, 20)))

def wait():
    while True:
        time.sleep(1)

def forget():
    os.execve(sys.executable, [sys.executable, "-c", FORGOTTEN], {})

FORGOTTEN = "import signal, time; signal.signal(15, 1); time.sleep(1000)"
born(wait)
born(forget)
"""
_STAYS = _FAMILY + "ctx.emit({'pids': pids, 'supervisor': os.getppid()})\nwait()\n"
_LEAVES = _FAMILY + "ctx.emit({'pids': pids, 'supervisor': os.getppid()})\n"


def _code(outcome: Outcome) -> str | None:
    return outcome.error.code if outcome.error else None


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _pids(record: Mapping[str, Any]) -> list[int]:
    return [int(pid) for pid in record["pids"]]


def _none_alive(outcome: Outcome) -> bool:
    return wait_until(lambda: not any(map(alive, _pids(outcome.records[0]))), 20)


# --- the payload's own leftovers ---


@oldest_and_newest
def test_whatever_a_payload_leaves_behind_is_killed(python: str) -> None:
    outcome = play(payload(_LEAVES), python)
    assert (outcome.status, outcome.survivors) == (Status.OK, 0)
    assert not any(map(alive, _pids(outcome.records[0])))


_HOPS = """
import os, sys, time
ctx.emit({"pids": [os.getpid()]})
end = time.monotonic() + 60
if os.fork() == 0:
    # Never the same process for long: each forks the next and leaves.
    while time.monotonic() < end:
        NEW_SESSION
        if os.fork():
            os._exit(0)
time.sleep(SECONDS)
"""


@oldest_and_newest
@pytest.mark.parametrize("new_session", ["", "os.setsid()"], ids=["one-session", "new-sessions"])
def test_a_process_that_forks_away_is_caught(python: str, new_session: str) -> None:
    source = _HOPS.replace("NEW_SESSION", new_session or "pass").replace("SECONDS", "0.3")
    outcome = play(payload(source), python)
    assert (outcome.status, outcome.survivors) == (Status.OK, 0)


@oldest_and_newest
def test_a_growing_family_is_caught(python: str) -> None:
    source = """
        import os, time
        payload = os.getpid()
        for _ in range(4):
            os.fork()
        end = time.monotonic() + 0.5
        while time.monotonic() < end or os.getpid() != payload:
            if os.fork() == 0:
                time.sleep(100)
            time.sleep(0.05)
        """
    outcome = play(payload(source), python)
    assert (outcome.status, outcome.survivors) == (Status.OK, 0)


# --- limits ---


@oldest_and_newest
@pytest.mark.parametrize(
    ("limits", "code", "limit"),
    [
        (Limits(run=1.0), "run_timeout", ("run", 1.0, "limits.run")),
        (Limits(stall=1.0), "stall_timeout", ("stall", 1.0, "limits.stall")),
        (Limits(total=4.0), "total_timeout", ("total", 4.0, "limits.total")),
    ],
)
def test_a_limit_ends_a_family_that_ignores_term(
    python: str, limits: Limits, code: str, limit: tuple[str, float, str]
) -> None:
    outcome = play(payload(_STAYS), python, limits=limits)
    assert outcome.error is not None
    hit = outcome.error.limit
    assert hit is not None
    assert (outcome.error.code, (hit.name, hit.value_s, hit.key)) == (code, limit)
    assert len(outcome.records) == 1
    assert _none_alive(outcome)
    assert outcome.survivors == (None if code == "total_timeout" else 0)


@oldest_and_newest
def test_a_payload_may_end_well_when_it_is_asked_to(python: str) -> None:
    source = """
        import signal, sys, time
        def end(number, frame):
            ctx.emit({"n": 2})
            sys.stdout.write("the end")
            sys.exit(0)
        signal.signal(signal.SIGTERM, end)
        ctx.emit({"n": 1})
        while True:
            time.sleep(1)
        """
    outcome = play(payload(source), python, limits=Limits(run=1.0))
    assert (_code(outcome), outcome.exit_status) == ("run_timeout", 0)
    assert [record["n"] for record in outcome.records] == [1, 2]
    assert outcome.stdout.data == b"the end"


@oldest_and_newest
@pytest.mark.parametrize(
    "step",
    ["ctx.progress(n, 100)", "ctx.emit({'n': n})", "print(n, flush=True)", "ctx.log('still here')"],
)
def test_any_sign_of_progress_puts_the_limit_stall_off(python: str, step: str) -> None:
    source = f"import time\nfor n in range(10):\n    {step}\n    time.sleep(0.25)\n"
    assert play(payload(source), python, limits=Limits(stall=2.0)).status is Status.OK


def test_a_program_stopped_in_the_middle_of_a_line_met_its_limit() -> None:
    work = program("#!/bin/sh\necho '{\"n\": 1}'; printf '{\"n\": '; sleep 100")
    outcome = play(work, limits=Limits(run=1.0))
    assert (_code(outcome), outcome.records) == ("run_timeout", ({"n": 1},))


# --- cancellation and lost connections ---


@oldest_and_newest
def test_a_cancelled_family_is_gone_and_confirmed(python: str) -> None:
    outcome = play(payload(_STAYS), python, at_record=lambda record, control: control.cancel())
    assert (outcome.status, _code(outcome), outcome.survivors) == (Status.CANCELLED, "cancelled", 0)
    assert _none_alive(outcome)


@oldest_and_newest
def test_an_aborted_family_is_gone_though_nobody_waits(python: str) -> None:
    outcome = play(payload(_STAYS), python, at_record=lambda record, control: control.abort())
    assert (outcome.status, outcome.survivors) == (Status.CANCELLED, None)
    assert _none_alive(outcome)


@oldest_and_newest
def test_the_end_of_stdin_ends_the_run(python: str) -> None:
    with leg(payload(_STAYS), python) as started:
        started.write(started.opening)
        pids = _pids(json.loads(started.read_until(wire.RECORD)))
        started.write_eof()
        kinds = started.read_to_end()
        assert not any(map(alive, pids))
        assert wire.PROBLEM not in kinds


@oldest_and_newest
def test_a_controller_that_hears_nothing_more_ends_the_run(python: str) -> None:
    # The reader of stdout is gone, and stdin stays open: what a half-dead connection looks like.
    with leg(payload(_STAYS + "\nwhile True:\n    ctx.emit({})".replace("wait()", "")), python) as started:
        started.write(started.opening)
        pids = _pids(json.loads(started.read_until(wire.RECORD)))
        started.hang_up()
        assert wait_until(lambda: not any(map(alive, pids)))


@oldest_and_newest
@pytest.mark.parametrize("end", ["cancel", "eof"])
def test_what_was_given_up_before_its_start_never_starts(python: str, end: str, tmp_path: Path) -> None:
    with leg(payload("open(ctx.params['mark'], 'w')", mark=str(tmp_path / "mark")), python) as started:
        # All but the last byte: the leg answers, and cannot start yet. Then it freezes, as in a frozen guest.
        started.write(started.opening[:-1])
        started.read_until(wire.HELLO)
        os.kill(started.pid, signal.SIGSTOP)
        started.write(started.opening[-1:])
        if end == "cancel":
            started.write(started.request.frame(wire.CANCEL))
        else:
            started.write_eof()
        os.kill(started.pid, signal.SIGCONT)
        assert started.read_to_end() == [wire.HELLO]
    assert not list(tmp_path.iterdir())


def test_a_leg_whose_controller_left_before_asking_ends(tmp_path: Path) -> None:
    work = payload("open(ctx.params['mark'], 'w')", mark=str(tmp_path / "mark"))
    for missing in (1, 40, 200):
        with leg(work) as started:
            started.write(started.opening[:-missing])
            started.write_eof()
            assert started.read_to_end() == [wire.HELLO]
    assert not list(tmp_path.iterdir())


# --- killed processes of ours ---


def _kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@oldest_and_newest
def test_a_killed_leg_takes_everything_with_it(python: str) -> None:
    outcome = play(
        payload(_STAYS), python, at_record=lambda record, control: _kill(_parent(int(str(record["supervisor"]))))
    )
    assert _code(outcome) == "connection_lost"
    assert len(outcome.records) == 1
    assert _none_alive(outcome)


@oldest_and_newest
def test_a_killed_supervisor_is_told_and_what_it_left_is_killed(python: str) -> None:
    outcome = play(payload(_STAYS), python, at_record=lambda record, control: _kill(int(str(record["supervisor"]))))
    assert _code(outcome) == "payload_killed"
    assert outcome.error is not None
    assert "the supervisor on the target was killed" in outcome.error.message
    assert len(outcome.records) == 1
    assert _none_alive(outcome)


@oldest_and_newest
def test_with_leg_and_supervisor_killed_at_once_the_payload_dies_and_daemons_of_it_stay(python: str) -> None:
    """The kernel kills the payload with its parent; for what the payload itself has started, nobody is left.

    Nothing short of a cgroup could change that, and a login has no right to one.
    """
    stayed: list[int] = []

    def kill(record: Mapping[str, Json], control: Control) -> None:
        supervisor = int(str(record["supervisor"]))
        child, *daemons = _pids(record)
        _kill(_parent(supervisor), supervisor)
        assert wait_until(lambda: not alive(child))
        stayed.extend(pid for pid in daemons if alive(pid))
        for pid in stayed:
            os.kill(pid, signal.SIGKILL)

    outcome = play(payload(_STAYS), python, at_record=kill)
    assert _code(outcome) == "connection_lost"
    assert len(stayed) == 2
    assert _none_alive(outcome)
