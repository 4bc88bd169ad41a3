"""What a command says where the machine it was started on lacks something."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import lacking
from tests.support.project import REMOTERUN, Project, Result

INVENTORY = f"""\
defaults: {{python: {sys.executable}}}
hosts:
  here: {{transport: local}}
"""
COMMANDS = (
    ("play", "hello", "--on", "here"),
    ("check", "."),
    ("exec", "--on", "here", "--", "true"),
    ("runs",),
    ("show", "last"),
    ("history",),
    ("report",),
    ("diff",),
    ("inventory", "list"),
    ("inventory", "check"),
    ("payload", "list"),
    ("schema", "run"),
    ("audit", "hello"),
    ("schedule", "show", "--cron"),
    ("hostkeys", "show", "--on", "here"),
    ("demo",),
    ("--help",),
)
each = pytest.mark.parametrize("words", COMMANDS, ids=" ".join)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return a project whose only target is this machine."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "inventory.yaml").write_text(INVENTORY, "utf-8")
    made = Project(folder=folder)
    made.payload("hello", "def run(ctx):\n    ctx.emit({'hello': 1})\n")
    return made


def start(argv: list[str], folder: Path, **changes: str | None) -> Result:
    """Run a program in a folder, in an environment with some changes."""
    given = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **changes}
    environment = {name: value for name, value in given.items() if value is not None}
    done = subprocess.run(argv, capture_output=True, timeout=100, check=False, cwd=folder, env=environment)
    return Result(status=done.returncode, stdout=done.stdout, stderr=done.stderr.decode("utf-8", "replace"))


def no_bug(result: Result) -> None:
    """See to it that nothing was taken for a bug."""
    assert result.status in (0, 1, 2, 3), result
    assert "bug" not in result.stderr
    assert "Traceback" not in result.stderr


@pytest.fixture(scope="session")
def strange() -> list[str]:
    """Return how a program is started as an account that nobody knows."""
    words = ["unshare", "--user", "--map-user=54321", "--map-group=54321"]
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], check=False).returncode:
        lacking("no user namespaces here")
    return words


@each
def test_no_home(project: Project, strange: list[str], words: tuple[str, ...]) -> None:
    """As containers start programs under numbers that have no account."""
    nowhere = {"HOME": None, "XDG_STATE_HOME": None, "XDG_CACHE_HOME": None}
    no_bug(start([*strange, *REMOTERUN, *words], project.folder, **nowhere))


def test_a_play_without_a_home_has_its_outcome(project: Project, strange: list[str]) -> None:
    words = ("play", "hello", "--on", "here", "--output", "json")
    result = start([*strange, *REMOTERUN, *words], project.folder, HOME=None, XDG_STATE_HOME=None)
    assert (result.status, result.outcome("here")["status"]) == (0, "ok")
    assert "XDG_STATE_HOME" in result.stderr


def test_ssh_without_an_account_says_what_it_lacks(project: Project, strange: list[str]) -> None:
    """No file is at fault, and a name is all that it takes."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        host = {"address": "127.0.0.1", "port": taken.getsockname()[1], "user": "me"}
        (project.folder / "inventory.yaml").write_text(json.dumps({"hosts": {"there": host}}), "utf-8")
        argv = [*strange, *REMOTERUN, "play", "hello", "--on", "there", "--output", "json"]
        names = dict.fromkeys(("HOME", "LOGNAME", "USER", "LNAME", "USERNAME"))
        nameless, named = (start(argv, project.folder, **{**names, "USER": name}) for name in (None, "me"))
    error = nameless.outcome("there")["error"]
    assert (error["code"], error["message"]) == (
        "connect_failed",
        "there: user 54321 of this machine has no name, which SSH asks for",
    )
    assert "export USER=me" in error["hint"]
    assert named.outcome("there")["error"]["code"] == "connect_refused"


@each
def test_the_working_directory_is_gone(project: Project, words: tuple[str, ...]) -> None:
    """As in a terminal that stands in a folder which another has removed."""
    gone = project.folder / "gone"
    gone.mkdir()
    result = start(["sh", "-c", 'rmdir "$PWD"; exec "$@"', "-", *REMOTERUN, *words], gone)
    no_bug(result)
    if words[0] in {"play", "check", "exec", "inventory", "payload"}:
        assert result.stderr == "remoterun: the folder that this was started in is gone: `cd` to another\n"


def test_a_demo_without_a_temporary_folder(project: Project) -> None:
    result = start(["sh", "-c", 'ulimit -f 0; exec "$@"', "-", *REMOTERUN, "demo"], project.folder)
    assert result.status == 2, result
    assert result.stderr.startswith("remoterun: no temporary folder can be made: ")
    assert result.stderr.endswith("; name one by --dir\n")


RAISING = """import sys
from remoterun.cli.guard import run

class Raising:
    def main(self, args, *, prog_name, standalone_mode):
        raise {error}

sys.exit(run(["runs", "--output", "json"], Raising()))
"""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("MemoryError", "there is not enough memory: see `ulimit -v` and what the container may have"),
        ("""RuntimeError("can't start new thread")""", "no thread can be started: see `ulimit -u` and `ulimit -v`"),
        ("OSError(24, 'Too many', '/a')", "/a: Too many: raise the limit, such as by `ulimit -n 4096`"),
        ("OSError(28, 'No space left')", "No space left: make room there"),
    ],
)
def test_what_runs_short_is_no_bug(tmp_path: Path, error: str, said: str) -> None:
    result = start([sys.executable, "-c", RAISING.format(error=error)], tmp_path, TMPDIR=str(tmp_path))
    assert (result.status, result.stderr) == (4, f"remoterun: {said}\n")
    assert (result.document["status"], result.document["message"]) == ("error", said)
    assert list(tmp_path.iterdir()) == []
