"""The part of numpy that counts, without the nine tenths of its import that a scan has no use for."""

from __future__ import annotations

import os
import re
import sys
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any, Optional, Tuple

# BLAS would start a thread per core beside the training job; it reads these once, when it is loaded.
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
# Of the versions in between, the compiled core is known to do without the Python around it.
_KNOWN = ((1, 21), (2, 4))


def load() -> Any:
    """Return numpy, or its compiled core where that is known to be enough: 0.02 s instead of 0.1 s.

    Raises:
        ImportError: when there is no numpy; a broken one may raise anything.
    """
    for name in _THREADS:
        os.environ[name] = "1"
    core = None if "numpy" in sys.modules else _core()
    if core is not None:
        return core
    import numpy

    return numpy


def _core() -> Any:
    spec = PathFinder.find_spec("numpy")
    folder = (spec.submodule_search_locations or [""])[0] if spec is not None else ""
    version = _version(folder)
    if version is None or not _KNOWN[0] <= version <= _KNOWN[1]:
        return None
    inner = "_core" if version >= (2, 0) else "core"
    # Packages without their own code: the modules in them are found, and what the packages would import is not.
    stand_ins = {"numpy": folder, "numpy." + inner: os.path.join(folder, inner)}
    for name, path in stand_ins.items():
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = [path]
    try:
        return __import__("numpy.%s._multiarray_umath" % inner, fromlist=["*"])
    except Exception:  # whatever it is, all of numpy may do
        return None
    finally:
        for name in stand_ins:
            del sys.modules[name]


def _version(folder: str) -> Optional[Tuple[int, int]]:
    """Read the version off the folder that pip and conda lay beside numpy."""
    try:
        beside = os.listdir(os.path.dirname(folder)) if folder else []
    except OSError:
        return None
    found = [re.match(r"numpy-(\d+)\.(\d+)[.\d]*\.dist-info$", name) for name in beside]
    versions = [(int(match.group(1)), int(match.group(2))) for match in found if match]
    return versions[0] if len(versions) == 1 else None
