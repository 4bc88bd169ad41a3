"""A supervisor that is stopped or killed leaves nothing running, whatever its payload has done to hide."""

from __future__ import annotations

import sys

import pytest

from remoterun.model import Limits, Status
from tests.support.here import play, script

HIDING = """\
import os, signal, time
if os.fork() == 0:
    os.setsid()
    os.execve("/bin/sleep", ["sleep", "777.{mark}"], {{}})
time.sleep(0.3)
os.kill(os.getppid(), signal.{signal})
time.sleep(600)
"""


def alive(mark: str) -> list[str]:
    """Return the pids of sleeps that carry a mark in their arguments: their environment is empty."""
    from pathlib import Path

    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                words = (path / "cmdline").read_bytes()
            except OSError:
                continue
            if f"777.{mark}".encode() in words:
                found.append(path.name)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("signal", ["SIGKILL", "SIGSTOP"])
def test_nothing_outlives_its_supervisor(signal: str) -> None:
    mark = {"SIGKILL": "1459", "SIGSTOP": "1460"}[signal]
    work = script(HIDING.format(mark=mark, signal=signal))
    outcome = play(work, sys.executable, limits=Limits(idle=30.0))
    assert outcome.status in {Status.FAILED, Status.LOST}
    assert outcome.error is not None
    assert alive(mark) == []
