"""Events for programs: `--output jsonl` and `--events`, as they happen and afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from remoterun.report import event_schema
from tests.support.homes import keep_state_in
from tests.support.project import Project, remoterun, strict_json

HOST = f"transport: local, python: {sys.executable}, self: true"
# The second record waits until somebody has seen the first.
GATED = """\
import os, time

def run(ctx):
    ctx.emit({"n": 1, "text": "\\u00e9 \\udcff"})
    while not os.path.exists(ctx.params["gate"]):
        time.sleep(0.01)
    ctx.emit({"n": 2})
    ctx.finding("R1", "suspect", "n 2", "it is even")
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Return a project of two targets, both this machine, whose gate is shut."""
    made = Project(folder=tmp_path / "project")
    made.folder.mkdir()
    (made.folder / "inventory.yaml").write_text(f"hosts:\n  one: {{{HOST}}}\n  two: {{{HOST}}}\n", "utf-8")
    gate = {"type": "path", "default": str(made.folder / "gate"), "help": "What to wait for."}
    made.payload("gated", GATED, params={"gate": gate})
    keep_state_in(tmp_path / "state", monkeypatch)
    return made


def _open_gate(project: Project) -> None:
    (project.folder / "gate").write_text("")


def _events(data: bytes) -> list[dict[str, Any]]:
    validator = jsonschema.Draft202012Validator(event_schema())
    found = [strict_json(line) for line in data.splitlines()]
    for event in found:
        validator.validate(event)
        assert event["schema"] == "remoterun/event/1"
    return found


def _untimed(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Take out what no two runs have in common."""
    timed = ("run_id", "started_at", "finished_at", "timings_s", "facts")
    return [{key: value for key, value in event.items() if key not in timed} for event in events]


def test_events_come_as_they_happen_and_leave_standard_output_alone(project: Project) -> None:
    reader, writer = os.pipe()
    argv = project.argv("play", "gated", "--on", "one", "--output", "json", "--events", f"fd:{writer}")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=[writer]) as process:
        os.close(writer)
        with os.fdopen(reader, "rb") as lines:
            early = [lines.readline(), lines.readline()]
            assert [event["type"] for event in _events(b"".join(early))] == ["run_started", "record"]
            _open_gate(project)
            events = _events(b"".join([*early, *lines]))
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 1, stderr
    assert [event["type"] for event in events] == ["run_started", "record", "record", "outcome", "run_finished"]
    document = strict_json(stdout)
    outcome = {key: value for key, value in events[3].items() if key not in {"schema", "type"}}
    assert document["outcomes"] == [outcome]
    assert [event["record"] for event in events[1:3]] == outcome["records"]
    assert {event["run_id"] for event in (events[0], events[-1])} == {document["run_id"]}
    assert events[-1]["exit_code"] == 1


def test_a_file_of_events_holds_what_jsonl_says_then_and_afterwards(project: Project, tmp_path: Path) -> None:
    _open_gate(project)
    file = tmp_path / "events.jsonl"
    file.write_text("what was there before")
    played = project.run("play", "gated", "--on", "one", "--output", "jsonl", "--events", str(file))
    assert played.status == 1, played.stderr
    told = _events(played.stdout)
    assert file.read_bytes() == played.stdout
    again = tmp_path / "again.jsonl"
    for words in (["show", "last"], ["resume", "last"]):
        kept = remoterun(*words, "--output", "jsonl", "--events", str(again))
        assert kept.stdout == played.stdout, words
        assert again.read_bytes() == played.stdout
        again.unlink()
    rerun = remoterun("rerun", "last", "--events", str(again))
    assert b"1 with findings" in rerun.stdout
    assert _untimed(_events(again.read_bytes())) == _untimed(told)


def test_a_reader_that_leaves_changes_nothing_of_the_run(project: Project) -> None:
    reader, writer = os.pipe()
    argv = project.argv("play", "gated", "--on", "all", "--output", "json", "--events", f"fd:{writer}")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=[writer]) as process:
        os.close(writer)
        with os.fdopen(reader, "rb") as lines:
            assert b"run_started" in lines.readline()
        _open_gate(project)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert strict_json(stdout)["counts"]["findings"] == 2
    assert stderr.count(b"no more events are written to fd:") == 1
    assert b"Traceback" not in stderr


def test_a_full_disk_costs_one_line(project: Project) -> None:
    _open_gate(project)
    result = project.run("play", "gated", "--on", "one", "--output", "json", "--events", "/dev/full")
    assert result.status == 1
    assert result.document["counts"]["findings"] == 1
    assert result.stderr.count("no more events are written to /dev/full: No space left on device") == 1


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("fd:1", "have their own use"),
        ("fd:x", "neither a file nor fd:NUMBER"),
        ("", "neither a file nor fd:NUMBER"),
        ("fd:900", "Bad file descriptor"),
        ("/", "Is a directory"),
        ("/nowhere/at/all", "No such file"),
    ],
)
def test_where_no_events_can_be_written_nothing_is_started(project: Project, where: str, said: str) -> None:
    result = project.run("play", "gated", "--on", "one", "--output", "json", "--events", where)
    assert result.status == 2
    assert result.document["problems"][0]["path"] == "--events"
    assert said in result.document["message"]


def test_a_descriptor_to_read_from_is_refused(project: Project) -> None:
    with Path("/dev/null").open("rb") as file:
        argv = project.argv("play", "gated", "--on", "one", "--events", f"fd:{file.fileno()}")
        done = subprocess.run(argv, capture_output=True, timeout=60, pass_fds=[file.fileno()], check=False)
    assert done.returncode == 2
    assert b"open for reading only" in done.stderr


def test_a_descriptor_that_nobody_has_opened_is_refused(project: Project, tmp_path: Path) -> None:
    """The numbers of those that are not open go to our own files."""
    file = tmp_path / "run.json"
    result = project.run("play", "gated", "--on", "one", "-o", str(file), "--events", "fd:3")
    assert (result.status, result.stdout) == (2, b"")
    assert "fd:3 is a file of our own" in result.stderr
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == []


def test_the_schema_of_events_is_printed() -> None:
    assert remoterun("schema", "event").document == event_schema()
