"""Started in a folder with files of any name, as of training code or of checkpoints: none of them is run.

But for what Python itself looks for there to begin with `-m`, such as types.py.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.project import REMOTERUN

# Modules of Python's and of others that every command imports, or most, and the package itself.
NAMES = (
    "__future__",
    "typing",
    "json",
    "pathlib",
    "asyncio",
    "queue",
    "tempfile",
    "sqlite3",
    "yaml",
    "typer",
    "asyncssh",
    "platformdirs",
)


@pytest.mark.parametrize("words", [("--version",), ("runs", "--help"), ("check", ".")], ids=" ".join)
def test_modules_of_the_working_directory_are_nobodys(tmp_path: Path, words: tuple[str, ...]) -> None:
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')\nraise SystemExit(99)\n", "utf-8")
    done = subprocess.run([*REMOTERUN, *words], capture_output=True, timeout=60, check=False, cwd=tmp_path)
    assert not (tmp_path / "run").exists(), done
    assert done.returncode == (3 if words[0] == "check" else 0), done
