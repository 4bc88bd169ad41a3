"""The history on the command line: what was run is shown again, taken up where it was cut, and run anew."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.homes import keep_state_in
from tests.support.programs import lacking
from tests.support.project import REMOTERUN, Project, piped, remoterun, strict_json
from tests.support.started import Started
from tests.support.terminal import on_a_terminal

INVENTORY = f"""\
defaults: {{python: {sys.executable}}}
hosts:
  one: {{transport: local, vars: {{gate: open}}}}
  two: {{transport: local, vars: {{gate: shut}}}}
"""
# Each start is noted; the gate of one target is shut until a test opens it.
COUNT = """\
import os, time

def run(ctx):
    folder, gate = ctx.params["folder"], ctx.params["gate"]
    with open(os.path.join(folder, "started-" + gate), "a") as file:
        file.write("x")
    for number in range(3):
        ctx.emit({"number": number})
    while not os.path.exists(os.path.join(folder, gate)):
        time.sleep(0.01)
    ctx.emit({"number": 3})
"""

PICK = """\
def run(ctx):
    ctx.emit({"gate": ctx.params["gate"]})
    if ctx.params["gate"] == "shut":
        ctx.fail("no")
"""
LARGE = """\
def run(ctx):
    for number in range(175):
        ctx.emit({"kind": "norms", "n": number, "text": "%0100000d" % number})
"""
MUCH = """\
import os

def run(ctx):
    for number in range(20):
        ctx.emit({"number": number, "text": os.urandom(20_000).hex()})
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Return a project of two targets, both this machine, with a history of its own."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "inventory.yaml").write_text(INVENTORY, "utf-8")
    keep_state_in(tmp_path / "state", monkeypatch)
    made = Project(folder=folder)
    params = {
        "folder": {"type": "path", "default": str(folder), "help": "Where the gates are."},
        "gate": {"type": "string", "var": "gate", "help": "What to wait for."},
    }
    made.payload("count", COUNT, params=params)
    (folder / "open").write_text("")
    return made


def _history(*words: str) -> tuple[int, Any, str]:
    """Run a command that needs no project."""
    done = remoterun(*words)
    return (
        done.status,
        json.loads(done.stdout) if done.stdout[:1] == b"{" else done.stdout.decode(),
        done.stderr,
    )


def _cut(project: Project, number: int = signal.SIGKILL) -> list[dict[str, Any]]:
    """Kill a run when one of its targets is done and the other waits; return what it had shown by then."""
    with Started(project.argv("play", "count", "--on", "all", "--output", "jsonl")) as command:
        command.says(b'"type": "record"', 7)
        command.says(b'"type": "outcome"')
        command.end(number)
        return list(command.events())


def _numbers(outcome: dict[str, Any]) -> list[int]:
    return [record["number"] for record in outcome["records"]]


def test_a_killed_run_has_kept_all_it_showed_and_is_taken_up(project: Project) -> None:
    shown = _cut(project)
    status, document, _ = _history("show", "last", "--output", "json")
    assert status == 0
    one, two = document["outcomes"]
    assert document["run_id"] == shown[0]["run_id"]
    assert (document["status"], one["status"], two["status"]) == ("incomplete", "ok", "lost")
    assert two["error"]["code"] == "run_cut"
    assert f"`remoterun resume {document['run_id']}`" in two["error"]["hint"]
    assert (_numbers(one), _numbers(two)) == ([0, 1, 2, 3], [0, 1, 2])

    (project.folder / "shut").write_text("")
    status, document, _ = _history("resume", "last", "--output", "json")
    assert status == 0
    assert document["run_id"] == shown[0]["run_id"]
    assert [outcome["status"] for outcome in document["outcomes"]] == ["ok", "ok"]
    assert document["outcomes"][0] == one
    assert _numbers(document["outcomes"][1]) == [0, 1, 2, 3]
    assert (project.folder / "started-open").read_text() == "x"
    # It was still at work there: taken up, not started again.
    assert (project.folder / "started-shut").read_text() == "x"

    assert _history("show", "last", "--output", "json")[1] == document
    status, again, told = _history("resume", "last", "--output", "json")
    assert (status, again) == (0, document)
    assert "is complete" in told


@pytest.mark.parametrize("turn", range(10))
def test_whatever_was_shown_before_a_kill_is_kept(project: Project, turn: int, seed: int) -> None:
    chance = random.Random(f"{seed} {turn}")
    with Started(project.argv("play", "count", "--on", "all", "--output", "jsonl")) as command:
        # Two targets say ten lines, and one of them waits after that.
        command.says(b"", chance.randint(1, 9))
        command.end(signal.SIGKILL)
        # Without half of a last line.
        shown = list(command.events())
    _, document, _ = _history("show", "last", "--output", "json")
    assert document["run_id"] == shown[0]["run_id"]
    for outcome in document["outcomes"]:
        told = [line["record"] for line in shown if line["type"] == "record" and line["target"] == outcome["target"]]
        assert outcome["records"][: len(told)] == told
    done = {line["target"] for line in shown if line["type"] == "outcome"}
    assert done <= {outcome["target"] for outcome in document["outcomes"] if outcome["status"] == "ok"}


def test_a_run_that_is_going_on_is_shown_as_that(project: Project) -> None:
    with Started(project.argv("play", "count", "--on", "two", "--output", "jsonl")) as command:
        command.says(b'"type": "record"', 3)
        _, document, _ = _history("runs", "--output", "json")
        run_id = next(command.events())["run_id"]
        assert [(run["run_id"], run["status"]) for run in document["runs"]] == [(run_id, "running")]
        _, document, _ = _history("show", "last", "--output", "json")
        assert document["outcomes"][0]["error"]["code"] == "still_running"
        assert _numbers(document["outcomes"][0]) == [0, 1, 2]
        status, document, _ = _history("resume", "last", "--output", "json")
        assert status == 2
        assert "going on" in document["message"]
        (project.folder / "shut").write_text("")
        assert command.result().status == 0


def test_an_interrupted_run_is_taken_up(project: Project) -> None:
    _cut(project, signal.SIGINT)
    (project.folder / "shut").write_text("")
    status, document, _ = _history("resume", "last", "--output", "json")
    assert status == 0
    assert [outcome["status"] for outcome in document["outcomes"]] == ["ok", "ok"]
    assert (project.folder / "started-open").read_text() == "x"


def test_a_run_is_run_again_as_it_was_planned(project: Project) -> None:
    (project.folder / "shut").write_text("")
    project.payload("pick", PICK, params={"gate": {"type": "string", "var": "gate", "help": "x"}})
    first = project.run("play", "pick", "--on", "all", "--output", "json")
    assert first.status == 3
    # What is in the project by now does not count.
    project.payload("pick", "raise SystemExit('changed')\n")
    status, document, _ = _history("rerun", "last", "--only", "failed", "--output", "json")
    assert status == 3
    assert [outcome["target"] for outcome in document["outcomes"]] == ["two"]
    assert document["outcomes"][0]["payload"] == first.document["outcomes"][1]["payload"]
    assert document["outcomes"][0]["error"]["message"] == "no"
    _, listed, _ = _history("runs", "--output", "json")
    assert [run["jobs"] for run in listed["runs"]] == [1, 2]
    status, document, _ = _history("rerun", "last", "--only", "unreachable", "--output", "json")
    assert status == 2
    assert "is unreachable" in document["message"]


def test_what_another_version_has_left_to_itself_can_be_fetched(project: Project, tmp_path: Path) -> None:
    assert project.run("play", "count", "--on", "one", "--detach", "--quiet").status == 0
    with closing(sqlite3.connect(tmp_path / "state/remoterun/history.sqlite3")) as database, database:
        database.execute("UPDATE runs SET plan = x'00'")
        (run,) = database.execute("SELECT id FROM runs").fetchone()
    for command in ("collect", "attach", "cancel", "resume", "rerun"):
        status, document, _ = _history(command, "last", "--output", "json")
        assert status == 2
        assert f"run count anew; what is still at work is fetched by `remoterun collect {run} --on" in str(document)
    (project.folder / "shut").write_text("")
    found = project.run("attach", "last", "--on", "one", "--output", "json", "--quiet")
    (outcome,) = found.document["outcomes"]
    assert (found.status, found.document["run_id"], outcome["status"], len(outcome["records"])) == (0, run, "ok", 4)
    assert found.stderr == ""
    _, kept, _ = _history("show", "last", "--output", "json")
    assert (kept["status"], kept["outcomes"]) == ("ok", [outcome])


@pytest.mark.parametrize("output", ["table", "json", "jsonl"])
def test_a_run_is_shown_as_it_was(project: Project, output: str) -> None:
    (project.folder / "shut").write_text("")
    first = project.run("play", "count", "--on", "one", "--output", output)
    done = remoterun("show", "last", "--output", output)
    assert done.status == first.status == 0
    assert done.stdout == first.stdout


def test_what_a_program_said_is_shown_again(project: Project) -> None:
    first = project.run("exec", "--on", "one", "--", "/bin/sh", "-c", "printf 'a\\n\\377'; echo b >&2; exit 3")
    assert first.status == 1
    done = remoterun("show", "last")
    assert done.stdout == first.stdout == b"a\n\xff"
    assert done.stderr.startswith("b\n")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_terminal_obeys_nothing_of_what_a_program_said(project: Project, stream: str) -> None:
    said = r"printf '\033]0;title\007\033[2J\033[31mred\033[0m\n\033[8mhidden'"
    command = f"{said} >&{1 if stream == 'stdout' else 2}"
    assert project.run("exec", "--on", "one", "--", "/bin/sh", "-c", command).status == 0
    again = getattr(remoterun("show", "last"), stream)
    assert "\x1b]0;title" in (again.decode() if isinstance(again, bytes) else again)
    shown = on_a_terminal([*REMOTERUN, "show", "last"], stream=stream)
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown) == "red\nhidden"


def test_what_a_program_said_is_shown_where_nobody_reads_the_errors(project: Project) -> None:
    assert project.run("exec", "--on", "one", "--", "/bin/sh", "-c", "echo a; seq 100000 >&2").status == 0
    done = subprocess.run(
        ["bash", "-c", 'exec "$@" 2> >(exec head -c 1 >/dev/null)', "-", *REMOTERUN, "show", "last"],
        capture_output=True,
        timeout=60,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    )
    assert (done.returncode, done.stdout) == (0, b"a\n")


def test_runs_are_listed_and_forgotten(project: Project) -> None:
    (project.folder / "shut").write_text("")
    status, _, told = _history("runs")
    assert status == 2
    assert "no run has been kept" in told
    project.run("play", "count", "--on", "all")
    _, text, _ = _history("runs")
    assert text.splitlines()[0].split() == ["RUN", "PLAYBOOK", "TARGET", "STATUS", "TOOK", "OUTCOMES"]
    assert re.fullmatch(r"\S+ count 2 targets ok [0-9.]+ s 2 ok", " ".join(text.splitlines()[1].split()))
    project.run("play", "count", "--on", "one")
    newest = " ".join(_history("runs")[1].splitlines()[1].split())
    assert re.fullmatch(r"\S+ count one ok [0-9.]+ s 1 ok", newest)
    listed = _history("runs", "--output", "json")[1]["runs"]
    assert [(run["target"], run["targets"]) for run in listed] == [("one", 1), (None, 2)]
    assert _history("history", "gc")[1] == "0 runs forgotten\n"
    assert _history("history", "gc", "--keep", "1ms", "--output", "json")[1]["forgotten"] == 2
    status, document, _ = _history("show", "last", "--output", "json")
    assert status == 2
    assert document["message"] == "no run last has been kept; the newest are: none"


def test_a_list_of_runs_takes_a_line_for_each_on_a_narrow_terminal(project: Project) -> None:
    (project.folder / "shut").write_text("")
    project.run("play", "count", "--on", "all")
    (project.folder / "a-folder-of-a-long-name").mkdir()
    remoterun("check", str(project.folder / "a-folder-of-a-long-name"), cwd=project.folder)
    head, newest, oldest = on_a_terminal([*REMOTERUN, "runs"]).splitlines()
    assert head.split() == ["RUN", "PLAYBOOK", "TARGET", "STATUS", "TOOK"]
    assert re.fullmatch(r"\S+ check-ckpt \.\.\.er-of-a-long-name incomplete [0-9.]+ s", " ".join(newest.split()))
    assert " ".join(oldest.split()[1:5]) == "count 2 targets ok"


def test_a_history_that_can_not_be_written_costs_one_line(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").write_text("in the way")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "taken"))
    result = project.run("play", "count", "--on", "one", "--output", "json")
    assert result.status == 0
    assert result.document["outcomes"][0]["status"] == "ok"
    assert result.stderr.count("can't be written") == 1
    assert "Traceback" not in result.stderr


def test_a_full_disk_costs_one_line(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        lacking("only root can mount a small disk")
    disk = tmp_path / "small"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", disk], check=True)
    try:
        monkeypatch.setenv("XDG_STATE_HOME", str(disk))
        project.payload("much", MUCH)
        result = project.run("play", "much", "--on", "one", "--output", "json")
    finally:
        subprocess.run(["umount", disk], check=True)
    assert result.status == 0
    assert len(result.document["outcomes"][0]["records"]) == 20
    assert result.stderr.count("can't be written") == 1
    assert "full" in result.stderr


def test_a_locked_history_costs_one_line(project: Project, tmp_path: Path) -> None:
    import sqlite3

    project.run("play", "count", "--on", "one")
    database = sqlite3.connect(tmp_path / "state/remoterun/history.sqlite3", isolation_level=None)
    database.execute("BEGIN EXCLUSIVE")
    try:
        result = project.run("play", "count", "--on", "one", "--output", "json")
    finally:
        database.close()
    assert result.status == 0
    assert result.stderr.count("can't be written") == 1
    assert "locked" in result.stderr


def test_many_processes_keep_their_runs_at_once(project: Project) -> None:
    with ExitStack() as stack:
        argv = project.argv("play", "count", "--on", "one", "--output", "json")
        started = [stack.enter_context(Started(argv)) for _ in range(4)]
        for result in [process.result(120) for process in started]:
            assert (result.status, "history" in result.stderr) == (0, False), result.stderr
            assert result.document["status"] == "ok"
    _, document, _ = _history("runs", "--output", "json")
    assert [run["status"] for run in document["runs"]] == ["ok"] * 4


# --- more records than memory is for ----------------------------------------------------------------------------------


def test_a_large_run_is_shown_as_it_was_in_every_format(project: Project, tmp_path: Path) -> None:
    project.payload("large", LARGE)
    played = project.run("play", "large", "--on", "one", "--output", "json")
    assert played.status == 0, played.stderr
    records = played.outcome("one")["records"]
    assert [record["n"] for record in records] == list(range(175))
    shown = {form: remoterun("show", "last", "--output", form) for form in ("json", "jsonl", "table")}
    assert {form: (result.status, result.stderr) for form, result in shown.items()} == dict.fromkeys(shown, (0, ""))
    assert shown["json"].stdout == played.stdout
    lines = [strict_json(line) for line in shown["jsonl"].stdout.splitlines()]
    assert [line["record"] for line in lines if line["type"] == "record"] == records
    assert [line["records_left_out"] for line in lines if line["type"] == "outcome"] == [175]
    assert "175 records" in shown["table"].stdout.decode()
    assert "... and 125 more records; -v shows all" in shown["table"].stdout.decode()
    show = [[*REMOTERUN, "show", "last", "-v", "--output", form] for form in ("json", "jsonl", "table")]
    for words in (*show, project.argv("play", "large", "--on", "one", "--output", "json")):
        left = piped(words, "head -c 3")
        assert left.status == 141, (words, left.stderr)
        assert "Traceback" not in left.stderr
    with closing(sqlite3.connect(tmp_path / "state/remoterun/history.sqlite3")) as database, database:
        database.execute("UPDATE records SET body = x'00' WHERE record = 170")
    for form, begun in (("json", b'"n": 169'), ("jsonl", b'"n": 169'), ("table", b"")):
        damaged = remoterun("show", "last", "--output", form)
        # Too late for a document that says so: this one has no end.
        assert damaged.status == 3
        assert damaged.stderr.startswith("remoterun: the result ends here: the history in ")
        assert damaged.stderr.count("\n") == 1
        assert begun in damaged.stdout
        assert b"remoterun/error" not in damaged.stdout


def test_a_playbook_of_several_steps_is_not_left_alone_and_says_what_to_do(project: Project) -> None:
    (project.folder / "playbooks").mkdir()
    project.payload("pick", PICK, params={"gate": {"type": "string", "var": "gate", "help": "Which."}})
    steps = "description: Both.\ntargets: one\nsteps:\n  - payload: count\n  - payload: pick\n"
    (project.folder / "playbooks/both.yaml").write_text(steps, "utf-8")
    result = project.run("play", "both", "--detach")
    assert (result.status, result.stdout) == (2, b"")
    assert "both has 2, and a step begins only where the one before it went well" in result.stderr
    commands = "remoterun play count --detach, remoterun collect last, remoterun play pick --detach"
    assert commands in result.stderr
    assert not (project.folder / "started-open").exists()
