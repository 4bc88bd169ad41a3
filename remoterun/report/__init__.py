"""Pure functions from a run to what is written down: JSON, JSON lines, a table, and the schemas of the documents."""

from __future__ import annotations

from remoterun.report.documents import document, dump, error_document, json_pieces, outcome_document, to_json
from remoterun.report.jsonl import event_line
from remoterun.report.schemas import error_schema, event_schema, run_schema
from remoterun.report.table import short_summary, table, write_table

__all__ = [
    "document",
    "dump",
    "error_document",
    "error_schema",
    "event_line",
    "event_schema",
    "json_pieces",
    "outcome_document",
    "run_schema",
    "short_summary",
    "table",
    "write_table",
    "to_json",
]
