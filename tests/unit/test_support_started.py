"""What tests start is listened to: nothing that it says is lost, and who waits in vain is told what was said."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.support.started import Started

# It says much at once, and goes on.
PROGRAM = """\
import os, signal, time
signal.signal(signal.SIGINT, lambda *_: os._exit(os.write(1, b"interrupted\\n") and 3))
os.write(1, b"".join(b"line %d\\n" % number for number in range(5000)))
os.write(2, b"x" * 100_000 + b"\\n")
time.sleep(600)
"""


def test_what_was_said_at_once_is_there_after_a_signal() -> None:
    with Started([sys.executable, "-c", PROGRAM]) as command:
        assert command.says(b"^line 3$") == b"line 3"
        assert command.says(b"^line .*9$", 2) == b"line 19"
        command.says(b"^x+$", on="stderr")
        result = command.end()
    assert result.stdout.splitlines() == [*(b"line %d" % number for number in range(5000)), b"interrupted"]
    assert (result.status, len(result.stderr)) == (3, 100_001)


def test_a_stream_that_is_not_read_holds_the_program_back() -> None:
    with Started([sys.executable, "-c", PROGRAM], unread=["stderr"]) as command:
        command.says(b"^line 4999$")
        with pytest.raises(AssertionError, match=r"goes on after 0.2 s: status None"):
            command.result(limit_s=0.2)
        # By now it is read.
        command.says(b"^x+$", on="stderr")
        assert command.end(signal.SIGKILL).status == -signal.SIGKILL


def test_who_waits_in_vain_is_told_what_was_said() -> None:
    with Started([sys.executable, "-c", PROGRAM]) as command:
        command.says(b"^line 4999$")
        with pytest.raises(AssertionError, match=r"waited 0.2 s in vain for b'nothing': status None, .*line 4999"):
            command.says(b"nothing", limit_s=0.2)
    ended = pytest.raises(AssertionError, match=r"ended without b'nothing': status .*, b'all\\n', b''")
    with Started([sys.executable, "-c", "print('all')"]) as command, ended:
        command.says(b"nothing")


def test_who_leaves_the_block_ends_it() -> None:
    with Started([sys.executable, "-c", PROGRAM]) as command:
        command.says(b"^line 0$")
    assert not Path(f"/proc/{command.pid}").exists()
