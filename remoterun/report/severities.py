"""How bad what was found is: the order of findings, and how many subjects have which, each by its worst finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remoterun.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from remoterun.model import Finding, Outcome


def worst_of_each(found: Iterable[tuple[object, Severity]]) -> dict[Severity, int]:
    """Count subjects by their worst severity, the worst first; `found` pairs a subject with each of its findings."""
    worst: dict[object, Severity] = {}
    for subject, severity in found:
        worst[subject] = max(worst.get(subject, severity), severity, key=lambda each: each.rank)
    counts = list(worst.values())
    return {severity: counts.count(severity) for severity in reversed(Severity) if severity in counts}


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Put findings in the order in which they are told everywhere: the worst first, then subject by subject."""
    came: dict[str, int] = {}
    told = list(findings)
    for finding in told:
        came.setdefault(finding.subject, len(came))
    return sorted(told, key=lambda finding: (-finding.severity.rank, came[finding.subject]))


def severities_of(outcomes: Sequence[Outcome]) -> list[str]:
    """Write what outcomes found: ``4 bad``, ``1 suspect``."""
    counts = worst_of_each(
        ((index, finding.subject), finding.severity)
        for index, outcome in enumerate(outcomes)
        for finding in outcome.findings
    )
    return [f"{count} {severity.value}" for severity, count in counts.items()]
