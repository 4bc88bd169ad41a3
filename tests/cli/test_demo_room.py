"""The demo where there is no room for its files, or too few of them may be open."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.project import REMOTERUN

# The limit is in 512 bytes: a first file can be made, and no checkpoint.
SMALL_FILES_ONLY = 'ulimit -f 8; exec "$@"'


def test_what_cannot_be_laid_out_is_told(tmp_path: Path) -> None:
    argv = ["sh", "-c", SMALL_FILES_ONLY, "-", *REMOTERUN, "demo"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(argv, capture_output=True, timeout=60, check=False, env=environment, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"remoterun: the demo's files can't be written to {tmp_path}/remoterun-demo-")
    assert done.stderr.endswith(": File too large; name another one by --dir\n")
    assert list(tmp_path.iterdir()) == []


def test_too_few_open_files_are_told() -> None:
    argv = ["sh", "-c", 'ulimit -n 20; exec "$@"', "-", *REMOTERUN, "demo"]
    done = subprocess.run(argv, capture_output=True, timeout=60, check=False, text=True)
    said = "remoterun: the demo has up to 64 files open at once, and 20 are allowed: `ulimit -n 256`\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


def test_as_many_open_files_as_it_says_are_enough() -> None:
    argv = ["sh", "-c", 'ulimit -n 64; exec "$@"', "-", *REMOTERUN, "demo"]
    done = subprocess.run(argv, capture_output=True, timeout=60, check=False, text=True)
    assert done.returncode == 0, done.stderr
