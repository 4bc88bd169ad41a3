"""Which tensor of the model each parameter of an optimizer is, where that can be known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Set, Tuple

from ..model import MASTER, MODEL, Rounded, row_major
from .names import BUFFER

if TYPE_CHECKING:
    from ..model import Checkpoint, Optimizer, Tensor

# State of this kind has the shape of its parameter.
SHAPED = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "exp_inf")
# Wrappers put their attribute's name into the names of what they wrap.
_WRAPPERS = frozenset(("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
_MOST_PREFIXES = 8
_PICKLED, _PICKLES = ("torch", "pickle"), (".pt", ".pth", ".bin", ".ckpt")
_HALVES = ("bfloat16", "float16")
# More groups leave more than one way to sort a model's tensors into them.
_MOST_GROUPS = 8

# Shapes of parameters in their order, each with an id; None where a shape is not known.
Queue = List[Tuple[str, Optional[Tuple[int, ...]]]]


def matched(checkpoint: Checkpoint, paths: Sequence[str]) -> List[Dict[str, int]]:
    """Return for each optimizer which tensor, by its index, a parameter is, by its id.

    By the names that were saved with the optimizer; else by their order, but only where every tensor of the model finds
    its place, and in one way only. What is not known is left out. `paths` are those of the checkpoint's files.
    """
    weights = _weights(checkpoint)
    ordered = _is_ordered(checkpoint, weights, paths)
    known = []
    for optimizer in checkpoint.optimizers:
        found = _by_name(checkpoint, optimizer, weights)
        known.append(found or (_by_order(checkpoint, optimizer, weights) if ordered else {}))
    return known


def _is_ordered(checkpoint: Checkpoint, weights: List[int], paths: Sequence[str]) -> bool:
    """Tell whether tensors lie in the order of the model: only pickles keep it, others sort by name or size."""
    if checkpoint.format.startswith(_PICKLED):
        return True
    files = {checkpoint.regions[checkpoint.tensors[index].region].file for index in weights}
    return len(files) == 1 and all(number < len(paths) and paths[number].endswith(_PICKLES) for number in files)


def _weights(checkpoint: Checkpoint) -> List[int]:
    """Return what may be parameters: not buffers, nothing twice, no parts."""
    seen: Set[Tuple[object, ...]] = set()
    weights = []
    for index, tensor in enumerate(checkpoint.tensors):
        place = (tensor.region, tensor.start, tensor.shape, tensor.stride)
        if tensor.role != MODEL or not tensor.dtype.floating or tensor.piece is not None or place in seen:
            continue
        if tensor.numel:
            seen.add(place)
        if not BUFFER.search(tensor.name):
            weights.append(index)
    return weights


def _by_name(checkpoint: Checkpoint, optimizer: Optimizer, weights: List[int]) -> Dict[str, int]:
    names = {key: _bare(name) for group in optimizer.groups for key, name in zip(group.params, group.names)}
    known = {_bare(checkpoint.tensors[index].name): index for index in weights}
    if not names or not known:
        return {}
    first = next(iter(names.values()))
    prefixes = [name[: -len(first)] for name in known if name == first or name.endswith("." + first)][:_MOST_PREFIXES]
    best: Dict[str, int] = {}
    for prefix in prefixes:
        found = {key: known[prefix + name] for key, name in names.items() if prefix + name in known}
        best = max(best, found, key=len)
    return best


def _bare(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _by_order(checkpoint: Checkpoint, optimizer: Optimizer, weights: List[int]) -> Dict[str, int]:
    keys = {key for group in optimizer.groups for key in group.params}
    queues = [[(key, _shape(checkpoint, optimizer, key)) for key in group.params] for group in optimizer.groups]
    return _dealt(checkpoint, queues, weights) if len(keys) == sum(map(len, queues)) else {}


def _dealt(checkpoint: Checkpoint, queues: List[Queue], weights: List[int]) -> Dict[str, int]:
    """Deal the model's tensors out to queues of shapes: each must be the next of one, and of no other."""
    if len(queues) > _MOST_GROUPS or sum(map(len, queues)) != len(weights):
        return {}
    at = [0] * len(queues)
    found = {}
    for index in weights:
        shape = checkpoint.tensors[index].shape
        fitting = [
            number
            for number, queue in enumerate(queues)
            if at[number] < len(queue) and queue[at[number]][1] in (None, shape)
        ]
        if len(fitting) != 1:
            return {}
        key, _ = queues[fitting[0]][at[fitting[0]]]
        at[fitting[0]] += 1
        found[key] = index
    return found


def _shape(checkpoint: Checkpoint, optimizer: Optimizer, key: str) -> Optional[Tuple[int, ...]]:
    """Return the shape of a parameter as its state tells it."""
    state = optimizer.states.get(key)
    shaped = shaped_state(checkpoint.tensors, state.tensors) if state is not None else None
    return None if shaped is None else shaped.shape


def shaped_state(tensors: Sequence[Tensor], state: Dict[str, int]) -> Optional[Tensor]:
    """Return a tensor of a parameter's state that has the parameter's shape."""
    return next((tensors[state[key]] for key in SHAPED if key in state), None)


def rounded(checkpoint: Checkpoint) -> List[Rounded]:
    """Return which weights in half precision are the rounded form of those that an optimizer keeps in float32.

    It keeps them with its state of a parameter, or in lists of their own, in the order of the parameters.
    """
    masters = {index: tensor for index, tensor in enumerate(checkpoint.tensors) if tensor.role == MASTER}
    if not masters:
        return []
    found: Dict[int, int] = {}
    for optimizer, known in zip(checkpoint.optimizers, matched(checkpoint, ())):
        for key, copy in known.items():
            kept = optimizer.states[key].tensors.values() if key in optimizer.states else ()
            found.update((index, copy) for index in kept if masters.pop(index, None) is not None)
    queues: Dict[str, Queue] = {}
    for index, tensor in masters.items():
        queues.setdefault(tensor.name.rpartition(".")[0], []).append((str(index), tensor.shape))
    halves = [index for index in _weights(checkpoint) if checkpoint.tensors[index].dtype.name in _HALVES]
    if _is_ordered(checkpoint, halves, ()):
        found.update((int(key), copy) for key, copy in _dealt(checkpoint, list(queues.values()), halves).items())
    pairs = [Rounded(copy, 0, exact) for exact, copy in found.items()]
    return [pair for pair in pairs if _is_rounded(checkpoint.tensors[pair.copy], checkpoint.tensors[pair.exact])]


def _is_rounded(copy: Tensor, exact: Tensor) -> bool:
    if copy.dtype.name not in _HALVES or exact.dtype.name != "float32" or exact.piece is not None:
        return False
    return copy.shape == exact.shape and copy.stride == exact.stride == row_major(copy.shape)
