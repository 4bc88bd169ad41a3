"""What Python this is and what it has installed; nothing is imported to find out."""

from __future__ import annotations

import os
import re
import sys
from typing import Dict, Optional

from .files import Files

# As `platform` writes them, which looks for modules of Windows when it is imported.
_IMPLEMENTATIONS = {"cpython": "CPython", "pypy": "PyPy"}


def running() -> Dict[str, object]:
    """Return what this interpreter knows of itself."""
    return {
        "version": sys.version.split()[0],
        "implementation": _IMPLEMENTATIONS.get(sys.implementation.name, sys.implementation.name),
        "executable": sys.executable,
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
        "venv": sys.prefix != sys.base_prefix,
    }


def packages(files: Files) -> Dict[str, object]:
    """Return what is installed; ask this of a child: any folder of `sys.path` may lie on a mount that hangs.

    So what this needs is imported by the child as well: parts of it try modules that only Windows has, and look for
    them in every folder.
    """
    return {"torch": torch(files), "numpy": installed("numpy"), "safetensors": installed("safetensors")}


def installed(name: str) -> Optional[str]:
    """Return the version of an installed distribution, None when it is not installed."""
    import importlib.metadata

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def torch(files: Files) -> Optional[Dict[str, Optional[str]]]:
    """Return version, CUDA and ROCm of the torch that `import torch` would find, None when there is none."""
    import importlib.util

    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:  # a mere folder of that name has no origin
        return None
    folder = os.path.dirname(spec.origin)
    values = parse_version_py(files.text(os.path.join(folder, "version.py")) or "")
    return {
        "version": installed("torch") or values.get("__version__"),
        "cuda": values.get("cuda"),
        "hip": values.get("hip"),
        "path": folder,
    }


def parse_version_py(text: str) -> Dict[str, str]:
    """Read the string assignments of torch/version.py, annotated or not; names that are None are left out."""
    pattern = r"^(\w+)(?:\s*:[^=\n]+)?\s*=\s*(['\"])([^'\"\n]*)\2"
    return {match[1]: match[3] for match in re.finditer(pattern, text, re.MULTILINE)}
