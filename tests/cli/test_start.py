"""How the process of a command ends: at once, and yet with everything done that somebody waits for."""

from __future__ import annotations

import subprocess
import sys

import pytest

_BEFORE = """\
import atexit, os, sys, threading
sys.argv = ["remoterun", *{words}]
from remoterun.__main__ import start
{more}
start()
"""


def start(*words: str, more: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command line in a process in which something else has been prepared."""
    code = _BEFORE.format(words=list(words), more=more)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(("words", "status"), [(("--version",), 0), (("play", "--no-such"), 2)])
def test_the_exit_status_is_the_commands(words: tuple[str, ...], status: int) -> None:
    assert start(*words).returncode == status


def test_what_was_registered_for_the_end_is_done() -> None:
    done = start("--version", more="atexit.register(lambda: sys.stdout.write('at the end\\n'))")
    assert done.stdout.splitlines()[1:] == ["at the end"]


def test_a_thread_that_still_works_is_waited_for() -> None:
    more = (
        "told = threading.Event()\n"
        "def work():\n    told.wait()\n    print('the thread is done')\n"
        "threading.Thread(target=work).start()\n"
        "threading._register_atexit(told.set)"
    )
    assert start("--version", more=more).stdout.splitlines()[1:] == ["the thread is done"]
