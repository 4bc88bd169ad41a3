"""The family of Megatron-LM's checkpoints: a folder for each rank of the model, or a distributed checkpoint."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Iterator, List, Set, Tuple

from ..model import MASTER, MODEL, OPTIMIZER, clean_text
from ..patterns import pattern
from ..pickles.nodes import string_items
from ..pickles.rebuild import is_count
from ..rules.rule import INFO
from . import dcp
from .folder import Claim
from .members import Members, matching

if TYPE_CHECKING:
    from ..model import Checkpoint
    from .folder import Folder, Listing
    from .torch_objects import Loaded

NAME = "megatron"
_RANK = r"mp_rank_(\d{2,4})(?:_(\d{3,4}))?(?:_(\d{3,4}))?"
_MODEL = r"(?:model_optim_rng|model_rng)\.pt"
_OPTIMIZER = r"(?:distrib_optim|layer_wise_optimizer_\d{1,6})\.pt"
_OF_RANK = r"(%s)/(?:(%s)|(%s))" % (_RANK, _MODEL, _OPTIMIZER)
_MANIFEST = "integrity.json"
_DIGEST = pattern(r"[0-9a-fA-F]{64}")
_COMMON = "common.pt"
_CONFIG = "metadata.json"
_ARRAY = ".zarray"
# Newer ones have what all ranks share as an object among the others.
_SHARED = "common_state/"
_SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size")
_MOST_RANKS = 10_000


def claim(listing: Listing) -> List[Claim]:
    """Claim the folder of one iteration."""
    ranks = [match.group() for match in matching(_OF_RANK, _paths(listing))]
    if ranks:
        return [Claim("", tuple(sorted(ranks)))]
    own = [name for name in (_COMMON, _CONFIG, _MANIFEST) if name in listing.files]
    arrays = {name for name, inner in listing.folders.items() if _ARRAY in inner.files}
    parts = [name for name in _paths(listing) if name.partition("/")[0] in arrays]
    parts += filter(dcp.is_part, listing.files)
    return [Claim("", tuple(sorted([*own, *parts])))] if own and parts else []


def _paths(listing: Listing) -> Iterator[str]:
    for name, inner in listing.folders.items():
        for file in inner.files:
            yield "%s/%s" % (name, file)


def read(folder: Folder) -> Checkpoint:
    """Read a claimed checkpoint."""
    if matching(_OF_RANK, folder.files):
        ranks = _Ranks(Members(folder, NAME))
        ranks.read()
        ranks.judge()
        return ranks.checkpoint
    return _read_distributed(folder)


# --- a folder for each rank ------------------------------------------------------------------------------------------


class _Ranks:
    def __init__(self, members: Members) -> None:
        self._members = members
        self.checkpoint = members.checkpoint
        self._found = {match.group(): match for match in matching(_OF_RANK, members.folder.files)}
        self._places = {tuple(each for each in match.groups()[1:4] if each) for match in self._found.values()}
        self._read = 0
        self._sizes: List[int] = []

    def read(self) -> None:
        """Read every file, of which the first speaks for all."""
        for name, match in sorted(self._found.items()):
            start = "" if len(self._places) == 1 else match.group(1) + "."
            part = MODEL if match.group(5) else OPTIMIZER
            role = OPTIMIZER if match.group(6) else None
            self._members.take(name, part, role=role, look=partial(self._look, name, start))

    def _look(self, name: str, start: str, loaded: Loaded) -> None:
        inner = loaded.checkpoint
        for index, tensor in enumerate(inner.tensors):
            # The distributed optimizer calls its copy of the weights "param".
            own = self._found[name].group(6) and tensor.key == "param"
            role = MASTER if own else tensor.role
            inner.tensors[index] = tensor._replace(name=clean_text(start + tensor.name), role=role)
        if self._read:
            # Every file has the same, and one of them is enough.
            inner.schedulers, inner.scalers = [], []
        self._read += 1
        options = dict(string_items(loaded.entries.get("args")))
        sizes = [loaded.number(options.get(key)) for key in _SIZES]
        self._sizes = self._sizes or [size if is_count(size) else 1 for size in sizes if _SIZES[0] in options]

    def judge(self) -> None:
        """Say which ranks are missing."""
        suffixes = {match.group()[len(match.group(1)) + 1 :] for match in self._found.values() if match.group(5)}
        others = {match.group()[len(match.group(1)) + 1 :] for match in self._found.values() if match.group(6)}
        expected = self._expected(self._places)
        names = suffixes or {"model_optim_rng.pt"}
        every = ("mp_rank_%s/%s" % ("_".join(place), name) for place in sorted(expected) for name in names | others)
        self._members.lack((name for name in every if name not in self._found), "file of a rank")

    def _expected(self, places: Set[Tuple[str, ...]]) -> Set[Tuple[str, ...]]:
        """Return every combination of the ranks: as far as they go, or as the arguments of the run say."""
        length = max(map(len, places))
        widths = [max(len(place[at]) for place in places if len(place) > at) for at in range(length)]
        counts = [1 + max(int(place[at]) for place in places if len(place) > at) for at in range(length)]
        # A second number is of pipelines or, without those, of experts.
        sizes = [size for number, size in enumerate(self._sizes) if number == 0 or size > 1]
        if len(sizes) == length:
            counts = [max(pair) for pair in zip(counts, sizes)]
        # All numbers of each dimension are kept in memory.
        ranks = itertools.product(*(range(min(count, _MOST_RANKS)) for count in counts))
        named = (tuple("%0*d" % pair for pair in zip(widths, place)) for place in itertools.islice(ranks, _MOST_RANKS))
        return set(named)


# --- distributed -----------------------------------------------------------------------------------------------------


def _read_distributed(folder: Folder) -> Checkpoint:
    members = Members(folder, "megatron-dist")
    shared = False
    if any(name.endswith("/" + _ARRAY) for name in folder.files):
        members.checkpoint.unsupported = "it keeps its tensors as zarr arrays, whose values can't be checked"
    else:
        loaded = dcp.load(folder)
        members.checkpoint = loaded.checkpoint
        loaded.checkpoint.format = "megatron-dist"
        shared = any(name.startswith(_SHARED) for name in loaded.objects)
    checkpoint = members.checkpoint
    backend = (members.json(_CONFIG) or {}).get("sharded_backend") if _CONFIG in folder.files else None
    if isinstance(backend, str) and backend not in ("torch_dist", "zarr"):
        message = "its tensors are kept by a backend that is not known here (%s)"
        checkpoint.unsupported = checkpoint.unsupported or message % clean_text(backend, 50)
    lacking = [name for name in (_CONFIG, _COMMON) if name not in folder.files and not (name == _COMMON and shared)]
    for name in lacking:
        checkpoint.add("CK063", "there is no %s, without which Megatron-LM can't load it" % name)
    if _COMMON in folder.files:
        members.take_along(_COMMON)
    if _MANIFEST in folder.files:
        _note_manifest(members)
    return checkpoint


def _note_manifest(members: Members) -> None:
    """Note what an integrity.json, as Megatron-LM writes it, says of the files beside it."""
    checkpoint, folder = members.checkpoint, members.folder
    root = members.json(_MANIFEST)
    if root is None:
        return
    files = root.get("files")
    if not isinstance(files, dict) or not all(isinstance(each, str) for each in files.values()):
        checkpoint.add("CK025", "%s does not say which file has which digest" % _MANIFEST)
        return
    algorithm = root.get("algorithm", "sha256")
    if algorithm != "sha256" or not all(map(_DIGEST.fullmatch, files.values())):
        message = "its digests are not of a kind that is known here (%s), so they were not compared"
        checkpoint.add("CK029", message % clean_text(str(algorithm), 50), severity=INFO)
        return
    if members.escape(files, _MANIFEST):
        return
    listed = {name: digest.lower() for name, digest in files.items()}
    members.lack((name for name in listed if name not in folder.files), "file of %s" % _MANIFEST)
    checkpoint.digests.update({folder.number(name): listed[name] for name in listed if name in folder.files})
