"""Asking at a terminal that is closed meanwhile: whoever ignores the hangup goes on without an answer."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

ASK = """\
import asyncio, signal
from remoterun.cli.asking import Asker

async def twice():
    ask = Asker()
    return [await ask("first: "), await ask("second: ")]

signal.signal(signal.SIGHUP, signal.SIG_IGN)
print(asyncio.run(twice()))
"""


def test_a_terminal_that_is_closed_gives_no_answer() -> None:
    ours, theirs = pty.openpty()
    argv, pipe = [sys.executable, "-c", ASK], subprocess.PIPE
    with subprocess.Popen(argv, stdin=theirs, stdout=pipe, stderr=pipe, start_new_session=True) as asked:
        os.close(theirs)
        assert asked.stderr is not None
        assert asked.stderr.read(7) == b"first: "
        os.close(ours)
        out, err = asked.communicate(timeout=30)
    assert (asked.returncode, out) == (0, b"[None, None]\n"), err
