"""The rules: their severities and what to do. What they mean at length stands in rules.toml, which stays at home."""

from __future__ import annotations

from typing import Dict, Iterator, List, NamedTuple, Sequence

from ..model import Found

INFO = "info"
SUSPECT = "suspect"
BAD = "bad"

OK = "ok"
IN_PROGRESS = "in_progress"
UNSUPPORTED = "unsupported"

# Findings of one rule on one checkpoint that are told one by one.
MANY = 20

_GO_BACK = "Do not resume from it: go back to the newest checkpoint that is ok."
_SAVE_SAFELY = "Do not resume from it. Save to a temporary name, then rename, with no optimizer step in between."


class Rule(NamedTuple):
    """Give a rule its severity and its next step."""

    severity: str
    next_step: str


RULES: Dict[str, Rule] = {
    "CK001": Rule(BAD, _GO_BACK),
    "CK002": Rule(INFO, "Nothing to do if this is an attention mask."),
    "CK003": Rule(
        BAD, "Go back, or start the optimizer afresh: resuming spreads it into the weights at the first step."
    ),
    "CK009": Rule(SUSPECT, "Find out what this file was meant to hold: there is nothing in it to resume from."),
    "CK012": Rule(SUSPECT, "Find out what this tensor is for; it belongs neither to the model nor to the optimizer."),
    "CK020": Rule(
        BAD, "The save was cut off: look for a full disk or a killed process, and go back to the checkpoint before."
    ),
    "CK021": Rule(BAD, "The data never reached the disk (power loss, no fsync): go back to the checkpoint before."),
    "CK022": Rule(BAD, _SAVE_SAFELY),
    "CK024": Rule(BAD, "This is no checkpoint: put the right file in its place."),
    "CK025": Rule(BAD, _GO_BACK),
    "CK026": Rule(INFO, "Run again when the save is done."),
    "CK027": Rule(BAD, "Its weights were never written: save it again without skip_data."),
    "CK028": Rule(INFO, "Keep a sha256 beside files that matter."),
    "CK030": Rule(SUSPECT, "Look at the permissions and the health of the storage."),
    "CK100": Rule(SUSPECT, "Load it only if you know where it comes from."),
    "CK101": Rule(BAD, "Do not load it, and find out who wrote it."),
    "CK102": Rule(BAD, "torch did not write this file as it is: do not load it before you know who did."),
    "CK103": Rule(BAD, "Do not load it: reading it can exhaust the machine's memory."),
    "CK105": Rule(SUSPECT, "Load it only if you know where it comes from."),
    "CK120": Rule(INFO, "Fine for your own files. For others', convert it to plain tensors first."),
    "CK126": Rule(INFO, "These values were not looked at; everything else was."),
    "CK128": Rule(SUSPECT, "Save it again with a current torch, or as safetensors, to have its values checked."),
}


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
