"""Commands that are forked are like those that are started in full."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support import commands
from tests.support.commands import REMOTERUN
from tests.support.here import nothing_left

INVENTORY = "hosts: {here: {transport: local, self: true}}\n"


@pytest.fixture(autouse=True)
def forked() -> None:
    """Have them forked: this environment is asked for often."""
    for _ in range(3):
        commands.run("--version")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a project."""
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    return tmp_path


@pytest.mark.parametrize("words", [("--version",), ("--help",), ("schema", "event"), ("nonsense",), ("diff",)])
def test_a_command_says_and_ends_the_same(folder: Path, words: tuple[str, ...]) -> None:
    done = subprocess.run([*REMOTERUN, *words], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert commands.run(*words, cwd=folder) == (done.returncode, done.stdout, done.stderr)


def test_its_folder_environment_and_input_are_its_own(folder: Path) -> None:
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    source = b"print(6 * 7)"
    done = commands.run("run", "-", "--on", "here", stdin=source, cwd=folder, env=environment)
    assert (done.returncode, done.stdout) == (0, b"42\n"), done.stderr
    assert (folder / "state/remoterun/history.sqlite3").is_file()
    assert not Path(os.environ["XDG_STATE_HOME"]).exists()


def test_each_is_a_process_of_its_own(folder: Path) -> None:
    done = [commands.run("exec", "--on", "here", "--output", "json", "--", "true", cwd=folder) for _ in range(2)]
    assert len({json.loads(each.stdout)["run_id"] for each in done}) == 2


def test_one_that_takes_too_long_is_killed(folder: Path) -> None:
    with nothing_left(), pytest.raises(subprocess.TimeoutExpired):
        commands.run("exec", "--on", "here", "--lease", "1s", "--", "sleep", "60", cwd=folder, timeout=2)
