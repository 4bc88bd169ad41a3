"""Commands that end without a word, killed or because their terminal was closed: what is left of them, and for whom."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.homes import keep_state_in
from tests.support.lab import wait_for
from tests.support.project import REMOTERUN, Project, Result, remoterun
from tests.support.started import Started

INVENTORY = f"defaults: {{python: {sys.executable}}}\nhosts:\n  here: {{transport: local}}\n"
# It goes on for as long as there is a file that says so.
SLOW = """\
import os, time

def run(ctx):
    ctx.emit({"n": 1})
    while os.path.exists(ctx.params["wait"]):
        time.sleep(0.02)
"""


# It goes on when it is asked to end, and says that it was.
STUBBORN = """\
import signal, time

def run(ctx):
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    for _ in range(10000):
        ctx.emit({"n": 1 + len(asked)})
        time.sleep(0.02)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Return a project whose only target is this machine, with a history of its own."""
    made = Project(folder=tmp_path / "project")
    made.folder.mkdir()
    (made.folder / "inventory.yaml").write_text(INVENTORY, "utf-8")
    (made.folder / "wait").touch()
    wait = {"type": "path", "default": str(made.folder / "wait"), "help": "What to wait for."}
    made.payload("slow", SLOW, params={"wait": wait})
    keep_state_in(tmp_path / "state", monkeypatch)
    return made


def started(project: Project, *before: str) -> Started:
    """Start a run whose payload goes on."""
    return Started([*before, *project.argv("play", "slow", "--output", "jsonl", "--quiet")])


def said(*words: str) -> Result:
    """Run a command line without a project to its end."""
    return remoterun(*words)


def _locks(tmp_path: Path) -> list[str]:
    return os.listdir(tmp_path / "state" / "remoterun" / "running")  # noqa: PTH208 - names, not paths


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_a_run_whose_command_is_gone_is_cut_and_taken_up_again(project: Project, tmp_path: Path, number: int) -> None:
    with started(project) as command:
        record = command.says(b'"record"')
        result = command.end(number)
    assert (result.status, result.stdout.splitlines()[-1], result.stderr) == (-number, record, "")
    assert len(_locks(tmp_path)) == 1
    assert b" cut " in said("runs").stdout
    assert _locks(tmp_path) == []
    with Started([*REMOTERUN, "attach", "last", "--output", "jsonl"]) as follower:
        follower.says(b'"record"')
        (project.folder / "wait").unlink()
        result = follower.result()
    assert (result.status, b'"survivors": 0' in result.stdout) == (0, True), result
    assert _locks(tmp_path) == []


def test_a_command_under_nohup_outlives_its_terminal(project: Project) -> None:
    with started(project, "nohup") as command:
        command.says(b'"record"')
        command.send(signal.SIGHUP)
        status = Path(f"/proc/{command.pid}/status")
        wait_for(lambda: "ShdPnd:\t0000000000000000" in status.read_text("ascii"), "no signal")
        (project.folder / "wait").unlink()
        result = command.result()
    assert result.status == 0
    assert b'"run_finished"' in result.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [(signal.SIGINT, signal.SIGINT, 130), (signal.SIGTERM, signal.SIGTERM, 143), (signal.SIGTERM, signal.SIGINT, 143)],
)
def test_a_second_signal_says_what_nobody_has_confirmed(project: Project, first: int, second: int, status: int) -> None:
    project.payload("stubborn", STUBBORN)
    with Started(project.argv("play", "stubborn", "--output", "jsonl")) as command:
        command.says(b'"n": 1}')
        command.send(first)
        # It says so every 20 ms at most: a second SIGTERM that comes at once may be the first one again.
        command.says(b'"n": 2}', times=50)
        result = command.end(second)
    assert result.status == status
    outcome = next(event for event in command.events() if event["type"] == "outcome")
    assert (outcome["status"], outcome["survivors"]) == ("cancelled", None)
    assert (
        "here has not confirmed it: it ends the payload by itself within its lease of 2m" in outcome["error"]["message"]
    )
    assert "left; not confirmed as ended on 1 target: here\n" in result.stderr


def test_a_sigterm_that_comes_twice_is_one(project: Project) -> None:
    project.payload("stubborn", STUBBORN)
    with Started(project.argv("play", "stubborn", "--output", "jsonl")) as command:
        command.says(b'"n": 1}')
        command.send(signal.SIGTERM)
        command.says(b'"n": 2}')
        result = command.end(signal.SIGTERM)
    assert result.status == 143
    outcome = next(event for event in command.events() if event["type"] == "outcome")
    assert (outcome["status"], outcome["survivors"]) == ("cancelled", 0)
    assert "left" not in result.stderr
