"""All rules together: what they ask of a checkpoint, and the verdict that follows."""

from __future__ import annotations

from typing import Callable, Dict, Iterator, List, Sequence, Tuple

from ..model import Found
from . import completeness, integrity, portability, security, series, training, values
from .facts import Facts
from .rule import BAD, SUSPECT, Rule

OK = "ok"
IN_PROGRESS = "in_progress"
UNSUPPORTED = "unsupported"

# Findings of one rule on one checkpoint that are told one by one.
MANY = 20

_GROUPS = (values, integrity, training, completeness, series, security, portability)
RULES: Dict[str, Rule] = {name: rule for group in _GROUPS for name, rule in group.RULES.items()}
_QUESTIONS: Tuple[Callable[[Facts], Iterator[Found]], ...] = tuple(
    ask for group in (values, integrity, training, portability) for ask in group.QUESTIONS
)


def check(facts: Facts) -> List[Found]:
    """Ask every question of a whole checkpoint."""
    return [found for ask in _QUESTIONS for found in ask(facts)]


def severity(found: Found) -> str:
    """Return a finding's severity."""
    return found.severity or RULES[found.rule].severity


def next_step(found: Found) -> str:
    """Return what to do about a finding."""
    return RULES[found.rule].next_step if found.next_step is None else found.next_step


def verdict(found: Sequence[Found], *, in_progress: bool, unsupported: bool) -> str:
    """Judge a checkpoint: being written beats everything, damage beats not knowing, not knowing beats suspicion."""
    if in_progress:
        return IN_PROGRESS
    severities = {severity(each) for each in found}
    if BAD in severities:
        return BAD
    if unsupported:
        return UNSUPPORTED
    return SUSPECT if SUSPECT in severities else OK


def bounded(found: Sequence[Found]) -> Iterator[Found]:
    """Yield the findings, those of one rule and severity beyond `MANY` summed up in one."""
    groups: Dict[object, List[Found]] = {}
    for each in found:
        groups.setdefault((each.rule, severity(each)), []).append(each)
    for group in groups.values():
        yield from group[:MANY]
        rest = group[MANY:]
        if rest:
            message = "and %s more of the same kind, the last: %s" % (format(len(rest), ","), rest[-1].message)
            yield Found(
                group[0].rule, message, {"more": len(rest)}, severity(group[0]), group[0].next_step, _summed(rest)
            )


def _summed(found: Sequence[Found]) -> Dict[str, object]:
    sums: Dict[str, object] = {}
    for each in found:
        for key, value in (each.evidence or {}).items():
            known = sums.get(key, 0)
            if isinstance(value, int) and isinstance(known, int):
                sums[key] = known + value
    return sums
