"""Rules about files that belong together."""

from __future__ import annotations

from typing import Dict

from .rule import BAD, GO_BACK, INFO, SUSPECT, Rule

_FIND = "Do not resume from it: find the missing file, or go back to the newest checkpoint that is ok."

RULES: Dict[str, Rule] = {
    "CK060": Rule(BAD, _FIND, "Nothing to do, unless training has to go on with the same random numbers."),
    "CK061": Rule(BAD, GO_BACK, "Nothing to do."),
    "CK062": Rule(BAD, GO_BACK),
    "CK063": Rule(BAD, _FIND),
    "CK064": Rule(
        BAD,
        "Do not load it as it is: save it again, or fetch index and shards from the same save.",
        "Nothing to do: loaders pass the total over.",
    ),
    "CK065": Rule(
        BAD,
        "Point it at the checkpoint to resume from, or name that one when you resume.",
        "Run again when the save is done.",
    ),
    "CK066": Rule(BAD, GO_BACK),
    "CK067": Rule(INFO, "Delete them if no save is going on."),
    "CK068": Rule(SUSPECT, "Find out what is missing in it before you resume from it."),
    "CK069": Rule(INFO, "Resume from the one that is named."),
}
