"""JSON Schemas (draft 2020-12) of what this version writes. Fields may be added later: readers ignore unknown ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from remoterun.errors import CODES
from remoterun.model import Json, Phase, RunStatus, Severity, Status
from remoterun.report.documents import ERROR_SCHEMA, RUN_SCHEMA
from remoterun.report.jsonl import EVENT_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_TARGET: Final = "`host` or `host/guest`; the absolute path of what `remoterun check` looks at."


def run_schema() -> dict[str, Json]:
    """Describe a run's document."""
    return {
        "$schema": _DIALECT,
        "title": RUN_SCHEMA,
        **_object(
            "One execution of a playbook: exactly one outcome for every selected target and step.",
            {
                "schema": {"const": RUN_SCHEMA},
                "run_id": _string("Names this run on every machine."),
                "remoterun": _string("The version of remoterun that ran it."),
                "playbook": _ref("playbook"),
                "started_at": _ref("time"),
                "finished_at": _ref("time"),
                "status": _run_status(),
                "exit_code": _integer("The exit status that belongs to the run's status."),
                "counts": _ref("counts"),
                "outcomes": _array("In the plan's order.", {"$ref": "#/$defs/outcome"}),
            },
        ),
        "$defs": _definitions(),
    }


def error_schema() -> dict[str, Json]:
    """Describe the document that says why there is no run."""
    problem = _object(
        "One thing wrong in what the user wrote.",
        {
            "file": _nullable("string", "The file it is in; null for the command line."),
            "line": _nullable("integer", "Counted from 1."),
            "path": _nullable("string", "The dotted place inside the file."),
            "message": _string("What is wrong."),
            "nearest": _array("The known names closest to an unknown one.", {"type": "string"}),
        },
    )
    return {
        "$schema": _DIALECT,
        "title": ERROR_SCHEMA,
        **_object(
            "Why there is no run; nothing was started.",
            {
                "schema": {"const": ERROR_SCHEMA},
                "remoterun": _string("The version of remoterun that wrote this."),
                "status": _run_status(),
                "exit_code": _integer("The exit status that belongs to the status."),
                "message": _string("What happened, in one sentence."),
                "problems": _array("Every problem that was found, not only the first.", problem),
            },
        ),
    }


def event_schema() -> dict[str, Json]:
    """Describe one line of `--output jsonl`."""
    place: dict[str, Json] = {"target": _string(_TARGET), "step": _step()}
    job = _object("One target and step.", {"target": place["target"], "name": _name(), "step": _step()})
    kinds: dict[str, tuple[str, dict[str, Json]]] = {
        "run_started": (
            "The first line.",
            {
                "run_id": _string("Names this run on every machine."),
                "remoterun": _string("The version of remoterun that runs it."),
                "playbook": _ref("playbook"),
                "started_at": _ref("time"),
                "jobs": _array("Each of these gets exactly one outcome.", job),
            },
        ),
        "record": (
            "A record, as it arrives; its outcome holds it again, where it has few.",
            {**place, "record": _record()},
        ),
        "run_finished": (
            "The last line.",
            {
                "run_id": _string("Names this run on every machine."),
                "started_at": _ref("time"),
                "finished_at": _ref("time"),
                "status": _run_status(),
                "exit_code": _integer("The exit status that belongs to the run's status."),
                "counts": _ref("counts"),
            },
        ),
    }
    tag: dict[str, Json] = {"schema": {"const": EVENT_SCHEMA}}
    lines: list[Json] = [
        _object(text, {**tag, "type": {"const": kind}, **fields}) for kind, (text, fields) in kinds.items()
    ]
    left_out = _integer("How many records it has, where they are too many for a line and `records` is empty.")
    outcome = _object(
        "An outcome, as soon as it is known.",
        {**tag, "type": {"const": "outcome"}},
        optional={"records_left_out": left_out},
    )
    lines.append({"allOf": [outcome, {"$ref": "#/$defs/outcome"}]})
    return {
        "$schema": _DIALECT,
        "title": EVENT_SCHEMA,
        "description": "One line of the stream that a run writes while it goes on.",
        "oneOf": lines,
        "$defs": _definitions(),
    }


# --- the parts that documents share ---------------------------------------------------------------


def _definitions() -> dict[str, Json]:
    return {
        "time": {"type": "string", "format": "date-time", "description": "ISO 8601 in UTC, with milliseconds and a Z."},
        "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        "playbook": _object(
            "Which payloads run where.",
            {
                "name": _string("The playbook's name, or that of the payload it stands for."),
                "sha256": {
                    "anyOf": [{"$ref": "#/$defs/sha256"}, {"type": "null"}],
                    "description": "Of the file; null when there is none.",
                },
            },
        ),
        "counts": _object("Outcomes by status.", {status.value: _integer("", minimum=0) for status in Status}),
        "outcome": _outcome(),
        "error": _error(),
        "finding": _finding(),
    }


def _outcome() -> dict[str, Json]:
    text = (
        "As UTF-8; other bytes are replaced, and the `_b64` twin holds them. A mark stands where bytes were left out."
    )
    twins: dict[str, Json] = {
        f"{name}_b64": {
            "type": "string",
            "contentEncoding": "base64",
            "description": f"All kept bytes of `{name}`, when it is not UTF-8.",
        }
        for name in ("stdout", "stderr", "noise")
    }
    return _object(
        "What became of one target and step.",
        {
            "target": _string(_TARGET),
            "name": _name(),
            "step": _step(),
            "status": _enum([status.value for status in Status], "What became of it."),
            "phase": _enum([phase.value for phase in Phase], "The part of the way it ended in."),
            "error": {
                "anyOf": [{"$ref": "#/$defs/error"}, {"type": "null"}],
                "description": "Null when ok or with findings.",
            },
            "payload": _payload(),
            "facts": {
                "type": "object",
                "description": "What the target said of itself: hostname, python, interpreter, boot_id.",
            },
            "timings_s": {
                "type": "object",
                "description": "Seconds: queued, connect, enter, upload, run, total; only what took place.",
                "additionalProperties": {"type": ["number", "string"]},
            },
            "connections": _integer("Connections that it took.", minimum=0),
            "resumable": {
                "type": ["boolean", "null"],
                "description": "Whether a lost connection could have been taken up again; null where nothing started.",
            },
            "records": _array("What the payload emitted, in its order; kept as far as it arrived.", _record()),
            "findings": _array("What is wrong, in the payload's order.", {"$ref": "#/$defs/finding"}),
            "exit_status": _nullable("integer", "The program's own, negative for a signal; null when unknown."),
            "survivors": _nullable(
                "integer", "Processes of the run that could not be killed; null when nobody could look."
            ),
            "stdout": _string(text),
            "stderr": _string(text),
            "noise": _string(f"What stood outside the frames (login banners, mostly). {text}"),
            "truncated": {"type": "boolean", "description": "Whether bytes of stdout, stderr or noise were left out."},
            "log": _array("Lines that the payload logged.", {"type": "string"}),
        },
        optional=twins,
    )


def _error() -> dict[str, Json]:
    limit = _object(
        "The limit that ended it.",
        {
            "name": _string("connect, enter, upload, idle, stall, run or total."),
            "value_s": {"type": ["number", "string"], "description": "Its value in seconds."},
            "key": _string("The key that changes it."),
        },
        optional={"set_by": _string("Where it was set: a flag, a place in a file, or default.")},
    )
    return _object(
        "The cause of an outcome that is neither ok nor findings.",
        {
            "code": _enum(sorted(CODES), "From a closed list."),
            "message": _string("What happened, the subject in front."),
            "hint": _string("What to do."),
            "limit": {"anyOf": [limit, {"type": "null"}]},
        },
    )


def _finding() -> dict[str, Json]:
    return _object(
        "Something wrong with a subject.",
        {
            "rule": _string("The rule's id."),
            "severity": _enum([severity.value for severity in Severity], "info < suspect < bad."),
            "subject": _string("What it is about: a checkpoint's name, mostly."),
            "message": _string("What is wrong."),
            "next_step": _string("What to do about it; may be empty."),
            "evidence": {"description": "The numbers that show it."},
            "data": {
                "type": "object",
                "description": "What more the payload said of it: tensor, file, byte range, counts.",
            },
        },
    )


def _payload() -> dict[str, Json]:
    payload = _object(
        "The code that ran.",
        {
            "name": _string("The payload's name."),
            "version": _nullable("string", "Null for a script."),
            "sha256": _ref("sha256"),
        },
    )
    return {"anyOf": [payload, {"type": "null"}], "description": "The code that ran; null for a plain command."}


def _record() -> dict[str, Json]:
    return {
        "type": "object",
        "description": 'One JSON object that the payload emitted; non-finite numbers are "nan", "inf" or "-inf".',
    }


def _name() -> dict[str, Json]:
    return _nullable("string", "The friendly name, when it has one; a path as it was written.")


def _step() -> dict[str, Json]:
    return _integer("The playbook's step, counted from 0.", minimum=0)


def _run_status() -> dict[str, Json]:
    return _enum(
        [status.value for status in RunStatus],
        "Incomplete beats findings beats ok; interrupted and terminated beat all.",
    )


# --- words of JSON Schema -------------------------------------------------------------------------


def _object(text: str, fields: dict[str, Json], *, optional: dict[str, Json] | None = None) -> dict[str, Json]:
    return {
        "type": "object",
        "description": text,
        "properties": {**fields, **(optional or {})},
        "required": list(fields),
        "additionalProperties": True,
    }


def _array(text: str, items: Json) -> dict[str, Json]:
    return {"type": "array", "description": text, "items": items}


def _string(text: str) -> dict[str, Json]:
    return {"type": "string", "description": text}


def _nullable(kind: str, text: str) -> dict[str, Json]:
    return {"type": [kind, "null"], "description": text}


def _integer(text: str, *, minimum: int | None = None) -> dict[str, Json]:
    bound: dict[str, Json] = {} if minimum is None else {"minimum": minimum}
    return {"type": "integer", **({"description": text} if text else {}), **bound}


def _enum(values: Sequence[str], text: str) -> dict[str, Json]:
    return {"type": "string", "enum": list(values), "description": text}


def _ref(name: str) -> dict[str, Json]:
    return {"$ref": f"#/$defs/{name}"}
