"""The report files of an audit: each written whole, or left as it was."""

from __future__ import annotations

import time
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from remoterun.audit.document import audit_pieces
from remoterun.records import dataclass
from remoterun.report.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from remoterun.audit.file import ExitOn
    from remoterun.audit.outcome import Audit
    from remoterun.model import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """Hold what reports are made of: an audit, and runs of its playbooks before it, for what is shown over time."""

    audit: Audit
    exit_on: ExitOn
    earlier: Sequence[Run] = ()


def _json(material: Material) -> Iterable[bytes]:
    return audit_pieces(material.audit, material.exit_on)


def _html(material: Material) -> bytes:
    from remoterun.compare import difference_document
    from remoterun.report.page import page

    audit = material.audit
    return page((*material.earlier, *audit.runs), map(difference_document, audit.differences))


def _metrics(material: Material) -> bytes:
    from remoterun.report.metrics import openmetrics

    return openmetrics(material.audit.runs, time.time())


def _junit(material: Material) -> bytes:
    from remoterun.report.junit import junit

    return junit(material.audit.runs)


_MAKERS: Final[Mapping[str, Callable[[Material], bytes | Iterable[bytes]]]] = MappingProxyType(
    {"json": _json, "html": _html, "metrics": _metrics, "junit": _junit}
)


def write_report(kind: str, path: str, material: Material) -> str | None:
    """Write one report file, its folder too if that is missing; return what went wrong, None if nothing did."""
    try:
        file = Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, _MAKERS[kind](material))
    except OSError as error:
        return f"the report {kind} was not written: {path}: {error.strerror or error}"
    return None
