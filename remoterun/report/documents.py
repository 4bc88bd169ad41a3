"""A run as one JSON document, schema remoterun/run/1; problems before a run as remoterun/error/1."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Final

from remoterun.model import Captured, ErrorInfo, Finding, Json, LimitHit, Outcome, PayloadRef, Run, RunStatus, Status
from remoterun.version import VERSION

if TYPE_CHECKING:
    from remoterun.errors import Problem

RUN_SCHEMA: Final = "remoterun/run/1"
ERROR_SCHEMA: Final = "remoterun/error/1"

MAX_DEPTH: Final = 64
"""How deep a record may nest; what lies deeper is replaced by `TOO_DEEP`."""
TOO_DEEP: Final = "[nested too deep]"
_PIECE: Final = 64 << 10


def document(run: Run) -> dict[str, Json]:
    """Turn a run into its document, every value strict JSON."""
    return {
        "schema": RUN_SCHEMA,
        "run_id": run.run_id,
        "remoterun": VERSION,
        "playbook": {"name": plain(run.playbook), "sha256": run.playbook_sha256},
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "status": run.status.value,
        "exit_code": run.status.exit_code,
        "counts": counts(run.outcomes),
        "outcomes": [outcome_document(outcome) for outcome in run.outcomes],
    }


def counts(outcomes: Sequence[Outcome]) -> dict[str, Json]:
    """Count outcomes by status; every status is there, also with none."""
    return {status.value: sum(outcome.status is status for outcome in outcomes) for status in Status}


def outcome_document(outcome: Outcome) -> dict[str, Json]:
    """Turn one outcome into its part of a run's document."""
    captured = {"stdout": outcome.stdout, "stderr": outcome.stderr, "noise": outcome.noise}
    return {
        "target": plain(outcome.target),
        "name": plain(outcome.name),
        "step": outcome.step,
        "status": outcome.status.value,
        "phase": outcome.phase.value,
        "error": _error(outcome.error),
        "payload": _payload(outcome.payload),
        "facts": plain(outcome.facts),
        "timings_s": {name: plain(round(seconds, 3)) for name, seconds in outcome.timings_s.items()},
        "connections": outcome.connections,
        "resumable": outcome.resumable,
        "records": [plain(record) for record in outcome.records],
        "findings": [_finding(finding) for finding in outcome.findings],
        "exit_status": outcome.exit_status,
        "survivors": outcome.survivors,
        **{name: value for key, stream in captured.items() for name, value in _text(key, stream)},
        "truncated": any(stream.truncated for stream in captured.values()),
        "log": [plain(line) for line in outcome.log],
    }


def error_document(problems: Sequence[Problem], *, status: RunStatus = RunStatus.INVALID) -> dict[str, Json]:
    """Tell why there is no run: every problem with its place, and all in one sentence."""
    message = str(problems[0]) if len(problems) == 1 else f"{len(problems)} problems; nothing was started"
    return {
        "schema": ERROR_SCHEMA,
        "remoterun": VERSION,
        "status": status.value,
        "exit_code": status.exit_code,
        "message": plain(message),
        "problems": [_problem(problem) for problem in problems],
    }


def plain(value: object, depth: int = 0) -> Json:
    """Make any JSON-like value strict: also on readers that refuse NaN, lone surrogates or bottomless nesting.

    Non-finite numbers become "nan", "inf" or "-inf"; lone surrogates are written out as backslash escapes; whatever
    lies deeper than `MAX_DEPTH` becomes `TOO_DEEP`.
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth >= MAX_DEPTH:
        return TOO_DEEP
    if isinstance(value, Mapping):
        return {str(plain(str(key))): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, depth + 1) for item in value]
    raise TypeError(f"{type(value).__name__} is no JSON value")


def finite(value: Json) -> float | None:
    """Return a value that is a number, but for NaN and infinities; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def to_json(run: Run) -> bytes:
    """Write a run as one JSON document in ASCII, ended by a newline."""
    return b"".join(json_pieces(run))


def json_pieces(run: Run) -> Iterator[bytes]:
    """Write the same in pieces, of its records never more than some in memory."""
    outcomes = _Each(
        {**outcome_document(replace(outcome, records=())), "records": _Each(map(plain, outcome.records))}
        for outcome in run.outcomes
    )
    whole = {**document(replace(run, outcomes=())), "counts": counts(run.outcomes), "outcomes": outcomes}
    return in_pieces(chain(_indented(whole, 0), "\n"))


def in_pieces(parts: Iterable[str]) -> Iterator[bytes]:
    """Put small texts in ASCII together, so that each piece is worth a call."""
    held: list[str] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size >= _PIECE:
            yield "".join(held).encode("ascii")
            held, size = [], 0
    if held:
        yield "".join(held).encode("ascii")


def dump(value: Mapping[str, Json]) -> bytes:
    """Write a document with its outer levels indented, and each record and each finding on a line of its own."""
    return "".join((*_indented(value, 0), "\n")).encode("ascii")


class _Each:
    """Stand for a list whose items are made one by one, when they are written."""

    def __init__(self, items: Iterable[object]) -> None:
        self.items = items


def _indented(value: object, level: int) -> Iterator[str]:
    """Indent the outer four levels; what lies inside goes through the C encoder, which cannot indent but is fast."""
    items: Iterable[tuple[str, object]] = ()
    opening, closing = "[]"
    if level in {0, 2} and isinstance(value, Mapping):
        items = ((f"{json.dumps(key)}: ", item) for key, item in value.items())
        opening, closing = "{}"
    elif level in {1, 3} and isinstance(value, list | _Each):
        items = (("", item) for item in (value.items if isinstance(value, _Each) else value))
    else:
        yield json.dumps(value, allow_nan=False)
        return
    margin = "\n" + "  " * level
    empty = True
    for label, item in items:
        yield f"{opening if empty else ','}{margin}  {label}"
        yield from _indented(item, level + 1)
        empty = False
    yield f"{opening}{closing}" if empty else f"{margin}{closing}"


def _error(error: ErrorInfo | None) -> Json:
    if error is None:
        return None
    return {
        "code": error.code,
        "message": plain(error.message),
        "hint": plain(error.hint),
        "limit": _limit(error.limit),
    }


def _limit(limit: LimitHit | None) -> Json:
    if limit is None:
        return None
    told: dict[str, Json] = {"name": limit.name, "value_s": plain(limit.value_s), "key": limit.key}
    return {**told, "set_by": plain(limit.set_by)} if limit.set_by else told


def _payload(payload: PayloadRef | None) -> Json:
    if payload is None:
        return None
    return {"name": plain(payload.name), "version": plain(payload.version), "sha256": payload.sha256}


def _finding(finding: Finding) -> Json:
    return {
        "rule": plain(finding.rule),
        "severity": finding.severity.value,
        "subject": plain(finding.subject),
        "message": plain(finding.message),
        "next_step": plain(finding.next_step),
        "evidence": plain(finding.evidence),
        "data": plain(finding.data),
    }


def _problem(problem: Problem) -> Json:
    return {
        "file": plain(problem.file),
        "line": problem.line,
        "path": plain(problem.path),
        "message": plain(problem.message),
        "nearest": plain(problem.nearest),
    }


def _text(name: str, stream: Captured) -> Iterator[tuple[str, Json]]:
    """Give a stream as text, and as base64 too when it is not UTF-8."""
    data = stream.data
    try:
        yield name, data.decode("utf-8")
    except UnicodeDecodeError:
        yield name, data.decode("utf-8", "replace")
        yield f"{name}_b64", base64.b64encode(data).decode("ascii")
