"""Rules about checkpoints that follow each other; what asks them stands in the room `series`."""

from __future__ import annotations

from typing import Dict

from .rule import BAD, GO_BACK, INFO, SUSPECT, Rule

_LOOK = "Compare it with the checkpoint before by hand, and resume from that one if in doubt."

RULES: Dict[str, Rule] = {
    "CK080": Rule(
        SUSPECT, "Find out whether these weights were meant to stand still: training works on them for nothing."
    ),
    "CK081": Rule(
        BAD,
        "What was saved is not what was trained: find the stale copy in the saving code, and save once more.",
        "Nothing to do if that step had a learning rate of 0, as a warm-up begins with.",
    ),
    "CK082": Rule(SUSPECT, _LOOK),
    "CK083": Rule(SUSPECT, "Find out what changed in the model or in how it is saved before resuming across it."),
    "CK084": Rule(BAD, GO_BACK),
    "CK085": Rule(SUSPECT, _LOOK, "Go back to the one before it."),
    "CK086": Rule(INFO, "Nothing to do if checkpoints were copied, or a run was started again in the same folder."),
    "CK087": Rule(INFO, "Nothing to do if training has ended; else look whether it hangs."),
    "CK088": Rule(SUSPECT, "Find the stale copy in the saving code: resuming mixes moments of different steps."),
    "CK089": Rule(SUSPECT, _LOOK),
}
