"""How a command line ends when something comes in between: signals, readers that leave, full disks, closed streams."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import psutil
import pytest

from remoterun import report
from remoterun.errors import Problem
from remoterun.model import RunStatus
from tests.support.lab import wait_for
from tests.support.project import REMOTERUN, Project, Result, strict_json
from tests.support.started import Started

INVENTORY = f"""\
defaults: {{python: {sys.executable}}}
hosts:
  here: {{transport: local}}
"""
SLOW = """\
import time

def run(ctx):
    for n in range(10000):
        ctx.emit({"n": n})
        time.sleep(0.05)
"""
BIG = "def run(ctx):\n    ctx.emit({'big': 'x' * 8_000_000})\n"
ENDINGS: dict[int, RunStatus] = {signal.SIGINT: RunStatus.INTERRUPTED, signal.SIGTERM: RunStatus.TERMINATED}

both_signals = pytest.mark.parametrize("number", ENDINGS)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return a project whose only target is this machine."""
    (tmp_path / "inventory.yaml").write_text(INVENTORY, "utf-8")
    made = Project(folder=tmp_path)
    made.payload("hello", "def run(ctx):\n    ctx.emit({'hello': 1})\n")
    made.payload("slow", SLOW)
    made.payload("big", BIG)
    return made


def redirected(words: list[str], how: str) -> Result:
    """Run a command line with redirections in the words of a shell."""
    argv = ["bash", "-c", f'"$@" {how}', "-", *words]
    done = subprocess.run(argv, capture_output=True, timeout=60, check=False)
    return Result(status=done.returncode, stdout=done.stdout, stderr=done.stderr.decode())


# --- signals before anything was started ------------------------------------------------------------------------------


class Endless:
    """Be a project that nobody gets past: its inventory is a pipe that nobody writes into."""

    def __init__(self, folder: Path) -> None:
        self.project = Project(folder=folder)
        self._fifo = folder / "inventory.yaml"
        os.mkfifo(self._fifo)
        self._writer: int | None = None

    def is_read_by(self, pid: int) -> bool:
        """Tell whether a process waits for what its inventory says."""
        if self._writer is None:
            try:
                self._writer = os.open(self._fifo, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                return False
        return psutil.Process(pid).status() == psutil.STATUS_SLEEPING

    def close(self) -> None:
        if self._writer is not None:
            os.close(self._writer)


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[Endless]:
    """Return a project that nobody gets past."""
    made = Endless(tmp_path)
    yield made
    made.close()


def _handles(pid: int, number: int) -> bool:
    """Tell whether a process has a handler for a signal: Python itself has one for SIGINT only."""
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def _maps(pid: int) -> int:
    """Measure how far the imports are: each library that is loaded maps some pieces."""
    return Path(f"/proc/{pid}/maps").read_bytes().count(b"\n")


def stopped(endless: Endless, number: int, further: int, *words: str) -> Result:
    """Start a command line and stop it when it has loaded that much since its first line, or waits at its inventory."""
    with Started(endless.project.argv(*words)) as command:
        wait_for(lambda: _handles(command.pid, signal.SIGTERM), "the first line")
        first = _maps(command.pid)
        further_on = first + further
        wait_for(lambda: endless.is_read_by(command.pid) or _maps(command.pid) >= further_on, "the start to get on")
        return command.end(number)


@both_signals
@pytest.mark.parametrize("further", [*range(0, 180, 20), 1_000_000])
def test_a_signal_at_any_moment_of_the_start_gives_one_document(endless: Endless, number: int, further: int) -> None:
    result = stopped(endless, number, further, "play", "probe", "--on", "here", "--output", "json")
    said = ENDINGS[number]
    assert result.status == said.exit_code == 128 + number, result
    expected = report.error_document((Problem(message=f"{said} before anything was started"),), status=said)
    assert result.document == expected
    jsonschema.validate(result.document, report.error_schema())
    assert result.stderr == f"remoterun: {said} before anything was started\n"


@both_signals
@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (("inventory", "list", "--output=jsonl"), 1),
        (("inventory", "check", "--output=json"), 1),
        (("exec", "--on", "here", "--", "echo", "--output", "json"), 0),
        (("play", "probe"), 0),
    ],
)
def test_the_document_is_there_when_it_was_asked_for(
    endless: Endless, number: int, words: tuple[str, ...], lines: int
) -> None:
    result = stopped(endless, number, 1_000_000, *words)
    assert result.status == 128 + number
    assert result.stdout.count(b"\n") == lines
    if lines:
        assert result.document["exit_code"] == 128 + number
    assert "Traceback" not in result.stderr


def test_a_signal_that_finds_no_reader_leaves_all_the_same(endless: Endless) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    argv = endless.project.argv("play", "probe", "--output", "json")
    with Started(argv, stdout=writer) as command:
        os.close(writer)
        wait_for(lambda: endless.is_read_by(command.pid), "the plan to be made")
        result = command.end()
    assert (result.status, result.stderr) == (130, "remoterun: interrupted before anything was started\n")


@both_signals
@pytest.mark.parametrize("further", [0, 20, 40])
def test_a_demo_that_is_stopped_before_its_play_clears_up_and_says_so_once(
    tmp_path: Path, number: int, further: int
) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    argv = [*REMOTERUN, "demo", "--output", "json"]
    with Started(argv, env=environment) as command:
        wait_for(lambda: _handles(command.pid, signal.SIGHUP), "the demo to begin")
        first = _maps(command.pid)
        wait_for(lambda: _maps(command.pid) >= first + further, "the demo to get on")
        result = command.end(number)
    assert result.status == result.document["exit_code"] == 128 + number, result
    assert result.document["status"] == ENDINGS[number]
    assert list(tmp_path.iterdir()) == []


# --- signals while something runs, and afterwards ---------------------------------------------------------------------


@both_signals
@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_the_document_of_a_run_that_was_stopped_says_the_exit_status(project: Project, number: int, form: str) -> None:
    with Started(project.argv("play", "slow", "-v", "--output", form)) as command:
        command.says(rb" run$", on="stderr")
        result = command.end(number)
    last = strict_json(result.stdout if form == "json" else result.stdout.splitlines()[-1])
    assert (result.status, last["exit_code"], last["status"]) == (128 + number, 128 + number, ENDINGS[number])
    jsonschema.validate(last, report.run_schema() if form == "json" else report.event_schema())
    assert last["counts"]["cancelled"] == 1


def _is_full(command: Started) -> bool:
    """Tell whether the pipe of a standard output that is not read holds what it can."""
    pipe = command.process.stdout
    assert pipe
    waiting = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))[0]
    return bool(waiting >= fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) - 4096)


@pytest.mark.parametrize(("number", "form"), [(signal.SIGINT, "json"), (signal.SIGTERM, "jsonl")])
def test_a_signal_while_the_result_is_read_does_not_cut_it(project: Project, number: int, form: str) -> None:
    with Started(project.argv("play", "big", "--quiet", "--output", form), unread=["stdout"]) as command:
        # Most of the result is still to come then.
        wait_for(lambda: _is_full(command), "the result")
        result = command.end(number)
    last = strict_json(result.stdout if form == "json" else result.stdout.splitlines()[-1])
    assert result.status == last["exit_code"]


@pytest.mark.parametrize(
    ("number", "form"), [(signal.SIGTERM, "json"), (signal.SIGINT, "jsonl"), (signal.SIGTERM, "table")]
)
def test_a_signal_while_the_reader_has_paused_ends_it(project: Project, number: int, form: str) -> None:
    words = ("play", "big") if form != "table" else ("exec", "--on", "here", "--", "head", "-c", "8000000", "/dev/zero")
    at = words.index("--") if "--" in words else len(words)
    with Started(project.argv(*words[:at], "--output", form, *words[at:]), unread=["stdout"]) as command:
        wait_for(lambda: _is_full(command), "a full pipe")
        command.send(number)
        assert command.process.wait(60) == 128 + number
        assert "Traceback" not in command.result().stderr


# --- readers that pause -----------------------------------------------------------------------------------------------

LINES, LINE = 80 * 1024, "x" * 1023
# The first of two writes as much as it can; the other waits until the first does not get on any more, and ends.
UNEQUAL = f"""\
import os, sys, time
place = sys.argv[1]
try:
    os.mkdir(place + "/loud")
except FileExistsError:
    def size():
        return os.path.getsize(place + "/progress") if os.path.exists(place + "/progress") else 0
    before = -1
    while before != size() or not before:
        before = size()
        time.sleep(1)
    print("quiet to the end")
else:
    with open(place + "/progress", "wb", 0) as progress:
        for number in range({LINES}):
            print("{LINE}")
            if number % 64 == 0:
                progress.write(b".")
"""


@pytest.mark.slow
def test_a_reader_that_pauses_holds_back_only_who_writes_too_much(project: Project, tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text(f"{INVENTORY}  there: {{transport: local}}\n", "utf-8")
    (tmp_path / "unequal.py").write_text(UNEQUAL, "utf-8")
    argv = project.argv("run", str(tmp_path / "unequal.py"), "--on", "all", "-v", "--", str(tmp_path))
    with Started(argv, unread=["stdout"]) as command:
        # Standard output is not read before one of the two has ended.
        ended = command.says(rb"^(here|there) +ok", on="stderr", limit_s=120)
        memory = psutil.Process(command.pid).memory_info().rss
        result = command.result(limit_s=120)
    assert result.status == 0
    lines = result.stdout.splitlines()
    quiet = ended.split()[0]
    assert [line for line in lines if line.startswith(quiet)] == [quiet.ljust(5) + b" | quiet to the end"]
    assert sum(line.endswith(LINE.encode()) for line in lines) == LINES
    assert memory < 160 << 20


# --- readers that leave, full disks, closed streams -------------------------------------------------------------------

QUICK = [
    ["--version"],
    ["inventory", "list"],
    ["play", "hello", "--output", "json"],
    ["--help"],
    ["play", "--help"],
    ["schema", "run"],
    ["inventory", "list", "--output", "json"],
    ["payload", "show", "probe"],
    ["play", "hello", "--dry-run"],
    ["play", "hello"],
    ["play", "hello", "--output", "jsonl"],
    ["exec", "--on", "here", "--", "echo", "hello"],
]
WRONG = [["nosuch"], ["play", "nosuch"], ["play", "hello", "--no-such-flag"]]
each = pytest.mark.parametrize("words", QUICK, ids=" ".join)
some = pytest.mark.parametrize("words", QUICK[:4], ids=" ".join)


def placed(project: Project, words: list[str]) -> list[str]:
    """Return a command line that finds the project, where it wants one."""
    if words[0].startswith("-") or "--help" in words or words[0] == "schema":
        return [*REMOTERUN, *words]
    return project.argv(*words)


@each
def test_a_reader_that_has_left_ends_it_with_141(project: Project, words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with Started(placed(project, words), stdout=writer) as command:
        os.close(writer)
        result = command.result()
    assert result.status == 141, result
    assert "Traceback" not in result.stderr
    assert "rror" not in result.stderr


def _told_unwritten(result: Result, reason: str) -> None:
    assert result.status == 3, result
    ours = [line for line in result.stderr.splitlines() if line.startswith("remoterun: ")]
    assert ours == [f"remoterun: standard output cannot be written: {reason}"]
    assert "Traceback" not in result.stderr
    assert "Exception" not in result.stderr


@each
def test_a_full_disk_is_told_in_one_line(project: Project, words: list[str]) -> None:
    _told_unwritten(redirected(placed(project, words), ">/dev/full"), "No space left on device")


@some
def test_a_closed_output_is_told_in_one_line(project: Project, words: list[str]) -> None:
    _told_unwritten(redirected(placed(project, words), ">&-"), "Bad file descriptor")


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
@pytest.mark.parametrize("how", [">/dev/full", ">&-"], ids=["full", "closed"])
def test_what_is_wrong_is_told_also_without_an_output(project: Project, words: list[str], how: str) -> None:
    result = redirected([*placed(project, words), "--output", "json"], how)
    assert result.status == 2, result
    first, second = result.stderr.splitlines()
    assert "o such" in first or "nosuch" in first
    assert second.startswith("remoterun: standard output cannot be written: ")


@some
@pytest.mark.parametrize("how", ["2>/dev/full", "2>&-", "<&-", "<&- 2>&-"])
def test_nobody_has_to_hear_or_say_anything(project: Project, words: list[str], how: str) -> None:
    result = redirected(placed(project, words), how)
    assert result.status == 0, result
    assert result.stdout
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("how", ["2>/dev/full", "2>&-", "<&- 2>&-"])
def test_what_is_wrong_is_in_the_document_also_without_standard_error(project: Project, how: str) -> None:
    result = redirected(project.argv("play", "nosuch", "--output", "json"), how)
    assert result.status == result.document["exit_code"] == 2


def test_a_script_from_a_closed_standard_input_is_wrong(project: Project) -> None:
    result = redirected(project.argv("run", "-", "--on", "here", "--output", "json"), "<&-")
    assert result.status == result.document["exit_code"] == 2
    assert "cannot be read: Bad file descriptor" in result.stderr


def test_nothing_is_open_that_a_closed_stream_left_room_for(project: Project) -> None:
    listed = redirected(project.argv("inventory", "list", "--output", "json"), "<&- 2>&-")
    assert [target["id"] for target in listed.document["targets"]] == ["here"]


# --- a command line's own bugs ----------------------------------------------------------------------------------------

BROKEN = """import sys
from remoterun.cli.guard import run

class Broken:
    def main(self, args, *, prog_name, standalone_mode):
        raise RuntimeError("broken on purpose: \\udce4")

sys.exit(run(["play", "hello", "--output", "json"], Broken()))
"""


def test_a_bug_is_one_line_and_a_file(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", BROKEN], capture_output=True, timeout=60, check=False, env=environment)
    told = done.stderr.decode()
    assert (done.returncode, told.count("\n")) == (4, 1)
    assert strict_json(done.stdout)["status"] == "error"
    (path,) = tmp_path.iterdir()
    assert told.endswith(f" {path}\n")
    assert "broken on purpose" in path.read_text("utf-8")


def test_a_bug_is_told_where_no_file_can_be_made() -> None:
    full = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n{BROKEN}"
    done = subprocess.run([sys.executable, "-c", full], capture_output=True, timeout=60, check=False)
    assert (done.returncode, strict_json(done.stdout)["status"]) == (4, "error")
    told = done.stderr.decode().splitlines()
    assert told[-1].endswith("the traceback is on standard error")
    assert any("broken on purpose" in line for line in told[:-1])
