"""Programs of the machine that tests ask, and that a machine may lack."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final, NoReturn

import pytest

# Read before any test: the variables of remoterun are taken from each of them.
NO_SKIP: Final = os.environ.get("REMOTERUN_NO_SKIP") == "1"


def needed(name: str, path: str | None = None) -> str:
    """Return a program of this machine, from `path` or PATH, or say that it lacks it."""
    return shutil.which(name, path=path) or lacking(f"{name} is not installed")


def let_all_enter(folder: Path) -> None:
    """Let everybody enter a test's folder, and those that the tests have made above it."""
    for each in (folder, *folder.parents):
        if each.stat().st_uid == os.geteuid() and any(part.startswith("pytest-of-") for part in each.parts):
            each.chmod(0o755)


def lacking(what: str) -> NoReturn:
    """Skip a test for what this machine lacks; fail where REMOTERUN_NO_SKIP=1 forbids skipping."""
    if NO_SKIP:
        pytest.fail(f"{what}, and REMOTERUN_NO_SKIP=1")
    pytest.skip(what)
