"""`remoterun schema`: the JSON Schemas of what is read and written."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from remoterun.cli.output import write_json


class Document(StrEnum):
    """Name a kind of document."""

    INVENTORY = "inventory"
    PLAYBOOK = "playbook"
    AUDIT_FILE = "audit-file"
    RUN = "run"
    ERROR = "error"
    EVENT = "event"
    HISTORY = "history"
    DIFF = "diff"
    AUDIT = "audit"


def schema(document: Annotated[Document, typer.Argument(help="Which document.")]) -> int:
    """Print the JSON Schema of a document: for editors that complete the YAML, and for programs that read the JSON."""
    from remoterun import report
    from remoterun.audit.document import audit_schema
    from remoterun.audit.file import audit_file_schema
    from remoterun.compare import diff_schema
    from remoterun.history.document import history_schema
    from remoterun.inventory import inventory_schema
    from remoterun.playbook import playbook_schema

    build = {
        Document.INVENTORY: inventory_schema,
        Document.PLAYBOOK: playbook_schema,
        Document.AUDIT_FILE: audit_file_schema,
        Document.RUN: report.run_schema,
        Document.ERROR: report.error_schema,
        Document.EVENT: report.event_schema,
        Document.HISTORY: history_schema,
        Document.DIFF: diff_schema,
        Document.AUDIT: audit_schema,
    }
    write_json(build[document](), indent=2)
    return 0
