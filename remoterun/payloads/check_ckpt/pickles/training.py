"""The state of training in a decoded object: optimizers and what goes with them, and how far training was."""

from __future__ import annotations

import functools
import itertools
import math
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Set, Tuple

from ..model import MODEL, OTHER, Group, Optimizer, Progress, State, clean_text
from ..records import Record
from ..rules.parameters import rounded
from .layout import ASIDE, STATE_WORDS, listed, role_of, words
from .nodes import Call, Pairs, Persistent, pairs, states, string_items

if TYPE_CHECKING:
    from ..model import Checkpoint, Number
    from .layout import ReadNumber

# Levels below the object at which an optimizer is looked for: {"state": {"optimizers": {"AdamW": ...}}} has three.
_DEPTH = 4
_MOST_CONTAINERS = 10_000
# Entries that are looked at; 60,000 tensors make as many. What is referred to over and over makes more than bytes do.
_MOST_ENTRIES = 400_000
_MOST_OPTIONS = 100
_LONGEST_KEY = 100
_MOST_VALUES = 16
# Of these, a random state of Python's has 625 entries that are none.
_CONTAINERS = frozenset((Pairs, Call, list, tuple))
# With more entries, it is no list of parts.
_MOST_PARTS = 1_000

_STEP = (
    *("global_step", "global_steps", "step", "current_step", "cur_step", "train_step", "training_step", "step_count"),
    *("completed_steps", "num_updates", "steps", "iteration", "iter", "iter_num", "current_iter", "cur_iter"),
    *("global_iter", "it"),
)
_EPOCH = ("epoch", "current_epoch", "cur_epoch", "epochs_run")
# Where trainers keep a count of their own: Lightning's loops, Composer's clock.
_LIGHTNING = "epoch_loop.automatic_optimization.optim_progress"
_LOOPS = (
    ("step", ("loops", "fit_loop", _LIGHTNING, "optimizer", "step", "total", "completed")),
    ("step", ("state", "timestamp", "Timestamp", "batch")),
    ("epoch", ("state", "timestamp", "Timestamp", "epoch")),
)
_COUNTS = frozenset((*_STEP, *_EPOCH))
_TOP = _COUNTS.union(path[0] for _, path in _LOOPS)
_PARTS = (
    ("scheduler", listed("sched scheduler schedulers")),
    ("scaler", listed("scaler scalers amp")),
    ("rng", listed("rng random")),
    ("dataloader", listed("sampler loader dataloader")),
)
_SCALER = listed(
    """scale cur_scale loss_scale growth_factor backoff_factor growth_interval _growth_tracker growth_tracker
    hysteresis_tracker scale_window unskipped"""
)


def learn(checkpoint: Checkpoint, root: object, number: ReadNumber, tensors: Dict[int, int]) -> None:
    """Note in a checkpoint what an object tells of its training.

    `number` reads a plain number, a numpy scalar or a tensor of one element; `tensors` has the index of each tensor of
    the checkpoint by the `id` of the node that describes it.
    """
    told = list(_progress(root, number))
    checkpoint.progress += told
    if checkpoint.step is None:
        checkpoint.step = next((each.value for each in told if each.what == "step"), None)
    if checkpoint.epoch is None:
        checkpoint.epoch = next((each.value for each in told if each.what == "epoch"), None)
    if any(tensor.role == MODEL for tensor in checkpoint.tensors):
        checkpoint.parts.add(MODEL)
    _Search(checkpoint, number, tensors).run(root)
    checkpoint.rounded += rounded(checkpoint)


# --- progress -------------------------------------------------------------------------------------------------------


def _progress(root: object, number: ReadNumber) -> Iterator[Progress]:
    """Yield what the usual keys tell, of the object or of what is directly below it, then what trainers count."""
    top: Dict[str, Any] = {}
    places = [("", top)]
    seen: Set[int] = set()
    for key, value in string_items(root):
        if key in _TOP:
            top[key] = value
        if not isinstance(value, (Pairs, Call)) or id(value) in seen or _is_torchs(value):
            continue
        if len(seen) < _MOST_CONTAINERS and role_of(key) in (OTHER, ASIDE) and STATE_WORDS.isdisjoint(words(key)):
            seen.add(id(value))
            counts = {name: inner for name, inner in string_items(value) if name in _COUNTS}
            places += [(key + ".", counts)] if counts else []
    for prefix, items in places if top or len(places) > 1 else ():
        for what, names in (("step", _STEP), ("epoch", _EPOCH)):
            for name in names:
                yield from _told(what, items.get(name), prefix + name, number)
    for what, path in _LOOPS:
        node: object = top.get(path[0])
        for name in path[1:] if node is not None else ():
            node = next((value for key, value in string_items(node) if key == name), None)
        yield from _told(what, node, ".".join(path), number)


def _is_torchs(node: object) -> bool:
    """Tell whether something is a tensor, or what else torch rebuilds."""
    return isinstance(node, Call) and node.path.startswith("torch._")


def _told(what: str, node: object, where: str, number: ReadNumber) -> Iterator[Progress]:
    value = None if node is None else number(node)
    if value is None or not math.isfinite(value):
        return
    if what == "epoch":
        yield Progress(what, value, clean_text(where, 100))
    elif value == int(value):
        yield Progress(what, int(value), clean_text(where, 100))


# --- optimizers and what goes with them -----------------------------------------------------------------------------


class _Place(Record):
    node: Any
    path: Tuple[str, ...]


class _Search:
    """Look for what belongs to training, level by level, each container once."""

    def __init__(self, checkpoint: Checkpoint, number: ReadNumber, tensors: Dict[int, int]) -> None:
        self._checkpoint = checkpoint
        self._number = number
        self._tensors = tensors
        self._seen: Set[int] = set()
        self._left = _MOST_ENTRIES
        self._read: Dict[int, Optional[Number]] = {}
        self._objects: Dict[int, str] = {}

    def run(self, root: object) -> None:
        level = [_Place(root, ())]
        for _ in range(_DEPTH + 1):
            level = [inner for place in level for inner in self._visit(place)]

    def _visit(self, place: _Place) -> List[_Place]:
        """Note what a container is, or return the containers in it."""
        node, path = place
        if id(node) in self._seen or len(self._seen) > _MOST_CONTAINERS or self._left < 0:
            return []
        self._seen.add(id(node))
        items = dict(string_items(node))
        if "param_groups" in items and "state" in items:
            self._add_optimizer(items, path)
            return []
        if "last_epoch" in items:
            self._checkpoint.parts.add("scheduler")
            self._checkpoint.schedulers.append(self._numbers(items))
            return []
        if len(_SCALER.intersection(items)) > 1:
            self._checkpoint.parts.add("scaler")
            self._checkpoint.scalers.append(self._numbers(items))
            return []
        if len(items) <= _MOST_PARTS:
            self._add_parts(items)
        inside = []
        for key, child in _items(node):
            self._left -= 1
            if self._left < 0:
                break
            if type(child) in _CONTAINERS and id(child) not in self._tensors and not _is_torchs(child):
                inside.append(_Place(child, (*path, _id(key))))
        return inside

    def _add_parts(self, items: Dict[str, Any]) -> None:
        if {"python", "numpy", "cpu"}.issubset(items):
            self._checkpoint.parts.add("rng")
        for key, value in items.items():
            if value is None or "." in key or (isinstance(value, (list, tuple, Pairs)) and not any(_items(value))):
                continue
            known = words(key)
            for part, names in _PARTS:
                if not names.isdisjoint(known):
                    self._checkpoint.parts.add(part)

    def _numbers(self, items: Dict[str, Any]) -> Dict[str, Number]:
        # Of the rates that a scheduler has set, the first tells which they are.
        rates = items.get("_last_lr")
        items = {**items, "_last_lr": rates[0]} if isinstance(rates, list) and rates else items
        read = [(key, self._read_number(value)) for key, value in list(items.items())[:_MOST_OPTIONS]]
        return {clean_text(key, 100): value for key, value in read if value is not None}

    def _read_number(self, node: object) -> Optional[Number]:
        """Read a number, from the file only once."""
        if isinstance(node, float):
            return node
        if isinstance(node, int):
            return self._number(node)
        if not isinstance(node, (Call, Persistent)):
            return None
        if id(node) not in self._read:
            self._read[id(node)] = self._number(node)
        return self._read[id(node)]

    # --- one optimizer -----------------------------------------------------------------------------------------------

    def _add_optimizer(self, items: Dict[str, Any], path: Tuple[str, ...]) -> None:
        self._checkpoint.parts.add("optimizer")
        groups: List[Group] = []
        for _, each in _items(items["param_groups"]):
            self._left -= 1
            if self._left < 0:
                break
            groups.append(self._group(dict(string_items(each))))
        known: Dict[str, State] = {}
        for key, value in _items(items["state"]):
            self._left -= 1
            if self._left < 0:
                break
            known[self._id(key)] = self._state(value)
        # Of half an optimizer, nothing can be said.
        if self._left >= 0:
            self._checkpoint.optimizers.append(Optimizer(clean_text(".".join(path), 200), tuple(groups), known))

    def _group(self, items: Dict[str, Any]) -> Group:
        params = [child for _, child in itertools.islice(_items(items.get("params")), self._left + 1)]
        names = [child for _, child in itertools.islice(_items(items.get("param_names")), self._left + 1)]
        self._left -= len(params) + len(names)
        names = [name for name in names if isinstance(name, str)]
        options: Dict[str, object] = {}
        for key, value in list(items.items())[:_MOST_OPTIONS]:
            option = self._option(value)
            if option is not None and key not in ("params", "param_names"):
                options[clean_text(key, 100)] = option
        ids = tuple(map(self._id, params)) if self._left >= 0 else ()
        if not names and params and all(isinstance(each, str) and not each.isdigit() for each in params):
            return Group(ids, ids, options)
        return Group(ids, tuple(map(clean_text, names)) if len(names) == len(ids) else (), options)

    def _option(self, value: object) -> object:
        if isinstance(value, bool):
            return value
        if isinstance(value, str):
            return clean_text(value, 100)
        if isinstance(value, (list, tuple)):
            numbers = [self._read_number(each) for each in value[: _MOST_VALUES + 1]]
            return tuple(numbers) if 0 < len(numbers) <= _MOST_VALUES and None not in numbers else None
        return self._read_number(value)

    def _state(self, node: object) -> State:
        """Read what is kept of one parameter; what is neither a number nor a tensor has a format of "?"."""
        tensors: Dict[str, int] = {}
        numbers: Dict[str, Number] = {}
        dtypes: Dict[str, str] = {}
        for label, value in string_items(node):
            self._left -= 1
            if self._left < 0 or value is None:
                continue
            key = _key(label) if len(label) <= _LONGEST_KEY else clean_text(label, _LONGEST_KEY)
            index = self._tensors.get(id(value))
            if index is not None:
                tensor = self._checkpoint.tensors[index]
                tensors[key], dtypes[key] = index, tensor.dtype.name
                if tensor.shape.count(1) != len(tensor.shape):
                    continue
            elif isinstance(value, (Pairs, Call, list, tuple)):
                dtypes[key] = "?"
            number = self._read_number(value)
            if number is not None:
                numbers[key] = number
        return State(tensors, numbers, dtypes)

    def _id(self, key: object) -> str:
        """Name a parameter as its group does: by a number, by its name, or by the parameter itself."""
        if isinstance(key, (str, int)):
            return _id(key)
        return self._objects.setdefault(id(key), "object %d" % len(self._objects))


@functools.lru_cache(maxsize=1024)
def _key(label: str) -> str:
    """Make the name of a kind of state fit to be shown; every parameter has the same."""
    return clean_text(label, _LONGEST_KEY)


def _id(key: object) -> str:
    if isinstance(key, str):
        return clean_text(key)
    return str(key) if isinstance(key, int) and abs(key) < 1 << 64 else "?"


def _items(node: object) -> Iterator[Tuple[Any, Any]]:
    """Yield keys and values of a mapping or an object, or elements with their numbers."""
    if isinstance(node, Pairs):
        yield from pairs(node.flat)
    elif isinstance(node, (list, tuple)):
        yield from enumerate(node)
    elif isinstance(node, Call):
        for flat in (node.flat, *(state.flat for state in states(node))):
            yield from pairs(flat)
        yield from enumerate(node.elements)
