"""Readers that take nothing any more, and a signal: who hangs is given up, and all others get the whole result."""

from __future__ import annotations

import os
import select
import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.lab import wait_for
from tests.support.project import Project
from tests.support.started import Started

INVENTORY = f"""\
defaults: {{python: {sys.executable}}}
hosts:
  here: {{transport: local}}
"""
# It fills every pipe, and goes on.
LOUD = """\
import time

def run(ctx):
    for n in range(10000):
        ctx.emit({"n": n, "big": "x" * 4096})
        ctx.log("y" * 4096)
        time.sleep(0.002 if n < 40 else 0.1)
"""
BIG = "def run(ctx):\n    ctx.emit({'big': 'x' * 200_000})\n"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return a project whose only target is this machine."""
    (tmp_path / "inventory.yaml").write_text(INVENTORY, "utf-8")
    made = Project(folder=tmp_path)
    made.payload("loud", LOUD)
    made.payload("big", BIG)
    return made


def _full(pid: int, number: int) -> bool:
    """Tell whether a process's descriptor is a pipe that takes nothing more."""
    descriptor = os.open(f"/proc/{pid}/fd/{number}", os.O_WRONLY)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        return not poll.poll(0)
    finally:
        os.close(descriptor)


# Far less than the minute that a reader with a pulse is given.
SOON_S = 30


def test_a_pipe_that_nobody_opens_is_nothing_that_a_signal_waits_for(project: Project, tmp_path: Path) -> None:
    fifo = tmp_path / "events"
    os.mkfifo(fifo)
    with Started(project.argv("play", "big", "--output", "json", "--events", str(fifo))) as command:
        wait_for(lambda: _opens(command.pid), "the pipe to be opened")
        result = command.end(signal.SIGTERM, SOON_S)
    assert (result.status, result.document["exit_code"]) == (143, 143)
    assert result.stderr == "remoterun: terminated before anything was started\n"


def _opens(pid: int) -> bool:
    """Tell whether a process waits until somebody opens the other end of a pipe."""
    try:
        return Path(f"/proc/{pid}/wchan").read_text("ascii") == "wait_for_partner"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_events_that_nobody_takes_hold_up_no_signal(project: Project, number: int) -> None:
    reader, writer = os.pipe()
    argv = project.argv("play", "loud", "--output", "json", "--events", f"fd:{writer}")
    with Started(argv, pass_fds=[writer]) as command:
        os.close(writer)
        wait_for(lambda: _full(command.pid, writer), "a full pipe")
        result = command.end(number, SOON_S)
    os.close(reader)
    assert (result.status, result.document["exit_code"]) == (128 + number, 128 + number)
    assert result.document["counts"]["cancelled"] == 1
    assert result.stderr.count(f"no more events are written to fd:{writer}: its reader takes nothing\n") == 1
    assert "Traceback" not in result.stderr


def test_events_that_nobody_takes_after_the_run_cost_nothing_of_its_result(project: Project) -> None:
    reader, writer = os.pipe()
    argv = project.argv("play", "big", "--output", "json", "--events", f"fd:{writer}")
    with Started(argv, pass_fds=[writer]) as command:
        os.close(writer)
        command.says(rb"^here ", on="stderr")
        # Nothing of the run is left, so it waits for the reader.
        process = psutil.Process(command.pid)
        wait_for(lambda: not process.children() and _full(command.pid, writer), "the end of the run")
        wait_for(lambda: process.status() == psutil.STATUS_SLEEPING, "it to wait")
        result = command.end(signal.SIGTERM, SOON_S)
    os.close(reader)
    assert result.status == result.document["exit_code"]
    assert len(result.document["outcomes"][0]["records"][0]["big"]) == 200_000


def test_messages_that_nobody_reads_cost_nothing_of_the_document(project: Project) -> None:
    with Started(project.argv("play", "loud", "-vv", "--output", "json"), unread=["stderr"]) as command:
        wait_for(lambda: _full(command.pid, 2), "a full pipe")
        command.send(signal.SIGTERM)
        assert command.process.wait(SOON_S) == 143
        assert command.result().document["exit_code"] == 143
