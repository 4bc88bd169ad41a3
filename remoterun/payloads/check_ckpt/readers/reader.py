"""The choice of a reader, by what a file holds and not by its name.

What torch files don't need is imported when a file does: on a target, all code is compiled anew in each run.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..model import Checkpoint, FlawedError, count_of
from ..rules.catalogue import severity
from ..rules.rule import BAD
from .archive import LOCAL, read_directory
from .torch_zip import read_torch_zip

if TYPE_CHECKING:
    from ..source import Source

_BLOCK = 1024 * 1024
# A file that begins with so many zeros is none, whatever follows.
_MAX_ZEROS = 64 * _BLOCK
# What these names promise can't be anything else.
_PROMISING = (".pt", ".pth", ".safetensors")


def read_checkpoint(source: Source) -> Checkpoint:
    """Read what a file holds; what makes it unreadable is among the findings.

    Raises:
        OSError: when the storage can't give it back.
    """
    head = source.read(0, 512)
    fmt = "unknown"
    try:
        if not head:
            raise FlawedError("CK021", "the file is empty")
        if head.startswith(LOCAL):
            fmt = "torch-zip"
            return read_torch_zip(source) or _other_zip(source)
        if _is_safetensors(source, head):
            from .safetensors import read_safetensors

            fmt = "safetensors"
            return read_safetensors(source)
        return _read_rest(source, head)
    except FlawedError as error:
        checkpoint = Checkpoint(fmt, source.size)
        checkpoint.found.append(error.found)
        return checkpoint


def _is_safetensors(source: Source, head: bytes) -> bool:
    if head[8:9] == b"{":
        return True
    if not source.path.lower().endswith(".safetensors") or not head.strip(b"\0"):
        return False
    from .sniff import sniff

    return sniff(head) is None


def _read_rest(source: Source, head: bytes) -> Checkpoint:
    zeros = 0 if head.strip(b"\0") else _zeros(source)
    if zeros == source.size:
        raise FlawedError("CK021", "all %s of the file are zero" % count_of(zeros, "byte"))
    # A zip whose front is damaged still has its directory at the end.
    if read_directory(source) is not None:
        return read_torch_zip(source) or _other_zip(source)
    if zeros:
        raise FlawedError("CK021", "the file begins with %s" % count_of(zeros, "zero byte"))
    return _read_other(source, head)


def _zeros(source: Source) -> int:
    """Count the zero bytes at the front, as far as they are worth counting."""
    at = 0
    while at < min(source.size, _MAX_ZEROS):
        block = source.read(at, _BLOCK)
        rest = block.lstrip(b"\0")
        at += len(block) - len(rest)
        if rest:
            break
    return at


def _other_zip(source: Source) -> Checkpoint:
    checkpoint = Checkpoint("zip", source.size)
    checkpoint.add("CK024", "it is a zip archive, but not one that torch wrote: it has no data.pkl")
    return checkpoint


def _read_other(source: Source, head: bytes) -> Checkpoint:
    from .old_pickles import is_pickle, may_be_pickle, read_old_pickle
    from .sniff import sniff

    if is_pickle(head):
        return read_old_pickle(source)
    if may_be_pickle(head):
        checkpoint = read_old_pickle(source)
        # A text that begins by chance as a pickle does goes wrong somewhere, but calls nothing on the way.
        if checkpoint.unsupported or any(severity(each) == BAD and each.rule != "CK025" for each in checkpoint.found):
            return checkpoint
    kind = sniff(head)
    checkpoint = Checkpoint(kind.format if kind else "unknown", source.size)
    text = "it is %s" % kind.name if kind else "its first bytes belong to no checkpoint format: %s" % head[:8].hex()
    promising = os.path.splitext(source.path)[1].lower() in _PROMISING
    if kind is not None and kind.checkpoint:
        checkpoint.unsupported = "%s, which can't be audited yet" % text
    elif kind is None and not promising:
        checkpoint.unsupported = text
    else:
        checkpoint.add("CK024", text, next_step=kind.hint if kind and kind.hint else None)
    return checkpoint
