"""A run outlives its connection: for its lease, without a gap, without a repeat, and never twice."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remoterun.errors import TargetError
from remoterun.events import Event, RecordArrived
from remoterun.model import ExecWork, Job, Json, Limits, Manner, Outcome, Plan, Run, RunStatus, Status, Work
from remoterun.remote import wire
from remoterun.runner import Control, execute
from remoterun.runner.jobrun import JobRun
from remoterun.runner.keep import Keep
from remoterun.runner.request import Packed
from remoterun.secrets import NO_SECRETS
from remoterun.transports import Pool, Session
from tests.support.here import ENDS, alive, job, leg, nothing_left, payload, play, wait_until
from tests.support.lab import send

oldest_and_newest = pytest.mark.parametrize("python", ENDS)

# Says who its supervisor is, and waits at each of its gates.
GATED = """
import os, time
for n in range(200):
    ctx.emit({'supervisor': os.getppid(), 'n': n, 'up': time.monotonic()})
    while n in ctx.params['at'] and not os.path.exists(os.path.join(ctx.params['gates'], str(n))):
        time.sleep(0.01)
"""


def _code(outcome: Outcome) -> str | None:
    return outcome.error.code if outcome.error else None


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _supervisor(outcome_or_record: Mapping[str, Json]) -> int:
    return int(str(outcome_or_record["supervisor"]))


def _numbers(outcome: Outcome) -> list[Json]:
    return [record["n"] for record in outcome.records]


class Legs:
    """Kill the leg of a run, whichever it is at that moment, when it waits at one of its gates; then open that."""

    def __init__(self, at: Sequence[int], gates: Path) -> None:
        self._gates = gates
        self.work = payload(GATED, at=list(at), gates=str(gates))
        self._at = at

    def __call__(self, record: Mapping[str, Json], control: Control) -> None:
        if record["n"] in self._at:
            legs = _legs(_supervisor(record))
            assert legs
            send(signal.SIGKILL, *legs)
            (self._gates / str(record["n"])).touch()


def _legs(supervisor: int) -> list[int]:
    """Find the legs of a supervisor: in its own environment, and not below it."""
    key = b"HERE_RUN="
    mine = [word for word in Path(f"/proc/{supervisor}/environ").read_bytes().split(b"\0") if word.startswith(key)]
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) not in (os.getpid(), supervisor):
            try:
                words = (folder / "environ").read_bytes().split(b"\0")
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if mine and mine[0] in words and b"-c" in command.split(b"\0"):
                found.append(int(folder.name))
    return found


@oldest_and_newest
def test_a_run_goes_on_when_its_leg_is_killed(python: str, tmp_path: Path) -> None:
    legs = Legs((20, 90, 150), tmp_path)
    outcome = play(legs.work, python, at_record=legs)
    assert (outcome.status, _code(outcome)) == (Status.OK, None)
    assert _numbers(outcome) == list(range(200))
    assert (outcome.connections, outcome.resumable, outcome.survivors) == (4, True, 0)


@oldest_and_newest
def test_what_was_said_while_nobody_listened_arrives(python: str, tmp_path: Path) -> None:
    """The payload ends in the meantime; its result, its output and the large record wait for the next leg."""
    source = """
    import os, sys
    ctx.emit({'supervisor': os.getppid()})
    while not os.path.exists(ctx.params['go']): pass
    ctx.emit({'x': 'y' * 3_000_000})
    ctx.finding('R1', 'suspect', 's', 'm')
    print('said')
    """
    go = tmp_path / "go"

    def kill(record: Mapping[str, Json], control: Control) -> None:
        if "supervisor" in record:
            (only,) = _legs(_supervisor(record))
            os.kill(only, signal.SIGKILL)
            go.touch()

    outcome = play(payload(source, go=str(go)), python, at_record=kill)
    assert outcome.status is Status.FINDINGS
    assert [len(str(record.get("x", ""))) for record in outcome.records] == [0, 3_000_000]
    assert (outcome.stdout.data, len(outcome.findings), outcome.connections) == (b"said\n", 1, 2)


def test_the_output_of_a_program_is_whole_over_several_connections(tmp_path: Path) -> None:
    go = tmp_path / "go"
    # It does not end while legs are still killed: a last acknowledgement that is lost with one is waited for.
    waits = b"[ $i -lt 6000 ] || until [ -e $0 ]; do sleep 0.01; done"
    source = b"i=0; while [ $i -lt 8000 ]; do i=$((i+1)); echo $i; %s; done" % waits
    work = ExecWork(argv=(b"/bin/sh", b"-c", source, os.fsencode(go)))
    heard = bytearray()
    killed: list[int] = []

    async def follow(run_id: str) -> Run:
        plan = _plan(run_id, work)

        def tell(event: Event) -> None:
            data = getattr(event, "data", b"")
            heard.extend(data)
            if len(heard) >= 20_000:
                go.touch()
            elif data and len(killed) < 3:
                found = [pid for pid in _pids() if _is_leg(pid, run_id)]
                send(signal.SIGKILL, *found)
                killed.extend(found[:1])

        return await execute(plan, tell)

    with nothing_left() as run_id:
        run = asyncio.run(follow(run_id))
    (outcome,) = run.outcomes
    assert outcome.status is Status.OK, outcome.error
    assert heard == b"".join(b"%d\n" % (n + 1) for n in range(8000))
    assert outcome.connections > 1


def _pids() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]


def _is_leg(pid: int, run_id: str) -> bool:
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        parent = _parent(pid)
    except OSError:
        return False
    return f"HERE_RUN={run_id}".encode() in words and b"-c" in command and parent == os.getpid()


def test_a_leg_that_is_killed_as_it_begins_is_not_the_end_of_the_run(tmp_path: Path) -> None:
    """Nor are two of them: the target was entered before, and its payload goes on."""
    go, entered = tmp_path / "go", tmp_path / "entered"
    python = tmp_path / "python"
    script = (
        f'echo >>{entered}; case $(wc -l <{entered}) in 2) kill -9 $$;; 3) exit 5;; esac; exec {sys.executable} "$@"'
    )
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)

    def kill(record: Mapping[str, Json], control: Control) -> None:
        if "supervisor" in record:
            (only,) = _legs(_supervisor(record))
            os.kill(only, signal.SIGKILL)
            go.touch()

    source = """
    import os
    ctx.emit({'supervisor': os.getppid()})
    while not os.path.exists(ctx.params['go']): pass
    ctx.emit({'n': 1})
    """
    outcome = play(payload(source, go=str(go)), str(python), at_record=kill)
    assert (outcome.status, len(outcome.records), outcome.survivors) == (Status.OK, 2, 0), outcome.error
    assert entered.read_text().count("\n") >= 4


# It says that it is there, as a leg does, and ends.
DIES = f"""\
#!{sys.executable}
import marshal, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from remoterun.remote import wire
for _ in range(4):
    header = sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))
for frame in wire.Encoder(marshal.loads(header)["nonce"], wire.LEG_STREAM).frames(wire.HELLO, b"{{}}"):
    sys.stdout.buffer.write(frame)
sys.stdout.buffer.flush()
sys.exit("MemoryError")
"""


def test_a_python_that_always_dies_before_it_starts_anything_is_told_as_that(tmp_path: Path) -> None:
    """Each connection hears of it, so that the lease alone would never end this."""
    python = tmp_path / "python"
    python.write_text(DIES)
    python.chmod(0o755)
    outcome = play(payload("ctx.emit({'n': 1})"), str(python), limits=Limits(lease=600.0))
    assert (_code(outcome), outcome.status, outcome.connections) == ("interpreter_broken", Status.FAILED, 5)
    assert outcome.error is not None
    assert f"5 times, while it was sent the payload's code, {python} ended with status 1: MemoryError" in str(
        outcome.error.message
    )


class _Reinstalled(Pool):
    """Reach a host twice, and then another one in its place."""

    reached = 0

    @asynccontextmanager
    async def session(self, *args: Any, **options: Any) -> AsyncIterator[Session]:
        self.reached += 1
        if self.reached > 2:
            raise TargetError("host_key_changed", "its key is another one")
        async with super().session(*args, **options) as session:
            yield session


def test_what_follows_a_python_that_died_is_told_and_not_its_death(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(DIES)
    python.chmod(0o755)
    planned = job(payload("ctx.emit({'n': 1})"), str(python), limits=Limits(lease=600.0))

    async def follow(run_id: str) -> Outcome:
        shared = (Packed(), lambda event: None, Control(), Manner.FOLLOW, NO_SECRETS)
        async with _Reinstalled() as pool:
            return await JobRun(planned, f"{run_id}/here/0", *shared, use_cache=False, keep=Keep(1)).outcome(pool)

    with nothing_left() as run_id:
        outcome = asyncio.run(follow(run_id))
    assert (_code(outcome), outcome.status, outcome.connections) == ("host_key_changed", Status.UNREACHABLE, 2)


# --- leases ---


@oldest_and_newest
def test_a_target_that_hears_nothing_for_its_lease_ends_the_run(python: str) -> None:
    source = "import os, time\nctx.emit({'pid': os.getpid()})\nwhile True: time.sleep(1)"
    with leg(payload(source), python, lease=3.0) as started:
        started.write(started.opening)
        record = started.read_until(wire.RECORD)
        begun = time.monotonic()
        started.write_eof()
        started.read_to_end()
        pid = int(str(_json(record)["pid"]))
        assert alive(pid), "the end of a connection is not the end of a run"
        assert wait_until(lambda: not alive(pid))
        assert time.monotonic() - begun > 2.9


@oldest_and_newest
def test_a_result_that_nobody_takes_is_not_kept_for_ever(python: str) -> None:
    with leg(payload("ctx.emit({'n': 1})"), python, lease=1.0) as started:
        started.write(started.opening)
        started.read_until(wire.RECORD)
        started.hang_up()
        started.write_eof()


def test_a_cancelled_run_waits_for_nobody() -> None:
    """Its result is of interest to whoever cancelled it, and to nobody else: no lease."""
    source = "import time\nctx.emit({'n': 1})\nwhile True: time.sleep(1)"
    with leg(payload(source), lease=600.0) as started:
        started.write(started.opening)
        started.read_until(wire.RECORD)
        started.write(started.request.frame(wire.CANCEL))
        started.write_eof()


def _json(body: bytes) -> Mapping[str, Json]:
    import json

    value: Mapping[str, Json] = json.loads(body)
    return value


_LATE_S = 2.0
_STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for n in range(200):
    ctx.emit({'n': n, 'supervisor': os.getppid()})
    time.sleep(0.02)
"""


@pytest.mark.parametrize("call_s", [0.0, _LATE_S], ids=["waits for it", "comes after it"])
def test_a_leg_that_is_late_is_told_no_half_of_a_run(call_s: float) -> None:
    """The supervisor stands still until its lease is over, and then ends a payload that goes on emitting for a while.

    What is said then is kept for nobody: a leg that would hear only the end of it is not to be answered.
    """

    def stand_still(record: Mapping[str, Json], control: Control) -> None:
        if record["n"] == 5:
            supervisor = _supervisor(record)
            (only,) = _legs(supervisor)
            os.kill(supervisor, signal.SIGSTOP)
            os.kill(only, signal.SIGKILL)
            threading.Timer(_LATE_S, os.kill, (supervisor, signal.SIGCONT)).start()
            time.sleep(call_s)  # whether the next leg finds it standing still is what is tested

    limits = Limits(lease=1.0)
    outcome = play(payload(_STUBBORN), at_record=stand_still, limits=limits)
    assert (outcome.status, _code(outcome)) == (Status.LOST, "lease_expired"), outcome.error
    assert _numbers(outcome) == list(range(len(outcome.records)))


# --- left alone, and taken up again ---


def _plan(run_id: str, work: Work, limits: Limits | None = None) -> Plan:
    planned: Job = job(work, limits=limits)
    return Plan(run_id=run_id, playbook="look", playbook_sha256=None, jobs=(planned,), use_cache=False)


def _execute(plan: Plan, manner: Manner, on_event: Callable[[Event], None] | None = None) -> Outcome:
    run = asyncio.run(execute(plan, on_event or (lambda event: None), manner=manner))
    (outcome,) = run.outcomes
    expected = RunStatus.DETACHED if outcome.status is Status.RUNNING else None
    assert expected is None or run.status is expected
    return outcome


_WAITS = """
import os, time
ctx.emit({'pid': os.getpid()})
while not os.path.exists(ctx.params['go']): time.sleep(0.01)
ctx.emit({'n': 1})
"""


def test_a_run_is_started_left_looked_at_and_collected(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with nothing_left() as run_id:
        plan = _plan(run_id, payload(_WAITS, go=str(go)))
        left = _execute(plan, Manner.LEAVE)
        assert (left.status, left.error, left.resumable) == (Status.RUNNING, None, True)
        looked = _execute(plan, Manner.COLLECT)
        assert looked.status is Status.RUNNING
        assert len(looked.records) <= 1
        again = _execute(plan, Manner.COLLECT)
        assert again.status is Status.RUNNING
        go.touch()
        done = _execute(plan, Manner.ATTACH)
        assert done.status is Status.OK
        assert [sorted(record) for record in done.records] == [["pid"], ["n"]]


def test_a_run_that_is_done_waits_to_be_collected_once(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with nothing_left() as run_id:
        plan = _plan(run_id, payload("open(ctx.params['mark'], 'x')\nctx.emit({'n': 1})", mark=str(mark)))
        _execute(plan, Manner.LEAVE)
        assert wait_until(mark.exists)
        collected = _execute(plan, Manner.ATTACH)
        assert (collected.status, len(collected.records)) == (Status.OK, 1)
        assert wait_until(lambda: _execute(plan, Manner.COLLECT).status is not Status.RUNNING)
        gone = _execute(plan, Manner.COLLECT)
        assert _code(gone) == "lease_expired"


def test_a_run_that_is_taken_up_is_not_started_twice(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with nothing_left() as run_id:
        plan = _plan(run_id, payload(_WAITS, go=str(go)))
        _execute(plan, Manner.LEAVE)
        pids: list[Json] = []

        def tell(event: Event) -> None:
            if isinstance(event, RecordArrived) and "pid" in event.record:
                pids.append(event.record["pid"])
                go.touch()

        done = _execute(plan, Manner.FOLLOW, tell)
        assert done.status is Status.OK
        assert len(pids) == 1


_LINGERS = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(ctx.params['pids'], 'a+') as file:
    file.seek(0)
    before = file.read().split()
    file.write('%d\\n' % os.getpid())
ctx.emit({'before': len(before), 'alive': [pid for pid in before if os.path.exists('/proc/' + pid)]})
while not before: time.sleep(0.1)
"""


def _lingering(run_id: str, pids: Path) -> Plan:
    """Leave a run alone until its lease is over, whose payload does not let itself be ended."""
    plan = _plan(run_id, payload(_LINGERS, pids=str(pids)), Limits(lease=1.0))
    _execute(plan, Manner.LEAVE)
    assert wait_until(pids.exists)
    time.sleep(2)
    return plan


def test_a_run_that_is_being_ended_is_not_started_again_before_it_has_ended(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with nothing_left() as run_id:
        again = _execute(_lingering(run_id, pids), Manner.FOLLOW)
    assert again.status is Status.OK
    assert again.records == ({"before": 1, "alive": []},)


def test_a_run_left_alone_can_be_cancelled(tmp_path: Path) -> None:
    with nothing_left() as run_id:
        plan = _plan(run_id, payload(_WAITS, go=str(tmp_path / "never")))
        _execute(plan, Manner.LEAVE)
        ended = _execute(plan, Manner.CANCEL)
        assert (ended.status, ended.survivors, _code(ended)) == (Status.CANCELLED, 0, "cancelled")


def test_a_newer_controller_takes_a_run_over_and_the_older_is_told(tmp_path: Path) -> None:
    go = tmp_path / "go"

    async def both(run_id: str) -> list[Outcome]:
        plan = _plan(run_id, payload(_WAITS, go=str(go)))
        there = asyncio.Event()
        first = asyncio.create_task(execute(plan, lambda event: there.set() if _is_record(event) else None))
        await there.wait()
        there.clear()
        second = asyncio.create_task(
            execute(plan, lambda event: there.set() if _is_record(event) else None, manner=Manner.ATTACH)
        )
        await there.wait()
        (older,) = (await first).outcomes
        go.touch()
        (newer,) = (await second).outcomes
        return [older, newer]

    with nothing_left() as run_id:
        older, newer = asyncio.run(both(run_id))
    assert (older.status, _code(older)) == (Status.LOST, "taken_over")
    assert (newer.status, len(newer.records)) == (Status.OK, 2)


def test_whoever_follows_is_told_that_another_has_cancelled(tmp_path: Path) -> None:
    """It has ended before anybody can come back and ask."""

    async def both(run_id: str) -> list[Outcome]:
        plan = _plan(run_id, payload(_WAITS, go=str(tmp_path / "never")))
        there = asyncio.Event()
        first = asyncio.create_task(execute(plan, lambda event: there.set() if _is_record(event) else None))
        await there.wait()
        ended = await execute(plan, lambda event: None, manner=Manner.CANCEL)
        return [*ended.outcomes, *(await first).outcomes]

    with nothing_left() as run_id:
        ended, followed = asyncio.run(both(run_id))
    assert (ended.status, ended.survivors, _code(ended)) == (Status.CANCELLED, 0, "cancelled")
    assert (followed.status, _code(followed)) == (Status.LOST, "taken_over")


def test_whoever_comes_while_a_run_is_ended_waits_for_its_end(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with nothing_left() as run_id:
        again = _execute(_lingering(run_id, pids), Manner.CANCEL)
        assert not Path(f"/proc/{pids.read_text().strip()}").exists()
    assert again.error is not None
    assert (again.error.code, again.error.message) == ("lease_expired", "nothing is left there of this run")


def test_a_look_from_elsewhere_does_not_end_what_somebody_follows(tmp_path: Path) -> None:
    """Whoever follows it takes it up again: the one who looked has left."""
    go = tmp_path / "go"

    async def both(run_id: str) -> list[Outcome]:
        plan = _plan(run_id, payload(_WAITS, go=str(go)))
        there = asyncio.Event()
        following = asyncio.create_task(execute(plan, lambda event: there.set() if _is_record(event) else None))
        await there.wait()
        looks = [(await execute(plan, lambda event: None, manner=Manner.COLLECT)).outcomes[0] for _ in range(3)]
        go.touch()
        return [*looks, *(await following).outcomes]

    with nothing_left() as run_id:
        *looks, followed = asyncio.run(both(run_id))
    assert [(look.status, len(look.records)) for look in looks] == [(Status.RUNNING, 1)] * 3
    assert (followed.status, _code(followed), len(followed.records)) == (Status.OK, None, 2)


def _is_record(event: Event) -> bool:
    return isinstance(event, RecordArrived)


# --- the numbering ---


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_whatever_is_dropped_the_messages_are_those_said(data: st.DataObject) -> None:
    """Say, send, acknowledge and lose in any order: what a controller has taken is always exactly what was said."""
    from remoterun.remote.link import Spool

    spool = Spool(1 << 20, data.draw(st.integers(0, 4000), label="kept bytes"))
    said: list[bytes] = []
    taken: list[bytes] = []
    sent = 0
    for step in data.draw(st.lists(st.sampled_from(["said", "sent", "lost", "acknowledged"]), max_size=60)):
        if step == "said":
            said.append(b"%d" % len(said) * data.draw(st.integers(0, 200)))
            spool.add(wire.RECORD, said[-1])
        elif step == "sent" and sent < spool.count:
            number, sent = sent, sent + 1
            kind, body = spool.message(number)
            assert kind == wire.RECORD
            assert number == len(taken)
            taken.append(body)
        elif step == "lost":
            # Some that were sent did not arrive; the next connection begins with the first of these.
            arrived = data.draw(st.integers(spool.acknowledged, len(taken)))
            del taken[arrived:]
            sent = arrived
            assert spool.first <= sent <= spool.count
        elif step == "acknowledged":
            spool.acknowledge(data.draw(st.integers(spool.acknowledged, len(taken))))
    assert taken == said[: len(taken)]
    assert spool.acknowledged <= len(taken)
