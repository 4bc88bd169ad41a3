"""What is different between runs of a playbook: pure functions over runs, without I/O.

What was not looked at is unknown: it is neither gone nor new.
"""

from __future__ import annotations

from remoterun.compare.difference import difference
from remoterun.compare.document import diff_schema, difference_document, standing_document
from remoterun.compare.folding import fold
from remoterun.compare.model import (
    Change,
    CheckpointChange,
    Difference,
    FactChange,
    FindingChange,
    Fold,
    Identity,
    Kind,
    Moment,
    NumberChange,
    Silence,
    Standing,
    State,
    TargetChange,
    TargetState,
)
from remoterun.compare.text import difference_text

__all__ = [
    "Change",
    "CheckpointChange",
    "Difference",
    "FactChange",
    "FindingChange",
    "Fold",
    "Identity",
    "Kind",
    "Moment",
    "NumberChange",
    "Silence",
    "Standing",
    "State",
    "TargetChange",
    "TargetState",
    "diff_schema",
    "difference",
    "difference_document",
    "difference_text",
    "fold",
    "standing_document",
]
