"""What loading a pickle would do, judged by the globals it names and how it uses them.

What is allowed is listed, since a list of all that is dangerous is never whole: classes are taken for data, and
functions of torch, numpy and the standard library that no checkpoint is known to need are suspect.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Dict, FrozenSet, List

from ..dtypes import DTYPES
from ..model import Found, clean_text, count_of

if TYPE_CHECKING:
    from .nodes import Global

PLAIN = "plain"
FOREIGN = "foreign"
OBJECT = "object"
UNLISTED = "unlisted"
RISKY = "risky"
DANGEROUS = "dangerous"


def _listed(text: str) -> FrozenSet[str]:
    return frozenset(text.split())


def _paths(text: str) -> FrozenSet[str]:
    """Read lines of a module and its names."""
    lines = [line.split() for line in text.strip().splitlines()]
    return frozenset("%s.%s" % (line[0], name) for line in lines for name in line[1:])


# What torch.load(weights_only=True) accepts beside storages, tensor classes and number formats:
# torch/_weights_only_unpickler.py of torch 2.13; and what TorchScript's own unpickler knows.
_PLAIN = _paths(
    """
    torch Size device bool per_tensor_affine per_tensor_symmetric per_channel_affine per_channel_symmetric
    torch per_channel_affine_float_qparams
    torch._utils _rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_parameter _rebuild_parameter_with_state
    torch._utils _rebuild_qtensor _rebuild_sparse_tensor _rebuild_nested_tensor _rebuild_meta_tensor_no_storage
    torch._utils _rebuild_wrapper_subclass _rebuild_device_tensor_from_numpy _rebuild_device_tensor_from_cpu_tensor
    torch._tensor _rebuild_from_type_v2
    torch.nn.parameter Parameter
    torch.serialization _get_layout
    torch.storage TypedStorage UntypedStorage
    torch.jit._pickle build_intlist build_doublelist build_boollist build_tensorlist build_tensor_from_id
    torch.jit._pickle restore_type_tag
    collections OrderedDict Counter
    _codecs encode
    builtins bytearray complex set
    """
)
_TORCH_MODULES = _listed("torch torch.cuda torch.sparse torch.cuda.sparse")

# Functions, and classes written small, that make nothing but data. int | None and Optional[int] are made by reduce (of
# what that calls, note is taken), or_ and getitem.
_HARMLESS = _paths(
    """
    builtins frozenset list dict tuple int float bool str bytes slice range object type getattr
    builtins xrange long unicode iter reduce
    collections defaultdict deque
    datetime datetime date time timedelta timezone
    functools partial reduce
    _functools reduce
    inspect _empty
    itertools count cycle repeat chain islice product
    array array _array_reconstructor
    operator itemgetter attrgetter methodcaller getitem or_
    _operator itemgetter attrgetter methodcaller getitem or_
    copyreg _reconstructor __newobj__ __newobj_ex__
    copy_reg _reconstructor __newobj__ __newobj_ex__
    re _compile
    logging getLogger Logger
    time struct_time
    zoneinfo ZoneInfo._unpickle
    types SimpleNamespace GenericAlias
    os stat_result
    platform uname_result
    torch layout strided memory_format
    torch.storage _load_from_bytes
    torch.nested._internal.nested_tensor _rebuild_njt
    numpy.ma.core _mareconstruct
    pandas._libs.internals _unpickle_block
    pandas._libs.tslibs.timestamps _unpickle_timestamp
    pandas._libs.tslibs.timedeltas _timedelta_unpickle
    pandas.core.indexes.base _new_Index
    pandas.core.indexes.datetimes _new_DatetimeIndex
    """
)
# Classes of the standard library that are data. Others open files or connections when they are made.
_DATA_MODULES = _listed(
    """array collections collections.abc copyreg datetime decimal fractions inspect ipaddress itertools numbers operator
    pathlib pathlib._local random time uuid zoneinfo"""
)
# These, and those of torch and numpy, are as long as nobody initialises them, which picklers don't; enumerations are.
_OBJECT_MODULES = _listed("abc argparse configparser contextlib dataclasses enum functools queue string typing weakref")
# Functions that do no harm, whoever calls them.
_HARMLESS_MODULES = _listed("math cmath operator _operator statistics random time json copy string re itertools")
_NUMPY_MODULES = _listed("numpy numpy.core.multiarray numpy._core.multiarray numpy.core.numeric numpy._core.numeric")
_NUMPY_NAMES = _listed(
    """dtype ndarray scalar _reconstruct _frombuffer void str_ bytes_ object_ bool bool_ bool8 half single double
    longdouble byte ubyte short ushort intc uintc int_ uint intp uintp long ulong longlong ulonglong int8 int16 int32
    int64 uint8 uint16 uint32 uint64 float16 float32 float64 float96 float128 complex64 complex128 complex192 complex256
    datetime64 timedelta64"""
)
_SPARSE_NAMES = _listed("csr_matrix csc_matrix coo_matrix csr_array csc_array coo_array")

# Nothing of these belongs into a checkpoint, called or not: partial() and torch's helpers call what they are given.
_DANGEROUS_MODULES = _listed(
    """antigravity idlelib turtledemo
    os posix nt subprocess _posixsubprocess sys pty socket _socket runpy importlib _imp imp code codeop ctypes
    _ctypes commands popen2 webbrowser pip ensurepip pkgutil zipimport cffi"""
)
_DANGEROUS_BUILTINS = _listed("eval exec execfile compile __import__ breakpoint")
# On the way from one attribute to another, these lead anywhere.
_LEADING_ANYWHERE = _listed("__globals__ __builtins__ __subclasses__ __getattribute__ __code__ __dict__ __class__")
# May be referred to; calling it while a file is loaded is something else.
_RISKY_MODULES = _listed(
    """builtins pickle _pickle cPickle marshal shelve shutil pdb bdb cProfile profile trace timeit http urllib ftplib
    smtplib xmlrpc socketserver asyncio multiprocessing concurrent threading _thread signal tempfile fileinput doctest
    site pydoc gc atexit sqlite3 ssl mmap resource fcntl"""
)
# Ways to put code into a pickle, also used in good faith.
_CODE_MODULES = _listed("types cloudpickle dill _dill")
# Libraries whose classes can do harm when they are initialised.
_CHANGING_LIBRARIES = _listed("torch numpy")
# Libraries whose own pickles are known, so that any other of their functions is out of place.
_KNOWN_LIBRARIES = _listed("torch numpy scipy pandas IPython setuptools pkg_resources joblib")


def classify(found: Global) -> str:
    """Say what a global is.

    Returns plain, foreign (somebody's class or function), object (data unless it is initialised), unlisted (a function
    of a known library), risky or dangerous.
    """
    path = found.path
    if _is_plain(found):
        return PLAIN
    if path in _HARMLESS or _is_array(found) or found.module == "torch.return_types":
        return FOREIGN
    top = path.split(".", 1)[0]
    inner = found.name.split(".")
    if (
        top in _DANGEROUS_MODULES
        or _DANGEROUS_MODULES.intersection(name.lstrip("_") for name in inner[:-1])
        or _LEADING_ANYWHERE.intersection(inner)
    ):
        return DANGEROUS
    if top == "builtins" and _DANGEROUS_BUILTINS.intersection(inner):
        return DANGEROUS
    # What Cython gives a class to make its objects with; it makes no others.
    function = not all(_is_class(name) for name in inner)
    # The classes among the builtins are exceptions.
    if top in _RISKY_MODULES and (function or top != "builtins"):
        return RISKY
    if top in _CODE_MODULES or (function and top in _KNOWN_LIBRARIES):
        return UNLISTED
    if found.module in _OBJECT_MODULES or top in _CHANGING_LIBRARIES:
        return UNLISTED if function or found.name == "FileType" or "SerializationWrapper" in found.name else OBJECT
    data = (found.module in _DATA_MODULES and not found.name.endswith(("Meta", "Enum", "Type"))) or top == "builtins"
    return UNLISTED if top in _standard_modules() and (function or not data) else FOREIGN


def _is_class(name: str) -> bool:
    return name.lstrip("_")[:1].isupper() or name.startswith("__pyx_unpickle_")


def is_known(found: Global) -> bool:
    """Tell whether something is of torch, numpy or the standard library."""
    top = found.path.split(".", 1)[0]
    return top in ("torch", "numpy", "builtins") or top in _standard_modules()


def _is_plain(found: Global) -> bool:
    if found.module in _TORCH_MODULES and "." not in found.name:
        return found.path in _PLAIN or found.name in DTYPES or found.name.endswith(("Storage", "Tensor"))
    return found.path in _PLAIN or found.path.startswith("__torch__.")


def _is_array(found: Global) -> bool:
    if found.module in _NUMPY_MODULES:
        return found.name in _NUMPY_NAMES
    if found.module.startswith("scipy.sparse."):
        return found.name in _SPARSE_NAMES
    return found.module == "numpy.random._pickle" and found.name.endswith("_ctor")


@functools.lru_cache(maxsize=1)
def _standard_modules() -> FrozenSet[str]:
    names = getattr(sys, "stdlib_module_names", None)  # since Python 3.10
    if names is None:
        names = {name.split(".")[0] for name in os.listdir(os.path.dirname(os.__file__))}
    return frozenset(names)


def judge(uses: Dict[Global, List[str]], oddities: List[str], record: str) -> List[Found]:
    """Turn what a pickle machine met into findings; `record` names the pickle."""
    groups: Dict[str, List[str]] = {}
    for found, ways in uses.items():
        name = clean_text(found.path, 200)
        kind = classify(found)
        if kind not in (PLAIN, DANGEROUS):
            groups.setdefault("needed", []).append(name)
        groups.setdefault(_group(found, kind, ways), []).append(name)
    results = []
    for group, (rule, text) in _FINDINGS.items():
        names = groups.get(group)
        if names:
            listed = ", ".join(names[:3]) + (" and %d more" % (len(names) - 3) if len(names) > 3 else "")
            results.append(Found(rule, text % listed, {"globals": names[:50], "record": record}))
    if oddities:
        text = "the pickle uses %s that checkpoints never have: %s"
        results.append(Found("CK105", text % (count_of(len(oddities), "opcode"), oddities[0]), {"record": record}))
    return results


_FINDINGS = {
    "changed": ("CK100", "the pickle changes %s itself, for everyone who uses it after that"),
    "dangerous": ("CK101", "loading this file can run code: its pickle uses %s"),
    "indirect": ("CK100", "the pickle calls what %s returned, or its methods, so nobody can tell what would run"),
    "handed": ("CK100", "the pickle hands %s to what may call it while it is loaded"),
    "called": ("CK100", "the pickle calls %s, which no checkpoint is known to need"),
    "needed": ("CK120", "torch.load needs weights_only=False, since the pickle names %s"),
}


def _group(found: Global, kind: str, ways: List[str]) -> str:
    acts = [way for way in ways if way != "named"]
    if kind == DANGEROUS or (kind == RISKY and acts and acts != ["handed"]):
        return "dangerous"
    if "changed" in acts:
        return "changed"
    if "called indirectly" in acts or _is_used(found, kind, acts):
        return "indirect"
    if "handed" in acts and _may_harm(found, kind):
        return "handed"
    unusual = (kind == UNLISTED and acts != ["handed"]) or (kind == OBJECT and "initialised" in acts)
    return "called" if unusual and acts else "nothing"


def _is_used(found: Global, kind: str, acts: List[str]) -> bool:
    """Tell whether methods of an object are called, or kept for others to be called."""
    if "bound" in acts and (found.module in _OBJECT_MODULES or found.module in ("pathlib", "pathlib._local")):
        return True
    return "read" in acts and (kind in (OBJECT, UNLISTED) or found.name == "SimpleNamespace")


def _may_harm(found: Global, kind: str) -> bool:
    if found.module in ("builtins", "__builtin__"):
        return found.name in ("open", "setattr", "delattr", "map", "filter")
    harmless = found.module in _HARMLESS_MODULES and "." not in found.name
    return kind in (RISKY, UNLISTED) and not harmless and found.module.split(".")[0] not in _KNOWN_LIBRARIES
