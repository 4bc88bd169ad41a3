"""Rules about what others can make of a file."""

from __future__ import annotations

from typing import Dict, Iterator

from ..model import UNKNOWN_FORMAT, Found, count_of
from .facts import Facts
from .rule import INFO, SUSPECT, Rule

RULES: Dict[str, Rule] = {
    "CK120": Rule(INFO, "Fine for your own files. For others', convert it to plain tensors first."),
    "CK126": Rule(INFO, "These values were not looked at; everything else was."),
    "CK128": Rule(SUSPECT, "Save it again with a current torch, or as safetensors, to have its values checked."),
}


def _honesty(facts: Facts) -> Iterator[Found]:
    checkpoint = facts.checkpoint
    unknown = [each for each in checkpoint.unchecked if each.reason == UNKNOWN_FORMAT]
    known = [each for each in checkpoint.unchecked if each.reason != UNKNOWN_FORMAT]
    # Of a truncated file, what is missing is told already. A format that nobody knows may be damage.
    for group, severity in ((unknown, "suspect"), ([] if checkpoint.truncated else known, "info")):
        if group:
            reasons = sorted({"%s (%s)" % (each.dtype, each.reason) for each in group})
            message = "the values of %s were not checked: %s" % (count_of(len(group), "tensor"), ", ".join(reasons[:3]))
            yield Found("CK126", message, {"tensors": [each.name for each in group[:20]]}, severity)
    if checkpoint.unsupported:
        yield Found("CK128", checkpoint.unsupported)


QUESTIONS = (_honesty,)
