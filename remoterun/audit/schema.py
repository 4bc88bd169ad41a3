"""The file audit.yaml as pydantic models. Imports pydantic: load this module lazily."""

# No `from __future__ import annotations`: pydantic reads the annotations when a class is made.

from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field

from remoterun.audit.words import KEEP_AT_MOST_S, SPLAY_AT_MOST_S, TEMPLATES, check_template
from remoterun.compare.numbers import parse_tolerance
from remoterun.errors import show
from remoterun.inventory import words
from remoterun.inventory.schema import Duration, FileModel, Name, Path, SecretFile, Vetted
from remoterun.model import format_duration, parse_duration


def _kept(text: str) -> str:
    seconds = parse_duration(text)
    if seconds is None or seconds > KEEP_AT_MOST_S:
        raise ValueError(f"{text} is too long: every run forgets what is older than 90d")
    return text


def _bounded(text: str) -> str:
    seconds = parse_duration(text)
    if seconds is None:
        raise ValueError("none is no wait: leave the key out")
    if seconds > SPLAY_AT_MOST_S:
        raise ValueError(f"{text} is too long: at most 30d")
    return text


def _tolerance(text: str) -> str:
    try:
        parse_tolerance(text)
    except ValueError as error:
        raise ValueError(f"{show(text)} {error}") from error
    return text


Playbook: TypeAlias = Annotated[str, Vetted(words.PAYLOAD)]
Template: TypeAlias = Annotated[str, Field(min_length=1, max_length=2000), AfterValidator(check_template)]
Tolerance: TypeAlias = Annotated[str, AfterValidator(_tolerance)]


class ReportsFile(FileModel):
    """Say which files each audit writes, whole or not at all; relative paths start at this file's folder."""

    json_: Path | None = Field(
        default=None, alias="json", description="the audit as one JSON document (`remoterun schema audit`)"
    )
    html: Path | None = Field(default=None, description="one HTML page that opens offline")
    metrics: Path | None = Field(
        default=None, description="OpenMetrics text, for node_exporter's textfile collector (NAME.prom)"
    )
    junit: Path | None = Field(default=None, description="JUnit XML: each target a test case")


class TemplatesFile(FileModel):
    """Word one line of a message for each kind of event; $NAME stands for a value, $$ for a dollar sign."""

    new: Template | None = Field(default=None, description=f"a finding is new (default {TEMPLATES['new']!r})")
    cleared: Template | None = Field(
        default=None, description=f"a finding is there no more (default {TEMPLATES['cleared']!r})"
    )
    unreachable: Template | None = Field(
        default=None, description=f"a target gives no result any more (default {TEMPLATES['unreachable']!r})"
    )
    reachable: Template | None = Field(
        default=None, description=f"a target gives results again (default {TEMPLATES['reachable']!r})"
    )
    failed: Template | None = Field(
        default=None, description=f"the audit itself failed (default {TEMPLATES['failed']!r})"
    )
    working: Template | None = Field(
        default=None, description=f"the audit itself works again (default {TEMPLATES['working']!r})"
    )


class AlertsFile(FileModel):
    """Say who is told of what: one message per audit, with what is new since the last one."""

    to: Annotated[dict[Name, SecretFile], Field(min_length=1)] = Field(
        description="whom to tell, by a name of your own: where the Apprise URL comes from (env, file or command), "
        "since a URL holds tokens"
    )
    events: Annotated[list[Literal["findings", "unreachable", "failed"]], Field(min_length=1)] | None = Field(
        default=None,
        description="of what: findings (new and cleared), unreachable (targets, and when they are back), failed "
        "(the audit itself, and when it works again); default all",
    )
    severity: Literal["info", "suspect", "bad"] | None = Field(
        default=None, description="the lowest severity of findings that are told (default suspect)"
    )
    unreachable_after: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        default=None, description="after how many audits in a row without a result a target is told (default 2)"
    )
    most_per_hour: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        default=None, description="messages an hour; what comes on top waits for the next one (default 10)"
    )
    templates: TemplatesFile | None = Field(default=None, description="other words for single kinds of events")


class AuditFile(FileModel):
    """Say what `remoterun audit` does, unattended (audit.yaml, beside inventory.yaml)."""

    playbooks: Annotated[list[Playbook], Field(min_length=1)] = Field(
        description="playbooks, or payloads, that are played one after the other"
    )
    splay: Annotated[Duration, AfterValidator(_bounded)] | None = Field(
        default=None, description="wait for a random time up to this before anything starts (default: don't wait)"
    )
    keep: Annotated[Duration, AfterValidator(_kept)] | None = Field(
        default=None,
        description=f"forget runs that are older, at most {format_duration(KEEP_AT_MOST_S)} (default 90d)",
    )
    exit_on: Literal["always", "changed", "findings"] | None = Field(
        default=None, description="what the exit status tells of, as --exit-on does (default always)"
    )
    tolerance: Annotated[list[Tolerance], Field(min_length=1)] | None = Field(
        default=None,
        description="how far numbers may move before that is news, as diff's --tolerance: 5%, or weight_norm=1%",
    )
    reports: ReportsFile | None = Field(default=None, description="files that each audit writes")
    alerts: AlertsFile | None = Field(default=None, description="who is told of what is new")
