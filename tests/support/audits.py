"""Runs of check-ckpt as they follow one another: what each target has, and what was found of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from hypothesis import strategies as st

from remoterun.events import Event, OutcomeReady, RecordArrived, RunFinished, RunStarted
from remoterun.history import Journal
from remoterun.model import Finding, Json, Outcome, Phase, Run, Severity, Status
from tests.support import runs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ROOT: Final = "/workspace/checkpoints"
# Young enough for a history to keep them.
START: Final = datetime.now(UTC).replace(hour=2, minute=0, second=0, microsecond=0) - timedelta(days=30)


def path_of(step: int) -> str:
    """Return the path of a checkpoint."""
    return f"{ROOT}/step_{step}/checkpoint.pt"


def nan(step: int, tensor: str = "model.wte", count: int = 152, **changes: object) -> Finding:
    """Find NaN in a tensor of a checkpoint."""
    finding = Finding(
        rule="CK001",
        severity=Severity.BAD,
        subject=f"step_{step}",
        message=f"{tensor}: {count} NaN of 4096 elements (float32)",
        next_step="Do not resume from it: go back to the newest checkpoint that is ok.",
        evidence={"nan": count},
        data={"file": path_of(step), "tensor": tensor},
    )
    return replace(finding, **changes)  # type: ignore[arg-type]


def summary(*steps: int, **changes: Json) -> dict[str, Json]:
    """Sum an audit up as check-ckpt does."""
    counts: dict[str, Json] = {"checkpoints": len(steps), "found": len(steps), "companions": []}
    return {"kind": "summary", **counts, "resume_from": None, "root": ROOT, **changes}


def audited(target: str, steps: Sequence[int], *findings: Finding, **changes: object) -> Outcome:
    """Make the outcome of an audit: checkpoints at these steps, bad where a finding says so."""
    bad = {finding.subject for finding in findings if finding.severity is Severity.BAD}
    records = [
        runs.checkpoint(step, path=path_of(step), verdict="bad" if f"step_{step}" in bad else "ok") for step in steps
    ]
    outcome = Outcome(
        target=target,
        name=None,
        step=0,
        status=Status.FINDINGS if findings else Status.OK,
        phase=Phase.COLLECT,
        payload=runs.CHECK_CKPT,
        facts={"hostname": target.replace("/", "-"), "python": "3.11.7", "kernel": "6.8.12-1-pve"},
        timings_s={"total": 3.0},
        connections=1,
        records=(*records, summary(*steps)),
        findings=findings,
        exit_status=0,
        survivors=0,
    )
    return replace(outcome, **changes)  # type: ignore[arg-type]


def silent(target: str, status: Status = Status.UNREACHABLE, code: str = "connect_refused") -> Outcome:
    """Make the outcome of a target that could not be entered."""
    phase = Phase.CONNECT if status is Status.UNREACHABLE else Phase.RUN
    error = runs.error(code, f"{target}: nothing is known of it.")
    return Outcome(target=target, name=None, step=0, status=status, phase=phase, error=error)


def run(day: int, *outcomes: Outcome, playbook: str = "check-ckpt") -> Run:
    """Make the run of a day, counted from 0; later ones have later ids."""
    began = START + timedelta(days=day)
    return replace(
        runs.run_of(*outcomes),
        run_id=f"{began:%Y%m%dT%H%M%SZ}-{day:08x}",
        playbook=playbook,
        started_at=f"{began:%Y-%m-%dT%H:%M:%S}.000Z",
        finished_at=f"{began + timedelta(seconds=9):%Y-%m-%dT%H:%M:%S}.000Z",
    )


def events(run: Run, project: str = "") -> list[Event]:
    """Tell a run as the journal hears it."""
    plan = runs.plan_of(*dict.fromkeys(each.target for each in run.outcomes), payload=run.playbook)
    jobs = tuple(
        replace(plan.jobs[0], target=replace(plan.jobs[0].target, id=each.target, name=each.name), step=each.step)
        for each in run.outcomes
    )
    told: list[Event] = [
        RunStarted(plan=replace(plan, run_id=run.run_id, jobs=jobs, project=project), started_at=run.started_at),
    ]
    for outcome in run.outcomes:
        told += [RecordArrived(target=outcome.target, step=outcome.step, record=each) for each in outcome.records]
        told.append(OutcomeReady(outcome=outcome))
    return [*told, RunFinished(run=run)]


def keep(folder: Path, run: Run, *, most: int | None = None, project: str = "") -> None:
    """Write a run into a history; `most` events of it only, as when its process is killed."""
    troubles: list[str] = []
    journal = Journal(folder, troubles.append)
    for event in events(run, project)[:most]:
        journal(event)
    journal.close()
    assert troubles == []


# --- strategies -------------------------------------------------------------------------------------------------------

_FINDINGS: Final = (nan(1), nan(2), nan(2, "model.wpe"), nan(3, severity=Severity.INFO))
_TARGETS: Final = ("kpro6/200", "kpro6/201", "kpro7/300")


def _outcomes(target: str) -> st.SearchStrategy[Outcome]:
    """Build what may become of a target: looked at whole or in part, or not at all."""
    steps = st.lists(st.sampled_from([1, 2, 3]), unique=True)
    findings = st.lists(st.sampled_from(_FINDINGS), unique_by=id)
    whole = st.builds(lambda own, found: audited(target, own, *(f for f in found if _of(f, own))), steps, findings)
    part = st.builds(_in_part, whole, st.sampled_from(_HIDDEN))
    kinds = [Status.UNREACHABLE, Status.FAILED, Status.LOST, Status.CANCELLED, Status.NOT_STARTED]
    none = st.sampled_from(kinds).map(lambda status: silent(target, status))
    cut = whole.map(lambda outcome: replace(silent(target, Status.LOST), findings=outcome.findings))
    return st.one_of(whole, whole, part, none, cut)


def _of(finding: Finding, steps: Sequence[int]) -> bool:
    return any(finding.subject == f"step_{step}" for step in steps)


_HIDDEN: Final[tuple[dict[str, Json], ...]] = (
    {"verdict": "in_progress"},
    {"bytes_checked": 0},
    {"ignored": {"CK001": 1}},
)


def _in_part(outcome: Outcome, hidden: dict[str, Json]) -> Outcome:
    *checkpoints, last = outcome.records
    return replace(outcome, findings=(), records=(*({**each, **hidden} for each in checkpoints), last))


def sequences(most: int = 5) -> st.SearchStrategy[list[Run]]:
    """Build runs of one playbook as they follow one another, each with some of the same targets."""
    some = st.lists(st.sampled_from(_TARGETS), unique=True, min_size=1)
    outcomes = some.flatmap(lambda targets: st.tuples(*map(_outcomes, targets)))
    return st.lists(outcomes, min_size=1, max_size=most).map(
        lambda days: [run(day, *each) for day, each in enumerate(days)]
    )
