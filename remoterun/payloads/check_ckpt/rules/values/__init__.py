"""Rules about values."""

from __future__ import annotations

from typing import Dict

from ..rule import BAD, GO_BACK, INFO, SUSPECT, Rule
from . import copies, finite, magnitude, zeros

RULES: Dict[str, Rule] = {
    "CK001": Rule(BAD, GO_BACK),
    "CK002": Rule(INFO, "Nothing to do if this is an attention mask."),
    "CK003": Rule(
        BAD, "Go back, or start the optimizer afresh: resuming spreads it into the weights at the first step."
    ),
    "CK004": Rule(INFO, "Recover from the copy that is good, if there is no older checkpoint that is."),
    "CK005": Rule(
        SUSPECT, "Compare the tensor with the checkpoint before; go back to that one if it is not like this."
    ),
    "CK006": Rule(
        SUSPECT,
        "Find out whether this tensor was ever filled in; go back if the checkpoint before has it.",
        "Nothing to do if it is like this by design, or is not trained.",
    ),
    "CK007": Rule(
        SUSPECT, "Compare these bytes with another copy of the file or the checkpoint before; go back if they differ."
    ),
    "CK008": Rule(
        SUSPECT,
        "Compare the tensor with the checkpoint before: this is what memory nobody filled looks like.",
        "Nothing to do where weight decay works on what is never used.",
    ),
    "CK009": Rule(SUSPECT, "Find out what this file was meant to hold: there is nothing in it to resume from."),
    "CK010": Rule(
        SUSPECT,
        "Find out why the adapter was not trained, or not gathered before it was saved.",
        "Nothing to do before the first step.",
    ),
    "CK011": Rule(INFO, "Nothing to do if these weights are tied or were copied on purpose."),
    "CK012": Rule(SUSPECT, "Find out what this tensor is for; it belongs neither to the model nor to the optimizer."),
}

QUESTIONS = (*finite.QUESTIONS, *magnitude.QUESTIONS, *zeros.QUESTIONS, *copies.QUESTIONS)
