"""All rules together: what they ask of a checkpoint, what a playbook changes of them, and the verdict that follows."""

from __future__ import annotations

from typing import Callable, Dict, FrozenSet, Iterable, Iterator, List, Sequence, Tuple, TypeVar

from ..model import Found
from ..records import Record
from . import completeness, integrity, portability, security, series, training, values
from .facts import Facts
from .rule import BAD, INFO, SUSPECT, Rule

_T = TypeVar("_T")

OK = "ok"
IN_PROGRESS = "in_progress"
UNSUPPORTED = "unsupported"

# Findings of one rule on one checkpoint that are told one by one.
MANY = 20

_USUAL = "usual_severity"
_LAST = "the last: "

# What was found with these could not be checked, whatever the rules count for.
_NOT_CHECKED = ("CK009", "CK128")

GROUPS = (values, integrity, training, completeness, series, security, portability)
RULES: Dict[str, Rule] = {name: rule for group in GROUPS for name, rule in group.RULES.items()}
_QUESTIONS: Tuple[Callable[[Facts], Iterator[Found]], ...] = tuple(
    ask for group in GROUPS for ask in getattr(group, "QUESTIONS", ())
)


class Changes(Record):
    """Hold what a playbook says of rules: those whose findings count for nothing, and severities in place of theirs."""

    ignore: FrozenSet[str]
    severities: Dict[str, str]

    @classmethod
    def of(cls, params: Dict[str, object]) -> Changes:
        """Read the parameter `rules`, which was checked before it came here."""
        said = params.get("rules")
        rules = said if isinstance(said, dict) else {}
        return cls(frozenset(rules.get("ignore", ())), dict(rules.get("severity", {})))

    def concern(self, rule: str) -> bool:
        """Tell whether anything is said of a rule."""
        return rule in self.ignore or rule in self.severities

    def apply(self, found: Sequence[Found]) -> Tuple[List[Found], Dict[str, int]]:
        """Return the findings that count, as they count, and by rule how many of the others there are."""
        kept, ignored = self.apply_to([("", each) for each in found])
        return [each for _, each in kept], ignored

    def apply_to(self, found: Sequence[Tuple[_T, Found]]) -> Tuple[List[Tuple[_T, Found]], Dict[str, int]]:
        """Do so with findings that stand behind their subjects."""
        kept: List[Tuple[_T, Found]] = []
        ignored: Dict[str, int] = {}
        for subject, each in found:
            if each.rule in self.ignore:
                ignored[each.rule] = ignored.get(each.rule, 0) + count(each)
            else:
                kept.append((subject, self._changed(each)))
        return kept, ignored

    def _changed(self, found: Found) -> Found:
        usual = severity(found)
        level = self.severities.get(found.rule, usual)
        if level == usual:
            return found
        return found._replace(severity=level, data={**(found.data or {}), _USUAL: usual})


class Settled(Record):
    """Hold what is made of the findings of one checkpoint: those that count, how many are ignored, and the verdict."""

    found: List[Found]
    ignored: Dict[str, int]
    verdict: str


def settle(found: Sequence[Found], changes: Changes, *, in_progress: bool, failed: bool, unread: bool) -> Settled:
    """Judge a checkpoint by what was found.

    `failed` tells that it could not be read, `unread` that not all of its values were looked at. To make light of the
    damage that keeps values from being read makes none of them checked: it is unsupported then.
    """
    kept, ignored = changes.apply(found)
    told = [each for each in found if severity(each) != INFO]
    unchecked = any(each.rule in _NOT_CHECKED or (unread and changes.concern(each.rule)) for each in told)
    return Settled(kept, ignored, verdict(kept, in_progress=in_progress, unsupported=failed or unchecked))


def check(facts: Facts) -> List[Found]:
    """Ask every question of a whole checkpoint."""
    return bounded(found for ask in _QUESTIONS for found in ask(facts))


def severity(found: Found) -> str:
    """Return a finding's severity."""
    return found.severity or RULES[found.rule].severity


def next_step(found: Found) -> str:
    """Return what to do about a finding."""
    if found.next_step is not None:
        return found.next_step
    rule = RULES[found.rule]
    # Who makes light of a rule is not told that there is nothing to it.
    mild = found.severity == INFO != rule.severity and _USUAL not in (found.data or {})
    return rule.mild if mild else rule.next_step


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


def bounded(found: Iterable[Found]) -> List[Found]:
    """Return the findings, those of one rule and severity beyond `MANY` summed up in one, also where some are such."""
    groups: Dict[object, List[Found]] = {}
    for each in found:
        group = groups.setdefault((each.rule, severity(each)), [])
        group[MANY:] = [_summed([*group[MANY:], each])] if len(group) >= MANY else [each]
    return [each for group in groups.values() for each in group]


def count(found: Found) -> int:
    """Return how many findings it stands for."""
    return (found.data or {}).get("more", 1)  # type: ignore[return-value]


def _summed(found: Sequence[Found]) -> Found:
    data: Dict[str, object] = {"more": sum(map(count, found))}
    data.update((key, value) for key, value in (found[0].data or {}).items() if key == _USUAL)
    sums: Dict[str, int] = {}
    for each in found:
        for key, value in (each.evidence or {}).items():
            if isinstance(value, int):
                sums[key] = sums.get(key, 0) + value
    last = found[-1].message.split(_LAST)[-1]
    message = "and %s more of the same kind, %s%s" % (format(data["more"], ","), _LAST, last)
    return found[0]._replace(message=message, data=data, evidence=sums)  # type: ignore[arg-type]  # numbers are objects
