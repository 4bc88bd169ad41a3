"""What the names of files and folders tell: a checkpoint, one that is not finished, a companion, a step."""

from __future__ import annotations

import os
import re
from typing import Optional

from ..patterns import pattern

EXTENSIONS = (".pt", ".pth", ".pth.tar", ".bin", ".ckpt", ".safetensors")

_UNFINISHED = (
    r"(?:\.(?:tmp|temp|part|partial|incomplete|unfinished|writing)(?:[._-]?\d+|[._-][0-9a-zA-Z]{6,16})?"
    r"|-(?:unfinished|incomplete)|\.orbax-checkpoint-tmp\S*)"
)
_NAME = pattern(r".*\.(?:pt|pth|pth\.tar|bin|ckpt|safetensors)%s?" % _UNFINISHED, re.IGNORECASE | re.DOTALL)
_TEMPORARY = pattern(r"(?:tmp-checkpoint.*|\.tmp.*|.+%s)" % _UNFINISHED, re.IGNORECASE | re.DOTALL)
_COMPANION = pattern(
    r"(?:training_args|scheduler(?:_\d+)?|lr_scheduler|scaler|rng_states?(?:_\d+)?|random_states_\d+|sampler(?:_\d+)?|dataloader\w*"
    r"|trainer_state|tokenizer\w*|args|config|loss_history)\.(?:pt|pth|bin|ckpt)",
    re.IGNORECASE,
)
_STEP = pattern(
    r"(?<![a-z])(?:global_?)?(?:step|steps|iter|iters|iteration|it|ba)[-_=]?(\d{1,15})(?!\d)", re.IGNORECASE
)
_NUMBERED = pattern(r"(?<![a-z])(?:checkpoint|ckpt)[-_=]?(\d{1,15})(?!\d)", re.IGNORECASE)


def is_checkpoint(name: str) -> bool:
    """Tell whether a file is called like a checkpoint, be it finished or not."""
    return _NAME.fullmatch(name) is not None


def is_temporary(name: str) -> bool:
    """Tell whether the name of a file or folder says that it is not finished."""
    return _TEMPORARY.fullmatch(name) is not None


def is_companion(name: str) -> bool:
    """Tell whether a file is called like one that only goes with a checkpoint."""
    return _COMPANION.fullmatch(name) is not None


def step_in_name(relative: str) -> Optional[int]:
    """Return the step that a file's name or, failing that, a folder's names."""
    for part in reversed(relative.split(os.sep)):
        stem = part.split(".")[0]
        plain = [stem] if re.fullmatch(r"\d{1,15}", stem) else []
        match = (_STEP.findall(part) or _NUMBERED.findall(part) or plain)[-1:]
        if match:
            return int(match[0])
    return None
