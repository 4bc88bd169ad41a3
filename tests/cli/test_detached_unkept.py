"""Runs that go on without us where no history could be written: what is told to type finds them all the same."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.support.project import Project

INVENTORY = f"""\
defaults: {{python: {sys.executable}}}
hosts:
  one:
    transport: local
"""
# It goes on for as long as there is a file that says so.
SLOW = """\
import os, time

def run(ctx):
    ctx.emit({"n": 1})
    while os.path.exists(ctx.params["file"]):
        time.sleep(0.02)
"""


@pytest.mark.parametrize("limits", ["", "{lease: none}"], ids=["as ever", "without a lease"])
def test_the_commands_that_are_told_find_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: str) -> None:
    project = Project(folder=tmp_path)
    (tmp_path / "inventory.yaml").write_text(f"{INVENTORY}    limits: {limits}\n" if limits else INVENTORY, "utf-8")
    going = tmp_path / "going"
    going.touch()
    params = {"file": {"type": "path", "default": str(going), "help": "It goes on for as long as this is there."}}
    project.payload("slow", SLOW, params=params)
    (tmp_path / "taken").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "taken"))
    begun = project.run("play", "slow", "--detach", "--lease", "5m", "--output", "json")
    assert begun.status == 0, begun
    commands = [shlex.split(words) for words in re.findall(r"^  remoterun (.*) #", begun.stderr, re.MULTILINE)]
    assert [command[0] for command in commands] == ["attach", "collect", "cancel"]
    _, collect, cancel = commands
    fetched = project.run(*collect, "--output", "json")
    assert (fetched.status, fetched.outcome("one")["status"]) == (3, "running"), fetched
    ended = project.run(*cancel, "--output", "json")
    assert (ended.status, ended.outcome("one")["status"]) == (0, "cancelled"), ended


def test_a_run_that_is_nowhere_is_not_at_work(tmp_path: Path) -> None:
    project = Project(folder=tmp_path)
    (tmp_path / "inventory.yaml").write_text(f"{INVENTORY}    limits: {{lease: none}}\n", "utf-8")
    result = project.run("attach", "20261129T221500Z-1f0c9a3e", "--on", "one", "--output", "json")
    outcome = result.outcome("one")
    assert (result.status, outcome["status"], outcome["error"]["code"]) == (3, "lost", "lease_expired")
