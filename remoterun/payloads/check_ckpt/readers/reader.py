"""The choice of a reader, by what a file holds and not by its name.

What torch files don't need is imported when a file does: on a target, all code is compiled anew in each run.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Optional

from ..model import Checkpoint, FlawedError, count_of
from ..rules.catalogue import severity
from ..rules.rule import BAD
from .absence import note_absence
from .archive import LOCAL, read_directory
from .torch_objects import Loaded, bare, decode_pickle
from .torch_zip import read_torch_zip

if TYPE_CHECKING:
    from ..source import Source

_GGUF = b"GGUF"
_BLOCK = 1024 * 1024
# A file that begins with so many zeros is none, whatever follows.
_MAX_ZEROS = 64 * _BLOCK
# What else is written as a zip, by a record that no other has; torch's are below the archive's own folder.
_PROGRAMS = {
    "archive_format": "a program of torch.export",
    ".data/extern_modules": "an archive of torch.package",
    "model.weights.h5": "a Keras model",
}
# What torch ends each of its archives with, also where what was to be saved could not be pickled.
_SAVED = ("byteorder", ".data/serialization_id")
_SAVE_AGAIN = "Go back to the checkpoint before, and look in the log for what torch.save could not pickle."
# What these names promise can't be anything else.
_PROMISING = (".pt", ".pth", ".safetensors")


def read_torch_file(source: Source) -> Loaded:
    """Read a file, most likely one of torch's, for those who look into its pickle, too; a window of a file will do.

    What makes it unreadable is among the findings.

    Raises:
        OSError: when the storage can't give it back.
    """
    head = source.read(0, 512)
    try:
        if not head:
            raise FlawedError("CK021", "the file is empty")
        loaded = _read(source, head)
    except FlawedError as error:
        checkpoint = Checkpoint(_format(source, head), source.size)
        checkpoint.found.append(error.found)
        loaded = bare(source, checkpoint)
    note_absence(source, loaded.checkpoint)
    return loaded


def _format(source: Source, head: bytes) -> str:
    """Name the format of a file as its first bytes do."""
    if head.startswith(LOCAL):
        return "torch-zip"
    if head.startswith(_GGUF):
        return "gguf"
    if head[257:262] == b"ustar":
        return "tar"
    return "safetensors" if _is_safetensors(source, head) else "unknown"


def _read(source: Source, head: bytes) -> Loaded:
    fmt = _format(source, head)
    if fmt == "torch-zip":
        return read_torch_zip(source) or _other_zip(source)
    if fmt == "gguf":
        from .gguf import read_gguf

        return bare(source, read_gguf(source))
    if fmt == "tar":
        from .tar import read_tar

        return read_tar(source)
    if fmt == "safetensors":
        from .safetensors import read_safetensors

        return bare(source, read_safetensors(source))
    return _read_rest(source, head)


def _is_safetensors(source: Source, head: bytes) -> bool:
    if head[8:9] == b"{":
        return True
    if not source.path.lower().endswith(".safetensors") or not head.strip(b"\0"):
        return False
    from .sniff import sniff

    return sniff(head) is None


def _read_rest(source: Source, head: bytes) -> Loaded:
    zeros = 0 if head.strip(b"\0") else _zeros(source)
    if zeros == source.size:
        raise FlawedError("CK021", "all %s of the file are zero" % count_of(zeros, "byte"))
    # A zip whose front is damaged still has its directory at the end.
    if read_directory(source) is not None:
        loaded = read_torch_zip(source) or _other_zip(source)
        _judge_front(source, head, loaded.checkpoint)
        return loaded
    if zeros:
        raise FlawedError("CK021", "the file begins with %s" % count_of(zeros, "zero byte"))
    return _read_other(source, head)


def _judge_front(source: Source, head: bytes, checkpoint: Checkpoint) -> None:
    """Look at a pickle in front of an archive, which is what torch would load."""
    from .old_pickles import is_pickle, may_be_pickle

    if is_pickle(head) or may_be_pickle(head):
        scratch = Checkpoint("", source.size)
        decode_pickle(source, 0, source.size, scratch, "the pickle in front of the archive")
        checkpoint.found += [each for each in scratch.found if each.rule in ("CK100", "CK101")]


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


def _other_zip(source: Source) -> Loaded:
    from .inside import read_zip_of_files

    checkpoint = Checkpoint("zip", source.size)
    directory = read_directory(source)
    entries = directory.entries if directory is not None else []
    below = {part for entry in entries for part in (entry.name, entry.name.partition("/")[2])}
    program = next((text for name, text in _PROGRAMS.items() if name in below), None)
    if directory is not None and program is not None:
        checkpoint.found += directory.found
        checkpoint.unsupported = "it is %s, which can't be audited yet" % program
        return bare(source, checkpoint)
    if directory is not None and not directory.overlaps:
        loaded = read_zip_of_files(source, directory)
        if loaded is not None:
            return loaded
    if any(entry.name.endswith(".npy") for entry in entries) and not _promises(source):
        checkpoint.unsupported = "it holds numpy arrays, which can't be audited yet"
    elif not below.isdisjoint(_SAVED):
        message = "torch.save failed before it had written anything: it has no data.pkl"
        checkpoint.add("CK020", message, next_step=_SAVE_AGAIN)
    else:
        checkpoint.add("CK024", "it is a zip archive, but not one that torch wrote: it has no data.pkl")
    return bare(source, checkpoint)


def _promises(source: Source) -> bool:
    return os.path.splitext(source.path)[1].lower() in _PROMISING


def _read_other(source: Source, head: bytes) -> Loaded:
    return _read_pickles(source, head) or bare(source, _told(source, head))


def _read_pickles(source: Source, head: bytes) -> Optional[Loaded]:
    from .old_pickles import is_pickle, may_be_pickle, read_old_pickle

    if is_pickle(head):
        return read_old_pickle(source)
    if not may_be_pickle(head):
        return None
    loaded = read_old_pickle(source)
    # A text that begins by chance as a pickle does goes wrong somewhere, but calls nothing on the way.
    bad = any(severity(each) == BAD and each.rule not in ("CK020", "CK025") for each in loaded.checkpoint.found)
    return loaded if bad or loaded.decoded is not None else None


def _told(source: Source, head: bytes) -> Checkpoint:
    """Say what a file is that can't be read."""
    from .sniff import sniff

    kind = sniff(head)
    checkpoint = Checkpoint(kind.format if kind else "unknown", source.size)
    text = "it is %s" % kind.name if kind else "its first bytes belong to no checkpoint format: %s" % head[:8].hex()
    promising = _promises(source)
    packed = kind is not None and kind.format == "gzip" and source.path.lower().endswith(".nemo")
    if packed or (kind is not None and kind.checkpoint and not promising):
        checkpoint.unsupported = "%s, which can't be audited yet" % text
    elif kind is None and not promising:
        checkpoint.unsupported = text
    else:
        checkpoint.add("CK024", text, next_step=kind.hint if kind and kind.hint else None)
    return checkpoint
