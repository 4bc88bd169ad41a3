"""How targets fared over their runs as one JSON document, schema remoterun/history/1, and that schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from remoterun.compare import standing_document
from remoterun.compare.document import (
    array_schema,
    definitions,
    moment_document,
    object_schema,
    silence_document,
    silence_fields,
    standing_fields,
)
from remoterun.history.database import project_name
from remoterun.model import Status
from remoterun.report.documents import plain
from remoterun.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remoterun.history.trail import Trail
    from remoterun.model import Json

HISTORY_SCHEMA: Final = "remoterun/history/1"


def trails_document(trails: Sequence[Trail]) -> dict[str, Json]:
    """Turn trails into their document, every value strict JSON."""
    return {"schema": HISTORY_SCHEMA, "remoterun": VERSION, "trails": [_trail(trail) for trail in trails]}


def _trail(trail: Trail) -> Json:
    return {
        "project": plain(project_name(trail.project)),
        "playbook": plain(trail.playbook),
        "target": plain(trail.target),
        "name": plain(trail.name),
        "silence": silence_document(trail.silence) if trail.silence else None,
        "runs": [
            {
                "run": moment_document(stop.run),
                "status": stop.status.value,
                "checkpoints": stop.checkpoints,
                "newest_step": stop.newest,
            }
            for stop in trail.stops
        ],
        "findings": [standing_document(each) for each in trail.standing],
        "gone": [
            {**standing_document(each.standing), "last": moment_document(each.last), "gone": moment_document(each.gone)}
            for each in trail.ended
        ],
    }


# --- the schema -------------------------------------------------------------------------------------------------------

_MOMENT: Final[Json] = {"$ref": "#/$defs/moment"}


def history_schema() -> dict[str, Json]:
    """Describe the document of trails. Fields may be added later: readers ignore unknown ones."""
    whole: Json = {"type": ["integer", "null"]}
    stop: dict[str, Json] = {
        "run": _MOMENT,
        "status": {"enum": [status.value for status in Status], "description": "The worst of the target's steps."},
        "checkpoints": {"type": "integer", "minimum": 0},
        "newest_step": whole,
    }
    gone: dict[str, Json] = {**standing_fields(), "last": _MOMENT, "gone": _MOMENT}
    silence: Json = {"anyOf": [object_schema("", silence_fields()), {"type": "null"}]}
    trail: dict[str, Json] = {
        "project": {"type": ["string", "null"], "description": "Its folder; null where none is known."},
        "playbook": {"type": "string"},
        "target": {"type": "string"},
        "name": {"type": ["string", "null"]},
        "silence": silence,
        "runs": array_schema("The newest first.", stop),
        "findings": array_schema("Those that stand after the newest run.", standing_fields()),
        "gone": array_schema("Those that went away during these runs; only where one target was asked for.", gone),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": HISTORY_SCHEMA,
        **object_schema(
            "How targets fared in the newest runs of each playbook and project.",
            {
                "schema": {"const": HISTORY_SCHEMA},
                "remoterun": {"type": "string"},
                "trails": array_schema("One for each playbook of a project, and target.", trail),
            },
        ),
        "$defs": definitions(),
    }
