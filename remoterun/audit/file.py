"""What audit.yaml says, as frozen records. Importing this module is cheap."""

from __future__ import annotations

import os
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from remoterun.audit.words import KEEP_AT_MOST_S, TEMPLATES
from remoterun.compare.numbers import Tolerance, parse_tolerance
from remoterun.errors import ConfigError, Problem, show
from remoterun.history.database import default_folder, own_files
from remoterun.inventory import FILE_NAME as INVENTORY
from remoterun.inventory.words import local_path
from remoterun.model import Severity, parse_duration
from remoterun.playbook import FOLDER, secret_sources
from remoterun.records import dataclass
from remoterun.store import place_of, read_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from remoterun.audit.schema import AlertsFile, AuditFile
    from remoterun.model import Json, SecretSource

FILE_NAME: Final = "audit.yaml"
REPORTS: Final = ("html", "metrics", "junit", "json")
"""The kinds of report files, in the order in which they are written: the last one tells of trouble with the others."""


class ExitOn(StrEnum):
    """Say what an audit's exit status tells of."""

    ALWAYS = "always"
    """What was found, whatever was known before: as that of `play`."""
    CHANGED = "changed"
    """The same, but 0 when nothing is other than at the last audit; 1 when something is, and all is well now."""
    FINDINGS = "findings"
    """Findings alone: targets that gave no result do not count."""


class EventKind(StrEnum):
    """Name a kind of events that people may want to be told of, or not."""

    FINDINGS = "findings"
    UNREACHABLE = "unreachable"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alerts:
    """Say who is told of what; `to` maps names to where the Apprise URLs come from."""

    to: Mapping[str, SecretSource]
    events: frozenset[EventKind] = frozenset(EventKind)
    severity: Severity = Severity.SUSPECT
    unreachable_after: int = 2
    most_per_hour: int = 10
    templates: Mapping[str, str] = field(default_factory=lambda: dict(TEMPLATES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Hold what an audit does; `reports` maps kinds of report files to absolute paths, times are in seconds."""

    playbooks: tuple[str, ...] = ()
    splay_s: float = 0.0
    keep_s: float = KEEP_AT_MOST_S
    exit_on: ExitOn = ExitOn.ALWAYS
    tolerances: tuple[Tolerance, ...] = ()
    reports: Mapping[str, str] = field(default_factory=dict)
    alerts: Alerts | None = None


def load_settings(project: Path) -> Settings:
    """Read the project's audit.yaml; without one, everything is as its keys say when left out.

    Raises:
        ConfigError: every problem in it at once.
    """
    settings, problems = read_settings(project)
    if problems:
        raise ConfigError(problems)
    return settings


def read_settings(project: Path) -> tuple[Settings, list[Problem]]:
    """Read as much of the project's audit.yaml as can be, and say what is wrong in it."""
    path = project / FILE_NAME
    return _parsed(path, read_bytes(path)) if path.exists() else (Settings(), [])


def _parsed(path: Path, data: bytes) -> tuple[Settings, list[Problem]]:
    from remoterun.audit.schema import AuditFile
    from remoterun.inventory.check import check
    from remoterun.inventory.yamlfile import in_order, parse

    document = parse(data, str(path))
    checked = check(document, AuditFile)
    problems = list(checked.problems)

    def report(place: tuple[str | int, ...], message: str) -> None:
        problems.append(document.problem(place, message))

    settings = _settings(checked.value, path.absolute().parent, report) if checked.value else Settings()
    return settings, in_order(problems)


def _settings(file: AuditFile, folder: Path, report: Callable[[tuple[str | int, ...], str], None]) -> Settings:
    for number in doubled(file.playbooks):
        report(("playbooks", number), twice(file.playbooks[number]))
    return Settings(
        playbooks=tuple(file.playbooks),
        splay_s=parse_duration(file.splay) or 0.0 if file.splay else 0.0,
        keep_s=parse_duration(file.keep) or KEEP_AT_MOST_S if file.keep else KEEP_AT_MOST_S,
        exit_on=ExitOn(file.exit_on or ExitOn.ALWAYS),
        tolerances=tuple(map(parse_tolerance, file.tolerance or ())),
        reports=_reports(file, folder, report),
        alerts=_alerts(file.alerts, folder, report) if file.alerts else None,
    )


def _reports(file: AuditFile, folder: Path, report: Callable[[tuple[str | int, ...], str], None]) -> Mapping[str, str]:
    said: dict[str, str] = file.reports.model_dump(exclude_unset=True, by_alias=True) if file.reports else {}
    paths: dict[str, str] = {}
    places = {place_of(path): f"the file of {what}" for what, path in _needed_files(file, folder)}
    for kind in REPORTS:
        if kind not in said:
            continue
        try:
            path = local_path(said[kind], folder)
        except ValueError as error:
            report(("reports", kind), str(error))
            continue
        place = place_of(path)
        if place in places:
            report(("reports", kind), f"{path} is {places[place]} already")
        places.setdefault(place, f"the file of the report {kind}")
        paths[kind] = path
    return paths


def _needed_files(file: AuditFile, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files that no report may replace, with what they are."""
    yield from own_files(default_folder())
    yield from project_files(folder)
    for name in file.playbooks:
        bare = name.partition("@")[0]
        # It need not be there yet to be found instead of a payload from then on.
        yield f"the playbook {bare}", folder / FOLDER / f"{bare}.yaml"
    for name, secret in file.alerts.to.items() if file.alerts else ():
        if secret.file is not None:
            # A home that nobody knows is told elsewhere.
            yield f"the URL of {name}", folder / os.path.expanduser(secret.file)  # noqa: PTH111


def project_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of a project that nothing else may take the place of, with what they are."""
    yield "the inventory", root / INVENTORY
    yield "the audit's settings", root / FILE_NAME
    for path in sorted((root / FOLDER).glob("*.y*ml")):
        yield f"the playbook {path.stem}", path


def _alerts(said: AlertsFile, folder: Path, report: Callable[[tuple[str | int, ...], str], None]) -> Alerts:
    worded: dict[str, str] = said.templates.model_dump(exclude_unset=True) if said.templates else {}
    return Alerts(
        to=secret_sources(said.to, folder, ("alerts", "to"), report),
        events=frozenset(map(EventKind, said.events or EventKind)),
        severity=Severity(said.severity or Severity.SUSPECT),
        unreachable_after=said.unreachable_after or 2,
        most_per_hour=said.most_per_hour or 10,
        templates={**TEMPLATES, **worded},
    )


def audit_file_schema() -> dict[str, Json]:
    """Return the JSON Schema of audit.yaml (draft 2020-12)."""
    from remoterun.audit.schema import AuditFile
    from remoterun.inventory.schema import json_schema

    return json_schema(AuditFile, "remoterun audit")


def doubled(names: Sequence[str]) -> list[int]:
    """Return the places of names that stand before as well: another version of a payload is the same playbook."""
    bare = [name.partition("@")[0] for name in names]
    return [number for number, name in enumerate(bare) if name in bare[:number]]


def twice(name: str) -> str:
    """Say that a playbook is to be played twice."""
    return f"the playbook {show(name.partition('@')[0])} stands there twice: keep one"


def nothing_to_play(project: Path) -> ConfigError:
    """Return the error of an audit that has no playbook."""
    return ConfigError(
        Problem(
            file=str(project / FILE_NAME),
            message="is not there, and no playbook was named: write `playbooks: [check-ckpt]` into it, or name one",
        )
    )
