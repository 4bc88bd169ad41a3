"""What a rule is: a severity and a next step. What it means at length stands in texts/, which stays at home."""

from __future__ import annotations

from ..records import Record

INFO = "info"
SUSPECT = "suspect"
BAD = "bad"

GO_BACK = "Do not resume from it: go back to the newest checkpoint that is ok."
SAVE_SAFELY = "Do not resume from it. Save to a temporary name, then rename, with no optimizer step in between."
MEANT = "Nothing to do if that was meant."


class Rule(Record):
    """Give a rule its severity and its next step, and another one for what of its kind is information only."""

    severity: str
    next_step: str
    mild: str = MEANT
