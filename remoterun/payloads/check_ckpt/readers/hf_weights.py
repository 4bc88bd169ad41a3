"""Weights as Hugging Face libraries save them: one file, or numbered shards and an index that maps names to them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Set, Tuple

from ..model import MODEL, OTHER, FlawedError, Found, clean_text, count_of
from ..patterns import pattern
from ..records import Record
from ..rules.rule import INFO, SUSPECT
from ..source import NotRegularError
from .folder import Folder
from .members import matching
from .small_json import read_json

if TYPE_CHECKING:
    from .folder import Listing
    from .members import Members

_STEM = (
    r"(?:model|pytorch_model|diffusion_pytorch_model|adapter_model|pytorch_lora_weights|pytorch_model_fsdp)"
    r"(?:_\d{1,4})?(?:\.\w{1,16})?"
)
_SINGLE = r"(%s)\.(safetensors|bin)" % _STEM
_SHARD = r"(.+?)-(\d{1,6})-of-(\d{1,6})(\.\w{1,16})?\.(safetensors|bin)"
# That of an optimizer, as ColossalAI writes it, names no tensors.
_INDEX = r"(?!.*optim)(.+)\.(safetensors|bin)\.index((?:\.\w{1,16})?)\.json"
_MODULE = pattern(r"\d{1,3}_\w{1,40}")
# What one finding lists.
_MOST_NAMES = 20
# What describes a model beside its weights. Without the first, they are not loaded.
_CONFIG = "config.json"
CONFIGS = frozenset((_CONFIG, "generation_config.json", "tokenizer_config.json"))
# What names the folders of a model's further layers.
MODULES = "modules.json"
_COPY = "Copy this file from another checkpoint of the same model: no weights are in it."


class Weights(Record):
    """Name the files of one set of weights: a single one, or shards of which there should be so many."""

    stem: str
    extension: str
    files: Tuple[str, ...]
    index_file: str = ""
    promised: int = 1

    @property
    def is_sharded(self) -> bool:
        """Tell whether the files are shards of one model; without an index, those of anything may be called so."""
        return bool(self.index_file) or (self.promised > 1 and re.fullmatch(_STEM, self.stem) is not None)

    @property
    def all_files(self) -> Tuple[str, ...]:
        """Return the files with the index."""
        return (*self.files, self.index_file) if self.index_file else self.files


def weights_of(listing: Listing) -> List[Weights]:
    """Return the sets of weights that a folder holds."""
    indexed = any(re.fullmatch(_INDEX, name) for name in listing.files)
    return find_weights(Folder(listing.path, dict(listing.walk()) if indexed else listing.files))


def find_weights(folder: Folder) -> List[Weights]:
    """Return the sets of weights among files."""
    listed = sorted(name for name in folder.files if "/" not in name)
    # One file is loaded before shards of the same name.
    single = {(match.group(1), match.group(2)): match.group() for match in matching(_SINGLE, listed)}
    sets = {key: Weights(*key, (name,)) for key, name in single.items()}
    shards: Dict[Tuple[str, str], List["re.Match[str]"]] = {}
    for match in matching(_SHARD, listed):
        shards.setdefault((match.group(1) + (match.group(4) or ""), match.group(5)), []).append(match)
    for key, found in shards.items():
        promised = max(int(match.group(3)) for match in found)
        sets.setdefault(key, Weights(*key, tuple(match.group() for match in found), promised=max(1, promised)))
    for match in matching(_INDEX, listed):
        key = match.group(1) + match.group(3), match.group(2)
        named = _places(folder, match.group()) if key not in sets else None
        files = tuple(sorted(set((named or {}).values()).intersection(folder.files)))
        if key not in single:
            sets[key] = sets.get(key, Weights(*key, files))._replace(index_file=match.group())
    return list(sets.values())


def modules_of(listing: Listing) -> List[str]:
    """Return the folders in which a model of sentence-transformers keeps the weights of its later layers."""
    if MODULES not in listing.files:
        return []
    folders = listing.folders.items()
    return sorted(name for name, inner in folders if _MODULE.fullmatch(name) and any(weights_of(inner)))


def preferred(sets: List[Weights]) -> List[Weights]:
    """Return those that loaders take where a folder has several formats."""
    safe = [each for each in sets if each.extension == "safetensors"]
    return safe or sets


def read_configs(members: Members) -> None:
    """Read the descriptions of a model that are there; weights kept alone need none."""
    for name in sorted(CONFIGS.intersection(members.folder.files)):
        read_config(members, name, severity=None if name == _CONFIG else SUSPECT)


def read_config(members: Members, name: str, *, severity: Optional[str] = None) -> Dict[str, Any]:
    """Return a description, which is a JSON object; an empty one for what is none, which is told."""
    try:
        root = read_json(members.folder, name).root
        if isinstance(root, dict):
            return root
        path = clean_text(members.folder.locate(name), 1000)
        found = Found("CK025", "%s is no JSON object" % name, {"file": path})
    except FlawedError as error:
        found = error.found
    members.checkpoint.found.append(found._replace(severity=severity or found.severity, next_step=_COPY))
    return {}


def read_weights(members: Members, weights: Weights) -> Set[str]:
    """Read a set of weights and hold its index against what the shards hold; return the tensors' names."""
    index = _Index(members, weights.index_file) if weights.index_file else None
    held: Dict[str, Set[str]] = {}
    for name in weights.files:
        left_over = index is not None and index.leaves_out(name)
        member = members.take(name, MODEL, role=OTHER if left_over else MODEL)
        if member.decoded:
            names = [*(tensor.name for tensor in member.tensors), *(each.name for each in member.unchecked)]
            held[name] = set(names).union(member.empty)
    if index is not None:
        index.judge(set(weights.files), held)
    elif weights.promised > 1:
        _judge_numbers(members, weights)
    return {name for names in held.values() for name in names}


def _judge_numbers(members: Members, weights: Weights) -> None:
    """Count shards that no index names."""
    numbers = {int(match.group(2)) for match in matching(_SHARD, weights.files)}
    missing = [number for number in range(1, min(weights.promised, 10_000) + 1) if number not in numbers]
    names = ["%s-%05d-of-%05d.%s" % (weights.stem, number, weights.promised, weights.extension) for number in missing]
    members.lack(names, "shard")
    message = "the shards of %s have no index (%s.%s.index.json), without which they are not loaded"
    members.checkpoint.add("CK063", message % (clean_text(weights.stem), clean_text(weights.stem), weights.extension))


class _Index:
    """Hold an index against the shards; `places` says for each tensor which file it is in, None when nothing can."""

    def __init__(self, members: Members, name: str) -> None:
        self._members = members
        self._checkpoint = members.checkpoint
        self._shown = clean_text(name)
        self._total: object = None
        self._places: Optional[Dict[str, str]] = None
        self._files: Set[str] = set()
        try:
            document = read_json(members.folder, name)
        except FlawedError as error:
            self._checkpoint.found.append(error.found)
            return
        self._places = _weight_map(document.root)
        path = clean_text(members.folder.locate(name), 1000)
        if self._places is None:
            self._checkpoint.add("CK025", "%s has no weight_map that names files" % self._shown, file=path)
            return
        self._files = set(self._places.values())
        metadata = document.root.get("metadata")
        self._total = metadata.get("total_size") if isinstance(metadata, dict) else None
        if document.repeated:
            names = [clean_text(name) for name in document.repeated]
            message = "%s names %s twice; readers take the last" % (self._shown, names[0])
            self._checkpoint.add("CK025", message, severity=SUSPECT, file=path, tensors=names)

    def leaves_out(self, file: str) -> bool:
        """Tell whether no tensor is in a file."""
        return self._places is not None and file not in self._files

    def judge(self, present: Set[str], held: Dict[str, Set[str]]) -> None:
        """Find what is missing, what is too much, and what is elsewhere; `held` has the names in what could be read."""
        if self._places is None:
            return
        files = self._files
        escaping = self._members.escape(files, self._shown)
        self._members.lack(files.difference(present, escaping), "file of the index")
        self._judge_names(self._places, held)
        extra = sorted(present - files)
        if extra:
            message = "%s that the index does not name, left over from another save: %s"
            listed = [clean_text(name) for name in extra[:_MOST_NAMES]]
            message %= count_of(len(extra), "shard"), listed[0]
            self._checkpoint.add("CK064", message, severity=SUSPECT, files=listed)
        self._judge_size()

    def _judge_names(self, places: Dict[str, str], held: Dict[str, Set[str]]) -> None:
        """Look for each tensor where the index says that it is."""
        lost = [name for name, file in places.items() if file in held and clean_text(name) not in held[file]]
        if lost:
            message = "the index puts %s into %s, which does not have it"
            self._tell(message % (clean_text(lost[0]), clean_text(places[lost[0]])), lost, None)
        known: Dict[str, Set[str]] = {}
        for name, file in places.items():
            known.setdefault(file, set()).add(clean_text(name))
        extra = [name for file, names in held.items() if file in known for name in sorted(names - known[file])]
        if extra:
            self._tell("%s is in a shard, but not in the index, so it is never loaded" % extra[0], extra, SUSPECT)

    def _tell(self, message: str, names: List[str], severity: Optional[str]) -> None:
        more = " (and %s more)" % format(len(names) - 1, ",") if len(names) > 1 else ""
        listed = [clean_text(name) for name in names[:_MOST_NAMES]]
        self._checkpoint.add("CK064", message + more, severity=severity, tensors=listed, count=len(names))

    def _judge_size(self) -> None:
        """Hold the total against the tensors; writers that count tied weights twice get it wrong."""
        checkpoint, total = self._checkpoint, self._total
        if not isinstance(total, (int, float)) or isinstance(total, bool) or checkpoint.truncated:
            return
        size = sum((tensor.numel * tensor.dtype.bits + 7) // 8 for tensor in checkpoint.tensors if tensor.role == MODEL)
        if total != size and not checkpoint.unchecked:
            message = "the index claims %s of weights, the shards hold %s"
            told = "%s bytes" % clean_text(str(total), 30), count_of(size, "byte")
            checkpoint.add("CK064", message % told, severity=INFO)


def _places(folder: Folder, index: str) -> Optional[Dict[str, str]]:
    try:
        return _weight_map(read_json(folder, index).root)
    except (FlawedError, OSError, NotRegularError):
        return None


def _weight_map(root: object) -> Optional[Dict[str, str]]:
    places = root.get("weight_map") if isinstance(root, dict) else None
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        return None
    return places
