"""The families of checkpoints that have many files, in the order in which they are asked what a folder holds.

A family's module is imported when a folder has a name that it knows: on a target, all code is compiled anew.
"""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Iterable, List, Tuple

from ..patterns import pattern

if TYPE_CHECKING:
    from .folder import Family

# A family's module, and names of files and folders without one of which no folder is or holds its checkpoint.
_FAMILIES: Tuple[Tuple[str, str], ...] = (
    ("hf_trainer", r"trainer_state\.json|(?:optimizer|scheduler|sampler)(?:_\d+)?\.(?:pt|bin)|random_states_\d+\.pkl"),
    ("hf_adapter", r"adapter_config\.json"),
    ("hf_ranks", r"shard-\d+-model-\d+-of-\d+\.safetensors"),
    ("hf_model", r"config\.json|.+-of-\d+(?:\.\w+)?\.(?:safetensors|bin)|.+\.index(?:\.\w+)?\.json"),
    ("nemo", r"weights"),
    ("megatron", r"mp_rank_\d+(?:_\d+)*|common\.pt|metadata\.json|integrity\.json"),
    ("deepspeed", r"(?:.+_)?mp_rank_\d+_?(?:model|optim)_states\.pt|layer_\d+-model_\d+-model_states\.pt|zero"),
    ("orbax", r"_CHECKPOINT_METADATA|orbax\.checkpoint|_METADATA|default|state"),
    ("dcp", r"(?:__\d+)?\.metadata(?:\.tmp)?|.+\.distcp|model_and_optim"),
    ("ranks", r"(?:optim|meta)_\d+.*|ep\d+-ba\d+-rank\d+\.pt|(?:model_world_size_|actor|critic|ref|reward).*"),
)
_KNOWN = tuple((module, pattern(names, re.DOTALL)) for module, names in _FAMILIES)


def that_may_claim(names: Iterable[str]) -> List[str]:
    """Return the modules of the families to be asked about a folder with such names in it."""
    names = list(names)
    return [module for module, known in _KNOWN if any(map(known.fullmatch, names))]


def family(module: str) -> Family:
    """Return a family."""
    found: Family = importlib.import_module("%s.%s" % (__package__, module))
    return found
