"""`remoterun schema`: the JSON Schemas of what is read and written."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from remoterun.cli.output import write_json
from remoterun.errors import ConfigError, Problem, nearest


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


def _kinds(incomplete: str) -> list[str]:
    """Offer kinds of documents."""
    return [kind for kind in Document if kind.startswith(incomplete)]


def schema(
    document: Annotated[
        # A type of its own would be shown as all its words in one, which nothing can break well.
        str,
        typer.Argument(metavar="DOCUMENT", help=f"One of {', '.join(Document)}.", autocompletion=_kinds),
    ],
) -> int:
    """Print the JSON Schema of a document: for editors that complete the YAML, and for programs that read the JSON."""
    if document not in set(Document):
        known = tuple(Document)
        message = f"there is no schema of {document}; there are those of {', '.join(known)}"
        raise ConfigError(Problem(path="DOCUMENT", message=message, nearest=nearest(document, known)))
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
    write_json(build[Document(document)](), indent=2)
    return 0
