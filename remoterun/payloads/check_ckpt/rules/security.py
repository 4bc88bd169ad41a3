"""Rules about what loading a file would do."""

from __future__ import annotations

from typing import Dict

from .rule import BAD, SUSPECT, Rule

RULES: Dict[str, Rule] = {
    "CK100": Rule(SUSPECT, "Load it only if you know where it comes from."),
    "CK101": Rule(BAD, "Do not load it, and find out who wrote it."),
    "CK102": Rule(BAD, "torch did not write this file as it is: do not load it before you know who did."),
    "CK103": Rule(BAD, "Do not load it: reading it can exhaust the machine's memory."),
    "CK105": Rule(SUSPECT, "Load it only if you know where it comes from."),
}
