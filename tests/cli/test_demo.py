"""`remoterun demo` as a user starts it: the story it tells, the commands it offers, and that nothing stays behind."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from remoterun import Project
from tests.support.lab import wait_for
from tests.support.project import REMOTERUN, strict_json

READY = "Ctrl-C here ends it."


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the empty folder in which everything temporary is made."""
    folder = tmp_path / "a folder's name"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def demo(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*REMOTERUN, "demo", *words], capture_output=True, text=True, timeout=120, check=False)


class Kept:
    """Be a running `remoterun demo --keep`."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [*REMOTERUN, "demo", "--keep", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.stdout, self.stderr = "", ""
        self._readers = [threading.Thread(target=read) for read in (self._read_out, self._read_err)]
        for reader in self._readers:
            reader.start()

    def _read_out(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.stdout += line

    def _read_err(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.stderr += line

    def ready(self) -> None:
        wait_for(lambda: READY in self.stderr or self.process.poll() is not None, "the demo to be ready", limit_s=120)
        assert READY in self.stderr, self.stderr

    @property
    def commands(self) -> list[str]:
        """Return what it says to type in another terminal."""
        said = self.stderr.partition("In another terminal:")[2]
        return [line.strip() for line in said.splitlines() if line.startswith("  ")]

    @property
    def folder(self) -> Path:
        return Path(shlex.split(self.commands[0])[1])

    def type(self, command: str) -> subprocess.CompletedProcess[str]:
        """Type a command in another terminal, after what goes before all of them."""
        first = "; ".join(line for line in self.commands if re.match(r"cd |export ", line))
        return subprocess.run(
            ["/bin/sh", "-c", f"{first}; {command}"], capture_output=True, text=True, timeout=120, check=False
        )

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        status = self.process.wait(60)
        for reader in self._readers:
            reader.join()
        assert self.process.stdout
        assert self.process.stderr
        self.process.stdout.close()
        self.process.stderr.close()
        return status


@pytest.fixture
def kept(temporary: Path) -> Iterator[Kept]:
    running = Kept()
    try:
        running.ready()
        yield running
    finally:
        if running.process.poll() is None:
            running.end(signal.SIGINT)


# --- the story --------------------------------------------------------------------------------------------------------


def test_it_shows_the_play_and_clears_up(temporary: Path) -> None:
    done = demo()
    assert done.returncode == 0, done.stderr
    for word in ("dflash-train", "small-run", "old-run", "guest_stopped", "nan_w"):
        assert word in done.stdout
    assert "exit status 3, incomplete" in done.stderr
    assert "remoterun demo --keep" in done.stderr
    assert "has been removed" in done.stderr
    assert list(temporary.iterdir()) == []


def test_the_readme_shows_what_it_prints(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    shown = readme.partition("$ remoterun play check-ckpt\n")[2].partition("```")[0]
    assert re.sub(r"\d+\.\d+ s\b", "TIME", demo().stdout.rstrip()) == re.sub(r"\d+\.\d+ s\b", "TIME", shown.rstrip())
    assert list(temporary.iterdir()) == []


def test_standard_output_is_one_document(temporary: Path) -> None:
    done = demo("--output", "json")
    document = strict_json(done.stdout.encode())
    assert (done.returncode, document["status"], document["exit_code"]) == (0, "incomplete", 3)
    ends = {
        outcome["target"]: (outcome["status"], (outcome["error"] or {}).get("code")) for outcome in document["outcomes"]
    }
    assert ends == {
        "kpro6/200": ("findings", None),
        "kpro6/201": ("ok", None),
        "kpro6/202": ("failed", "guest_stopped"),
    }
    verdicts = {
        outcome["name"]: {record["verdict"] for record in outcome["records"] if record["kind"] == "checkpoint"}
        for outcome in document["outcomes"]
    }
    assert verdicts["small-run"] == {"ok"}
    assert {"ok", "bad"} <= verdicts["dflash-train"]


def test_a_named_folder_stays(temporary: Path, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    assert demo("--dir", str(folder)).returncode == 0
    targets = Project.load(folder).inventory.select(["all"])
    assert [target.id for target in targets] == ["kpro6/200", "kpro6/201", "kpro6/202"]
    assert list(temporary.iterdir()) == []


def test_a_folder_in_use_is_refused(temporary: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "inventory.yaml").write_text("hosts: {}\n")
    done = demo("--dir", str(mine), "--output", "json")
    assert done.returncode == 2
    assert "holds files already" in strict_json(done.stdout.encode())["problems"][0]["message"]
    assert [path.name for path in mine.iterdir()] == ["inventory.yaml"]


# --- left running -----------------------------------------------------------------------------------------------------


def test_the_commands_it_offers_work(kept: Kept) -> None:
    commands = [line for line in kept.commands if not re.match(r"cd |export ", line)]
    assert len(commands) >= 5
    results = {command: kept.type(command) for command in commands}
    for command, done in results.items():
        # Looking at the training guest's checkpoints finds something; everything else goes well.
        expected = 1 if "check-ckpt" in command and "--dry-run" not in command else 0
        assert done.returncode == expected, (command, done)
        assert done.stdout, command
    assert any(os.uname().release in done.stdout for command, done in results.items() if "uname" in command)


@contextmanager
def busy(kept: Kept) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """Have a user run a program in a guest; gives the user's `remoterun` and all processes inside the demo."""
    script = "sleep 600 & echo started; wait"
    words = ["exec", "--project", str(kept.folder), "--on", "kpro6/200", "--", "sh", "-c", script]
    with subprocess.Popen([*REMOTERUN, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as user:
        assert user.stdout
        assert user.stdout.readline() == "started\n"
        inside = psutil.Process(kept.process.pid).children(recursive=True)
        assert len(inside) >= 4, "leg, supervisor, sh and its sleep"
        yield user, inside


def test_ctrl_c_leaves_nothing(kept: Kept, temporary: Path) -> None:
    assert kept.folder.parent == temporary.resolve()
    with busy(kept) as (user, inside):
        assert kept.end(signal.SIGINT) == 0, kept.stderr
        assert not [process for process in inside if process.is_running()]
        user.communicate(timeout=60)
        assert user.returncode == 3
    assert list(temporary.iterdir()) == []
    assert "has been removed" in kept.stderr


def test_a_killed_demo_leaves_no_process(kept: Kept) -> None:
    with busy(kept) as (user, inside):
        kept.end(signal.SIGKILL)
        wait_for(lambda: not any(process.is_running() for process in inside), "the end of all inside", limit_s=60)
        user.communicate(timeout=60)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_other_signals_leave_nothing(kept: Kept, temporary: Path, number: int, status: int) -> None:
    assert kept.end(number) == status, kept.stderr
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_play_leaves_nothing(temporary: Path, number: int) -> None:
    running = Kept()
    wait_for(lambda: "remoterun play" in running.stderr or running.process.poll() is not None, "the play", limit_s=60)
    assert running.end(number) in {128 + number}, running.stderr
    assert list(temporary.iterdir()) == []
