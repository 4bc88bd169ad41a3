"""The family of models as Hugging Face libraries save them: a folder of weights, and a config.json or an index."""

from __future__ import annotations

from typing import TYPE_CHECKING, List

from .folder import Claim
from .hf_weights import CONFIGS, MODULES, find_weights, modules_of, preferred, read_configs, read_weights, weights_of
from .members import Members

if TYPE_CHECKING:
    from ..model import Checkpoint
    from .folder import Folder, Listing

NAME = "hf-model"


def claim(listing: Listing) -> List[Claim]:
    """Claim weights in shards, and weights in one file that a configuration goes with; with them, further layers."""
    configs = tuple(sorted(CONFIGS.intersection(listing.files)))
    sets = weights_of(listing)
    chosen = preferred([each for each in sets if each.is_sharded or ("config.json" in configs and each.promised == 1)])
    whole = [each for each in chosen if each.is_sharded]
    if len(chosen) == 1:
        inner = {name: claim(listing.folders[name]) for name in modules_of(listing)}
        further = ["%s/%s" % (name, file) for name, claims in inner.items() for each in claims for file in each.files]
        return [Claim("", (*chosen[0].all_files, *configs, *([MODULES] if further else ()), *further))]
    return [Claim(each.stem, (*each.all_files, *configs)) for each in whole]


def read(folder: Folder) -> Checkpoint:
    """Read a claimed checkpoint."""
    members = Members(folder, NAME)
    for weights in find_weights(folder):
        read_weights(members, weights)
    for name in modules_of(folder.listing()):
        members.take_folder(name, read, prefix=name + ".")
    read_configs(members)
    return members.checkpoint
