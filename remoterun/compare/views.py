"""A run target by target: which payloads gave results, which steps gave none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from remoterun.compare.model import Identity, Kind
from remoterun.model import Phase, Status
from remoterun.records import dataclass
from remoterun.report.documents import plain
from remoterun.report.severities import worst_first

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Literal

    from remoterun.model import Finding, Outcome, Run

_UNASKED: Final = frozenset({Status.CANCELLED, Status.NOT_STARTED, Status.RUNNING})
_UNASKED_CODES: Final = frozenset({"run_cut", "still_running", "taken_over"})
_OUTSIDE: Final = frozenset({Phase.PLAN, Phase.CONNECT, Phase.ENTER})


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Hold what a run has of one target.

    `statuses` are those of its outcomes. `told` are the outcomes with a result, by payload, where every outcome of that
    payload has one. `found` are all findings that came, also those of unfinished work. `silent` is the first outcome
    without a result that says something about the target: not one that a person ended, or that was cut with the run.
    """

    target: str
    name: str | None
    statuses: frozenset[Status]
    told: Mapping[str, tuple[Outcome, ...]]
    found: Mapping[str, tuple[Identity, Finding]]
    silent: Outcome | None

    @property
    def kind(self) -> Literal[Kind.TARGET_UNREACHABLE, Kind.TARGET_FAILED]:
        """Say how it is silent: by whether anything of the run got into it."""
        outcome = self.silent
        outside = outcome is None or outcome.status is Status.UNREACHABLE or outcome.phase in _OUTSIDE
        return Kind.TARGET_UNREACHABLE if outside and not self.told else Kind.TARGET_FAILED


def views(run: Run) -> dict[str, View]:
    """Group a run's outcomes by target, in the run's order."""
    outcomes: dict[str, list[Outcome]] = {}
    for outcome in run.outcomes:
        outcomes.setdefault(_text(outcome.target), []).append(outcome)
    return {target: _view(target, own) for target, own in outcomes.items()}


def _view(target: str, outcomes: list[Outcome]) -> View:
    by_payload: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_payload.setdefault(payload_of(outcome), []).append(outcome)
    return View(
        target=target,
        name=next((_text(outcome.name) for outcome in outcomes if outcome.name), None),
        statuses=frozenset(outcome.status for outcome in outcomes),
        told={
            payload: tuple(own)
            for payload, own in by_payload.items()
            if all(outcome.status.has_result for outcome in own)
        },
        found=dict(_found(outcomes)),
        silent=next(filter(_says_nothing, outcomes), None),
    )


def payload_of(outcome: Outcome) -> str:
    """Return the name of an outcome's payload, empty for programs and where none had been started."""
    return _text(outcome.payload.name) if outcome.payload is not None else ""


def _says_nothing(outcome: Outcome) -> bool:
    code = outcome.error.code if outcome.error else ""
    return not outcome.status.has_result and outcome.status not in _UNASKED and code not in _UNASKED_CODES


def _found(outcomes: list[Outcome]) -> Iterator[tuple[str, tuple[Identity, Finding]]]:
    """Name the findings, in the order in which they are told; of several with one name, the first is the worst."""
    ranked = [
        (finding, payload_of(outcome), outcome.target)
        for outcome in outcomes
        for finding in worst_first(outcome.findings)
    ]
    known: set[str] = set()
    for finding, payload, target in sorted(ranked, key=lambda item: -item[0].severity.rank):
        identity = identity_of(finding, payload, target)
        key = identity.key
        if key not in known:
            known.add(key)
            yield key, (identity, finding)


def identity_of(finding: Finding, payload: str, target: str) -> Identity:
    """Name a finding so that it is the same in every run that has it."""
    return Identity(
        target=_text(target),
        payload=_text(payload),
        rule=_text(finding.rule),
        subject=_text(finding.subject),
        path=_text(finding.data.get("file")),
        tensor=_text(finding.data.get("tensor")) or _text(finding.data.get("record")),
    )


def _text(value: object) -> str:
    """Return a text as it reads from every document: what is not text is none."""
    return str(plain(value)) if isinstance(value, str) else ""
