"""What a checkpoint's object is made of: the model's tensors, the optimizer's, and how far training was."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Callable, FrozenSet, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from ..model import EMA, MODEL, OPTIMIZER, OTHER, clean_text
from .nodes import Call, Pairs, Persistent, string_items
from .rebuild import rebuild

if TYPE_CHECKING:
    from ..model import Number
    from .rebuild import Rebuilt

# Deeper than this, keys no longer say what is below them.
_ROLE_DEPTH = 3
# Deeper than this, they are no names.
_NAME_DEPTH = 100
# What is left unvisited is still read, as storages that belong to nothing.
_MOST_CONTAINERS = 400_000

# The role of what keeps out of the others, whatever it holds; OTHER is what nobody has named.
ASIDE = "aside"
_ROLES = (MODEL, EMA, OPTIMIZER, OTHER, ASIDE)


def _listed(text: str) -> FrozenSet[str]:
    return frozenset(text.split())


_STEP_WORDS = _listed("step steps epoch epochs")
_STATE_WORDS = _listed(
    """lr sched scheduler schedulers scaler amp rng random sampler loader dataloader metric metrics loss losses history
    callback callbacks args arguments config cfg conf hparams hyper options"""
)
_PROGRESS_WORDS = _listed("loop loops meta metadata")
_MODEL_WORDS = _listed(
    """model module net network weights params parameters student teacher generator discriminator actor critic policy
    backbone encoder decoder lora adapter unet"""
)
# A key's words say what it holds; the first of these that has one of them decides.
_WORDS = (
    (ASIDE, _STEP_WORDS | _STATE_WORDS | _PROGRESS_WORDS),
    (OPTIMIZER, _listed("opt optim optims optimizer optimizers optimiser optimisers")),
    (EMA, _listed("ema averaged swa shadow")),
    (MODEL, _MODEL_WORDS),
)
# Attributes of torch modules that are no part of a parameter's name.
_UNNAMED = ("", "_modules", "_parameters", "_buffers")


class Placed(NamedTuple):
    """Hold a tensor with its name, its role and its last key."""

    name: str
    role: str
    key: str
    tensor: Rebuilt


class _Path(NamedTuple):
    parent: Optional[_Path]
    label: str
    depth: int


def role_of(key: str) -> str:
    """Say what a key of a training state holds: one of the roles, or `ASIDE` for what stays out of them."""
    words = _words(key)
    for role, known in _WORDS:
        if not known.isdisjoint(words):
            return role
    return MODEL if words[-2:] == ["state", "dict"] else OTHER


def _words(key: str) -> List[str]:
    """Cut a key into words: optimizer_G, optimizerG and netG hold two each."""
    if len(key) > 100:
        return []
    cut = "".join("_" + char if char.isupper() and before.islower() else char for before, char in zip("_" + key, key))
    return cut.lower().replace("-", "_").split("_")


def survey(root: object) -> List[Placed]:
    """List the tensors of an object, each with its role; what belongs together stands in its own order."""
    placed = list(_walk(root))
    roles = {item.role for item in placed}
    if MODEL not in roles:
        # No key named the model: a plain state dict, a pair of networks, or nothing but averaged weights.
        unnamed = EMA if EMA in roles else OTHER
        placed = [item._replace(role=MODEL) if item.role == unnamed else item for item in placed]
    return [item._replace(role=OTHER) if item.role == ASIDE else item for item in placed]


def _walk(root: object) -> Iterator[Placed]:
    """Visit level by level, but all of what has a role before the next level, lest it is missed among much else."""
    waiting: List[Tuple[Any, str, _Path]] = [(root, OTHER, _Path(None, "", 0))]
    seen: Set[int] = set()
    while waiting:
        pending, waiting = waiting[::-1], []
        while pending and len(seen) < _MOST_CONTAINERS:
            node, role, path = pending.pop()
            tensor = rebuild(node)
            if tensor is not None:
                # A key gives its role to what is below it; a tensor right under it may be anything.
                aside = role == OTHER and path.depth == 1 and "." not in path.label and role_of(path.label) == ASIDE
                yield Placed(_name(path), ASIDE if aside else role, clean_text(path.label, 100), tensor)
                continue
            if role == OTHER:
                role = _role_of_container(node, path)
            mark = id(node) * len(_ROLES) + _ROLES.index(role)
            if mark in seen:
                continue
            seen.add(mark)
            children = _children(node, role, path)
            if role == OTHER:
                waiting += children
            else:
                pending += reversed(children)


def _role_of_container(node: object, path: _Path) -> str:
    role = role_of(path.label) if 0 < path.depth <= _ROLE_DEPTH else OTHER
    if role != OTHER:
        return role
    keys = {key for key, _ in string_items(node)}
    if {"state", "param_groups"} <= keys:
        return OPTIMIZER
    return MODEL if "_parameters" in keys else OTHER


def _children(node: object, role: str, path: _Path) -> List[Tuple[Any, str, _Path]]:
    children = []
    for label, child in _parts(node):
        if isinstance(child, (Pairs, Call, list, tuple, Persistent)):
            named = label != "" and path.depth < _NAME_DEPTH
            children.append((child, role, _Path(path, _label(label), path.depth + 1) if named else path))
    return children


def _parts(node: object) -> Iterator[Tuple[object, Any]]:
    if isinstance(node, Pairs):
        yield from node.items()
    elif isinstance(node, (list, tuple)):
        yield from enumerate(node)
    elif isinstance(node, Call):
        for group in (node.args, node.state):
            for part in group:
                yield "", part
        yield from zip(node.flat[::2], node.flat[1::2])
        yield from enumerate(node.elements)


def _label(key: object) -> str:
    if isinstance(key, str):
        return key
    return str(key) if isinstance(key, int) and abs(key) < 1 << 64 else "?"


def _name(path: _Path) -> str:
    labels: List[str] = []
    length = 0
    at: Optional[_Path] = path
    while at is not None and length < 300:
        if at.label not in _UNNAMED:
            labels.append(at.label)
            length += len(at.label) + 1
        at = at.parent
    return clean_text(".".join(reversed(labels))) or "(the whole file)"


# --- progress of training -------------------------------------------------------------------------------------------

_STEP = ("global_step", "global_steps", "step", "current_step", "train_step", "steps", "iteration", "iter", "it")
_EPOCH = ("epoch", "current_epoch")
ReadNumber = Callable[[object], "Optional[Number]"]


def progress(root: object, number: ReadNumber) -> Tuple[Optional[int], Optional[Number]]:
    """Return step and epoch, from the usual keys of the object or of what is directly below it.

    `number` reads a value: a plain number, a numpy scalar or a tensor of one element.
    """
    places = [string_items(root)]
    for key, value in places[0]:
        if isinstance(value, (Pairs, Call)) and role_of(key) in (OTHER, ASIDE) and _STATE_WORDS.isdisjoint(_words(key)):
            places.append(string_items(value))
    step = _first(places, _STEP, number)
    return (int(step) if step is not None and step == int(step) else None), _first(places, _EPOCH, number)


def _first(places: Sequence[List[Tuple[str, Any]]], names: Sequence[str], number: ReadNumber) -> Optional[Number]:
    for items in places:
        known = dict(items)
        for name in names:
            value = number(known[name]) if name in known else None
            if value is not None and math.isfinite(value):
                return value
    return None
