"""A run as JSON lines while it goes on: one self-describing event a line, schema remoterun/event/1."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from remoterun.events import Event, OutcomeReady, RecordArrived, RunFinished, RunStarted
from remoterun.report.documents import counts, outcome_document, plain
from remoterun.version import VERSION

if TYPE_CHECKING:
    from remoterun.model import Json, Outcome, Run

EVENT_SCHEMA: Final = "remoterun/event/1"
RECORDS_AGAIN: Final = 1 << 20
"""Characters of records that an outcome's line holds at most: each has had a line of its own."""


def event_line(event: Event) -> bytes | None:
    """Write an event as one line of JSON in ASCII, newline included; None for events that are only for the eye."""
    body = _body(event)
    if body is None:
        return None
    return json.dumps({"schema": EVENT_SCHEMA, **body}, allow_nan=False).encode("ascii") + b"\n"


def _body(event: Event) -> dict[str, Json] | None:
    match event:
        case RunStarted():
            return _started(event)
        case RecordArrived():
            return {"type": "record", "target": plain(event.target), "step": event.step, "record": plain(event.record)}
        case OutcomeReady():
            return {"type": "outcome", **_outcome(event.outcome)}
        case RunFinished():
            return _finished(event.run)
    return None


def _started(event: RunStarted) -> dict[str, Json]:
    plan = event.plan
    return {
        "type": "run_started",
        "run_id": plan.run_id,
        "remoterun": VERSION,
        "playbook": {"name": plain(plan.playbook), "sha256": plan.playbook_sha256},
        "started_at": event.started_at,
        "jobs": [
            {"target": plain(job.target.id), "name": plain(job.target.name), "step": job.step} for job in plan.jobs
        ],
    }


def _outcome(outcome: Outcome) -> dict[str, Json]:
    """Turn an outcome into its document, with its records unless they would make a line that nobody wants to read."""
    records: list[Json] = []
    size = 0
    for record in outcome.records:
        records.append(plain(record))
        size += len(json.dumps(records[-1], allow_nan=False))
        if size > RECORDS_AGAIN:
            return {**outcome_document(replace(outcome, records=())), "records_left_out": len(outcome.records)}
    return {**outcome_document(replace(outcome, records=())), "records": records}


def _finished(run: Run) -> dict[str, Json]:
    return {
        "type": "run_finished",
        "run_id": run.run_id,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "status": run.status.value,
        "exit_code": run.status.exit_code,
        "counts": counts(run.outcomes),
    }
