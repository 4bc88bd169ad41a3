"""The family of orbax's checkpoints, of JAX: their structure is checked, since the values are compressed elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, List

from ..model import clean_text
from ..rules.rule import SUSPECT
from .folder import Claim
from .members import Members

if TYPE_CHECKING:
    from ..model import Checkpoint
    from .folder import Folder, Listing

NAME = "orbax"
_STEP = "_CHECKPOINT_METADATA"
_MARKER = "orbax.checkpoint"
_TREE = "_METADATA"
_MANIFEST = "manifest.ocdbt"
_ARRAY = ".zarray"


def claim(listing: Listing) -> List[Claim]:
    """Claim a folder that has one of the markers, or an item in it."""
    items = [name for name, inner in listing.folders.items() if _TREE in inner.files]
    whole = _TREE in listing.files and _MANIFEST in listing.files
    marked = _STEP in listing.files or _MARKER in listing.files or whole
    if not marked and not any(_MANIFEST in listing.folders[name].files for name in items):
        return []
    return [Claim("", tuple(sorted(name for name, _ in listing.walk())))]


def read(folder: Folder) -> Checkpoint:
    """Check the structure of a claimed checkpoint."""
    members = Members(folder, NAME)
    checkpoint = members.checkpoint
    checkpoint.unsupported = "it is a checkpoint of orbax: its structure was checked, its values were not"
    if _STEP in folder.files:
        _judge_step(members)
    for item in sorted({name.rpartition("/")[0] for name in folder.files if _in(name) in (_TREE, _MANIFEST)}):
        # What a process wrote has a manifest of its own, and is a part of the tree that it lies in.
        if not _in(item).startswith("ocdbt.process_"):
            _judge_item(members, item + "/" if item else "")
    return checkpoint


def _in(name: str) -> str:
    return name.rpartition("/")[2]


def _judge_step(members: Members) -> None:
    root = members.json(_STEP)
    if root and root.get("commit_timestamp_nsecs", 0) is None:
        message = "%s was begun, but no time of its end is noted in it: the save may not have ended"
        members.checkpoint.add("CK066", message % _STEP, severity=SUSPECT, record=_STEP)


def _judge_item(members: Members, item: str) -> None:
    """Look for what belongs to one tree of arrays: its description, a manifest, and data."""
    checkpoint, files = members.checkpoint, members.folder.files
    shown = clean_text(item)
    inside = [name for name in files if name.startswith(item)]
    if item + _TREE in files:
        members.json(item + _TREE)
    else:
        checkpoint.add("CK063", "there is no %s%s, which says what arrays there are" % (shown, _TREE))
    arrays = any(_in(name) == _ARRAY for name in inside)
    if item + _MANIFEST in files:
        if not files[item + _MANIFEST].size:
            checkpoint.add("CK061", "%s%s is empty" % (shown, _MANIFEST), file=shown + _MANIFEST)
        if not any(name.startswith(item + "d/") for name in inside):
            checkpoint.add("CK060", "the data of %s is missing: there is no folder d" % (shown or "it"))
    elif not arrays and item + _TREE in files:
        checkpoint.add("CK063", "there is no %s%s, which says where the arrays lie" % (shown, _MANIFEST))
