"""The family of PEFT adapters: the few tensors that were trained, and an adapter_config.json that says to what."""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Set

from ..model import clean_text, count_of
from ..rules.rule import BAD, SUSPECT
from .folder import Claim
from .hf_weights import find_weights, preferred, read_config, read_weights, weights_of
from .members import Members

if TYPE_CHECKING:
    from ..model import Checkpoint
    from .folder import Folder, Listing
    from .hf_weights import Weights

NAME = "peft"
CONFIG = "adapter_config.json"
ADAPTER = "adapter_model"
# What the names of the tensors contain that a kind of adapter trains.
_TRAINED = {
    "LORA": "lora_",
    "ADALORA": "lora_",
    "LOHA": "hada_",
    **{kind: kind.lower() + "_" for kind in ("LOKR", "IA3", "OFT", "BOFT", "VERA")},
}


def claim(listing: Listing) -> List[Claim]:
    """Claim a folder that holds an adapter's configuration, but for those of MLX, whose files stand for themselves."""
    if CONFIG not in listing.files or "adapters.safetensors" in listing.files:
        return []
    return [Claim("", (CONFIG, *(name for each in adapters(weights_of(listing)) for name in each.all_files)))]


def adapters(sets: List[Weights]) -> List[Weights]:
    """Return those sets of weights that are an adapter's, as loaders take them."""
    return preferred([each for each in sets if each.stem == ADAPTER])


def read(folder: Folder) -> Checkpoint:
    """Read a claimed checkpoint."""
    members = Members(folder, NAME)
    read_adapter(members)
    return members.checkpoint


def read_adapter(members: Members) -> None:
    """Read an adapter's weights and judge whether there are any."""
    names: Set[str] = set()
    sets = adapters(find_weights(members.folder))
    for weights in sets:
        names |= read_weights(members, weights)
    kind = _kind(members) if CONFIG in members.folder.files else ""
    if not sets:
        members.lack(["adapter_model.safetensors"], "file")
    elif not members.checkpoint.truncated:
        _judge(members.checkpoint, names, kind)


def _kind(members: Members) -> str:
    kind = read_config(members, CONFIG).get("peft_type")
    return kind if isinstance(kind, str) else ""


def _judge(checkpoint: Checkpoint, names: Set[str], kind: str) -> None:
    trained = _TRAINED.get(kind.upper(), "")
    if not names:
        checkpoint.add("CK010", "the adapter is empty: it holds no tensor", severity=BAD)
    elif not any(trained in name for name in names):
        message = "none of its %s is one that a %s adapter trains, such as %s"
        told = count_of(len(names), "tensor"), clean_text(kind, 30), trained
        checkpoint.add("CK010", message % told, severity=SUSPECT, tensors=sorted(names)[:20])
