"""What a checkpoint's object is made of: the model's tensors and the optimizer's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Set, Tuple

from ..model import EMA, MASTER, MODEL, OPTIMIZER, OTHER, clean_text
from .nodes import Call, Pairs, Persistent, pairs, string_items
from .rebuild import rebuild

if TYPE_CHECKING:
    from ..model import Number
    from .rebuild import Rebuilt

# Deeper than this, keys no longer say what is below them.
_ROLE_DEPTH = 3
# Deeper than this, they are no names.
_NAME_DEPTH = 100
# What is left unvisited is still read, as storages that belong to nothing.
_MOST_CONTAINERS = 200_000
# Counting what is no container, too; 60,000 tensors with what goes with them make 200,000.
_MOST_VISITS = 2_000_000

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
# Attributes of torch modules that are no part of a parameter's name.
_UNNAMED = ("", "_modules", "_parameters", "_buffers")
# The name of a tensor that is all there is.
THE_WHOLE = "(the whole file)"


# Reads a plain number, a numpy scalar or a tensor of one element; None for anything else.
ReadNumber = Callable[[object], "Optional[Number]"]


class Placed(NamedTuple):
    """Hold a tensor with its name, its role, its last key, and the node that describes it."""

    name: str
    role: str
    key: str
    tensor: Rebuilt
    node: object


class _Path(NamedTuple):
    parent: Optional[_Path]
    label: str
    depth: int


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


def survey(root: object) -> List[Placed]:
    """List the tensors of an object, each with its role; what belongs together stands in its own order."""
    placed = list(_Walk().run(root))
    roles = {item.role for item in placed}
    if MODEL not in roles:
        # No key named the model: a plain state dict, a pair of networks, or nothing but averaged weights.
        unnamed = EMA if EMA in roles else OTHER
        placed = [item._replace(role=MODEL) if item.role == unnamed else item for item in placed]
    return [item._replace(role=OTHER) if item.role == ASIDE else item for item in placed]


class _Open(NamedTuple):
    """Hold a container that is being visited: what is left of it, its role and its name."""

    parts: Iterator[Tuple[object, Any]]
    role: str
    path: _Path


class _Walk:
    """Visit level by level, but all of what has a role before the next level, lest it is missed among much else.

    Of what is to be visited, only containers are kept, and not what they hold, which may be a million times the same.
    """

    def __init__(self) -> None:
        self._seen: Set[int] = set()
        self._by_keys: Dict[int, str] = {}
        self._left = _MOST_VISITS

    def run(self, root: object) -> Iterator[Placed]:
        level = [_Open(iter([("", root)]), OTHER, _Path(None, "", 0))]
        while level:
            following: List[_Open] = []
            for opened in level:
                yield from self._visit(opened, following)
            level = following

    def _visit(self, opened: _Open, following: List[_Open]) -> Iterator[Placed]:
        stack = [opened]
        while stack and self._left > 0 and len(self._seen) < _MOST_CONTAINERS:
            parts, role, parent = stack[-1]
            found = next(parts, None)
            if found is None:
                stack.pop()
                continue
            self._left -= 1
            label, node = found
            if not _is_container(node):
                continue
            named = label != "" and parent.depth < _NAME_DEPTH
            path = _Path(parent, _label(label), parent.depth + 1) if named else parent
            if role == OPTIMIZER and path.label.startswith(_MASTERS):
                role = MASTER
            tensor = rebuild(node)
            if tensor is not None:
                yield Placed(_name(path), _role_of_tensor(role, path), clean_text(path.label, 100), tensor, node)
                continue
            inner = self._open(node, role, path)
            if inner is not None:
                (following if inner.role == OTHER else stack).append(inner)

    def _open(self, node: object, role: str, path: _Path) -> Optional[_Open]:
        """Begin to visit a container; None when that was done in the same role."""
        if role == OTHER:
            role = role_of(path.label) if 0 < path.depth <= _ROLE_DEPTH else OTHER
        if role == OTHER:
            role = self._role_by_keys(node)
        mark = id(node) * len(_ROLES) + _ROLES.index(role)
        if mark in self._seen:
            return None
        self._seen.add(mark)
        return _Open(_parts(node), role, path)

    def _role_by_keys(self, node: object) -> str:
        """Say what a container is by the keys in it, which are looked at once however often it is met."""
        role = self._by_keys.get(id(node))
        if role is None:
            keys = {key for key, _ in string_items(node) if key in _TELLING}
            role = MODEL if "_parameters" in keys else OTHER
            self._by_keys[id(node)] = role = OPTIMIZER if {"state", "param_groups"} <= keys else role
        return role


def _is_container(node: object) -> bool:
    return bool(node) if isinstance(node, (list, tuple)) else isinstance(node, (Pairs, Call, Persistent))


def _role_of_tensor(role: str, path: _Path) -> str:
    # A key gives its role to what is below it; a tensor right under it may be anything.
    if role == OTHER and path.depth == 1 and "." not in path.label and role_of(path.label) == ASIDE:
        return ASIDE
    return role


def _parts(node: object) -> Iterator[Tuple[object, Any]]:
    if isinstance(node, Pairs):
        yield from pairs(node.flat)
    elif isinstance(node, (list, tuple)):
        yield from enumerate(node)
    elif isinstance(node, Call):
        for group in (node.args, node.state):
            for part in group:
                yield "", part
        yield from pairs(node.flat)
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
    return clean_text(".".join(reversed(labels))) or THE_WHOLE
