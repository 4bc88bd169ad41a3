"""Files of torch, and safetensors, inside an archive: they are read where they lie, and nothing is unpacked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Optional

from ..find.names import is_checkpoint
from ..model import Checkpoint, FlawedError, Unchecked, clean_text
from .archive import LOCAL
from .old_pickles import is_pickle, read_old_pickle
from .torch_objects import Loaded, bare
from .torch_zip import read_torch_zip

if TYPE_CHECKING:
    from ..source import Source
    from .archive import Directory, Entry

MAX_CHECKPOINTS = 16
# Stable-Baselines3 keeps its own version in each of its files, and how far training was among the settings.
_BASELINES = "_stable_baselines3_version"
_SETTINGS, _STEPS = "data", re.compile(rb'"num_timesteps": (\d{1,15})\b')
_MOST_SETTINGS = 4 << 20


def read_inside(source: Source, name: str, offset: int, size: int, checkpoint: Checkpoint) -> Optional[Loaded]:
    """Read a member of an archive and take over what is found; None when nothing can be read of it."""
    window, shown = source.window(offset, size), clean_text(name, 100)
    head, loaded = window.read(0, 4), None
    try:
        if head == LOCAL:
            loaded = read_torch_zip(window)
        elif is_pickle(head):
            loaded = read_old_pickle(window)
        elif name.endswith(".safetensors"):
            from .safetensors import read_safetensors

            loaded = bare(window, read_safetensors(window))
    except FlawedError as error:
        checkpoint.found.append(error.found)
    if size > window.size:
        checkpoint.truncated = True
        checkpoint.add("CK020", "the archive is cut off inside its member %s" % shown, member=shown)
    if loaded is not None:
        _join(checkpoint, loaded.checkpoint)
    elif may_hold_weights(name, head):
        checkpoint.unchecked.append(Unchecked(shown, "?", window.size, "its format can't be read", "at %d" % offset))
    return loaded


def may_hold_weights(name: str, head: bytes) -> bool:
    """Tell whether a member of an archive is to be read, by its name or its first bytes."""
    return head == LOCAL or is_pickle(head) or is_checkpoint(name.rpartition("/")[2])


def _join(checkpoint: Checkpoint, inner: Checkpoint) -> None:
    checkpoint.absorb(inner, 0)
    checkpoint.decoded = checkpoint.decoded or inner.decoded
    checkpoint.truncated = checkpoint.truncated or inner.truncated
    checkpoint.step = inner.step if checkpoint.step is None else checkpoint.step
    checkpoint.epoch = inner.epoch if checkpoint.epoch is None else checkpoint.epoch


def read_zip_of_files(source: Source, directory: Directory) -> Optional[Loaded]:
    """Read a zip archive of torch files, as Stable-Baselines3 writes it; None when it is none."""
    names = {entry.name for entry in directory.entries}
    saved = [entry for entry in directory.entries if may_hold_weights(entry.name, entry.head)]
    if _BASELINES not in names and not any(entry.head == LOCAL or is_pickle(entry.head) for entry in saved):
        return None
    checkpoint = Checkpoint("stable-baselines3" if _BASELINES in names else "zip", source.size)
    checkpoint.found += directory.found
    last, left = bare(source, checkpoint), len(saved) + directory.packed
    for entry in saved[:MAX_CHECKPOINTS]:
        loaded = read_inside(source, entry.name, entry.offset, entry.size, checkpoint)
        if loaded is not None:
            last, left = loaded, left - 1
    for entry in directory.entries:
        if entry.name == _SETTINGS and _BASELINES in names:
            _read_settings(source, entry, checkpoint)
    if left and not checkpoint.truncated:
        checkpoint.unsupported = "it is a zip archive, and not every one of its members could be audited"
    return last._replace(checkpoint=checkpoint)


def _read_settings(source: Source, entry: Entry, checkpoint: Checkpoint) -> None:
    told = _STEPS.search(source.read(entry.offset, min(entry.size, _MOST_SETTINGS)))
    if told is not None:
        checkpoint.count(int(told.group(1)), "data: num_timesteps")
