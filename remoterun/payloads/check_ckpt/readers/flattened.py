"""State dicts that were flattened to dotted names: what each name stands for."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Optional, Tuple

from ..model import EMA, MASTER, MODEL, OPTIMIZER, OTHER
from ..pickles.layout import ASIDE, role_of
from ..pickles.nodes import Pairs
from ..records import Record

# Keys that hold a whole model, as the first part of a name of which nobody says where its keys ended.
_MODELS = frozenset(("model", "module", "state_dict", "model_state_dict"))
# What optimizers keep: its name comes after the parameter's, but with Megatron-LM in front of it.
_KINDS = frozenset(("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "fp32_param", "param", "step"))
_MASTERS = frozenset(("fp32_param", "fp32", "param", "master", "master_param", "master_weights"))
# Deeper than this, keys no longer say what is below them.
_DEPTH = 3
# The role of what stands under a name of its own at the top.
_TOP = "top"


class Slot(Record):
    """Say of what an optimizer's value is: which optimizer, which parameter or group, which key.

    `kind` is state or param_groups.
    """

    optimizer: str
    kind: str
    owner: str
    key: str


class Names:
    """Know the roles of names; `paths` has their keys before they were flattened, as far as they are known."""

    def __init__(self, names: Iterable[str], paths: Dict[str, Tuple[str, ...]]) -> None:
        listed = list(names)
        self._paths = paths
        self._bare = {"state", "param_groups"} <= {name.partition(".")[0] for name in listed}
        roles = {self._role(name) for name in listed}
        # No key named the model: its state dict lies at the top, or there is nothing but averaged weights.
        self._unnamed = "" if MODEL in roles else next((role for role in (_TOP, EMA) if role in roles), OTHER)

    def role(self, name: str) -> str:
        """Return the role of what has a name."""
        role = self._role(name)
        if role == self._unnamed:
            return MODEL
        if role == OPTIMIZER:
            place = slot(name)
            return MASTER if place is not None and place.key in _MASTERS else OPTIMIZER
        return OTHER if role in (ASIDE, _TOP) else role

    def _role(self, name: str) -> str:
        if self._bare and slot(name) is not None:
            return OPTIMIZER
        path = self._paths.get(name)
        if path is None:
            return _guessed(name.split(".", _DEPTH)[:_DEPTH])
        if len(path) == 1:
            return ASIDE if "." not in path[0] and role_of(path[0]) == ASIDE else _TOP
        return next((role for role in map(role_of, path[:-1][:_DEPTH]) if role != OTHER), OTHER)


def _guessed(labels: List[str]) -> str:
    """Judge the first parts of a name, some of which may be a parameter's and only look like a key."""
    if labels[0] in _MODELS:
        return MODEL
    roles = list(map(role_of, labels))
    named = next((role for role in roles if role in (OPTIMIZER, EMA)), roles[0])
    return _TOP if named in (MODEL, OTHER) else named


def slot(name: str) -> Optional[Slot]:
    """Take the name of an optimizer's value apart; None when it is none."""
    labels = name.split(".")
    for at, label in enumerate(labels[: _DEPTH + 1]):
        if label in ("state", "param_groups") and len(labels) >= at + 3:
            inner = labels[at + 1 :]
            first = label == "state" and inner[0] in _KINDS
            owner, key = (inner[1:], inner[0]) if first else (inner[:-1], inner[-1])
            return Slot(".".join(labels[:at]), label, ".".join(owner), key)
    return None


# --- together again --------------------------------------------------------------------------------------------------

Tree = Dict[str, Any]


class Leaves:
    """Nest values as they were before they were flattened."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._root: Tree = {}
        # By optimizer, and by the number of the group or the name of the parameter.
        self._options: Dict[str, Dict[str, Tree]] = {}
        # By optimizer and parameter, then by the part of it.
        self._states: Dict[str, Dict[str, Dict[str, Tree]]] = {}

    def add(self, name: str, leaf: Any, part: str = "") -> None:
        """Add a value; `part` tells apart the parts of a tensor that an optimizer keeps."""
        place = slot(name) if self._names.role(name) in (OPTIMIZER, MASTER) else None
        if place is None:
            _put(self._root, name.split(".", _DEPTH), leaf)
        elif place.kind == "state":
            parts = self._states.setdefault(place.optimizer, {}).setdefault(place.owner, {})
            parts.setdefault(part, {})[place.key] = leaf
        else:
            self._options.setdefault(place.optimizer, {}).setdefault(place.owner, {})[place.key] = leaf

    def root(self) -> Pairs:
        """Return all of them; each part of a parameter has a state of its own, and stands in its group."""
        for optimizer, options in self._options.items():
            states = self._states.get(optimizer, {})
            groups = [_with_parts(group, states) for group in _groups(options)]
            kept = {
                "%s%s" % (owner, part): {**parts.get("", {}), **state}
                for owner, parts in states.items()
                for part, state in parts.items()
            }
            labels = optimizer.split(".") if optimizer else []
            _put(self._root, [*labels, "state"], kept)
            _put(self._root, [*labels, "param_groups"], groups)
        return _pairs(self._root)


def _put(root: Tree, labels: List[str], leaf: Any) -> None:
    """Put a value at its place, unless a value stands in the way."""
    at: Any = root
    for label in labels[:-1]:
        at = at.setdefault(label, {})
        if not isinstance(at, dict):
            return
    at[labels[-1]] = leaf


def _pairs(tree: Tree) -> Pairs:
    values = ((key, _pairs(value) if isinstance(value, dict) else value) for key, value in tree.items())
    return Pairs([part for pair in values for part in pair])


def _groups(options: Dict[str, Tree]) -> List[Tree]:
    """Return parameter groups: as they were, by their numbers, or of all parameters that have the same options."""
    if any("params" in each for each in options.values()):
        return [options[number] for number in sorted(options, key=lambda each: (len(each), each))]
    alike: Dict[str, Tuple[Tree, List[str]]] = {}
    for owner, each in options.items():
        alike.setdefault(repr(sorted(each.items(), key=lambda item: item[0])), (each, []))[1].append(owner)
    return [{**each, "params": owners} for each, owners in alike.values()]


def _with_parts(group: Tree, states: Dict[str, Dict[str, Tree]]) -> Pairs:
    params = [str(each) for each in group["params"]] if isinstance(group.get("params"), list) else []
    parts = [(each, part) for each in params for part in states.get(each, {"": {}})]
    named = not all(each.isdigit() for each in params)
    names = {"param_names": [each for each, _ in parts]} if named else {}
    return _pairs({**group, **names, "params": ["%s%s" % place for place in parts]})
