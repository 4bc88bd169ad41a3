"""Rules about the state of training."""

from __future__ import annotations

from typing import Dict

from ..rule import BAD, INFO, SAVE_SAFELY, SUSPECT, Rule
from . import bounds, groups, moments, progress
from .moments import pairs

__all__ = ["QUESTIONS", "RULES", "pairs"]

_STEPS = "Keep steps in float32 or as integers: bias correction and schedules go by them."
_WHICH = "Find out which of the two is right before resuming: learning rate and data go by the step."

RULES: Dict[str, Rule] = {
    "CK040": Rule(BAD, SAVE_SAFELY, "Nothing to do if these took no part in some steps, or came later."),
    "CK042": Rule(
        BAD, "Do not resume from it: model and optimizer are of different moments. Go back to one that is whole."
    ),
    "CK043": Rule(BAD, "Do not resume from it: its files were saved at different steps. Go back to one that is whole."),
    "CK044": Rule(BAD, "Go back, or start the optimizer afresh: the square root of it is NaN at the first step."),
    "CK045": Rule(
        BAD,
        "Go back, or start the optimizer afresh: its first steps would be far too large.",
        "Nothing to do if the betas were changed.",
    ),
    "CK046": Rule(SUSPECT, _STEPS, _STEPS),
    "CK047": Rule(SUSPECT, _WHICH, "Nothing to do if one counts otherwise than the other."),
    "CK048": Rule(SUSPECT, _WHICH, "Nothing to do if steps were skipped, as where gradients overflow."),
    "CK049": Rule(INFO, "Nothing to do if the others are frozen, or did not take part in any step."),
    "CK050": Rule(
        SUSPECT,
        "Find out why it was not saved: resuming would start the optimizer from nothing.",
        "Nothing to do if no step was made yet.",
    ),
    "CK051": Rule(SUSPECT, "Go back to a checkpoint whose optimizer can be loaded, or start the optimizer afresh."),
    "CK052": Rule(SUSPECT, "Keep second moments in float32 or bfloat16; go back if they were converted when saved."),
    "CK053": Rule(
        SUSPECT, "Resume with a fresh GradScaler: with this scale, gradients vanish or every step is skipped."
    ),
    "CK054": Rule(INFO, "Save it along if resuming is to continue exactly where training was."),
    "CK055": Rule(BAD, "Go back, or start the optimizer afresh: what it keeps was damaged, or is of another step."),
}

QUESTIONS = (*progress.STEPS, *moments.QUESTIONS, *bounds.QUESTIONS, *groups.QUESTIONS, *progress.QUESTIONS)
