"""The family of weights in safetensors of which each rank saved its own, by HuggingFaceStorageWriter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List

from ..model import MODEL, Checkpoint, Piece
from .dcp_metadata import Whole, misfit
from .dcp_pickle import Chunk
from .folder import Claim
from .members import Members, matching

if TYPE_CHECKING:
    from ..model import Tensor
    from .folder import Folder, Listing

NAME = "hf-ranks"
_SHARD = r"shard-\d{1,6}-model-(\d{1,6})-of-(\d{1,6})\.safetensors"


def claim(listing: Listing) -> List[Claim]:
    """Claim the files of all ranks."""
    files = tuple(sorted(match.group() for match in matching(_SHARD, listing.files)))
    return [Claim("", files)] if files else []


def read(folder: Folder) -> Checkpoint:
    """Read a claimed checkpoint; that the last rank's file is missing nothing tells."""
    members = Members(folder, NAME)
    for name in folder.files:
        members.take(name, MODEL)
    found = matching(_SHARD, folder.files)
    numbers = {int(match.group(1)) for match in found}
    promised = max(int(match.group(2)) for match in found)
    absent = (number for number in range(1, promised + 1) if number not in numbers)
    members.lack(("shard-*-model-%05d-of-%05d.safetensors" % (number, promised) for number in absent), "file")
    if not members.checkpoint.truncated:
        _judge_parts(members.checkpoint)
    return members.checkpoint


def _judge_parts(checkpoint: Checkpoint) -> None:
    """Put the parts of each tensor together; what they reach to is its size."""
    parts: Dict[str, List[int]] = {}
    for index, tensor in enumerate(checkpoint.tensors):
        parts.setdefault(tensor.name, []).append(index)
    for name, indexes in parts.items():
        chunks = [_chunk(checkpoint.tensors[index]) for index in indexes]
        ends = [[begin + size for begin, size in zip(*chunk)] for chunk in chunks]
        size = tuple(map(max, zip(*ends)))
        fault = misfit(Whole("", size, chunks))
        if fault:
            checkpoint.add("CK062", "the parts of %s %s" % (name, fault), tensor=name)
        for index, chunk in zip(indexes, chunks):
            whole = len(chunks) == 1 and not any(chunk.offsets)
            piece = None if whole else Piece(chunk.offsets, size)
            checkpoint.tensors[index] = checkpoint.tensors[index]._replace(piece=piece)


def _chunk(tensor: Tensor) -> Chunk:
    return Chunk(tensor.piece.offsets if tensor.piece else (0,) * len(tensor.shape), tensor.shape)
