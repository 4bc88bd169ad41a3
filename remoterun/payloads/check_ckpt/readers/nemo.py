"""The family of NeMo's checkpoints: a folder of weights as Megatron-LM writes them, and one that says of what."""

from __future__ import annotations

from typing import TYPE_CHECKING, List

from . import dcp, megatron
from .folder import Claim
from .members import Members

if TYPE_CHECKING:
    from ..model import Checkpoint
    from .folder import Folder, Listing

NAME = "nemo"
_WEIGHTS = "weights"
_CONTEXT = "context"


def claim(listing: Listing) -> List[Claim]:
    """Claim a folder with the two in it."""
    weights, context = listing.folders.get(_WEIGHTS), listing.folders.get(_CONTEXT)
    if weights is None or context is None:
        return []
    # Of what the other holds nothing is read, so it counts for nothing either.
    parts = [file for each in (megatron.claim(weights) or dcp.claim(weights)) for file in each.files]
    return [Claim("", tuple(sorted("%s/%s" % (_WEIGHTS, file) for file in parts)))] if parts else []


def read(folder: Folder) -> Checkpoint:
    """Read a claimed checkpoint."""
    members = Members(folder, NAME)
    inner = folder.inner(_WEIGHTS)
    reader = megatron if megatron.claim(inner.listing()) else dcp
    members.take_folder(_WEIGHTS, reader.read)
    return members.checkpoint
