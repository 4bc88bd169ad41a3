"""The family of training states that transformers' Trainer and accelerate save: a folder with a file for each part."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Iterator, List, Optional, Set, Tuple

from ..find.names import step_in_name
from ..model import EMA, OPTIMIZER, FlawedError, Found, Progress, clean_text, count_of
from ..patterns import pattern
from ..pickles.layout import role_of
from ..records import Record
from ..rules.rule import INFO, SUSPECT
from ..scan.spans import claim as claim_bytes
from . import families
from .folder import Claim
from .hf_adapter import ADAPTER, CONFIG, adapters, read_adapter
from .hf_weights import CONFIGS, MODULES, find_weights, modules_of, preferred, read_configs, read_weights, weights_of
from .members import Members, gaps, matching
from .small_json import read_json

if TYPE_CHECKING:
    from ..model import Checkpoint
    from .folder import Folder, Listing
    from .hf_weights import Weights

NAME = "hf-trainer"
_ACCELERATE = "accelerate"
_STATE = "trainer_state.json"
_COUNTER = _STATE + ": global_step"
_ARGUMENTS = "training_args.bin"
_OPTIMIZER = r"optimizer(?:_\d{1,4})?\.(?:pt|bin)"
_RNG = r"(?:rng_state(?:_(\d{1,6}))?\.pth|random_states_(\d{1,6})\.pkl)"
# Files that go with the weights and the optimizer, and the part that each is.
_ALONG = (
    ("scheduler", r"scheduler(?:_\d{1,4})?\.(?:pt|bin)"),
    ("scaler", r"scaler\.pt"),
    ("rng", _RNG),
    ("dataloader", r"(?:sampler|dl_state_dict)(?:_\d{1,4})?\.bin"),
    ("", r"training_args\.bin|custom_checkpoint_\d{1,4}\.pkl"),
)
_HEAD = 1 << 16
# Folders in which sharded training keeps a part: DeepSpeed's, and those of torch.distributed.checkpoint.
_INNER = pattern(r"global_step\d{1,15}|(?:pytorch_model|optimizer)(?:_fsdp)?(?:_\d{1,4})?")
_WEIGHTS = ("hf_model", "hf_adapter")


class _Inner(Record):
    """Name a folder inside that holds a part, the family that it is of, and its files."""

    name: str
    family: str
    files: Tuple[str, ...]

    @property
    def role(self) -> Optional[str]:
        """Return the role of what it holds beside the model, None of the model's weights."""
        role = role_of(self.name)
        return role if role in (OPTIMIZER, EMA) else None


def claim(listing: Listing) -> List[Claim]:
    """Claim a folder that holds the state of a trainer: weights, an optimizer, and what goes with them."""
    names = set(listing.files)
    if not _is_trainer(names) and not _is_accelerate(names):
        return []
    sets = _chosen(weights_of(listing))
    files = {name for each in sets for name in each.all_files}
    files.update(match.group() for match in matching(_OPTIMIZER, names))
    files.update("%s/%s" % (inner.name, file) for inner in _inner(listing, sets) for file in inner.files)
    if not files:
        return []
    files.update(match.group() for _, pattern in _ALONG for match in matching(pattern, names))
    files.update(names.intersection((_STATE, CONFIG, MODULES, *CONFIGS)))
    return [Claim("", tuple(sorted(files)))]


def _is_trainer(names: Set[str]) -> bool:
    saved = "optimizer.pt" in names or "scheduler.pt" in names
    return _STATE in names or (saved and (_ARGUMENTS in names or bool(matching(r"rng_state.*\.pth", names))))


def _is_accelerate(names: Set[str]) -> bool:
    saved = matching(r"(?:optimizer|scheduler|sampler)(?:_\d{1,4})?\.bin", names)
    return len(saved) > 1 or bool(matching(r"random_states_\d{1,6}\.pkl", names))


def _chosen(sets: List[Weights]) -> List[Weights]:
    """Return the sets of weights that are loaded; a folder may hold others of the same model."""
    models = [each for each in sets if each.stem != ADAPTER and (each.is_sharded or each.promised == 1)]
    return [*preferred(models), *adapters(sets)]


def _inner(listing: Listing, sets: List[Weights]) -> Iterator[_Inner]:
    """Yield the folders that hold a part: where no weights lie beside accelerate's state, those of each model."""
    apart = not sets and not _is_trainer(set(listing.files))
    modules = modules_of(listing)
    for name, folder in sorted(listing.folders.items()):
        usual = _INNER.fullmatch(name) is not None
        if usual or name in modules or (apart and step_in_name(name) is None):
            for module in families.that_may_claim([*folder.files, *folder.folders]):
                claims = [each for each in families.family(module).claim(folder) if not each.name]
                if claims:
                    if usual or module in _WEIGHTS:
                        yield _Inner(name, module, claims[0].files)
                    break


def read(folder: Folder) -> Checkpoint:
    """Read a claimed checkpoint."""
    names = {name for name in folder.files if "/" not in name}
    members = Members(folder, NAME if _is_trainer(names) else _ACCELERATE)
    if _STATE in names:
        _read_state(members)
    sets = _chosen(find_weights(folder))
    for weights in sets:
        if weights.stem != ADAPTER:
            read_weights(members, weights)
    if adapters(sets):
        read_adapter(members)
    for match in sorted(matching(_OPTIMIZER, names), key=_text):
        members.take(match.group(), OPTIMIZER, role=OPTIMIZER)
    inner = list(_inner(folder.listing(), sets))
    for each in inner:
        _read_inner(members, each, copied=bool(sets))
    for part, wanted in _ALONG:
        for match in sorted(matching(wanted, names), key=_text):
            members.take_aside(match.group(), part)
    read_configs(members)
    _judge_presence(members, names, weights=bool(sets) or any(each.role is None for each in inner))
    return members.checkpoint


def _text(match: "re.Match[str]") -> str:
    return match.group()


def _read_state(members: Members) -> None:
    """Read how far the trainer was; its numbers count before all others."""
    checkpoint = members.checkpoint
    try:
        document = read_json(members.folder, _STATE)
    except FlawedError as error:
        if error.found.rule == "CK103":
            _read_large_state(members, error.found)
        else:
            checkpoint.found.append(error.found)
        return
    root = document.root if isinstance(document.root, dict) else {}
    epoch = root.get("epoch")
    if not checkpoint.count(root.get("global_step"), _COUNTER):
        checkpoint.add("CK025", "%s has no global_step" % _STATE, file=members.folder.locate(_STATE))
    if isinstance(epoch, (int, float)) and not isinstance(epoch, bool) and math.isfinite(epoch):
        checkpoint.epoch = epoch
        checkpoint.progress.append(Progress("epoch", epoch, "%s: epoch" % _STATE))
    if document.repeated:
        message = "%s names %s twice; readers take the last" % (_STATE, clean_text(document.repeated[0], 100))
        checkpoint.add("CK025", message, severity=SUSPECT, file=members.folder.locate(_STATE))


def _read_large_state(members: Members, found: Found) -> None:
    """Read the step of a state with a very long history, which comes behind it."""
    with members.folder.open(_STATE) as source:
        told = re.search(rb'^  "global_step": (\d{1,15}),?$', source.read(0, _HEAD), re.MULTILINE)
        ended = source.read(source.size - 64, 64).rstrip().endswith(b"}")
    if told and ended:
        members.checkpoint.count(int(told.group(1)), _COUNTER)
        found = found._replace(severity=INFO)
    members.checkpoint.found.append(found)


def _read_inner(members: Members, inner: _Inner, *, copied: bool) -> None:
    read_it = families.family(inner.family).read
    prefix = inner.name + "." if inner.family in _WEIGHTS else ""
    held = members.take_folder(inner.name, read_it, role=inner.role, prefix=prefix)
    if copied and not prefix:
        # DeepSpeed keeps the weights beside those that are saved for loading.
        members.checkpoint.copied += claim_bytes(held.tensors).params


def _judge_without_state(checkpoint: Checkpoint) -> None:
    """Judge a folder without the file that comes last: programs older than the random numbers in it wrote none."""
    message = "there is no %s, which is written last and without which the run can't be resumed" % _STATE
    if "rng" in checkpoint.parts:
        checkpoint.add("CK063", message)
    elif "optimizer" in checkpoint.parts:
        checkpoint.add("CK063", message + " by transformers' Trainer", severity=SUSPECT)
    else:
        checkpoint.add("CK063", message, severity=INFO, next_step="Nothing to do, unless training is to go on from it.")


def _judge_presence(members: Members, names: Set[str], *, weights: bool) -> None:
    checkpoint = members.checkpoint
    if checkpoint.format == NAME and _STATE not in names and {"optimizer", "scheduler"} & checkpoint.parts:
        _judge_without_state(checkpoint)
    if checkpoint.format == NAME and "optimizer.pt" in names and "scheduler.pt" not in names:
        checkpoint.add("CK060", "there is no scheduler.pt, without which Trainer begins with a new optimizer, too")
    if not weights:
        checkpoint.truncated = True
        checkpoint.add("CK060", "there is an optimizer's state, but no weights")
    ranks = {int(match.group(1) or match.group(2) or 0): match.group() for match in matching(_RNG, names)}
    missing = gaps(set(ranks))
    if missing:
        name = re.sub(r"\d+(?=\.)", str(missing[0]), ranks[max(ranks)])
        message = "%s missing, first: %s; its rank can't go on with the same random numbers"
        checkpoint.add("CK060", message % (count_of(len(missing), "file"), name), severity=INFO)
