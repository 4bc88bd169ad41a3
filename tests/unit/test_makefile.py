"""What `make` does before anything of ours is at work."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")

_ROOT = Path(__file__).parents[2]
_TOOLS = ("ruff", "lint-imports", "mypy", "python")


def _make(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # Those of the make that may have started the tests.
    outer = ("MAKE", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "VENV")
    env = {name: value for name, value in os.environ.items() if name not in outer}
    return subprocess.run(
        ["make", *words], cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False
    )


def test_what_make_would_do_is_not_done() -> None:
    done = _make(_ROOT, "-n", "test")
    assert (done.stdout, done.returncode) == ("tests/run\n", 0), done.stderr


def test_all_checks_use_the_environment_that_is_named(tmp_path: Path) -> None:
    """The packages of Debian's are all there, and so is an environment, of tools that only say where they are."""
    shutil.copy(_ROOT / "Makefile", tmp_path)
    (tmp_path / "tests").mkdir()
    shutil.copy(_ROOT / "tests/run", tmp_path / "tests")
    (tmp_path / "pyproject.toml").touch()
    bin_folder = tmp_path / "other/bin"
    bin_folder.mkdir(parents=True)
    for path in (*(bin_folder / name for name in _TOOLS), tmp_path / "dpkg-query"):
        path.write_text('#!/bin/sh\necho "$0" ran; echo install ok installed\n')
        path.chmod(0o755)
    (tmp_path / "other/.test").touch()
    done = _make(tmp_path, "test", f"VENV={tmp_path}/other", f"PATH={tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 0, done
    assert f"{bin_folder}/mypy ran" in done.stdout
    assert f"{bin_folder}/python ran" in done.stdout.rpartition("== tests")[2]
