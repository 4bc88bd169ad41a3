"""A plan carried out on this machine: one outcome per job, in the plan's order, whatever happens."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from remoterun.events import (
    Event,
    OutcomeReady,
    RecordArrived,
    RunFinished,
    RunStarted,
    TargetMoved,
)
from remoterun.model import (
    ExecWork,
    Host,
    Job,
    Limits,
    Outcome,
    Phase,
    Plan,
    Run,
    RunStatus,
    Status,
    Target,
    Work,
)
from remoterun.remote import wire
from remoterun.runner import Control, execute
from tests.support.here import SUPPORTED, nothing_left, payload
from tests.support.lab.pythons import pythons

HOST = Host(key="here", address="", transport="local")
FINE, WRONG = ExecWork(argv=(b"true",)), ExecWork(argv=(b"false",))


def _job(target: str, work: Work, step: int = 0, *, interpreter: str = "", limits: Limits | None = None) -> Job:
    where = Target(id=target, host=HOST, interpreter=interpreter or pythons()[SUPPORTED[-1]])
    return Job(target=where, step=step, work=work, limits=limits or Limits())


def _run(
    *jobs: Job, on_event: Callable[[Event], None] | None = None, control: Control | None = None, at_once: int = 64
) -> tuple[Run, list[Event]]:
    events: list[Event] = []

    def tell(event: Event) -> None:
        events.append(event)
        if on_event is not None:
            on_event(event)

    with nothing_left() as run_id:
        plan = Plan(
            run_id=run_id, playbook="p", playbook_sha256=None, jobs=jobs, targets_at_once=at_once, use_cache=False
        )
        return asyncio.run(execute(plan, tell, control)), events


def test_there_is_one_outcome_per_job_in_the_plans_order(tmp_path: Path) -> None:
    mark = tmp_path / "others are done"
    waits = ExecWork(argv=(b"/bin/sh", b"-c", b'until [ -e "$0" ]; do sleep 0.02; done', os.fsencode(mark)))
    jobs = [_job("a", waits), _job("a", FINE, 1), _job("b", FINE), _job("c", WRONG), _job("b", FINE, 1)]
    ready: list[Outcome] = []

    def note(event: Event) -> None:
        if isinstance(event, OutcomeReady):
            ready.append(event.outcome)
            if len(ready) == 3:
                # The first target of the plan holds nobody up.
                mark.touch()

    run, events = _run(*jobs, on_event=note)
    assert [(outcome.target, outcome.step) for outcome in run.outcomes] == [(job.target.id, job.step) for job in jobs]
    assert [outcome.status for outcome in run.outcomes] == [Status.OK, Status.OK, Status.OK, Status.FAILED, Status.OK]
    # A program that says no has run, and is a finding.
    assert run.status is RunStatus.FINDINGS
    assert isinstance(events[0], RunStarted)
    assert isinstance(events[-1], RunFinished)
    assert [ready.index(outcome) for outcome in run.outcomes[:2]] == [3, 4]
    assert len(ready) == 5


def test_what_follows_a_failed_step_is_not_started() -> None:
    run, _ = _run(_job("a", WRONG), _job("a", FINE, 1), _job("a", FINE, 2), _job("b", FINE))
    assert [outcome.status for outcome in run.outcomes] == [
        Status.FAILED,
        Status.NOT_STARTED,
        Status.NOT_STARTED,
        Status.OK,
    ]
    second = run.outcomes[1]
    assert second.error is not None
    assert (second.error.code, second.phase) == ("earlier_step", Phase.PLAN)
    assert "step 0 of a" in second.error.message


def test_findings_hold_no_later_step_up() -> None:
    run, _ = _run(_job("a", payload("ctx.finding('r', 'bad', 's', 'm')")), _job("a", FINE, 1))
    assert [outcome.status for outcome in run.outcomes] == [Status.FINDINGS, Status.OK]
    assert run.status is RunStatus.FINDINGS


def test_an_outcome_says_how_long_each_phase_took() -> None:
    run, events = _run(_job("a", ExecWork(argv=(b"sleep", b"0.2"))))
    timings = run.outcomes[0].timings_s
    assert set(timings) == {"queued", "enter", "upload", "run", "total"}
    assert timings["run"] >= 0.1
    # What closing the session takes is in the total alone.
    assert sum(timings.values()) - timings["total"] <= timings["total"] + 0.001
    moves = [(event.phase, event.waiting) for event in events if isinstance(event, TargetMoved)]
    assert moves == [(Phase.ENTER, False), (Phase.UPLOAD, False), (Phase.RUN, False)]


def test_targets_wait_for_each_other_where_the_plan_says_so() -> None:
    seen: list[int] = []
    running: set[str] = set()

    def watch(event: Event) -> None:
        if isinstance(event, TargetMoved) and event.phase is Phase.ENTER:
            running.add(event.target)
            seen.append(len(running))
        elif isinstance(event, OutcomeReady):
            running.discard(event.outcome.target)

    run, _ = _run(*(_job(name, FINE) for name in "abcde"), on_event=watch, at_once=2)
    assert run.status is RunStatus.OK
    assert max(seen) == 2


def test_a_cancelled_run_starts_nothing_more_and_is_interrupted() -> None:
    control = Control()
    stays = payload("import time\nctx.emit({})\ntime.sleep(1000)")

    def cancel(event: Event) -> None:
        if isinstance(event, RecordArrived):
            control.cancel()

    run, _ = _run(_job("a", stays), _job("a", FINE, 1), _job("b", FINE), on_event=cancel, control=control, at_once=1)
    assert [(outcome.status, outcome.phase) for outcome in run.outcomes] == [
        (Status.CANCELLED, Phase.COLLECT),
        (Status.CANCELLED, Phase.PLAN),
        (Status.CANCELLED, Phase.PLAN),
    ]
    assert run.status is RunStatus.INTERRUPTED
    assert run.outcomes[0].survivors == 0


@pytest.mark.parametrize("end", [Control.cancel, Control.abort])
def test_a_target_that_is_being_entered_is_left_at_once(end: Callable[[Control], None], tmp_path: Path) -> None:
    never = tmp_path / "python"
    never.write_text("#!/bin/sh\nexec sleep 1000\n")
    never.chmod(never.stat().st_mode | stat.S_IXUSR)
    control = Control()

    def leave(event: Event) -> None:
        if isinstance(event, TargetMoved) and event.phase is Phase.ENTER:
            asyncio.get_running_loop().call_later(0.1, end, control)

    run, _ = _run(_job("a", FINE, interpreter=str(never)), on_event=leave, control=control)
    (outcome,) = run.outcomes
    assert (outcome.status, outcome.phase, outcome.survivors) == (Status.CANCELLED, Phase.ENTER, None)


def test_an_interpreter_that_never_answers_meets_its_limit(tmp_path: Path) -> None:
    never = tmp_path / "python"
    never.write_text("#!/bin/sh\nexec sleep 1000\n")
    never.chmod(never.stat().st_mode | stat.S_IXUSR)
    run, _ = _run(_job("a", FINE, interpreter=str(never), limits=Limits(enter=0.5)))
    (outcome,) = run.outcomes
    assert outcome.error is not None
    assert (outcome.status, outcome.error.code) == (Status.TIMEOUT, "enter_timeout")


def test_a_look_at_a_guest_that_gave_no_answer_ends_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = tmp_path / "looked"
    for name, script in (("lxc-attach", "exec sleep 60"), ("lxc-info", f"touch {looked}; exec sleep 60")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    where = Target(id="here/box", host=HOST, guest="box", hop="lxc")
    silent = Job(target=where, step=0, work=FINE, limits=Limits(enter=0.3))
    control = Control()

    async def work(run_id: str) -> Run:
        plan = Plan(run_id=run_id, playbook="p", playbook_sha256=None, jobs=(silent, _job("a", FINE)), use_cache=False)
        going = asyncio.create_task(execute(plan, lambda event: None, control))
        while not looked.exists():  # noqa: ASYNC110 - a program says so
            await asyncio.sleep(0.01)
        control.cancel()
        return await going

    with nothing_left() as run_id:
        run = asyncio.run(work(run_id))
    assert run.status is RunStatus.INTERRUPTED
    # What was known by then is told.
    assert [outcome.error and outcome.error.code for outcome in run.outcomes] == ["enter_timeout", None]


@pytest.mark.parametrize(
    ("interpreter", "code"), [("/no/such/python", "interpreter_missing"), ("/bin/false", "interpreter_broken")]
)
def test_an_interpreter_that_is_none_is_told(interpreter: str, code: str) -> None:
    run, _ = _run(_job("a", FINE, interpreter=interpreter))
    error = run.outcomes[0].error
    assert error is not None
    assert error.code == code


def test_a_bug_of_ours_is_the_outcome_of_its_target_alone() -> None:
    def fall(event: Event) -> None:
        if isinstance(event, RecordArrived):
            raise RuntimeError("a listener fell over")

    run, _ = _run(_job("a", payload("import time\nctx.emit({})\ntime.sleep(1000)")), _job("b", FINE), on_event=fall)
    first, second = run.outcomes
    assert first.error is not None
    assert (first.error.code, second.status) == ("internal", Status.OK)
    assert "a listener fell over" in first.log[0]
    assert os.fspath(Path(__file__).name) in first.log[0]


# What a hostile target may have for an interpreter: it answers at once, with an honest-looking result of nothing.
LIAR = """\
#!{python}
import hashlib, json, marshal, sys
sys.path.insert(0, {root!r})
from remoterun.remote import wire
for _ in range(4):
    header = sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))
nonce = marshal.loads(header)["nonce"]
said = {{"exit_status": 0, "cause": None, "done": True, "survivors": 0, "records": 0}}
said["hash"] = hashlib.sha256().hexdigest()
encoders = [wire.Encoder(nonce, stream) for stream in (wire.LEG_STREAM, wire.SUPERVISOR_STREAM)]
for kind in {kinds!r}:
    body = said if kind == wire.RESULT else {{}}
    for frame in encoders[kind >= wire.STARTED].frames(kind, json.dumps(body).encode()):
        sys.stdout.buffer.write(frame)
sys.stdout.flush()
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("kinds", "phase"),
    [
        ([wire.RESULT], Phase.ENTER),
        ([wire.STARTED, wire.RESULT], Phase.ENTER),
        ([wire.HELLO, wire.RESULT], Phase.UPLOAD),
        ([wire.HELLO, wire.NEED, wire.RESULT], Phase.UPLOAD),
    ],
)
@pytest.mark.parametrize("work", [FINE, payload("ctx.emit({})")], ids=["exec", "payload"])
def test_a_result_is_worth_nothing_before_something_was_started(
    tmp_path: Path, work: Work, kinds: list[int], phase: Phase
) -> None:
    liar = tmp_path / "python"
    root = str(Path(__file__).parents[3])
    liar.write_text(LIAR.format(python=pythons()[SUPPORTED[-1]], root=root, kinds=kinds))
    liar.chmod(0o755)
    (outcome,) = _run(_job("a", work, interpreter=str(liar)))[0].outcomes
    assert (outcome.status, outcome.phase) == (Status.FAILED, phase)
    assert outcome.error is not None
    assert outcome.error.code == "result_damaged"
