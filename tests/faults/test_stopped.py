"""A supervisor that is stopped or killed leaves nothing running, whatever its payload has done to hide."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from remoterun.model import Json, Limits, Status
from remoterun.runner import Control
from tests.support.here import payload, play, script

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
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSTOP"])
def test_nothing_outlives_its_supervisor(name: str) -> None:
    mark = f"{os.getpid()}{1 if name == 'SIGKILL' else 2}"
    work = script(HIDING.format(mark=mark, signal=name))
    outcome = play(work, sys.executable, limits=Limits(idle=30.0))
    assert outcome.status in {Status.FAILED, Status.LOST}
    assert outcome.error is not None
    assert alive(mark) == []


_PAIR = """
import os, time
ctx.emit({'supervisor': os.getppid()})
for n in range(20):
    time.sleep(0.05)
    ctx.emit({'n': n})
"""


@pytest.mark.slow
def test_what_was_frozen_for_a_while_goes_on() -> None:
    """Leg and supervisor stand still together, as in a guest that is being saved: that is no silence of either."""

    def freeze(record: Mapping[str, Json], control: Control) -> None:
        if "supervisor" in record:
            supervisor = int(str(record["supervisor"]))
            leg = int(Path(f"/proc/{supervisor}/stat").read_text().rpartition(")")[2].split()[1])
            for pid in (leg, supervisor):
                os.kill(pid, signal.SIGSTOP)
            time.sleep(21)  # longer than a leg waits for a supervisor: what is tested
            os.kill(leg, signal.SIGCONT)
            time.sleep(0.3)  # the leg is the first to go on
            os.kill(supervisor, signal.SIGCONT)

    outcome = play(payload(_PAIR), sys.executable, at_record=freeze)
    assert (outcome.status, outcome.error) == (Status.OK, None)
    assert [record["n"] for record in outcome.records[1:]] == list(range(20))
    assert outcome.connections == 1
