"""The flat tensors of DeepSpeed's ZeRO: which parameter each stretch of them is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from ..model import (
    MASTER,
    MODEL,
    OPTIMIZER,
    Group,
    Optimizer,
    Piece,
    Rounded,
    State,
    Tensor,
    clean_text,
    product,
    row_major,
)
from ..patterns import pattern
from ..pickles.nodes import Call, string_items
from ..pickles.rebuild import is_count, shape_of
from ..records import Record

if TYPE_CHECKING:
    from ..model import Checkpoint, Number
    from .torch_objects import Loaded

# Tensors that the flat ones of one checkpoint fall into; a model of 700 parameters on 64 ranks makes 134,000.
_MOST_NAMED = 200_000
_FROZEN = "frozen_param_fragments."
_FLAT = pattern(r"(?:^|\.)(?:single_partition_of_fp32_groups|fp32_flat_groups)\.(\d{1,6})$")
_STATE = "optimizer_state_dict"


class Shaped(Record):
    """Name a parameter, and say what shape it has as a whole."""

    name: str
    shape: Tuple[int, ...]


class Stretch(Record):
    """Say that `length` elements of a parameter, from its `first` on, lie `at` elements into a flat tensor."""

    param: Shaped
    first: int
    length: int
    at: int


def shapes_of(node: object) -> List[List[Shaped]]:
    """Read param_shapes: the parameters of each group, in the order in which they were made flat."""
    groups = node if isinstance(node, (list, tuple)) else [node]
    return [[each for each in map(_shaped, string_items(group)) if each is not None] for group in groups]


def _shaped(item: Tuple[str, object]) -> Optional[Shaped]:
    name, shape = item[0], shape_of(item[1])
    return None if shape is None else Shaped(name, shape)


def one_after_the_other(params: Sequence[Shaped], start: int, size: int) -> Iterator[Stretch]:
    """Find what lies in a share of ZeRO-1 or 2: of all parameters in a row, `size` elements from `start` on."""
    begin = 0
    for param in params:
        end = begin + product(param.shape)
        low, high = max(begin, start), min(end, start + size)
        if low < high:
            yield Stretch(param, low - begin, high - low, low - start)
        begin = end


def each_cut(params: Sequence[Shaped], rank: int, ranks: int) -> Iterator[Stretch]:
    """Find what lies in a share of ZeRO-3: of each parameter the part that is this rank's."""
    at = 0
    for param in params:
        elements = product(param.shape)
        share = share_of(elements, ranks)
        first = min(rank * share, elements)
        if first < elements:
            yield Stretch(param, first, min(share, elements - first), at)
        at += share


def share_of(elements: int, ranks: int) -> int:
    """Return how many elements of a parameter each rank has; the last ones may have padding among theirs."""
    return -(-elements // ranks)


def dealt(stretches: Sequence[Stretch], sizes: Sequence[int]) -> List[List[Stretch]]:
    """Share out stretches among flat tensors that follow each other; what goes over an edge is cut there."""
    shares: List[List[Stretch]] = [[] for _ in sizes]
    number, begin = 0, 0
    for stretch in stretches:
        param, first, left, at = stretch
        while left > 0:
            while number < len(sizes) and at >= begin + sizes[number]:
                begin += sizes[number]
                number += 1
            if number == len(sizes):
                return shares
            taken = min(left, begin + sizes[number] - at)
            shares[number].append(Stretch(param, first, taken, at - begin))
            first, left, at = first + taken, left - taken, at + taken
    return shares


def named(flat: Tensor, stretches: Sequence[Stretch], role: str, key: str) -> List[Tensor]:
    """Return the stretches of a flat tensor as tensors: whole ones in their shape, others as parts of a long row."""
    size = flat.dtype.size
    tensors = []
    for param, first, length, at in stretches:
        elements = product(param.shape)
        whole = length == elements
        shape = param.shape if whole else (length,)
        tensors.append(
            flat._replace(
                name=clean_text(param.name),
                role=role,
                shape=shape,
                stride=row_major(shape),
                start=flat.start + at * size,
                key=key,
                piece=None if whole else Piece((first,), (elements,)),
            )
        )
    return tensors


def is_flat(tensor: Tensor) -> bool:
    """Tell whether the elements of a tensor are one row in memory."""
    return len(tensor.shape) == 1 and tensor.stride == (1,) and tensor.dtype.size > 0


def frozen_shares(shapes: object, tensors: Sequence[Tensor], rank: int, ranks: int) -> Dict[str, List[Tensor]]:
    """Return what a rank's file of ZeRO-3 has of weights that are not trained, by the names of the flat tensors."""
    known = {}
    flats = {tensor.name: tensor for tensor in tensors if tensor.name.startswith(_FROZEN) and is_flat(tensor)}
    for param in [param for group in shapes_of(shapes) for param in group]:
        flat = flats.get(clean_text(_FROZEN + param.name))
        if flat is not None:
            share = [each for each in each_cut([param], rank, ranks) if each.length <= flat.numel]
            known[flat.name] = named(flat, share, MODEL, flat.key)
    return known


# --- the files of all ranks ------------------------------------------------------------------------------------------


class Shards:
    """Give names to what the ranks keep of the optimizer, and put it together.

    `shapes` are the groups' parameters, `weights` has by their names what is in the model's file, by its index.
    `stage` is 0, and `ranks` None, until a file tells.
    """

    def __init__(self, checkpoint: Checkpoint, shapes: List[List[Shaped]], weights: Dict[str, int]) -> None:
        self._checkpoint = checkpoint
        self._shapes = shapes
        self._weights = weights
        self._held: Dict[int, int] = {}
        self._read = 0
        self._groups: Tuple[Group, ...] = ()
        # By the number of the group, the parts of parameters in it.
        self._params: Dict[int, List[Stretch]] = {}
        self._states: Dict[str, State] = {}
        self._steps: Dict[int, Set[Number]] = {}
        self._left = _MOST_NAMED
        self._faults: List[str] = []
        # Whether it is another layout than is known here, or a file is missing.
        self._unknown = not shapes
        self.stage = 0
        self.ranks: Optional[int] = None

    def look(self, rank: int, loaded: Loaded) -> None:
        """Name what is in the file of a rank; ranks come in order."""
        inner = loaded.checkpoint
        inner.tensors = [
            tensor._replace(role=OPTIMIZER) if tensor.role == MODEL else tensor for tensor in inner.tensors
        ]
        optimizers, inner.optimizers, inner.rounded = inner.optimizers, [], []
        if self._read:
            inner.schedulers, inner.scalers = [], []
        if self.ranks is not None and rank >= self.ranks:
            return  # left over from another save
        self._read_facts(dict(string_items(loaded.entries.get(_STATE))), loaded)
        steps = {each.numbers.get("step") for one in optimizers for each in one.states.values()}
        self._steps[rank] = {step for step in steps if step is not None}
        flats = _flats(inner.tensors)
        shares = self._shares(rank, [inner.tensors[index].numel for index in flats]) if flats else None
        self._read += 1
        if shares is None:
            self._unknown = True
            for index in flats if self.stage == 3 else ():
                inner.tensors[index] = inner.tensors[index]._replace(role=MODEL)
        else:
            self._name(inner, flats, shares, optimizers[0] if len(optimizers) == 1 else Optimizer("", (), {}))

    def _read_facts(self, state: Dict[str, Any], loaded: Loaded) -> None:
        stage, count = state.get("zero_stage"), state.get("partition_count")
        if isinstance(stage, Call) and stage.args:
            stage = stage.args[0]
        known = loaded.number(stage)
        counts = {each for each in (count if isinstance(count, list) else [count]) if each and is_count(each)}
        if state:
            self.stage = int(known) if known in (1, 2, 3) else 3 if "fp32_flat_groups" in state else 1
            self.ranks = self.ranks or max(counts, default=None)
        # Experts have fewer ranks than the rest.
        self._unknown = self._unknown or len(counts) != 1 or "ds_zero_partition_groups" in state

    def _shares(self, rank: int, sizes: List[int]) -> Optional[List[List[Stretch]]]:
        """Return what lies in each flat tensor of a rank; None when that can't be known."""
        if self._unknown or rank != self._read or self.ranks is None:
            return None
        if self.stage == 3:
            params = [param for group in self._shapes for param in group]
            needed = sum(share_of(product(param.shape), self.ranks) for param in params)
            if needed != sum(sizes):
                message = "what rank %d has is not its share of the parameters: %s of %s elements"
                self._faults.append(message % (rank, format(sum(sizes), ","), format(needed, ",")))
                return None
            shares = dealt(list(each_cut(params, rank, self.ranks)), sizes)
        elif len(sizes) != len(self._shapes):
            return None
        else:
            shares = []
            for number, size in enumerate(sizes):
                start = self._held.get(number, 0)
                shares.append(list(one_after_the_other(self._shapes[number], start, size)))
                self._held[number] = start + size
        return shares

    def _name(self, inner: Checkpoint, flats: List[int], shares: List[List[Stretch]], kept: Optimizer) -> None:
        """Put named tensors into the place of flat ones: the weights, and what belongs to the same elements."""
        ids = [(number, key) for number, group in enumerate(kept.groups) for key in group.params]
        parts: Dict[int, List[Tensor]] = {}
        owners: List[Tuple[int, State, List[Stretch]]] = []
        for index, share, (group, key) in zip(flats, shares, ids if len(ids) == len(flats) else [(0, "")] * len(flats)):
            parts[index] = named(inner.tensors[index], share, MODEL if self.stage == 3 else MASTER, "fp32")
            state = kept.states.get(key)
            if state is not None:
                owners.append((group, state, share))
                end = max((each.at + each.length for each in share), default=0)
                for name, other in state.tensors.items():
                    if is_flat(inner.tensors[other]) and inner.tensors[other].numel >= max(end, 2):
                        parts[other] = named(inner.tensors[other], share, OPTIMIZER, name)
        self._left -= sum(map(len, parts.values()))
        if self._left < 0:
            self._unknown = True
            return
        places = self._replace(inner, parts)
        for index, share in zip(flats, shares):
            self._note_rounded(inner.tensors, places[index], share)
        self._groups = self._groups or kept.groups
        for group, state, share in owners:
            self._params.setdefault(group, []).extend(share)
            for number, stretch in enumerate(share):
                tensors = {
                    name: places[other] + (number if other in parts else 0) for name, other in state.tensors.items()
                }
                self._states[_id(stretch)] = state._replace(tensors=tensors)

    def _note_rounded(self, tensors: List[Tensor], place: int, share: List[Stretch]) -> None:
        """Note which of the model's weights are those of a flat tensor, rounded."""
        checkpoint = self._checkpoint
        for number, stretch in enumerate(share):
            copy = self._weights.get(clean_text(stretch.param.name))
            exact = tensors[place - len(checkpoint.tensors) + number]
            if copy is None or exact.dtype.name != "float32" or exact.role != MASTER:
                continue
            if checkpoint.tensors[copy].numel == product(stretch.param.shape):
                checkpoint.rounded.append(Rounded(copy, stretch.first, place + number))

    def _replace(self, inner: Checkpoint, parts: Dict[int, List[Tensor]]) -> Dict[int, int]:
        """Return where each tensor, or its first part, will be in the whole checkpoint."""
        places: Dict[int, int] = {}
        tensors: List[Tensor] = []
        for index, tensor in enumerate(inner.tensors):
            places[index] = len(self._checkpoint.tensors) + len(tensors)
            tensors += parts.get(index, [tensor])
        inner.tensors = tensors
        return places

    def judge(self, name: str) -> None:
        """Hold the files against each other, and note the optimizer that they are together."""
        checkpoint = self._checkpoint
        steps = {rank: known for rank, known in self._steps.items() if known}
        for rank, known in steps.items():
            if known != steps[min(steps)]:
                message = "the ranks' shares of the optimizer are of different steps: %s at rank %d, %s at rank %d"
                first, other = max(steps[min(steps)]), max(known)
                checkpoint.add("CK043", message % (first, min(steps), other, rank))
                break
        if not self._unknown and self.stage < 3 and self._read == self.ranks:
            fault = misfit(self._shapes, self._held, self.ranks)
            self._faults += ["the ranks' shares of the weights %s" % fault] if fault else []
        for fault in self._faults:
            checkpoint.add("CK062", fault)
        if self._states and not self._unknown:
            groups = [
                Group(
                    tuple(map(_id, self._params.get(number, ()))),
                    tuple(clean_text(each.param.name) for each in self._params.get(number, ())),
                    group.options,
                )
                for number, group in enumerate(self._groups)
            ]
            checkpoint.optimizers.append(Optimizer(name, tuple(groups), self._states))


def _id(stretch: Stretch) -> str:
    name = clean_text(stretch.param.name)
    return "%s[%d]" % (name, stretch.first) if stretch.first else name


def _flats(tensors: Sequence[Tensor]) -> List[int]:
    """Return the flat tensors of weights, by their numbers."""
    found = [(_FLAT.search(tensor.name), index) for index, tensor in enumerate(tensors) if is_flat(tensor)]
    return [index for _, index in sorted((int(match.group(1)), index) for match, index in found if match)]


def padded(elements: int, ranks: int) -> int:
    """Return to how many elements ZeRO-1 and 2 fill a group up."""
    return share_of(elements, 2 * ranks) * 2 * ranks


def misfit(shapes: List[List[Shaped]], held: Dict[int, int], ranks: int) -> str:
    """Say how what all ranks hold of each group of ZeRO-1 or 2 fails to be its parameters; nothing when it does not."""
    for number, params in enumerate(shapes):
        needed, there = sum(product(param.shape) for param in params), held.get(number, 0)
        if there < needed:
            return "leave a gap in group %d: %s of %s elements" % (number, format(there, ","), format(needed, ","))
        if padded(there, ranks) != padded(needed, ranks):
            return "are too many for group %d: %s for %s elements" % (number, format(there, ","), format(needed, ","))
    return ""
