"""Carry a plan out: exactly one outcome per target and step, whatever happens."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from remoterun import hops
from remoterun.errors import CODES, TargetError
from remoterun.events import OnEvent, OutcomeReady, RunFinished, RunStarted, TargetMoved
from remoterun.model import (
    ErrorInfo,
    Job,
    Outcome,
    PayloadRef,
    PayloadWork,
    Phase,
    Plan,
    Run,
    RunStatus,
    Status,
    judge,
)
from remoterun.runner.conversation import Conversation
from remoterun.runner.request import Packed, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remoterun.transports import Pool

_DIAGNOSE_S = 5.0
_GOES_ON = frozenset({Status.OK, Status.FINDINGS})


class Control:
    """Cancel a run from outside: `cancel` asks every target to end and confirm, `abort` leaves at once."""

    def __init__(self) -> None:
        self.ended_as: RunStatus | None = None
        self._active: dict[asyncio.Task[object], Conversation | None] = {}

    @property
    def cancelled(self) -> bool:
        """Tell whether the run has been ended from outside."""
        return self.ended_as is not None

    def cancel(self, status: RunStatus = RunStatus.INTERRUPTED) -> None:
        """Start nothing more, end what runs, wait for the confirmations; the first one gives the run its status."""
        self.ended_as = self.ended_as or status
        for task, conversation in list(self._active.items()):
            if conversation is None or conversation.phase is Phase.ENTER:
                # Nothing was started there: a leg that finds its stdin at the end starts nothing.
                task.cancel()
            else:
                conversation.cancel(_cancelled())

    def hold(self, target: str) -> None:
        """Take nothing more from a target's program until `go_on`: nobody takes from us what it says."""
        for conversation in self._active.values():
            if conversation is not None and conversation.target == target:
                conversation.hold()

    def go_on(self) -> None:
        """Take again from everybody who was held."""
        for conversation in self._active.values():
            if conversation is not None:
                conversation.go_on()

    def abort(self) -> None:
        """Leave now: what is not confirmed stays unconfirmed."""
        self.ended_as = self.ended_as or RunStatus.INTERRUPTED
        for task in list(self._active):
            task.cancel()

    def enter(self, conversation: Conversation | None) -> None:
        """Note what the current task is doing, so that it can be cancelled in the right way."""
        task = asyncio.current_task()
        if task is not None:
            self._active[task] = conversation

    def leave(self) -> None:
        """Forget the current task."""
        task = asyncio.current_task()
        if task is not None:
            self._active.pop(task, None)


class _Clock:
    """Split one job's time into its phases."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._start = self._since = self._loop.time()
        self._name = "queued"
        self._spent: dict[str, float] = {}

    def now(self, name: str) -> None:
        """Close the current phase and open another."""
        at = self._loop.time()
        self._spent[self._name] = self._spent.get(self._name, 0.0) + at - self._since
        self._name, self._since = name, at

    def marks(self, marks: Mapping[str, float]) -> None:
        """Take over the phases a conversation has measured: when each began."""
        for name, at in sorted(marks.items(), key=lambda item: item[1]):
            if at > self._since:
                self._spent[self._name] = self._spent.get(self._name, 0.0) + at - self._since
                self._since = at
            self._name = name

    def timings(self) -> dict[str, float]:
        """Return seconds by phase, and the total."""
        self.now("end")
        names = ("queued", "connect", "enter", "upload", "run")
        return {name: self._spent.get(name, 0.0) for name in names if name in self._spent} | {
            "total": self._since - self._start
        }


class _JobRun:
    """Take one job from the queue to its outcome."""

    def __init__(self, job: Job, request: Request, tell: OnEvent, control: Control) -> None:
        self._job = job
        self._request = request
        self._tell = tell
        self._control = control
        self._clock = _Clock()
        self._phase = Phase.CONNECT
        self._started_at: float | None = None
        self._conversation: Conversation | None = None

    async def outcome(self, pool: Pool) -> Outcome:
        """Run the job; every failure is a value."""
        try:
            return self._finish(await self._attempt(pool), None)
        except TargetError as error:
            error = await self._why_no_answer(pool, self._by_total(error))
            return self._finish(Status(CODES[error.code].status), ErrorInfo.of(error))
        except asyncio.CancelledError:
            if not self._control.cancelled:
                raise
            return self._finish(Status.CANCELLED, ErrorInfo.of(_cancelled()))
        except Exception as error:
            import traceback

            blank = self._finish(Status.FAILED, ErrorInfo.of(TargetError("internal", repr(error))))
            return replace(blank, log=(*blank.log, "".join(traceback.format_exception(error))))

    async def _attempt(self, pool: Pool) -> Status:
        from remoterun.transports import ConnectionLost

        limits, host = self._job.limits, self._job.target.host
        self._control.enter(None)
        try:
            opening = pool.session(
                host,
                hops.enter_argv(self._job.target),
                connect_s=_least(limits.connect, limits.total),
                enter_s=_least(limits.enter, limits.total),
                on_phase=self._moved,
            )
            async with opening as session:
                talk = Conversation(self._job, self._request, session, self._tell, self._deadline())
                self._conversation = talk
                self._control.enter(talk)
                try:
                    await talk.run()
                finally:
                    self._clock.marks(talk.marks)
        except ConnectionLost as error:
            raise TargetError("connection_lost", f"{host.key}: {error}") from error
        finally:
            self._control.leave()
        return talk.collector.judge()

    async def _why_no_answer(self, pool: Pool, error: TargetError) -> TargetError:
        """Look once more, after a target gave no answer, whether its guest is frozen."""
        from remoterun.transports import SessionEnded

        argv = hops.state_argv(self._job.target)
        if error.code != "enter_timeout" or argv is None or self._control.cancelled:
            return error
        self._control.enter(None)
        try:
            async with (
                asyncio.timeout(_DIAGNOSE_S),
                pool.session(
                    self._job.target.host, argv, connect_s=_DIAGNOSE_S, enter_s=_DIAGNOSE_S, on_phase=_ignore
                ) as session,
            ):
                answer = await session.read()
        except (TimeoutError, TargetError, SessionEnded):
            return error
        finally:
            self._control.leave()
        if answer.strip() != b"FROZEN":
            return error
        return TargetError("guest_frozen", f"{self._job.target.id} is frozen: {error.message}", limit=error.limit)

    def _deadline(self) -> float | None:
        total = self._job.limits.total
        return None if total is None or self._started_at is None else self._started_at + total

    def _by_total(self, error: TargetError) -> TargetError:
        """Name the limit `total` where it was the shorter one while the target was being reached."""
        total = self._job.limits.total
        if error.code not in {"connect_timeout", "enter_timeout"} or total is None or not error.limit:
            return error
        if error.limit[1] != total:
            return error
        return TargetError("total_timeout", error.message, limit=("total", total, "limits.total"))

    def _moved(self, phase: Phase, waiting: bool) -> None:  # noqa: FBT001  # the transports' callback
        self._phase = phase
        if not waiting and self._started_at is None:
            self._started_at = asyncio.get_running_loop().time()
        self._clock.now("queued" if waiting else phase.value)
        self._tell(TargetMoved(target=self._job.target.id, step=self._job.step, phase=phase, waiting=waiting))

    def _finish(self, status: Status, error: ErrorInfo | None) -> Outcome:
        job, talk = self._job, self._conversation
        blank = Outcome(
            target=job.target.id,
            name=job.target.name,
            step=job.step,
            status=status,
            phase=self._phase,
            error=error,
            payload=payload_of(job),
            timings_s=self._clock.timings(),
        )
        if talk is None:
            return blank
        got = talk.collector
        done = got.result is not None
        return replace(
            blank,
            phase=Phase.COLLECT if done and talk.phase is Phase.RUN else talk.phase,
            facts=got.facts,
            connections=1,
            records=tuple(got.records),
            findings=tuple(got.findings),
            exit_status=got.exit_status,
            survivors=got.survivors,
            stdout=got.stdout,
            stderr=got.stderr,
            noise=talk.noise,
            log=tuple(got.log),
        )


def payload_of(job: Job) -> PayloadRef | None:
    """Identify the payload of a job; None for a person's own script or program."""
    return job.work.pack.ref if isinstance(job.work, PayloadWork) else None


async def execute(plan: Plan, on_event: OnEvent, control: Control | None = None, earlier: Run | None = None) -> Run:
    """Carry out a plan and return its run: one outcome per job, in the plan's order.

    Jobs that have an outcome in `earlier`, the first part of the same run, are not done again. Cancelling the task
    leaves at once. `control.cancel()` ends it in an orderly way: the run then comes back as
    interrupted, or as what it was told.
    """
    from remoterun.transports import Pool

    control = control or Control()
    started_at = earlier.started_at if earlier is not None else _now()
    on_event(RunStarted(plan=plan, started_at=started_at))
    packed = Packed()
    slots = asyncio.Semaphore(plan.targets_at_once)
    by_target: dict[str, list[Job]] = {}
    known = {(outcome.target, outcome.step): outcome for outcome in (earlier.outcomes if earlier is not None else ())}
    for job in plan.jobs:
        by_target.setdefault(job.target.id, []).append(job)
    async with Pool() as pool:

        async def one_target(jobs: list[Job]) -> list[Outcome]:
            outcomes: list[Outcome] = []
            async with slots:
                for job in jobs:
                    if (job.target.id, job.step) in known:
                        outcomes.append(known[job.target.id, job.step])
                        continue
                    if control.cancelled or (outcomes and outcomes[-1].status not in _GOES_ON):
                        outcome = _not_started(job, cancelled=control.cancelled)
                    else:
                        key = f"{plan.run_id}/{job.target.id}/{job.step}"
                        request = Request(job, key, packed, use_cache=plan.use_cache)
                        outcome = await _JobRun(job, request, on_event, control).outcome(pool)
                    outcomes.append(outcome)
                    on_event(OutcomeReady(outcome=outcome))
            return outcomes

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one_target(jobs)) for jobs in by_target.values()]
        results = [task.result() for task in tasks]
    found = {(outcome.target, outcome.step): outcome for outcomes in results for outcome in outcomes}
    outcomes = tuple(found[job.target.id, job.step] for job in plan.jobs)
    run = Run(
        run_id=plan.run_id,
        playbook=plan.playbook,
        playbook_sha256=plan.playbook_sha256,
        started_at=started_at,
        finished_at=_now(),
        status=judge(outcomes, ended_as=control.ended_as),
        outcomes=outcomes,
    )
    on_event(RunFinished(run=run))
    return run


def _not_started(job: Job, *, cancelled: bool) -> Outcome:
    earlier = TargetError("earlier_step", f"step {job.step - 1} of {job.target.id} did not succeed")
    error = _cancelled() if cancelled else earlier
    return Outcome(
        target=job.target.id,
        name=job.target.name,
        step=job.step,
        status=Status(CODES[error.code].status),
        phase=Phase.PLAN,
        error=ErrorInfo.of(error),
        payload=payload_of(job),
    )


def _cancelled() -> TargetError:
    return TargetError("cancelled", "the run was cancelled")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _least(one: float | None, other: float | None) -> float | None:
    return min((value for value in (one, other) if value is not None), default=None)


def _ignore(phase: Phase, waiting: bool) -> None:  # noqa: FBT001  # the transports' callback
    """Take no note of the phases of a diagnosing look."""
