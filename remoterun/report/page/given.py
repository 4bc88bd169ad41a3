"""Documents that somebody hands over: what of them can be shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from remoterun.report.documents import RUN_SCHEMA, plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from remoterun.model import Json

_AUDIT: Final = "remoterun/audit/"
_TEXTS: Final = ("run_id", "started_at", "finished_at", "status")
_LISTS: Final = ("records", "findings")


class NotRunsError(ValueError):
    """Say why a document holds no run that can be shown."""


def runs_of(document: object) -> list[dict[str, Json]]:
    """Return the runs of a document: itself, or those of an audit; every value is strict JSON.

    Only what a page can't do without is checked. Fields of later versions stay.

    Raises:
        NotRunsError: when it is something else.
    """
    if not isinstance(document, dict):
        raise NotRunsError("it is no JSON object")
    schema = document.get("schema")
    if isinstance(schema, str) and schema.startswith(_AUDIT):
        runs = document.get("runs")
        return [run for each in runs for run in runs_of(each)] if isinstance(runs, list) else []
    if schema != RUN_SCHEMA:
        said = f"it is a {schema}" if isinstance(schema, str) else "it does not say its schema"
        raise NotRunsError(f"{said}: only runs can be shown ({RUN_SCHEMA}, as --output json writes them)")
    missing = next(_missing(document), None)
    if missing is not None:
        raise NotRunsError(f"it is a damaged run: {missing}")
    return [{str(plain(str(key))): plain(value) for key, value in document.items()}]


def _missing(document: Mapping[str, object]) -> Iterator[str]:
    yield from (f"{key} is no text" for key in _TEXTS if not isinstance(document.get(key), str))
    outcomes = document.get("outcomes")
    if not isinstance(outcomes, list):
        yield "outcomes is no list"
        return
    for place, outcome in enumerate(outcomes):
        if not isinstance(outcome, dict) or not isinstance(outcome.get("target"), str):
            yield f"outcomes[{place}] has no target"
            continue
        yield from (f"outcomes[{place}].{key} is no list" for key in _LISTS if not isinstance(outcome.get(key), list))
