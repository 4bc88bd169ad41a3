"""The family of DeepSpeed's checkpoints: the model's files and, with ZeRO, those of every rank's share."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Optional, Set, Tuple

from ..model import MODEL, OPTIMIZER, OTHER, clean_text, count_of, row_major
from ..patterns import pattern
from ..pickles.rebuild import is_count
from ..records import Record
from ..rules.rule import INFO, SUSPECT
from .folder import Claim
from .members import Members, matching
from .universal import Parameters, parts
from .zero import Shaped, Shards, frozen_shares, shapes_of

if TYPE_CHECKING:
    from ..model import Checkpoint, Number
    from .folder import Folder, Listing
    from .torch_objects import Loaded

NAME = "deepspeed"
_MODEL = r"(?:zero_pp_rank_(\d{1,6})_)?mp_rank_(\d{1,6})_model_states\.pt"
_LAYER = r"layer_(\d{1,6})-model_(\d{1,6})-model_states\.pt"
_EXPERT = r"((?:layer_\d{1,6}_)?expert)_(\d{1,6})_mp_rank_(\d{1,6})_model_states\.pt"
_OPTIMIZER = r"((?:bf16_|fp16_)?zero_pp_rank_)(\d{1,6})_mp_rank_(\d{1,6})_?optim_states\.pt"
_EXPERT_OPTIMIZER = r"expp_rank_(\d{1,6})_mp_rank_(\d{1,6})_optim_states\.pt"
_KNOWN = pattern("|".join((_MODEL, _LAYER, _EXPERT, _OPTIMIZER, _EXPERT_OPTIMIZER)))
_MODULE = "module."
_HALVES = ("bfloat16", "float16")


def claim(listing: Listing) -> List[Claim]:
    """Claim a folder of one step."""
    files = [name for name in listing.files if _KNOWN.fullmatch(name)] + parts(listing)
    return [Claim("", tuple(sorted(files)))] if files else []


def read(folder: Folder) -> Checkpoint:
    """Read a claimed checkpoint."""
    reader = _Reader(Members(folder, NAME))
    reader.read_models()
    reader.read_shares()
    reader.parameters.read()
    reader.judge()
    return reader.checkpoint


class _Model(Record):
    """Keep what a model's file says of the whole checkpoint; `rank` is None unless each rank has one, as in ZeRO-3."""

    rank: Optional[int]
    mp_rank: int
    ranks: Optional[int]
    mp_ranks: Optional[int]
    shapes: Optional[List[List[Shaped]]]


class _Reader:
    def __init__(self, members: Members) -> None:
        self._members = members
        self.checkpoint = members.checkpoint
        self.parameters = Parameters(members)
        self._names = members.folder.files
        self._models: Dict[str, _Model] = {}
        self._shards: Dict[int, Shards] = {}
        # By rank of the model and name, the weights that training rounds from those of the optimizer.
        self._weights: Dict[int, Dict[str, int]] = {}
        self._placeholders = 0

    def read_models(self) -> None:
        """Read the model's files, of which the first speaks for all."""
        for match in _in_order(_MODEL, self._names):
            self._members.take(match.group(), MODEL, look=partial(self._look_at_model, match))
        for match in _in_order(_LAYER, self._names):
            self._members.take(match.group(), MODEL, role=MODEL, look=partial(_prefix, "layer_%s." % match.group(1)))
        for match in _in_order(_EXPERT, self._names):
            self._members.take(match.group(), MODEL, role=MODEL)

    def read_shares(self) -> None:
        """Read what each rank has of the optimizer."""
        for match in _in_order(_OPTIMIZER, self._names):
            mp_rank = int(match.group(3))
            weights = self._weights.get(mp_rank, {})
            shards = self._shards.setdefault(mp_rank, Shards(self.checkpoint, self._shapes(mp_rank), weights))
            look = partial(shards.look, int(match.group(2)))
            self._members.take(match.group(), OPTIMIZER, look=look)
        for match in _in_order(_EXPERT_OPTIMIZER, self._names):
            self._members.take(match.group(), OPTIMIZER, role=OPTIMIZER)

    def _shapes(self, mp_rank: int) -> List[List[Shaped]]:
        known = [each.shapes for each in self._models.values() if each.mp_rank == mp_rank and each.shapes]
        return known[0] if known else []

    # --- the model's files -------------------------------------------------------------------------------------------

    def _look_at_model(self, match: "re.Match[str]", loaded: Loaded) -> None:
        inner = loaded.checkpoint
        root = loaded.entries
        rank, mp_rank = match.group(1), int(match.group(2))
        shapes = None if root.get("param_shapes") is None else shapes_of(root["param_shapes"])
        ranks, mp_ranks = (loaded.number(root.get(key)) for key in ("dp_world_size", "mp_world_size"))
        if self._models:
            # Every file has the same, and one of them is enough.
            inner.schedulers, inner.scalers = [], []
        known = None if rank is None else int(rank)
        self._models[match.group()] = _Model(known, mp_rank, _count(ranks), _count(mp_ranks), shapes)
        if known is not None:
            self._look_at_placeholders(known, mp_rank, root, loaded)
            return
        before = len(self.checkpoint.tensors)
        self._weights[mp_rank] = {
            tensor.name[len(_MODULE) :]: before + index
            for index, tensor in enumerate(inner.tensors)
            if tensor.name.startswith(_MODULE)
            and tensor.dtype.name in _HALVES
            and tensor.stride == row_major(tensor.shape)
        }

    def _look_at_placeholders(self, rank: int, mp_rank: int, root: Dict[str, Any], loaded: Loaded) -> None:
        """Sort out a model's file of ZeRO-3: placeholders, small weights and buffers in full, shares of frozen ones."""
        inner = loaded.checkpoint
        frozen = frozen_shares(root.get("frozen_param_shapes"), inner.tensors, rank, self._ranks() or 1)
        named = {_MODULE + param.name for group in self._shapes(mp_rank) for param in group}
        kept = []
        for tensor in inner.tensors:
            if tensor.name in frozen:
                kept += frozen[tensor.name]
                continue
            empty = tensor.role == MODEL and not tensor.numel
            self._placeholders += empty
            if tensor.role == MODEL and tensor.dtype.floating and (rank or tensor.name in named):
                # Each rank has the buffers, and small weights beside what the optimizer has of them.
                inner.copied += tensor.numel
            kept.append(tensor._replace(role=OTHER) if empty else tensor)
        inner.tensors = kept

    # --- all together ------------------------------------------------------------------------------------------------

    def judge(self) -> None:
        """Say what is missing, and what does not go together."""
        self._judge_files()
        for mp_rank, shards in sorted(self._shards.items()):
            shards.judge("" if len(self._shards) == 1 else "mp_rank_%02d" % mp_rank)
        if self._placeholders:
            kept = self.parameters.found or any(shards.stage == 3 for shards in self._shards.values())
            self._judge_placeholders(kept)

    def _judge_placeholders(self, kept: bool) -> None:
        """Say where the weights are that the model's files only hold a place for."""
        message = "%s of the model's files are placeholders of ZeRO-3, whose weights %s"
        where = "are in the optimizer's files" if kept else "would be in the optimizer's files, none of which is there"
        hint = "Nothing to do; zero_to_fp32.py puts the weights together where one file is needed."
        text = message % (count_of(self._placeholders, "tensor"), where)
        self.checkpoint.add("CK009", text, severity=INFO if kept else None, next_step=hint if kept else None)

    def _ranks(self) -> Optional[int]:
        counts = [shards.ranks for shards in self._shards.values() if shards.ranks]
        counts = counts or [model.ranks for model in self._models.values() if model.ranks]
        return max(counts) if counts else None

    def _judge_files(self) -> None:
        self._members.lack(self._missing(), "file of a rank")
        ranks = self._ranks()
        extra = [each.group() for each in matching(_OPTIMIZER, self._names) if ranks and int(each.group(2)) >= ranks]
        if extra:
            message = "%s of more ranks than the %d that saved it, left over from another save: %s"
            shown = count_of(len(extra), "file"), ranks, sorted(extra)[0]
            self.checkpoint.add("CK064", message % shown, severity=SUSPECT, files=sorted(extra)[:20])

    def _missing(self) -> Iterator[str]:
        models, optimizers = self._models.values(), matching(_OPTIMIZER, self._names)
        per_rank = any(model.rank is not None for model in models)
        sharded = per_rank or any(model.shapes is not None for model in models)
        mp_ranks = [model.mp_rank for model in models] + [int(each.group(3)) for each in optimizers]
        start = optimizers[0].group(1) if optimizers else "zero_pp_rank_"
        there = {(int(each.group(2)), int(each.group(3))) for each in optimizers}
        counts = [model.mp_ranks or 1 for model in models] + [number + 1 for number in mp_ranks]
        shared = bool(optimizers) or (sharded and not self.parameters.found)
        # Files may say any number of ranks: each that is counted here is there or is told.
        ranks = (self._ranks() or 0) if per_rank or shared else 0
        for mp_rank in range(max(counts, default=1)) if ranks or not per_rank else ():
            if not per_rank and "mp_rank_%02d_model_states.pt" % mp_rank not in self._names:
                yield "mp_rank_%02d_model_states.pt" % mp_rank
            for rank in range(ranks):
                name = "zero_pp_rank_%d_mp_rank_%02d_model_states.pt" % (rank, mp_rank)
                if per_rank and name not in self._names:
                    yield name
                if shared and (rank, mp_rank) not in there:
                    yield "%s%d_mp_rank_%02d_optim_states.pt" % (start, rank, mp_rank)
        yield from _missing_parts(matching(_LAYER, self._names), "layer_%s-model_%s-model_states.pt")
        yield from _missing_parts(matching(_EXPERT, self._names), "%s_%s_mp_rank_%s_model_states.pt")


def _missing_parts(found: List["re.Match[str]"], name: str) -> Iterator[str]:
    """Name the parts of layers that other layers have; those without weights or experts have no file at all."""
    parts: Dict[str, Set[Tuple[str, ...]]] = {}
    for match in found:
        layer, *rest = match.groups()
        parts.setdefault(layer, set()).add(tuple(rest))
    every = set().union(*parts.values()) if parts else set()
    return (name % (layer, *part) for layer, known in parts.items() for part in every - known)


def _in_order(pattern: str, names: Iterable[str]) -> List["re.Match[str]"]:
    """Return the matches by their numbers."""
    return sorted(matching(pattern, names), key=lambda match: [int(each) for each in re.findall(r"\d+", match.group())])


def _count(number: Optional[Number]) -> Optional[int]:
    return number if is_count(number) else None


def _prefix(start: str, loaded: Loaded) -> None:
    inner = loaded.checkpoint
    inner.tensors = [tensor._replace(name=clean_text(start + tensor.name)) for tensor in inner.tensors]
    inner.unchecked = [each._replace(name=clean_text(start + each.name)) for each in inner.unchecked]
