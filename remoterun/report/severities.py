"""How much was found: each checkpoint, or whatever else findings are about, counts once, by its worst finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remoterun.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from remoterun.model import Outcome


def worst_of_each(found: Iterable[tuple[object, Severity]]) -> dict[Severity, int]:
    """Count subjects by their worst severity, the worst first; `found` pairs a subject with each of its findings."""
    worst: dict[object, Severity] = {}
    for subject, severity in found:
        worst[subject] = max(worst.get(subject, severity), severity, key=lambda each: each.rank)
    counts = list(worst.values())
    return {severity: counts.count(severity) for severity in reversed(Severity) if severity in counts}


def severities_of(outcomes: Sequence[Outcome]) -> list[str]:
    """Write what outcomes found: ``4 bad``, ``1 suspect``."""
    counts = worst_of_each(
        ((index, finding.subject), finding.severity)
        for index, outcome in enumerate(outcomes)
        for finding in outcome.findings
    )
    return [f"{count} {severity.value}" for severity, count in counts.items()]
