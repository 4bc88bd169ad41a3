"""From the calls in a pickle to the tensors they would make."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Dict, Iterator, Optional, Set, Tuple, Union

from ..dtypes import DTYPES, UNTYPED, Dtype, torch_storage
from ..model import row_major
from ..records import Record
from .nodes import Blob, Call, Decoded, Global, Pairs, Persistent, pairs
from .saved import Saved

if TYPE_CHECKING:
    from typing_extensions import TypeGuard

    from .saved import Like

_MAX_DIMENSIONS = 64
_MAX_ELEMENTS = 1 << 62
# What is made of every storage takes half the time so.
_new = tuple.__new__


class Stored(Record):
    """Place a tensor in a storage: `key` names the storage, `held` is how many bytes the pickle says that it has.

    `offset` and `stride` are in elements. `dtype` is None when the format is not known; `dtype_name` then says what
    the pickle calls it.
    """

    key: str
    held: int
    dtype: Optional[Dtype]
    dtype_name: str
    offset: int
    shape: Tuple[int, ...]
    stride: Tuple[int, ...]


class Bare(Record):
    """Describe a tensor without data: saved from the meta device."""

    shape: Tuple[int, ...]


class Array(Record):
    """Place a numpy array inside the pickle; `data` is text where its bytes are written as such, None where unknown."""

    dtype: Optional[Dtype]
    dtype_name: str
    shape: Tuple[int, ...]
    stride: Tuple[int, ...]
    data: Union[Blob, str, None]


class Broken(Record):
    """Say why a tensor's description makes no sense."""

    reason: str


# What tensors have in common besides their storage and their place there: what is wrong with them; how many bytes into
# the storage one may begin to end in it, -1 where values of their format can't be looked at; how many bytes the storage
# has; those of an element; and the number format, its name, the shape and the stride as in `Stored`. Taking a record
# apart takes much longer than a tuple.
Common = Tuple[Optional[Broken], int, int, int, Optional[Dtype], str, Tuple[int, ...], Tuple[int, ...]]

UNDESCRIBED = Broken("its storage is not described as torch does")

Rebuilt = Union[Stored, Bare, Array, Broken]

_TORCH = ("torch._utils", "torch._tensor")
_PLACED = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_qtensor")
# A parameter of a subclass is two deep.
_MOST_WRAPPERS = 8
# Keys and values; a DTensor has two of each.
_MOST_SLOTS = 16


def rebuild(node: object) -> Optional[Rebuilt]:
    """Return the tensor that a node stands for, None when it stands for something else."""
    for _ in range(_MOST_WRAPPERS):
        if type(node) is Saved:
            return read_saved(node)
        if isinstance(node, Persistent):
            return _bare_storage(node)
        if not isinstance(node, Call) or not isinstance(node.func, Global):
            return None
        if node.func.module not in _TORCH:
            is_array = node.func.name in ("_reconstruct", "_frombuffer") and node.func.module.startswith("numpy.")
            return _array(node) if is_array else None
        inner = _wrapped(node.func.name, node.args)
        if inner is None:
            return _rebuild_torch(node.func.name, node.args)
        node = inner
    return Broken("it is wrapped more than %d times" % _MOST_WRAPPERS)


def _wrapped(name: str, args: Tuple[Any, ...]) -> Optional[object]:
    """Return what a parameter or an object of a subclass is made around."""
    if name in ("_rebuild_parameter", "_rebuild_parameter_with_state") and args:
        inner: object = args[0]
        return inner
    if name in ("_rebuild_from_type_v2", "_rebuild_from_type") and len(args) >= 3 and isinstance(args[0], Global):
        local = _local(args[3]) if len(args) > 3 and args[0].name == "_rebuild_wrapper_subclass" else None
        if local is not None:
            return local
        # (function, class, arguments): the function makes the tensor before it becomes one of the class.
        return Call(args[0], args[2], args[0]) if isinstance(args[2], tuple) else None
    return None


def _local(state: object) -> Optional[object]:
    """Return what a rank holds of a DTensor, of which all is in its state: the attributes and those of slots."""
    for each in state[:2] if isinstance(state, tuple) else (state,):
        for key, value in pairs(each.flat[:_MOST_SLOTS]) if isinstance(each, Pairs) else ():
            if isinstance(key, str) and key == "_local_tensor":
                inner: object = value
                return inner
    return None


def _rebuild_torch(name: str, args: Tuple[Any, ...]) -> Optional[Rebuilt]:
    if name in _PLACED:
        return _placed(name, args)
    if name == "_rebuild_meta_tensor_no_storage" and len(args) >= 2:
        shape = shape_of(args[1])
        return Broken("its shape is no shape") if shape is None else Bare(shape)
    return None


def _placed(name: str, args: Tuple[Any, ...]) -> Rebuilt:
    if len(args) < 4 or not isinstance(args[0], Persistent):
        return Broken("it has no storage")
    storage = _storage(args[0])
    if isinstance(storage, Broken):
        return storage
    offset, shape, stride = args[1], shape_of(args[2]), shape_of(args[3])
    if shape is None or stride is None or not is_count(offset):
        return Broken("its shape, stride or offset is no such thing")
    fault = _fault(shape, stride)
    if fault is not None:
        return fault
    dtype, dtype_name = storage.dtype, storage.dtype_name
    if name == "_rebuild_tensor_v3":
        dtype_name = args[6].name if len(args) > 6 and isinstance(args[6], Global) else "?"
        dtype = DTYPES.get(dtype_name)
    return Stored(storage.key, storage.held, dtype, dtype_name, storage.offset + offset, shape, stride)


def read_saved(node: Saved) -> Union[Stored, Broken]:
    """Return the tensor that was saved in the usual way."""
    fault, _, held, _, dtype, name, shape, stride = common(node.like)
    return fault or Stored(node.key, held, dtype, name, node.offset, shape, stride)


def common(like: Like) -> Common:
    """Return what tensors have in common that were saved in the usual way."""
    meaning: Optional[Common] = like.meaning
    if meaning is None:
        kind, _, elements, _, _, shape, stride, _ = like.described
        dtype, name, size = _format(kind.name)
        fault = _fault(shape, stride)
        plain = fault is None and dtype is not None and dtype.kind != "opaque"
        most = max(-1, (elements - reach(shape, stride)) * size) if plain else -1
        like.meaning = meaning = fault, most, elements * size, size, dtype, name, shape, stride
    return meaning


@functools.lru_cache(maxsize=1024)
def reach(shape: Tuple[int, ...], stride: Tuple[int, ...]) -> int:
    """Return from how many elements on end a tensor shows some, of a storage."""
    last = 0
    for size, step in zip(shape, stride):
        if not size:
            return 0
        last += (size - 1) * step
    return last + 1


@functools.lru_cache(maxsize=1024)
def _fault(shape: Tuple[int, ...], stride: Tuple[int, ...]) -> Optional[Broken]:
    if len(shape) != len(stride):
        return Broken("its shape, stride or offset is no such thing")
    return Broken("it claims more elements than there can be") if _overflows(shape) else None


def _overflows(shape: Tuple[int, ...]) -> bool:
    elements = 1
    for size in shape:
        elements *= size
        if elements > _MAX_ELEMENTS:
            return True
    return False


@functools.lru_cache(maxsize=64)
def _format(storage: str) -> Tuple[Optional[Dtype], str, int]:
    """Return the number format of a class of storages, its name, and the bytes of an element."""
    dtype = torch_storage(storage)
    return (None, storage, 1) if dtype is None else (dtype, dtype.name, dtype.size)


def _storage(node: Persistent) -> Union[Stored, Broken]:
    if node.meaning is None:
        node.meaning = _read_storage(node.id)
    meaning: Union[Stored, Broken] = node.meaning
    return meaning


def _read_storage(pid: object) -> Union[Stored, Broken]:
    """Read ``("storage", class, key, location, elements)``; raw storages count bytes.

    The old format may add ``(key, first, elements)`` of a part of the storage.
    """
    if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage" or not isinstance(pid[1], Global):
        return UNDESCRIBED
    key, elements = pid[2], pid[4]
    if not isinstance(key, str) or not is_count(elements):
        return Broken("its storage has no key or no size")
    dtype, name, size = _format(pid[1].name)
    part = pid[5] if len(pid) > 5 and isinstance(pid[5], tuple) else ()
    first, length = part[1:3] if len(part) == 3 else (0, elements)
    if not is_count(first) or not is_count(length):
        return Broken("its storage is a part of another, and does not say which")
    return Stored(key, elements * size, dtype, name, first, (length,), (1,))


def storage_of(node: Persistent) -> Optional[Stored]:
    """Return a storage as a tensor of one dimension, None when it is none."""
    storage = _storage(node)
    return None if isinstance(storage, Broken) else storage


def others(decoded: Decoded, known: Set[str]) -> Iterator[Stored]:
    """Yield the storages that a pickle refers to besides those that are known, each once."""
    for node in decoded.persistent:
        storage = storage_of(node)
        if storage is not None and storage.key not in known:
            known.add(storage.key)
            yield storage
    for saved in decoded.saved:
        if saved.key not in known:
            known.add(saved.key)
            like = saved.like
            _, _, held, _, dtype, name, _, _ = like.meaning or common(like)
            yield _new(Stored, (saved.key, held, dtype, name, 0, (like.described.elements,), (1,)))


def storages_of(decoded: Decoded) -> Dict[str, Stored]:
    """Return the storages that a pickle refers to, by key."""
    return {storage.key: storage for storage in others(decoded, set())}


def _bare_storage(node: Persistent) -> Optional[Rebuilt]:
    storage = storage_of(node)
    return storage if storage is not None and storage.dtype is not UNTYPED else None


def _array(node: Call) -> Optional[Rebuilt]:
    """Read a numpy array, from its state (version, shape, dtype, columns first, data) or _frombuffer's arguments."""
    if isinstance(node.func, Global) and node.func.name == "_frombuffer":
        values = node.args[:4]
        data, dtype, shape, order = values if len(values) == 4 else (None, None, None, None)
    else:
        state = node.state[-1] if node.state else None
        if not isinstance(state, tuple) or len(state) < 5:
            return None
        shape, dtype, order, data = state[1:5]
    sizes = shape_of(shape)
    name = numpy_dtype(dtype)
    if sizes is None or not name or name.startswith("O"):
        return None
    columns_first = order in (True, "F")
    stride = row_major(sizes[::-1])[::-1] if columns_first else row_major(sizes)
    data = encoded(data)
    return Array(DTYPES.get(name), name, sizes, stride, data if isinstance(data, (Blob, str)) else None)


def encoded(node: object) -> object:
    """Return the text behind the bytes that protocol 2 and older have no other way to write; anything else as it is."""
    return node.args[0] if isinstance(node, Call) and node.path == "_codecs.encode" and node.args else node


_NUMPY = {"f8": "float64", "f4": "float32", "f2": "float16", "c8": "complex64", "c16": "complex128", "b1": "bool"}
_NUMPY_INTEGERS = {"i": "int", "u": "uint"}


def numpy_dtype(node: object) -> str:
    """Return torch's name of a numpy dtype, numpy's where torch has none (big-endian ones), "" for what is none."""
    if not isinstance(node, Call) or not isinstance(node.func, Global) or not node.args:
        return ""
    code = node.args[0]
    if node.func.name != "dtype" or not isinstance(code, str):
        return ""
    state = node.state[-1] if node.state else None
    if isinstance(state, tuple) and len(state) > 1 and state[1] == ">":
        return ">" + code
    if code[:1] in _NUMPY_INTEGERS and code[1:].isdigit() and len(code) == 2:
        return "%s%d" % (_NUMPY_INTEGERS[code[0]], 8 * int(code[1:]))
    return _NUMPY.get(code, code)


def is_count(value: object) -> TypeGuard[int]:
    """Tell whether a value is an int that can count something."""
    return type(value) is int and 0 <= value <= _MAX_ELEMENTS


def shape_of(node: object) -> Optional[Tuple[int, ...]]:
    """Read a shape or stride: a tuple, or torch.Size of one."""
    if isinstance(node, Call) and node.path == "torch.Size" and node.args:
        node = node.args[0]
    if not isinstance(node, (tuple, list)) or len(node) > _MAX_DIMENSIONS:
        return None
    for size in node:
        if type(size) is not int or not 0 <= size <= _MAX_ELEMENTS:
            return None
    return tuple(node)
