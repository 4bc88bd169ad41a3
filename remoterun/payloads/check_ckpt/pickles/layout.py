"""What a checkpoint's object is made of: the model's tensors and the optimizer's."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any, Callable, Dict, FrozenSet, Iterator, List, Optional, Set, Tuple

from ..model import EMA, MASTER, MODEL, OPTIMIZER, OTHER, clean_text
from ..records import Record
from .nodes import Call, Pairs, Persistent, pairs, string_items
from .rebuild import rebuild
from .saved import Saved

if TYPE_CHECKING:
    from ..model import Number
    from .rebuild import Rebuilt

# Deeper than this, keys no longer say what is below them.
_ROLE_DEPTH = 3
_LONGEST_NAME = 300
_LONGEST_KEY = 100
# Deeper than this, they are no names.
_NAME_DEPTH = 100
# What is left unvisited is still read, as storages that belong to nothing.
_MOST_CONTAINERS = 200_000
# Counting what is no container, too, but for less; 60,000 tensors with what goes with them make 100,000.
_MOST_VISITS = 1_000_000
_FOR_ONE = 16
# One tensor may be listed a million times in few bytes. Of all together, so many names are read again, and so many of
# each: weights may stand in a file as the model's, as averaged ones, and as the best so far.
_MOST_TENSORS = 130_000
_REPEATED, _REPEATED_EACH = 1_000, 4
# What is made of every tensor takes half the time so.
_new = tuple.__new__

# The role of what keeps out of the others, whatever it holds; OTHER is what nobody has named.
ASIDE = "aside"
_ROLES = (MODEL, EMA, MASTER, OPTIMIZER, OTHER, ASIDE)


def listed(text: str) -> FrozenSet[str]:
    """Return the words of a text."""
    return frozenset(text.split())


_STEP_WORDS = listed("step steps epoch epochs")
STATE_WORDS = listed(
    """lr sched scheduler schedulers scaler amp rng random sampler loader dataloader metric metrics loss losses history
    callback callbacks args arguments config cfg conf hparams hyper options"""
)
_PROGRESS_WORDS = listed("loop loops meta metadata")
_MODEL_WORDS = listed(
    """model module net network weights params parameters student teacher generator discriminator actor critic policy
    backbone encoder decoder lora adapter unet"""
)
# A key's words say what it holds; the first of these that has one of them decides.
_WORDS = (
    (ASIDE, _STEP_WORDS | STATE_WORDS | _PROGRESS_WORDS),
    (OPTIMIZER, listed("opt optim optims optimizer optimizers optimiser optimisers")),
    (MASTER, listed("master")),
    (EMA, listed("ema averaged swa shadow")),
    (MODEL, _MODEL_WORDS),
)
# How the keys begin under which optimizers keep weights of their own.
_MASTERS = ("master", "fp32_", "single_partition_of_fp32")
_TELLING = ("state", "param_groups", "_parameters")
# Where PyTorch Lightning averages weights, the averaged ones take the usual place of the model's, which is here.
_CURRENT, _AVERAGED = "current_model_state", "averaging_state"
# Attributes of torch modules that are no part of a parameter's name.
_CONTAINERS = frozenset((Pairs, list, tuple, Call, Saved, Persistent))
_UNNAMED = ("", "_modules", "_parameters", "_buffers")
# The name of a tensor that is all there is.
THE_WHOLE = "(the whole file)"


# Reads a plain number, a numpy scalar or a tensor of one element; None for anything else.
ReadNumber = Callable[[object], "Optional[Number]"]


# A tensor's name, its role, its last key, the tensor itself, and the node that describes it; the tensor is None when
# the node is one that was saved in the usual way, and says it all. Taking a record apart takes longer than a tuple.
Placed = Tuple[str, str, str, "Optional[Rebuilt]", Any]


class _Path(Record):
    parent: Optional[_Path]
    label: str
    depth: int


@functools.lru_cache(maxsize=4096)
def role_of(key: str) -> str:
    """Say what a key of a training state holds: one of the roles, or `ASIDE` for what stays out of them."""
    if key.isdigit():
        return OTHER
    cut = words(key)
    for role, known in _WORDS:
        if not known.isdisjoint(cut):
            return role
    return MODEL if cut[-2:] == ["state", "dict"] else OTHER


def words(key: str) -> List[str]:
    """Cut a key into words: optimizer_G, optimizerG and netG hold two each."""
    if len(key) > 100:
        return []
    cut = "".join("_" + char if char.isupper() and before.islower() else char for before, char in zip("_" + key, key))
    return cut.lower().replace("-", "_").split("_")


def survey(root: object) -> Iterator[Placed]:
    """Yield the tensors of an object, what belongs together in its own order; `settled` has the last word on roles."""
    return _Walk(root).run(root)


def settled(roles: Set[str]) -> Dict[str, str]:
    """Say which roles become others, given all that there are."""
    changed = {ASIDE: OTHER}
    if MODEL not in roles:
        # No key named the model: a plain state dict, a pair of networks, or nothing but averaged weights.
        changed[EMA if EMA in roles else OTHER] = MODEL
    return changed


class _Met(Record):
    """Hold a container that is to be visited, with its role and its name."""

    node: object
    role: str
    path: _Path


class _Walk:
    """Visit level by level, but all of what has a role before the next level, lest it is missed among much else.

    Of what is to be visited, only containers are kept, and not what they hold, which may be a million times the same.
    """

    def __init__(self, root: object) -> None:
        self._averaged = {_CURRENT, _AVERAGED} <= {key for key, _ in string_items(root)}
        self._seen: Set[int] = set()
        self._by_keys: Dict[int, str] = {}
        self._left = _MOST_VISITS
        self._tensors = 0
        self._listed: Set[int] = set()
        self._above: Optional[_Path] = None
        self._above_front = ""

    def run(self, root: object) -> Iterator[Placed]:
        level = [_Met(Pairs(["", root]), OTHER, _Path(None, "", 0))]
        while level:
            following: List[_Met] = []
            for met in level:
                yield from self._visit(met, following)
            level = following

    def _visit(self, met: _Met, following: List[_Met]) -> Iterator[Placed]:
        stack = [(self._open(met.node), met.role, met.path)]
        while stack:
            parts, outer, parent = stack[-1]
            _, above, level = parent
            front: Optional[str] = None
            for key, node in parts:
                kind = type(node)
                if kind not in _CONTAINERS or not node:
                    continue
                self._left -= 1
                if self._left < 0:
                    return
                if id(node) in self._listed and self._is_enough():
                    continue
                named = key != "" and level < _NAME_DEPTH
                label = above if not named else key if type(key) is str else _label(key)
                depth = level + 1 if named else level
                role = MASTER if outer == OPTIMIZER and label.startswith(_MASTERS) else outer
                tensor = None if kind is Saved or kind is Pairs else rebuild(node)
                if kind is Saved or tensor is not None:
                    self._list(node)
                    front = self._front_of(parent) if front is None else front
                    role = _role_of_tensor(label) if depth == 1 and role == OTHER else role
                    name, last = _names(front, label, named=named)
                    yield name, role, last, tensor, node
                    continue
                path = _new(_Path, (parent, label, depth)) if named else parent
                role = self._role(node, role, path)
                if not self._is_new(node, role):
                    continue
                if role != OTHER:
                    stack.append((self._open(node), role, path))
                    break
                following.append(_Met(node, role, path))
            else:
                stack.pop()

    def _list(self, node: object) -> None:
        self._listed.add(id(node))
        self._tensors += 1
        if self._tensors >= _MOST_TENSORS:
            self._left = 0

    def _is_enough(self) -> bool:
        """Tell whether tensors were listed so often that those known by a name need no other."""
        known = len(self._listed)
        return self._tensors - known >= _REPEATED + _REPEATED_EACH * known

    def _open(self, node: object) -> Iterator[Tuple[object, Any]]:
        """Return what is in a container, with its keys."""
        if isinstance(node, Pairs):
            parts, size = pairs(node.flat), len(node.flat)
        elif isinstance(node, Call):
            groups = node.args, node.state
            unnamed = (("", part) for group in groups for part in group)
            parts = itertools.chain(unnamed, pairs(node.flat), enumerate(node.elements))
            size = sum(map(len, (*groups, node.flat, node.elements)))
        elif isinstance(node, (list, tuple)):
            parts, size = enumerate(node), len(node)
        else:
            return iter(())
        self._left -= size // _FOR_ONE
        return parts

    def _front_of(self, path: _Path) -> str:
        """Return the names of what a container stands in; most stand beside one another."""
        above, label, _ = path
        if above is None or label in _UNNAMED:
            return _front(path)
        if above is not self._above:
            self._above, self._above_front = above, _front(above)
        front = self._above_front
        return "%s.%s" % (front, label) if front and len(front) + len(label) < _LONGEST_NAME else _front(path)

    def _role(self, node: object, role: str, path: _Path) -> str:
        if self._averaged and path.depth == 1 and path.label == "state_dict":
            return EMA
        if role == OTHER:
            role = role_of(path.label) if 0 < path.depth <= _ROLE_DEPTH else OTHER
        return self._role_by_keys(node) if role == OTHER else role

    def _is_new(self, node: object, role: str) -> bool:
        """Tell whether a container is to be visited: not a second time in the same role."""
        mark = id(node) * len(_ROLES) + _ROLES.index(role)
        if mark in self._seen or isinstance(node, Persistent):
            return False
        self._seen.add(mark)
        if len(self._seen) >= _MOST_CONTAINERS:
            self._left = 0
        return True

    def _role_by_keys(self, node: object) -> str:
        """Say what a container is by the keys in it, which are looked at once however often it is met."""
        role = self._by_keys.get(id(node))
        if role is None:
            keys = {key for key, _ in string_items(node) if key in _TELLING}
            role = MODEL if "_parameters" in keys else OTHER
            self._by_keys[id(node)] = role = OPTIMIZER if {"state", "param_groups"} <= keys else role
        return role


def _names(front: str, label: str, *, named: bool) -> Tuple[str, str]:
    """Return the dotted name of a tensor, and its label, fit to be shown."""
    name = front
    if named and label not in _UNNAMED:
        name = "%s.%s" % (front, label) if front else label
    shown = clean_text(name) or THE_WHOLE
    # A part of a text that is fit to be shown is fit, too.
    return shown, label if shown is name and named and len(label) <= _LONGEST_KEY else clean_text(label, _LONGEST_KEY)


def _role_of_tensor(label: str) -> str:
    # A key gives its role to what is below it; a tensor right under it may be anything.
    return ASIDE if "." not in label and role_of(label) == ASIDE else OTHER


def _label(key: object) -> str:
    if isinstance(key, str):
        return key
    return str(key) if isinstance(key, int) and abs(key) < 1 << 64 else "?"


def _front(path: _Path) -> str:
    labels: List[str] = []
    length = 0
    at: Optional[_Path] = path
    while at is not None and length < _LONGEST_NAME:
        if at.label not in _UNNAMED:
            labels.append(at.label)
            length += len(at.label) + 1
        at = at.parent
    return ".".join(reversed(labels))
