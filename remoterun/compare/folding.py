"""Equal changes of several targets told once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from remoterun.compare.model import (
    Change,
    CheckpointChange,
    FactChange,
    FindingChange,
    Fold,
    Kind,
    NumberChange,
    TargetChange,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

_ORDER: Final = tuple(Kind)


def fold(changes: Iterable[Change]) -> tuple[Fold, ...]:
    """Fold equal changes over targets: findings first, the worst of them before others, and outliers before crowds.

    Findings are equal when rule, severity, subject and tensor are, whatever their numbers; targets when status and
    error code are.
    """
    groups: dict[tuple[object, ...], list[Change]] = {}
    for change in changes:
        groups.setdefault(_alike(change), []).append(change)
    folds = [
        Fold(change=group[0], targets=tuple(dict.fromkeys(each.target for each in group))) for group in groups.values()
    ]
    return tuple(
        sorted(folds, key=lambda each: (_ORDER.index(each.change.kind), -_rank(each.change), len(each.targets)))
    )


def _rank(change: Change) -> int:
    return change.finding.severity.rank if isinstance(change, FindingChange) else 0


def _alike(change: Change) -> tuple[object, ...]:
    match change:
        case FindingChange(identity=identity, finding=finding):
            return change.kind, identity.rule, finding.severity, identity.subject, identity.tensor, change.vanished
        case TargetChange():
            return change.kind, change.status, change.code, change.runs
        case CheckpointChange():
            return change.kind, change.name, change.step, change.verdict
        case FactChange():
            # A machine's boot has a name of its own, but starting anew is one thing.
            values = () if change.fact == "boot_id" else (change.before, change.after)
            return change.kind, change.fact, *values
        case NumberChange():
            return change.kind, change.subject, change.number, change.before, change.after
