"""What is saved along with model and optimizer: gradient scalers, schedulers, random number generators."""

from __future__ import annotations

import math
from typing import Iterator

from ...model import Found
from ..facts import Facts
from ..rule import BAD

_SCALES = ("scale", "cur_scale", "loss_scale")


def _scalers(facts: Facts) -> Iterator[Found]:
    for numbers in facts.checkpoint.scalers:
        scale = next((numbers[key] for key in _SCALES if key in numbers), None)
        if scale is None:
            yield Found("CK053", "the gradient scaler is there, but not its scale")
        elif not math.isfinite(scale) or scale < 1:
            severity = BAD if not math.isfinite(scale) or scale <= 0 else None
            message = "the gradient scaler's scale is %.6g" % scale
            yield Found(
                "CK053", message, severity=severity, evidence={"scale": scale if math.isfinite(scale) else str(scale)}
            )


def _missing(facts: Facts) -> Iterator[Found]:
    parts = facts.checkpoint.parts
    groups = [group for optimizer in facts.checkpoint.optimizers for group in optimizer.groups]
    # A scheduler leaves this in the groups it works on.
    if "scheduler" not in parts and any("initial_lr" in group.options for group in groups):
        yield Found("CK054", "a learning-rate scheduler was at work, but its state is not in it")
    if "dataloader" in parts and "rng" not in parts:
        yield Found("CK054", "the place in the data is in it, but no state of a random number generator")


QUESTIONS = (_scalers, _missing)
