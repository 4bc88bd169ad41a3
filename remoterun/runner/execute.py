"""Carry a plan out: exactly one outcome per target and step, whatever happens."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from remoterun.errors import CODES, TargetError
from remoterun.events import OnEvent, OutcomeReady, RunFinished, RunStarted
from remoterun.model import ErrorInfo, Job, Manner, Outcome, Phase, Plan, Run, Status, judge
from remoterun.model.times import now_text
from remoterun.runner.control import Control, cancelled
from remoterun.runner.jobrun import JobRun
from remoterun.runner.keep import Keep
from remoterun.runner.request import Packed, payload_of
from remoterun.secrets import NO_SECRETS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remoterun.secrets import Vault
    from remoterun.transports import Pool
    from remoterun.transports.keyring import Ask


async def execute(
    plan: Plan,
    on_event: OnEvent,
    control: Control | None = None,
    earlier: Run | None = None,
    *,
    vault: Vault = NO_SECRETS,
    ask: Ask | None = None,
    manner: Manner = Manner.FOLLOW,
    fabric: Mapping[str, object] | None = None,
) -> Run:
    """Carry out a plan and return its run: one outcome per job, in the plan's order.

    Jobs that have an outcome in `earlier`, the first part of the same run, are not done again. Cancelling the task
    leaves at once. `control.cancel()` ends it in an orderly way: the run then comes back as
    interrupted, or as what it was told. In another manner than to follow a run, targets may still be at work when this
    returns: their outcomes are `running`.
    """
    from remoterun.transports import Pool

    control = control or Control()
    started_at = earlier.started_at if earlier is not None else now_text()
    on_event(RunStarted(plan=plan, started_at=started_at))
    known = {(outcome.target, outcome.step): outcome for outcome in (earlier.outcomes if earlier is not None else ())}
    by_target: dict[str, list[Job]] = {}
    for job in plan.jobs:
        by_target.setdefault(job.target.id, []).append(job)
    async with Pool(ask=ask, fabric=fabric) as pool:
        carrying = _Carrying(plan, on_event, control, known, vault=vault, manner=manner, pool=pool)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(carrying.one_target(jobs)) for jobs in by_target.values()]
    found = {(outcome.target, outcome.step): outcome for task in tasks for outcome in task.result()}
    outcomes = tuple(found[job.target.id, job.step] for job in plan.jobs)
    run = Run(
        run_id=plan.run_id,
        playbook=plan.playbook,
        playbook_sha256=plan.playbook_sha256,
        started_at=started_at,
        finished_at=now_text(),
        status=judge(outcomes, ended_as=control.ended_as),
        outcomes=outcomes,
    )
    on_event(RunFinished(run=run))
    return run


class _Carrying:
    """Hold what the jobs of one run share."""

    def __init__(
        self,
        plan: Plan,
        on_event: OnEvent,
        control: Control,
        known: Mapping[tuple[str, int], Outcome],
        *,
        vault: Vault,
        manner: Manner,
        pool: Pool,
    ) -> None:
        self._plan = plan
        self._on_event = on_event
        self._control = control
        self._known = known
        self._vault = vault
        self._manner = manner
        self._pool = pool
        self._packed, self._keep = Packed(), Keep(len(plan.jobs))
        self._slots = asyncio.Semaphore(plan.targets_at_once)

    async def one_target(self, jobs: list[Job]) -> list[Outcome]:
        """Do the steps of one target in turn, each only after one that went well."""
        outcomes: list[Outcome] = []
        async with self._slots:
            for job in jobs:
                outcome = self._known.get((job.target.id, job.step))
                if outcome is None:
                    goes_on = not outcomes or outcomes[-1].status.has_result
                    outcome = await self._one(job, goes_on=goes_on)
                    self._on_event(OutcomeReady(outcome=outcome))
                outcomes.append(outcome)
        return outcomes

    async def _one(self, job: Job, *, goes_on: bool) -> Outcome:
        if self._control.cancelled or not goes_on:
            error = cancelled() if self._control.cancelled else _earlier_step(job)
            told = ErrorInfo.of(error, run_id=self._plan.run_id)
            return _not_started(job, None if self._manner.lets_go_on else told)
        key = f"{self._plan.run_id}/{job.target.id}/{job.step}"
        work = JobRun(
            *(job, key, self._packed, self._on_event, self._control, self._manner, self._vault),
            use_cache=self._plan.use_cache,
            keep=self._keep,
        )
        return self._vault.cleaned(await work.outcome(self._pool))


def _earlier_step(job: Job) -> TargetError:
    return TargetError("earlier_step", f"step {job.step - 1} of {job.target.id} did not succeed")


def _not_started(job: Job, error: ErrorInfo | None) -> Outcome:
    """Make the outcome of a job that nothing was done for; without an error, its target may be at work."""
    return Outcome(
        target=job.target.id,
        name=job.target.name,
        step=job.step,
        status=Status(CODES[error.code].status) if error else Status.RUNNING,
        phase=Phase.PLAN,
        error=error,
        payload=payload_of(job),
    )
