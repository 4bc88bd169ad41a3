"""Limits, cancellation, lost connections and killed processes: what is told, and that nothing of a run survives it."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from remoterun.model import ExecWork, Json, Limits, Outcome, Pack, PayloadRef, PayloadWork, Status
from remoterun.remote import wire
from remoterun.runner import Control
from tests.support.here import ENDS, alive, leg, payload, play, program, wait_until
from tests.support.lab import send
from tests.support.lab.pythons import pythons
from tests.support.programs import lacking

oldest_and_newest = pytest.mark.parametrize("python", ENDS)

# A payload and two daemons of it, orphans in sessions of their own, the second without the run's mark.
_FAMILY = """
import os, signal, sys, time
pids = [os.getpid()]

def born(deed):
    back, forth = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            deed(forth)
        os._exit(0)
    os.wait()
    pids.append(int(os.read(back, 20)))

def wait(forth=None):
    if forth:
        os.write(forth, b"%d" % os.getpid())
    while True:
        time.sleep(1)

def forget(forth):
    os.set_inheritable(forth, True)
    os.execve(sys.executable, [sys.executable, "-c", FORGOTTEN, str(forth)], {})

FORGOTTEN = "import os, sys, time; os.write(int(sys.argv[1]), b'%d' % os.getpid()); time.sleep(1000)"
born(wait)
born(forget)
ctx.emit({"pids": pids, "supervisor": os.getppid()})
"""
_STAYS = f"{_FAMILY}wait()\n"
_STUBBORN = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{_STAYS}"


def _code(outcome: Outcome) -> str | None:
    return outcome.error.code if outcome.error else None


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _pids(record: Mapping[str, Any]) -> list[int]:
    return [int(pid) for pid in record["pids"]]


def _gone(pids: list[int]) -> bool:
    """Tell whether processes have ended within the time that ending them may take; end them if not."""
    if wait_until(lambda: not any(map(alive, pids)), 20):
        return True
    send(signal.SIGKILL, *pids)
    return False


def _none_alive(outcome: Outcome) -> bool:
    return _gone(_pids(outcome.records[0]))


# --- the payload's own leftovers ---


@oldest_and_newest
def test_whatever_a_payload_leaves_behind_is_killed(python: str) -> None:
    outcome = play(payload(f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{_FAMILY}"), python)
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


@pytest.mark.parametrize(
    ("source", "limits", "code", "limit"),
    [
        (_STUBBORN, Limits(run=2.0), "run_timeout", ("run", 2.0, "limits.run")),
        (_STAYS, Limits(stall=2.0), "stall_timeout", ("stall", 2.0, "limits.stall")),
        (_STAYS, Limits(total=5.0), "total_timeout", ("total", 5.0, "limits.total")),
    ],
)
@oldest_and_newest
def test_a_limit_ends_the_whole_family(
    python: str, source: str, limits: Limits, code: str, limit: tuple[str, float, str]
) -> None:
    outcome = play(payload(source), python, limits=limits)
    assert outcome.error is not None
    hit = outcome.error.limit
    assert hit is not None
    assert (outcome.error.code, (hit.name, hit.value_s, hit.key)) == (code, limit)
    assert len(outcome.records) == 1
    assert _none_alive(outcome)
    assert outcome.survivors == 0


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
    outcome = play(payload(source), python, limits=Limits(run=2.0))
    assert (_code(outcome), outcome.exit_status) == ("run_timeout", 0)
    assert [record["n"] for record in outcome.records] == [1, 2]
    assert outcome.stdout.data == b"the end"


@pytest.mark.parametrize(
    "step", ["ctx.progress(n, 100)", "ctx.emit({'n': n})", "print(n, flush=True)", "ctx.log('still here')"]
)
def test_any_sign_of_progress_puts_the_limit_stall_off(step: str) -> None:
    source = f"import time\nfor n in range(14):\n    {step}\n    time.sleep(0.25)\n"
    assert play(payload(source), limits=Limits(stall=3.0)).status is Status.OK


def test_a_program_stopped_in_the_middle_of_a_line_met_its_limit() -> None:
    work = program("#!/bin/sh\necho '{\"n\": 1}'; printf '{\"n\": '; sleep 100")
    outcome = play(work, limits=Limits(run=2.0))
    assert (_code(outcome), outcome.records) == ("run_timeout", ({"n": 1},))


# --- a file system that hangs ---


def _on_hung_storage(folder: Path) -> tuple[str, Path]:
    """Make an interpreter that sees a file system of which nobody ever answers a request."""
    hung = folder / "hung"
    hung.mkdir()
    wrapper = folder / "python"
    mount = f"mount -i -t fuse -o fd=9,rootmode=40000,user_id=0,group_id=0 hung '{hung}'"
    inside = f'exec 9<>/dev/fuse && {mount} && exec {pythons()[ENDS[-1]]} "$@"'
    wrapper.write_text(f'#!/bin/sh\nexec unshare -m /bin/sh -c {shlex.quote(inside)} sh "$@"\n')
    wrapper.chmod(0o755)
    works = subprocess.run([wrapper, "-c", ""], capture_output=True, text=True, check=False)
    if works.returncode:
        lacking(f"no file system can be made to hang here: {works.stderr.strip()}")
    return str(wrapper), hung


def test_a_payload_that_hangs_on_storage_is_told_as_such(tmp_path: Path) -> None:
    wrapper, hung = _on_hung_storage(tmp_path)
    work = payload("import os; ctx.emit({}); os.stat(ctx.params['path'])", path=str(hung))
    # Longer than a heartbeat takes to tell the state.
    outcome = play(work, wrapper, limits=Limits(stall=7.0))
    assert outcome.error is not None
    assert (outcome.error.code, outcome.survivors) == ("stall_timeout", 0)
    assert "waiting for a disk or network file system" in outcome.error.message


@pytest.mark.parametrize("end", ["run", "cancel"])
def test_a_program_that_hangs_before_its_start_can_be_ended(end: str, tmp_path: Path) -> None:
    wrapper, hung = _on_hung_storage(tmp_path)
    limits = Limits(run=1.0) if end == "run" else Limits()
    outcome = play(
        ExecWork(argv=(os.fsencode(hung / "program"),)),
        wrapper,
        limits=limits,
        at_run=(lambda control: control.cancel()) if end == "cancel" else None,
    )
    assert (_code(outcome), outcome.survivors) == ("run_timeout" if end == "run" else "cancelled", 0)


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
        assert _gone(pids)
        # Nothing but the end of stdin ended it, and there is nobody to tell.
        assert wire.PROBLEM not in kinds


_FLOOD = "import os\nctx.emit({'pids': [os.getpid()]})\nwhile True:\n    ctx.emit({'x': 'y' * 1000})\n"


@oldest_and_newest
@pytest.mark.parametrize("how", ["closed", "unread"])
def test_a_controller_that_reads_no_more_ends_the_run(python: str, how: str) -> None:
    with leg(payload(_FLOOD), python) as started:
        started.write(started.opening)
        pids = _pids(json.loads(started.read_until(wire.RECORD)))
        if how == "closed":
            # Stdin stays open: what a half-dead connection looks like.
            started.hang_up()
        else:
            # Stdout is full and stays so, which must not keep the leg from seeing the end of stdin.
            started.write_eof()
        assert _gone(pids)
        assert wait_until(lambda: not alive(started.pid))


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
    send(signal.SIGSTOP, *pids)
    send(signal.SIGKILL, *pids)


@oldest_and_newest
def test_without_a_lease_a_killed_leg_takes_everything_with_it(python: str) -> None:
    outcome = play(
        payload(_STAYS),
        python,
        limits=Limits(lease=None),
        at_record=lambda record, control: _kill(_parent(int(str(record["supervisor"])))),
    )
    assert _code(outcome) == "connection_lost"
    assert len(outcome.records) == 1
    assert _none_alive(outcome)


@oldest_and_newest
def test_a_killed_supervisor_is_told_and_all_it_leaves_is_killed(python: str) -> None:
    """Orphans become the leg's own, also one that has thrown its environment away."""
    outcome = play(payload(_STAYS), python, at_record=lambda record, control: _kill(int(str(record["supervisor"]))))
    assert _code(outcome) == "payload_killed"
    assert outcome.error is not None
    assert "the supervisor on the target was killed" in outcome.error.message
    assert _gone(_pids(outcome.records[0]))


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
        stayed.extend(filter(alive, daemons))
        send(signal.SIGKILL, *daemons)

    outcome = play(payload(_STAYS), python, at_record=kill)
    assert _code(outcome) == "payload_killed"
    assert len(stayed) == 2
    assert _none_alive(outcome)


# --- memory ---


def _peak(pid: int) -> int:
    """Return the most memory that a process has had so far, in bytes; 0 when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    line = next((line for line in status.splitlines() if line.startswith("VmHWM:")), "VmHWM: 0 kB")
    return int(line.split()[1]) << 10


_LIMIT_BYTES = 64 << 20


@oldest_and_newest
def test_a_slow_controller_slows_the_payload_down_and_costs_no_memory(python: str) -> None:
    work = ExecWork(argv=(b"/bin/sh", b"-c", b"head -c 100000000 /dev/zero | cat; echo; echo end"))
    with leg(work, python) as started:
        started.write(started.opening)
        started.read_until(wire.STDOUT)
        # Nothing is read: everything that could take something in does so, or waits.
        time.sleep(1)
        (supervisor,) = map(int, Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split())
        assert 0 < _peak(supervisor) < _LIMIT_BYTES
        assert 0 < _peak(started.pid) < _LIMIT_BYTES
        result = json.loads(started.read_until(wire.RESULT))
    assert (result["exit_status"], result["stdout_total"]) == (0, 100_000_005)


@oldest_and_newest
def test_a_flood_without_a_leg_costs_no_memory(python: str) -> None:
    source = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + _FLOOD.replace(
        "'pids'", "'supervisor': os.getppid(), 'pids'"
    ).replace("ctx.emit({'x': 'y' * 1000})", "os.write(1, bytes(65536))")
    peaks = []

    def kill(record: Mapping[str, Json], control: Control) -> None:
        supervisor = int(str(record["supervisor"]))
        _kill(_parent(supervisor))
        while alive(supervisor):
            peaks.append(_peak(supervisor))
            time.sleep(0.01)

    outcome = play(payload(source), python, limits=Limits(lease=None), at_record=kill)
    assert _code(outcome) == "connection_lost"
    assert 0 < max(peaks) < _LIMIT_BYTES
    assert _none_alive(outcome)


# --- a supervisor in trouble ---


def test_code_that_is_no_pack_is_told_as_such() -> None:
    data = b"no zip at all"
    ref = PayloadRef(name="look", version=None, sha256=hashlib.sha256(data).hexdigest())
    outcome = play(PayloadWork(pack=Pack(ref=ref, data=data, program="look"), params={}))
    assert _code(outcome) == "start_failed"
    assert outcome.error is not None
    assert "not a zip file" in outcome.error.message
