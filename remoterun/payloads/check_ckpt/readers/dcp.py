"""The reader of torch.distributed.checkpoint: a .metadata says where in the .distcp files everything lies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, Optional, Set

from ..model import OPTIMIZER, Checkpoint, Unchecked, clean_text, count_of
from ..patterns import pattern
from ..records import Record
from ..rules.rule import INFO
from .dcp_items import Items
from .dcp_metadata import matched, read_metadata
from .flattened import Names
from .folder import Claim, escapes
from .members import Members

if TYPE_CHECKING:
    from .dcp_metadata import Item, Metadata
    from .folder import Folder, Listing

NAME = "dcp"
_COMMON = ".metadata"
_OF_RANK = pattern(r"__(\d{1,9})\.metadata")
_UNFINISHED = pattern(r"(?:__\d{1,9})?\.metadata\.tmp")
_DATA = pattern(r"__(\d{1,9})_\d{1,9}\.distcp")


# Where OLMo-core has it, and what of a step lies beside it.
_INNER, _BESIDE = "model_and_optim", pattern(r"train/rank\d{1,6}\.pt")
# What Lightning puts there that is neither model nor optimizer.
_REST = "meta.pt"


def claim(listing: Listing) -> List[Claim]:
    """Claim a folder that holds a .metadata, or what is left without one."""
    files = [name for name in listing.files if is_part(name)]
    inner = listing.folders.get(_INNER)
    if inner is not None and not files:
        files = ["%s/%s" % (_INNER, name) for name in inner.files if is_part(name)]
        beside = [name for name, _ in listing.walk() if _BESIDE.fullmatch(name)]
    else:
        beside = [_REST] if _REST in listing.files else []
    return [Claim("", tuple(sorted([*files, *beside])))] if files else []


def is_part(name: str) -> bool:
    """Tell whether a file belongs to such a checkpoint by its name."""
    return name == _COMMON or name.endswith(".distcp") or bool(_OF_RANK.fullmatch(name) or _UNFINISHED.fullmatch(name))


class Distributed(Record):
    """Hold what was read, and the names of all that is no tensor."""

    checkpoint: Checkpoint
    objects: Set[str]


def read(folder: Folder) -> Checkpoint:
    """Read a claimed checkpoint, and what goes with it."""
    members = Members(folder, NAME)
    along = [name for name in folder.files if name == _REST or _BESIDE.fullmatch(name)]
    if any(name.startswith(_INNER + "/") for name in folder.files):
        members.take_folder(_INNER, lambda inner: load(inner).checkpoint)
    else:
        members.checkpoint = load(folder).checkpoint
    for name in along:
        members.take_along(name)
    return members.checkpoint


def load(folder: Folder) -> Distributed:
    """Read a distributed checkpoint, for those who look at its objects, too."""
    checkpoint = Checkpoint("dcp", sum(seen.size for seen in folder.files.values()))
    descriptions = _descriptions(folder, checkpoint)
    checkpoint.decoded = bool(descriptions)
    items = [item for each in descriptions for item in matched(each, checkpoint)]
    tensors = {name: whole._replace(chunks=[]) for each in descriptions for name, whole in each.tensors.items()}
    paths = {name: path for each in descriptions for name, path in each.paths.items()}
    objects = {name for each in descriptions for name in each.objects}
    # There may be very many of all of these: each goes as soon as it has served.
    del descriptions
    referenced = {item.path for item in items}
    placed = _placed(items, folder, checkpoint)
    del items
    reader = Items(folder, checkpoint, Names([*tensors, *sorted(objects)], paths), tensors)
    for path in list(placed):
        reader.read(path, placed.pop(path))
    reader.finish()
    if any(tensor.role == OPTIMIZER for tensor in checkpoint.tensors):
        # Megatron's groups of parameters lie in another file.
        checkpoint.parts.add(OPTIMIZER)
    if checkpoint.decoded:
        _note_unreferenced(folder, checkpoint, referenced)
    return Distributed(checkpoint, objects)


def _descriptions(folder: Folder, checkpoint: Checkpoint) -> List[Metadata]:
    """Read the .metadata, or that of each rank when they saved without each other."""
    own = {match.group(1): name for name in folder.files for match in [_OF_RANK.fullmatch(name)] if match}
    names = [_COMMON] if _COMMON in folder.files else [own[rank] for rank in sorted(own, key=int)]
    _judge_presence(folder, checkpoint, names, set(own))
    found = []
    for name in names:
        with folder.open(name) as source:
            found.append(read_metadata(source, checkpoint, clean_text(name)))
    return [each for each in found if each is not None]


def _judge_presence(folder: Folder, checkpoint: Checkpoint, names: List[str], ranks: Set[str]) -> None:
    unfinished = sorted(name for name in folder.files if _UNFINISHED.fullmatch(name))
    if unfinished:
        message = "the save that wrote %s did not end: it is renamed to %s last" % (unfinished[0], unfinished[0][:-4])
        checkpoint.add("CK066", message, record=unfinished[0])
    elif not names:
        message = "there is no .metadata, which says what the %s hold and is written last"
        checkpoint.add("CK063", message % count_of(len(folder.files), "file"))
    if names and _COMMON not in names:
        writers = {match.group(1) for name in folder.files for match in [_DATA.fullmatch(name)] if match}
        lacking = sorted(writers - ranks, key=int)
        if lacking:
            message = "rank %s wrote data, but no __%s.metadata to say what it is" % (lacking[0], lacking[0])
            checkpoint.truncated = True
            checkpoint.add("CK063", message, ranks=lacking[:20])


def _placed(items: List[Item], folder: Folder, checkpoint: Checkpoint) -> Dict[str, List[Item]]:
    """Sort items by the files that they lie in; say which files are not there or are too short."""
    files: Dict[str, List[Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    placed: Dict[str, List[Item]] = {}
    for path, stored in sorted(files.items()):
        size = _size_of(path, stored, folder, checkpoint)
        if size is None:
            checkpoint.truncated = True
            continue
        placed[path] = [item for item in stored if item.offset + item.length <= size]
        beyond = [clean_text(item.name, 200) for item in stored if item.offset + item.length > size]
        if beyond:
            checkpoint.truncated = True
            message = "%s is cut off at %s, before %s, first: %s"
            shown = clean_text(path), count_of(size, "byte"), count_of(len(beyond), "item"), beyond[0]
            checkpoint.add("CK061", message % shown, file=clean_text(folder.locate(path), 1000), items=beyond[:20])
    return placed


def _size_of(path: str, stored: List[Item], folder: Folder, checkpoint: Checkpoint) -> Optional[int]:
    shown, names = clean_text(path), [clean_text(item.name, 200) for item in stored[:20]]
    if escapes(path):
        message = "its .metadata points out of the checkpoint's folder: %s" % shown
        checkpoint.add("CK104", message, path=shown, items=names)
        return None
    seen = folder.files.get(path)
    if seen is None:
        message = "%s is missing, with %s, first: %s" % (shown, count_of(len(stored), "item"), names[0])
        checkpoint.add("CK060", message, missing=[shown], items=names)
        return None
    return seen.size


def _note_unreferenced(folder: Folder, checkpoint: Checkpoint, referenced: Set[str]) -> None:
    others = [name for name in folder.files if name.endswith(".distcp") and name not in referenced]
    empty = [clean_text(name) for name in others if not folder.files[name].size]
    full = [clean_text(name) for name in others if folder.files[name].size]
    if empty:
        message = "%s without content, to which nothing refers, as ranks without a share leave them: %s"
        checkpoint.add("CK061", message % (count_of(len(empty), "file"), empty[0]), severity=INFO, files=empty[:20])
    for name in full:
        size = folder.files[name].size
        checkpoint.unchecked.append(Unchecked(name, "?", size, "nothing says what it holds", name))
    if full and not checkpoint.truncated:
        message = "%s to which nothing refers, left over from another save: %s" % (count_of(len(full), "file"), full[0])
        checkpoint.add("CK067", message, severity=INFO, files=full[:20])
