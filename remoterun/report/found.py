"""Findings as lines of a page: those of one subject together, the worst first, equal ones told once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from remoterun.errors import clean
from remoterun.model import Severity
from remoterun.report.documents import plain
from remoterun.report.severities import worst_first
from remoterun.report.text import SEVERITY_STYLE, Page, Span, cells, clip, pad, plural, scalar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from remoterun.model import Finding

MAX_FINDINGS: Final = 10
"""Entries shown of one subject without -v."""
MAX_NAMED: Final = 3
"""Further tensors named of an entry that stands for several findings."""
_LONGEST_NAME: Final = 100


def finding_lines(page: Page, findings: Sequence[Finding], *, with_subject: bool, verbose: int) -> None:
    """Add findings under their subject, the worst first, each with its next step.

    Those that are shown with their subject stand by themselves, and not below the record before them. Without -v, those
    that say the same of several tensors are one entry.
    """
    indent = 2 if with_subject else 4
    ranked = worst_first(findings)
    entries = [[finding] for finding in ranked] if verbose else _entries(ranked)
    shown = entries if verbose else entries[:MAX_FINDINGS]
    severity = max((len(first.severity) for first, *_ in shown), default=0)
    rule = min(max((cells(clean(first.rule)) for first, *_ in shown), default=0), 16)
    for entry in shown:
        _entry_lines(page, entry, (indent, severity, rule), with_subject=with_subject, verbose=verbose)
    left_out = sum(map(len, entries[len(shown) :]))
    if left_out:
        page.line(Span(f"... and {left_out} more; -v shows them", "dim"), indent=indent)


def take_shared(findings: dict[str, list[Finding]]) -> dict[tuple[str, ...], list[Finding]]:
    """Take the information out of `findings`, by subject, that is the same of several; return it by its subjects.

    Only information: of anything worse, whoever looks at one subject must see why.
    """
    alike: dict[tuple[str, ...], dict[str, Finding]] = {}
    for subject, own in findings.items():
        for finding in own:
            if finding.severity is Severity.INFO:
                key = (finding.rule, finding.message, finding.next_step, scalar(finding.data.get("usual_severity")))
                alike.setdefault(key, {}).setdefault(subject, finding)
    shared: dict[tuple[str, ...], list[Finding]] = {}
    for by_subject in alike.values():
        if len(by_subject) > 1:
            subjects = tuple(by_subject)
            shared.setdefault(subjects, []).append(by_subject[subjects[0]])
            for subject, finding in by_subject.items():
                findings[subject].remove(finding)
    return shared


def shared_lines(page: Page, shared: Mapping[tuple[str, ...], Sequence[Finding]], *, of: int, noun: str) -> None:
    """Add what is the same of several subjects, of so many there are, under a line that says of which."""
    for subjects, findings in shared.items():
        if len(subjects) == of:
            what = f"all {plural(of, noun)}"
        else:
            named = ", ".join(clip(clean(subject), _LONGEST_NAME) for subject in subjects[:MAX_NAMED])
            rest = len(subjects) - MAX_NAMED
            what = f"{named} and {rest} more" if rest > 0 else named
        page.line(Span(f"{what}:", "bold"), indent=2, hang=2)
        finding_lines(page, findings, with_subject=False, verbose=0)


def _entries(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Put together what differs in nothing but the tensor and its numbers."""
    entries: dict[tuple[object, ...], list[Finding]] = {}
    for index, finding in enumerate(findings):
        # One that speaks of something else than a tensor says more than the name of it.
        one_of_its_kind = None if _tensor(finding) else index
        usual = scalar(finding.data.get("usual_severity"))
        alike = (finding.subject, finding.rule, finding.severity, finding.next_step, usual, one_of_its_kind)
        entries.setdefault(alike, []).append(finding)
    return list(entries.values())


def _tensor(finding: Finding) -> str:
    """Return the tensor that a finding is about, where its message begins with it."""
    tensors = finding.data.get("tensors")
    name = finding.data.get("tensor") or (tensors[0] if isinstance(tensors, list) and tensors else None)
    return name if isinstance(name, str) and finding.message.startswith(name) else ""


def _entry_lines(
    page: Page, entry: Sequence[Finding], widths: tuple[int, int, int], *, with_subject: bool, verbose: int
) -> None:
    finding, *others = entry
    indent, severity, rule = widths
    hang = severity + rule + 4
    page.line(
        Span(pad(finding.severity, severity), SEVERITY_STYLE[finding.severity]),
        Span("  "),
        Span(pad(clean(finding.rule), rule), "dim"),
        Span("  "),
        *([Span(f"{finding.subject}: ", "bold")] if with_subject and finding.subject else []),
        Span(finding.message),
        *_usually(finding),
        indent=indent,
        hang=hang,
    )
    page.line(*_others(others), indent=indent + hang)
    if finding.next_step:
        page.line(Span("next: ", "hint"), Span(finding.next_step), indent=indent + hang, hang=6)
    if verbose:
        more = {"evidence": finding.evidence, **finding.data}
        for key, value in more.items():
            if value is not None:
                text = json.dumps(plain(value), ensure_ascii=False)
                page.line(Span(f"{key}: ", "dim"), Span(text), indent=indent + hang, hang=2)


def _usually(finding: Finding) -> list[Span]:
    """Say which severity a finding has where nobody has changed it."""
    usual = finding.data.get("usual_severity")
    return [Span(f" (usually {scalar(usual)})", "dim")] if isinstance(usual, str) else []


def _others(findings: Sequence[Finding]) -> list[Span]:
    """Name the first of the other tensors of which the same is true."""
    if not findings:
        return []
    names = [clip(clean(_tensor(finding)), _LONGEST_NAME) for finding in findings[:MAX_NAMED]]
    rest = ", ...; -v shows them" if len(findings) > MAX_NAMED else ""
    return [Span(f"and {len(findings)} more: ", "bold"), Span(", ".join(names)), Span(rest, "dim")]
