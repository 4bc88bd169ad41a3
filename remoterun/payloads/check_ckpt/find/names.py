"""What the names of files and folders tell: a checkpoint, one that is not finished, a companion, a step."""

from __future__ import annotations

import os
import re
from typing import Optional

from ..patterns import pattern

EXTENSIONS = (".pt", ".pth", ".pth.tar", ".bin", ".ckpt", ".safetensors", ".gguf", ".nemo")

_UNFINISHED = (
    r"(?:\.(?:tmp|temp|part|partial|incomplete|unfinished|writing)(?:[._-]?\d+|[._-][0-9a-zA-Z]{6,16})?"
    r"|-(?:unfinished|incomplete)|\.orbax-checkpoint-tmp\S*)"
)
_NAME = pattern(r".*\.(?:pt|pth|pth\.tar|bin|ckpt|safetensors|gguf|nemo)%s?" % _UNFINISHED, re.IGNORECASE | re.DOTALL)
_TEMPORARY = pattern(r"(?:tmp-checkpoint.*|\.tmp.*|.+%s)" % _UNFINISHED, re.IGNORECASE | re.DOTALL)
_COMPANION = pattern(
    r"(?:training_args|scheduler(?:_\d+)?|lr_scheduler|scaler|rng_states?(?:_\d+)?|random_states_\d+|sampler(?:_\d+)?|dataloader\w*"
    r"|trainer_state|tokenizer\w*|args|config|loss_history|lr_annealing\w*)\.(?:pt|pth|bin|ckpt|pkl)",
    re.IGNORECASE,
)
# What keeps how far training was and other small things, where no tensor is in it.
COUNTERS = pattern(
    r"(?:(?:trainer|state|meta|progress|criterion|step_scheduler)[_-]?\d*|(?:(?:train_)?dataloader|lr_scheduler)[\w-]*"
    r"|\w+_optim_group)\.(?:pt|pth|bin|ckpt)",
    re.IGNORECASE,
)
# Texts among the files of SpeechBrain.
TEXTS = pattern(r"(?:brain|counter|dataloader-.*)\.ckpt", re.DOTALL)
# What else may hold weights, by its extension.
_PICKLE = "a pickle that torch.save did not write: name it to have it looked at"
_NOT_TORCHS = "not a file that torch.save wrote"
_UNREAD = "%s, which can't be audited yet"
_PASSED_OVER = {
    "pt2": _UNREAD % "a program of torch.export",
    "h5": _UNREAD % "an HDF5 file",
    "hdf5": _UNREAD % "an HDF5 file",
    "keras": _UNREAD % "a Keras model",
    "onnx": _UNREAD % "an ONNX model",
    "msgpack": _UNREAD % "MessagePack, as Flax writes it",
    "npz": _UNREAD % "numpy arrays",
    "pdparams": _UNREAD % "weights of PaddlePaddle",
    "pdopt": _UNREAD % "weights of PaddlePaddle",
    "pte": _UNREAD % "a program of ExecuTorch",
    "t7": _UNREAD % "a file of Lua's torch",
    "pkl": _PICKLE,
    "pickle": _PICKLE,
    "joblib": _PICKLE,
    **dict.fromkeys(
        ("tar", "torch", "model", "weights", "params", "checkpoint", "jit", "torchscript", "ptl"), _NOT_TORCHS
    ),
}
_TENSORFLOW = pattern(r".+\.data-\d{5}-of-\d{5}", re.DOTALL)
# Of SentencePiece.
_VOCABULARY = pattern(r"(?:tokenizer|spiece|sentencepiece|spm|source|target).*\.model", re.IGNORECASE | re.DOTALL)
_STEP = pattern(
    r"(?<![a-z])(?:global_?)?(?:step|steps|iter|iters|iteration|it|ba)[-_=]?(\d{1,15})(?!\d)", re.IGNORECASE
)
_COUNTED = pattern(r"(?<![a-z\d.])(\d{1,15})[-_]steps?(?![a-z])", re.IGNORECASE)
# A number and nothing else but an extension: 0.2.0 is a version.
_PLAIN = pattern(r"\A(\d{1,15})(?:\.[a-z_][\w-]*)*\Z", re.IGNORECASE | re.ASCII)
_NUMBERED = pattern(r"(?<![a-z])(?:checkpoint|ckpt)[-_=]?(\d{1,15})(?!\d)", re.IGNORECASE)


def is_checkpoint(name: str) -> bool:
    """Tell whether a file is called like a checkpoint, be it finished or not."""
    return _NAME.fullmatch(name) is not None


def is_temporary(name: str) -> bool:
    """Tell whether the name of a file or folder says that it is not finished."""
    return _TEMPORARY.fullmatch(name) is not None


def reason_to_pass_over(name: str) -> str:
    """Say why a file that may hold weights is not looked for by its name, nothing for all others."""
    if is_companion(name):
        return ""
    if _TENSORFLOW.fullmatch(name):
        return _UNREAD % "a checkpoint of TensorFlow"
    return "" if _VOCABULARY.fullmatch(name) else _PASSED_OVER.get(name.rpartition(".")[2].lower(), "")


def is_companion(name: str) -> bool:
    """Tell whether a file is called like one that only goes with a checkpoint."""
    return _COMPANION.fullmatch(name) is not None


def step_in_name(relative: str) -> Optional[int]:
    """Return the step that a file's name or, failing that, a folder's names."""
    for part in reversed(relative.split(os.sep)):
        match = (_STEP.findall(part) or _NUMBERED.findall(part) or _COUNTED.findall(part) or _PLAIN.findall(part))[-1:]
        if match:
            return int(match[0])
    return None
