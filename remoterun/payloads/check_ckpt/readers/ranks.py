"""The families of checkpoints with a file for each rank: nanochat's, verl's and Composer's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Dict, List, Set, Tuple

from ..model import MODEL, OPTIMIZER, clean_text
from ..patterns import pattern
from ..rules.rule import SUSPECT
from .folder import Claim
from .members import Members, gaps, matching

if TYPE_CHECKING:
    from ..model import Checkpoint
    from .folder import Folder, Listing

NAME = "ranks"
_NANOCHAT = r"(model|optim|meta)_(\d{1,9})(?:_rank(\d{1,6}))?\.(?:pt|json)"
_COMPOSER = r"(ep\d{1,9}-ba(\d{1,15}))-rank(\d{1,6})\.pt"
_VERL = r"((?:[^/]+/)?)(model|optim|extra_state)_world_size_(\d{1,6})_rank_(\d{1,6})\.pt"
# Folders of a step that hold the networks, each with its own files.
_NETWORK = pattern(r"(?:actor|critic|ref|reward)\w*")


def claim(listing: Listing) -> List[Claim]:
    """Claim what was saved together, by the names."""
    return [*_claim_nanochat(listing), *_claim_composer(listing), *_claim_verl(listing)]


def _claim_nanochat(listing: Listing) -> List[Claim]:
    steps: Dict[str, List[str]] = {}
    for match in matching(_NANOCHAT, listing.files):
        steps.setdefault(match.group(2), []).append(match.group())
    # A model's file with a number may be anybody's.
    return [Claim(step, tuple(sorted(names))) for step, names in sorted(steps.items()) if len(names) > 1]


def _claim_composer(listing: Listing) -> List[Claim]:
    saves: Dict[str, List[str]] = {}
    for match in matching(_COMPOSER, listing.files):
        saves.setdefault(match.group(1), []).append(match.group())
    return [Claim(save, tuple(sorted(names))) for save, names in sorted(saves.items())]


def _claim_verl(listing: Listing) -> List[Claim]:
    inside = {name: folder for name, folder in listing.folders.items() if _NETWORK.fullmatch(name)}
    paths = [*listing.files, *("%s/%s" % (name, file) for name, folder in inside.items() for file in folder.files)]
    files = sorted(match.group() for match in matching(_VERL, paths))
    return [Claim("", (*files, *(["data.pt"] if "data.pt" in listing.files else [])))] if files else []


def read(folder: Folder) -> Checkpoint:
    """Read a claimed checkpoint."""
    if matching(_VERL, folder.files):
        return _read_verl(Members(folder, "verl"))
    if matching(_COMPOSER, folder.files):
        return _read_composer(Members(folder, "composer"))
    return _read_nanochat(Members(folder, "nanochat"))


def _read_nanochat(members: Members) -> Checkpoint:
    checkpoint = members.checkpoint
    found = {match.group(): match for match in matching(_NANOCHAT, members.folder.files)}
    kinds: Dict[str, Set[int]] = {}
    step = ""
    for match in found.values():
        step = match.group(2)
        kinds.setdefault(match.group(1), set()).add(int(match.group(3) or 0))
    if "meta" in kinds:
        _read_meta(members, "meta_%s.json" % step)
    else:
        message = "there is no meta_%s.json, which says how the model is built and how far training was"
        checkpoint.add("CK063", message % step)
    for name, match in sorted(found.items()):
        if match.group(1) == "model":
            members.take(name, MODEL, role=MODEL)
        elif match.group(1) == "optim":
            members.take(name, OPTIMIZER, role=OPTIMIZER)
    if "model" not in kinds:
        members.lack(["model_%s.pt" % step], "file")
    members.lack(("optim_%s_rank%d.pt" % (step, rank) for rank in gaps(kinds.get("optim", set()))), "file")
    return checkpoint


def _read_meta(members: Members, name: str) -> None:
    members.checkpoint.count((members.json(name) or {}).get("step"), "%s: step" % clean_text(name, 100))


def _read_composer(members: Members) -> Checkpoint:
    found = {match.group(): match for match in matching(_COMPOSER, members.folder.files)}
    for name in sorted(found):
        members.take(name, MODEL)
    save = next(iter(found.values())).group(1)
    ranks = {int(match.group(3)) for match in found.values()}
    members.lack(("%s-rank%d.pt" % (save, rank) for rank in gaps(ranks)), "file")
    return members.checkpoint


def _read_verl(members: Members) -> Checkpoint:
    checkpoint = members.checkpoint
    kinds: Dict[Tuple[str, str], Dict[int, Set[int]]] = {}
    for match in sorted(matching(_VERL, members.folder.files), key=lambda each: (len(each.group()), each.group())):
        place, kind, world, rank = match.group(1), match.group(2), int(match.group(3)), int(match.group(4))
        kinds.setdefault((place, kind), {}).setdefault(world, set()).add(rank)
        if kind == "extra_state":
            members.take_along(match.group())
        else:
            role = MODEL if kind == "model" else OPTIMIZER
            members.take(match.group(), role, role=role)
    for (place, kind), worlds in sorted(kinds.items()):
        _judge_ranks(members, place + kind, worlds)
    for place in sorted({place for place, _ in kinds}):
        if (place, "model") not in kinds:
            members.lack(["%smodel_world_size_*_rank_*.pt" % place], "set of files")
    if "data.pt" in members.folder.files:
        members.take_aside("data.pt", "dataloader")
    return checkpoint


def _judge_ranks(members: Members, start: str, worlds: Dict[int, Set[int]]) -> None:
    for world, ranks in sorted(worlds.items()):
        missing = (rank for rank in range(world) if rank not in ranks)
        members.lack(("%s_world_size_%d_rank_%d.pt" % (start, world, rank) for rank in missing), "file")
    if len(worlds) > 1:
        message = "files of %s for %s ranks lie together: some are left over from another run"
        shown = clean_text(os.path.basename(start)), " and ".join(str(world) for world in sorted(worlds))
        members.checkpoint.add("CK064", message % shown, severity=SUSPECT)
