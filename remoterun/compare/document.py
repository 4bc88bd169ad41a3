"""A difference as one JSON document, schema remoterun/diff/1, and that schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from remoterun.compare.model import Change, CheckpointChange, FactChange, FindingChange, Kind, TargetChange
from remoterun.model import Severity, Status
from remoterun.report.documents import plain
from remoterun.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable

    from remoterun.compare.model import Difference, Identity, Moment, Silence, Standing
    from remoterun.model import Finding, Json

DIFF_SCHEMA: Final = "remoterun/diff/1"


def difference_document(difference: Difference) -> dict[str, Json]:
    """Turn a difference into its document, every value strict JSON."""
    return {
        "schema": DIFF_SCHEMA,
        "remoterun": VERSION,
        "playbook": plain(difference.playbook),
        "before": moment_document(difference.before) if difference.before else None,
        "after": moment_document(difference.after),
        "exit_code": int(difference.changed),
        "changed": difference.changed,
        "notable": difference.notable,
        "changes": [
            {"kind": change.kind.value, "target": plain(change.target), "routine": change.routine, **_change(change)}
            for change in difference.changes
        ],
        "persisting": [standing_document(each) for each in difference.persisting],
        "unknown": [standing_document(each) for each in difference.unknown],
        "silent": [silence_document(each) for each in difference.silent],
    }


def standing_document(standing: Standing) -> dict[str, Json]:
    """Turn a finding that stands into its part of a document."""
    return {
        "target": plain(standing.identity.target),
        **_finding(standing.identity, standing.finding),
        "since": moment_document(standing.since),
        "known": standing.known,
    }


def _change(change: Change) -> dict[str, Json]:
    match change:
        case FindingChange():
            more: dict[str, Json] = {"since": moment_document(change.since), "vanished": change.vanished}
            return {**_finding(change.identity, change.finding), **more}
        case TargetChange():
            return {
                "name": plain(change.name),
                "status": change.status.value if change.status else None,
                "code": plain(change.code) or None,
                "message": plain(change.message),
                "runs": change.runs,
                "since": moment_document(change.since) if change.since else None,
            }
        case CheckpointChange():
            parts = {"name": change.name, "path": change.path, "step": change.step, "verdict": change.verdict}
            return {key: plain(value) for key, value in parts.items()}
        case FactChange():
            return {"fact": plain(change.fact), "before": plain(change.before), "after": plain(change.after)}
        case _:
            return {
                "subject": plain(change.subject),
                "number": plain(change.number),
                "before": change.before,
                "after": change.after,
            }


def _finding(identity: Identity, finding: Finding) -> dict[str, Json]:
    return {
        "payload": plain(identity.payload),
        "rule": plain(identity.rule),
        "severity": finding.severity.value,
        "subject": plain(identity.subject),
        "path": plain(identity.path) or None,
        "tensor": plain(identity.tensor) or None,
        "message": plain(finding.message),
        "next_step": plain(finding.next_step),
    }


def moment_document(moment: Moment) -> dict[str, Json]:
    """Turn a run's moment into its part of a document."""
    return {"run_id": plain(moment.run_id), "started_at": plain(moment.at)}


def silence_document(silence: Silence) -> dict[str, Json]:
    """Turn a silence into its part of a document."""
    return {
        "kind": silence.kind.value,
        "target": plain(silence.target),
        "name": plain(silence.name),
        "step": silence.step,
        "status": silence.status.value,
        "code": plain(silence.code) or None,
        "message": plain(silence.message),
        "runs": silence.runs,
        "since": moment_document(silence.since),
    }


# --- the schema -------------------------------------------------------------------------------------------------------

_MOMENT: Final[Json] = {"$ref": "#/$defs/moment"}
_TEXT: Final[Json] = {"type": "string"}
_MAYBE: Final[Json] = {"type": ["string", "null"]}


def diff_schema() -> dict[str, Json]:
    """Describe the document of a difference. Fields may be added later: readers ignore unknown ones."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": DIFF_SCHEMA,
        **object_schema(
            "What is different in a run from an earlier one of the same playbook.",
            {
                "schema": {"const": DIFF_SCHEMA},
                "remoterun": _TEXT,
                "playbook": _TEXT,
                "before": {"anyOf": [_MOMENT, {"type": "null"}], "description": "Null where there is no earlier run."},
                "after": _MOMENT,
                "exit_code": {"type": "integer", "description": "1 when anything is different, else 0."},
                "changed": {"type": "boolean", "description": "Whether anything is different."},
                "notable": {"type": "boolean", "description": "Whether anything is different that is not routine."},
                "changes": {"type": "array", "items": {"anyOf": [*_change_schemas()]}},
                "persisting": array_schema("Findings that were there before and still are.", standing_fields()),
                "unknown": array_schema(
                    "Findings of which nobody looked whether they are still there.", standing_fields()
                ),
                "silent": array_schema("All targets of which some step gave no result.", silence_fields()),
            },
        ),
        "$defs": definitions(),
    }


def definitions() -> dict[str, Json]:
    """Describe what documents refer to."""
    return {"moment": object_schema("A run, and when it began.", {"run_id": _TEXT, "started_at": _TEXT})}


def _change_schemas() -> Iterable[Json]:
    finding: dict[str, Json] = {**_finding_fields(), "since": _MOMENT, "vanished": {"type": "boolean"}}
    target: dict[str, Json] = {
        "name": _MAYBE,
        "status": {"enum": [*(status.value for status in Status), None]},
        "code": _MAYBE,
        "message": _TEXT,
        "runs": {"type": "integer", "description": "For how many runs in a row it gave no result."},
        "since": {"anyOf": [_MOMENT, {"type": "null"}]},
    }
    checkpoint: dict[str, Json] = {
        "name": _TEXT,
        "path": _TEXT,
        "step": {"type": ["integer", "null"]},
        "verdict": {"type": "string", "description": "The last one it had."},
    }
    fact: dict[str, Json] = {"fact": _TEXT, "before": _TEXT, "after": _TEXT}
    number: dict[str, Json] = {
        "subject": _TEXT,
        "number": _TEXT,
        "before": {"type": "number"},
        "after": {"type": "number"},
    }
    fields = {"finding": finding, "target": target, "checkpoint": checkpoint, "fact": fact, "number": number}
    for name, own in fields.items():
        kinds: list[Json] = [kind.value for kind in Kind if kind.startswith(f"{name}_")]
        routine: Json = {"type": "boolean", "description": "Whether it goes on anyway, as trainings save and remove."}
        yield object_schema("", {"kind": {"enum": kinds}, "target": _TEXT, "routine": routine, **own})


def _finding_fields() -> dict[str, Json]:
    return {
        "payload": _TEXT,
        "rule": _TEXT,
        "severity": {"enum": [severity.value for severity in Severity]},
        "subject": _TEXT,
        "path": _MAYBE,
        "tensor": _MAYBE,
        "message": _TEXT,
        "next_step": _TEXT,
    }


def standing_fields() -> dict[str, Json]:
    """Describe the fields of a finding that stands."""
    known: Json = {"type": "boolean", "description": "Whether the last run looked, and found it."}
    return {"target": _TEXT, **_finding_fields(), "since": _MOMENT, "known": known}


def silence_fields() -> dict[str, Json]:
    """Describe the fields of a silence."""
    return {
        "kind": {"enum": [Kind.TARGET_UNREACHABLE.value, Kind.TARGET_FAILED.value]},
        "target": _TEXT,
        "name": _MAYBE,
        "step": {"type": "integer", "minimum": 0},
        "status": {"enum": [status.value for status in Status]},
        "code": _MAYBE,
        "message": _TEXT,
        "runs": {"type": "integer", "minimum": 1},
        "since": _MOMENT,
    }


def array_schema(text: str, fields: dict[str, Json]) -> Json:
    """Describe a list of objects."""
    return {"type": "array", "description": text, "items": object_schema("", fields)}


def object_schema(text: str, fields: dict[str, Json]) -> dict[str, Json]:
    """Describe an object that has all of these fields, and maybe more."""
    return {
        "type": "object",
        **({"description": text} if text else {}),
        "properties": fields,
        "required": [*fields],
        "additionalProperties": True,
    }
