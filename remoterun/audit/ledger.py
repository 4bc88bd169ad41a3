"""What people know already, and what they are to be told: pure functions, so that each alert comes once."""

from __future__ import annotations

from dataclasses import field, fields, replace
from typing import TYPE_CHECKING, Final, Self

from remoterun.audit.file import EventKind
from remoterun.audit.words import TEMPLATES
from remoterun.compare import FindingChange, Kind
from remoterun.errors import clean
from remoterun.model import Severity
from remoterun.records import dataclass
from remoterun.report.text import clip, without_place

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from remoterun.audit.file import Alerts
    from remoterun.compare import Difference, Identity, Moment
    from remoterun.model import Finding, Json, Run

MOST_KNOWN: Final = 5000
"""So many findings of a playbook people know at a time; further ones are told when others are over."""
_LONGEST: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Hold one line that people are to be told: which template it has, and what may stand in that."""

    template: str
    playbook: str = ""
    target: str = ""
    name: str = ""
    subject: str = ""
    tensor: str = ""
    rule: str = ""
    severity: str = ""
    message: str = ""
    count: int = 0
    since: str = ""

    @classmethod
    def read(cls, value: Mapping[str, Json]) -> Self:
        """Take an event from what was kept of it.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        texts = {item.name: str(value[item.name]) for item in fields(cls) if item.name != "count"}
        if texts["template"] not in TEMPLATES:
            raise ValueError(f"there is no template {texts['template']!r}")
        return cls(count=int(str(value["count"])), **texts)

    @property
    def rank(self) -> int:
        """Return that of its severity, -1 where it has none."""
        return Severity(self.severity).rank if self.severity in set(Severity) else -1

    def document(self) -> dict[str, Json]:
        """Return what is kept of it, and what documents tell."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Hold what people know of one playbook: findings by their keys, and silent targets by theirs."""

    findings: Mapping[str, Event] = field(default_factory=dict)
    silent: Mapping[str, Event] = field(default_factory=dict)


def tell(told: Told, difference: Difference, run: Run, alerts: Alerts) -> tuple[Told, list[Event]]:
    """Return what people know after a run, and the events that tell them.

    What was not looked at again stays as they know it: that of targets without a result, or without a part in the run.
    """
    names = {outcome.target: outcome.name or "" for outcome in run.outcomes}
    answered = names.keys() - {silence.target for silence in difference.silent}
    findings, silent = dict(told.findings), dict(told.silent)
    events: list[Event] = []
    if EventKind.FINDINGS in alerts.events:
        events += _cleared(findings, difference, answered)
        events += _findings(findings, difference, names, alerts.severity)
    if EventKind.UNREACHABLE in alerts.events:
        events += _silent(silent, difference, answered, alerts.unreachable_after)
    return Told(findings=findings, silent=silent), events


def _findings(
    known: dict[str, Event], difference: Difference, names: Mapping[str, str], lowest: Severity
) -> Iterator[Event]:
    """Yield the findings that are there and not known, or known as less bad."""
    for identity, finding, since in _standing(difference):
        before = known.get(identity.key)
        if before is None and len(known) >= MOST_KNOWN:
            continue
        if (before is None or before.rank < finding.severity.rank) and finding.severity.rank >= lowest.rank:
            known[identity.key] = Event(
                template="new",
                playbook=_short(difference.playbook),
                target=_short(identity.target),
                name=_short(names.get(identity.target, "")),
                subject=_short(finding.subject),
                tensor=_short(identity.tensor),
                rule=_short(finding.rule),
                severity=finding.severity.value,
                message=_short(finding.message),
                since=since.at,
            )
            yield known[identity.key]


def _cleared(known: dict[str, Event], difference: Difference, answered: AbstractSet[str]) -> Iterator[Event]:
    """Yield the findings that are known, were looked for again, and are there no more."""
    left = {identity.key for identity, _, _ in _standing(difference)}
    left |= {standing.identity.key for standing in difference.unknown}
    gone = {change.identity.key for change in _changes(difference, Kind.FINDING_GONE)}
    for key in list(known):
        # What somebody's own run has seen vanish since the last audit is no change any more, but people don't know it.
        if key in gone or (key not in left and _target_of(key) in answered):
            yield replace(known.pop(key), template="cleared")


def _standing(difference: Difference) -> Iterator[tuple[Identity, Finding, Moment]]:
    """Yield every finding that is there for sure."""
    for new in _changes(difference, Kind.FINDING_NEW):
        yield new.identity, new.finding, new.since
    for standing in difference.persisting:
        yield standing.identity, standing.finding, standing.since


def _changes(difference: Difference, kind: Kind) -> list[FindingChange]:
    return [change for change in difference.changes if isinstance(change, FindingChange) and change.kind is kind]


def _silent(known: dict[str, Event], difference: Difference, answered: AbstractSet[str], after: int) -> Iterator[Event]:
    """Yield which targets have given no result for too long, and which of them do again."""
    for silence in difference.silent:
        if silence.runs < after:
            continue
        event = Event(
            template="unreachable",
            playbook=_short(difference.playbook),
            target=_short(silence.target),
            name=_short(silence.name or ""),
            message=_short(without_place(silence.message, silence.target) or silence.status.value),
            count=silence.runs,
            since=silence.since.at,
        )
        if silence.target not in known:
            yield event
        known[silence.target] = event
    for target in [target for target in known if target in answered]:
        yield replace(known.pop(target), template="reachable")


def _target_of(key: str) -> str:
    """Return the target of a finding, by its key."""
    import json

    target: str = json.loads(key)[0]
    return target


def _short(text: str) -> str:
    return clip(clean(text), _LONGEST)
