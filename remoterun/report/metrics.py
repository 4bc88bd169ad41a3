"""Runs as OpenMetrics text, for the textfile collector of node_exporter.

All metrics are gauges without timestamps, so that readers of the older Prometheus format take the text as well.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, TypeAlias

from remoterun.errors import clean
from remoterun.model import Outcome, RunStatus, Severity, Status
from remoterun.model.times import seconds_of
from remoterun.records import dataclass
from remoterun.report.documents import finite, plain
from remoterun.report.rows import is_checkpoint
from remoterun.report.text import clip

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from remoterun.model import Run

_METRICS: Final[Mapping[str, str]] = {
    "remoterun_run_started_timestamp_seconds": "When the last run of a playbook began.",
    "remoterun_run_finished_timestamp_seconds": "When the last run of a playbook ended.",
    "remoterun_run_duration_seconds": "How long the last run of a playbook took.",
    "remoterun_run_exit_code": "The exit status of the last run of a playbook: 0 ok, 1 findings, 3 incomplete.",
    "remoterun_run_status": "1 for the status of the last run of a playbook, 0 for all others.",
    "remoterun_outcomes": "Outcomes of the last run of a playbook by status.",
    "remoterun_findings": "Findings of the last run of a playbook by rule and severity.",
    "remoterun_target_up": "1 when every step of a target gave a result, else 0.",
    "remoterun_target_findings": "Findings of a target by severity.",
    "remoterun_checkpoints": "Checkpoints of a target by verdict.",
    "remoterun_newest_checkpoint_step": "The step of a target's newest checkpoint.",
    "remoterun_newest_checkpoint_timestamp_seconds": "When a target's newest checkpoint was last written.",
    "remoterun_newest_checkpoint_age_seconds": "How old a target's newest checkpoint was when this was written.",
}
_LONGEST: Final = 200
_MOST_RULES: Final = 200
"""Payloads of a project may make up rules; those beyond so many are counted as one."""
_OTHER: Final = "other"
_VERDICTS: Final = ("ok", "suspect", "bad", "in_progress", "unsupported", "unchecked")

Labels: TypeAlias = "tuple[tuple[str, str], ...]"


def openmetrics(runs: Sequence[Run], now: float) -> bytes:
    """Write the metrics of runs; of several of one playbook, the last one counts.

    Args:
        runs: the runs, in the order in which they ended.
        now: seconds since 1970.
    """
    samples: dict[str, dict[Labels, float]] = {name: {} for name in _METRICS}
    for playbook, run in {_label(run.playbook): run for run in runs}.items():
        for name, labels, value in _run_samples(run, now):
            samples[name][("playbook", playbook), *labels] = value
    return "".join([*_lines(samples), "# EOF\n"]).encode("utf-8")


def _lines(samples: Mapping[str, Mapping[Labels, float]]) -> Iterator[str]:
    for name, own in samples.items():
        if own:
            yield f"# TYPE {name} gauge\n# HELP {name} {_METRICS[name]}\n"
        for labels, value in own.items():
            told = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
            yield f"{name}{{{told}}} {_written(value)}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _label(value: object) -> str:
    """Make a text a label's value: of visible characters only, and not endless."""
    return clip(clean(str(plain(value))), _LONGEST) if isinstance(value, str) else ""


def _written(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


_Sample: TypeAlias = "tuple[str, Labels, float]"


def _run_samples(run: Run, now: float) -> Iterator[_Sample]:
    started, finished = seconds_of(run.started_at), seconds_of(run.finished_at)
    if started is not None:
        yield "remoterun_run_started_timestamp_seconds", (), started
    if finished is not None:
        yield "remoterun_run_finished_timestamp_seconds", (), finished
    if started is not None and finished is not None:
        yield "remoterun_run_duration_seconds", (), max(finished - started, 0.0)
    yield "remoterun_run_exit_code", (), run.status.exit_code
    for run_status in RunStatus:
        yield "remoterun_run_status", (("status", run_status.value),), float(run.status is run_status)
    for status in Status:
        count = sum(outcome.status is status for outcome in run.outcomes)
        yield "remoterun_outcomes", (("status", status.value),), count
    for (rule, severity), count in _findings(run.outcomes).items():
        yield "remoterun_findings", (("rule", rule), ("severity", severity)), count
    targets: dict[str, list[Outcome]] = {}
    for outcome in run.outcomes:
        targets.setdefault(_label(outcome.target), []).append(outcome)
    for target, outcomes in targets.items():
        for name, labels, value in _target_samples(outcomes, now):
            yield name, (("target", target), *labels), value


def _findings(outcomes: Sequence[Outcome]) -> dict[tuple[str, str], int]:
    """Count findings by rule and severity, in the order of the rules."""
    counts: dict[tuple[str, str], int] = {}
    for outcome in outcomes:
        for finding in outcome.findings:
            key = _label(finding.rule), finding.severity.value
            if key not in counts and len(counts) >= _MOST_RULES:
                key = _OTHER, finding.severity.value
            counts[key] = counts.get(key, 0) + 1
    return dict(sorted(counts.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Newest:
    """Hold step and time of a checkpoint, each None when it is not told."""

    step: float | None
    written: float | None

    @property
    def order(self) -> tuple[float, float]:
        """Sort by step, then by time."""
        return (-math.inf if self.step is None else self.step, -math.inf if self.written is None else self.written)


def _target_samples(outcomes: Sequence[Outcome], now: float) -> Iterator[_Sample]:
    yield "remoterun_target_up", (), float(all(outcome.status.has_result for outcome in outcomes))
    for severity in Severity:
        count = sum(finding.severity is severity for outcome in outcomes for finding in outcome.findings)
        yield "remoterun_target_findings", (("severity", severity.value),), count
    verdicts = dict.fromkeys(_VERDICTS, 0)
    newest: _Newest | None = None
    for record in (record for outcome in outcomes for record in outcome.records):
        if not is_checkpoint(record):
            continue
        verdict = record.get("verdict")
        known = verdict if isinstance(verdict, str) and verdict in verdicts else "unchecked"
        verdicts[known] += 1
        checkpoint = _Newest(step=finite(record.get("step")), written=seconds_of(record.get("mtime")))
        newest = checkpoint if newest is None or checkpoint.order > newest.order else newest
    if newest is None:
        return
    for known, count in verdicts.items():
        yield "remoterun_checkpoints", (("verdict", known),), count
    if newest.step is not None:
        yield "remoterun_newest_checkpoint_step", (), newest.step
    if newest.written is not None:
        yield "remoterun_newest_checkpoint_timestamp_seconds", (), newest.written
        # The clock of a target may be ahead of ours.
        yield "remoterun_newest_checkpoint_age_seconds", (), max(now - newest.written, 0.0)
