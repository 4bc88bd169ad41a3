"""An audit as one JSON document, schema remoterun/audit/1. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from remoterun.audit.outcome import exit_code
from remoterun.audit.summary import in_one_line
from remoterun.audit.words import TEMPLATES
from remoterun.compare.document import array_schema, diff_schema, difference_document, object_schema
from remoterun.model import RunStatus
from remoterun.report.documents import dump, json_pieces, plain
from remoterun.report.schemas import run_schema
from remoterun.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from remoterun.audit.file import ExitOn
    from remoterun.audit.lock import Holder
    from remoterun.audit.outcome import Audit, Cut
    from remoterun.model import Json

AUDIT_SCHEMA: Final = "remoterun/audit/1"
BUSY: Final = "busy"
"""The status of an audit that there was none of, beside those of runs."""


_OPEN_END: Final = b"[]\n}\n"


def audit_pieces(audit: Audit, exit_on: ExitOn) -> Iterator[bytes]:
    """Write an audit as one JSON document in ASCII, of its records never more than some in memory."""
    whole = dump(_without_runs(audit, exit_on))
    yield whole.removesuffix(_OPEN_END) + b"["
    for number, run in enumerate(audit.runs):
        if number:
            yield b","
        yield from json_pieces(run)
    yield b"]\n}\n"


def _without_runs(audit: Audit, exit_on: ExitOn) -> dict[str, Json]:
    """Turn an audit into its document, every value strict JSON, with a list at its end that the runs go into."""
    return {
        **_head(audit.project, audit.status.value, exit_code(audit, exit_on)),
        "started_at": audit.started_at,
        "finished_at": audit.finished_at,
        "changed": audit.changed,
        "noteworthy": audit.noteworthy,
        "summary": plain(in_one_line(audit)),
        "cut": [_cut(each) for each in audit.cut],
        "cut_earlier": audit.cut_earlier,
        "former_projects": [plain(folder) for folder in audit.former],
        "problems": [plain(problem) for problem in audit.problems],
        "alerts": {
            "events": [plain(event.document()) for event in audit.events],
            "told": list(audit.delivery.sent),
            "held": list(audit.delivery.held),
            "not_told": [plain(failure) for failure in audit.delivery.failed],
        },
        "differences": [difference_document(difference) for difference in audit.differences],
        "runs": [],
    }


def busy_document(project: str, holder: Holder, status: int) -> dict[str, Json]:
    """Tell that there was no audit, since another one of the project goes on."""
    return {**_head(project, BUSY, status), "holder": _holder(holder)}


def _head(project: str, status: str, code: int) -> dict[str, Json]:
    return {
        "schema": AUDIT_SCHEMA,
        "remoterun": VERSION,
        "project": plain(project),
        "status": status,
        "exit_code": code,
    }


def _holder(holder: Holder) -> dict[str, Json]:
    return {
        "pid": holder.pid,
        "host": plain(holder.host),
        "started_at": plain(holder.started_at),
        "runs": list(holder.runs),
    }


def _cut(cut: Cut) -> Json:
    return {
        **_holder(cut.holder),
        "run_id": cut.run_id,
        "run_ended": cut.ended,
        "outcomes": cut.done,
        "jobs": cut.jobs,
    }


# --- the schema -------------------------------------------------------------------------------------------------------

_TEXT: Final[Json] = {"type": "string"}


def audit_schema() -> dict[str, Json]:
    """Describe the document of an audit. Fields may be added later: readers ignore unknown ones."""
    parts = {"run": run_schema(), "diff": diff_schema()}
    done: list[Json] = [status.value for status in RunStatus]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": AUDIT_SCHEMA,
        "description": "One unattended audit of a project, or that there was none, since another one goes on.",
        "oneOf": [
            object_schema("An audit.", {**_head_fields(done), **_audit_fields()}),
            object_schema(
                "There was none.",
                {**_head_fields([BUSY]), "holder": object_schema("Who is at work.", _holder_fields())},
            ),
        ],
        "$defs": {name: {"$id": _id(name), **schema} for name, schema in parts.items()},
    }


def _head_fields(statuses: list[Json]) -> dict[str, Json]:
    return {
        "schema": {"const": AUDIT_SCHEMA},
        "remoterun": {"type": "string", "description": "The version of remoterun that wrote this."},
        "project": {"type": "string", "description": "The project's folder."},
        "status": {"enum": statuses, "description": "The gravest of the runs; incomplete when there are problems."},
        "exit_code": {"type": "integer", "description": "The exit status, as --exit-on wants it."},
    }


def _audit_fields() -> dict[str, Json]:
    moment: Json = {"type": "string", "format": "date-time"}
    event: dict[str, Json] = {
        "template": {"enum": list(TEMPLATES), "description": "The kind of event."},
        **dict.fromkeys(("playbook", "target", "name", "subject", "tensor", "rule", "severity", "message"), _TEXT),
        "count": {"type": "integer", "description": "Of audits in a row without a result of the target."},
        "since": {"type": "string", "description": "When it was first so; empty where that is now."},
    }
    alerts: dict[str, Json] = {
        "events": array_schema("What people are told of this audit.", event),
        "told": _texts("Who took a message."),
        "held": _texts("Who had enough messages this hour."),
        "not_told": _texts("Who was not told, and why."),
    }
    cut: dict[str, Json] = {
        **_holder_fields(),
        "run_id": {"type": ["string", "null"], "description": "The run that it had begun last."},
        "run_ended": {"type": "boolean", "description": "Whether that run had come to its end."},
        "outcomes": {"type": "integer", "description": "Outcomes that the run had by then, of so many `jobs`."},
        "jobs": {"type": "integer"},
    }
    return {
        "started_at": moment,
        "finished_at": moment,
        "changed": {"type": "boolean", "description": "Whether something is other than at the last audit."},
        "noteworthy": {"type": "boolean", "description": "Whether the audit had something to say."},
        "summary": {"type": "string", "description": "What it said, one paragraph."},
        "cut": array_schema(
            "Audits that did not come to their end, and that no audit has told of; the newest last.", cut
        ),
        "cut_earlier": {
            "type": "integer",
            "minimum": 0,
            "description": "How many were cut before those; more than are listed.",
        },
        "former_projects": _texts("Folders that are gone, of which the project may be the new place."),
        "problems": _texts("What the audit itself could not do."),
        "alerts": object_schema("Who was told of what.", alerts),
        "differences": {"type": "array", "items": {"$ref": _id("diff")}},
        "runs": {"type": "array", "items": {"$ref": _id("run")}},
    }


def _holder_fields() -> dict[str, Json]:
    return {
        "pid": {"type": ["integer", "null"], "description": "Its process; null when it has left no name."},
        "host": _TEXT,
        "started_at": _TEXT,
        "runs": _texts("The runs that it has begun."),
    }


def _texts(text: str) -> dict[str, Json]:
    return {"type": "array", "description": text, "items": _TEXT}


def _id(name: str) -> str:
    return f"urn:remoterun:{name}:1"
