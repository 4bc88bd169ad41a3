"""Standard output is one strict JSON document in every case, and exit statuses say what happened."""

from __future__ import annotations

import signal
from pathlib import Path

import jsonschema
import pytest

from remoterun import report
from tests.support.lab import Lab, LabHost, guest, wait_for
from tests.support.project import Project, Result, piped, strict_json, write_project
from tests.support.started import Started

SLOW = """\
import time

def run(ctx):
    for n in range(1000):
        ctx.emit({"n": n})
        time.sleep(0.05)
"""

STUBBORN = """\
import signal, time

def run(ctx):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctx.emit({"n": 1})
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def host(lab: Lab) -> LabHost:
    """Return a host with a running and a stopped guest."""
    return lab.host("documents", guests=[200, guest(201, state="stopped")])


@pytest.fixture
def project(tmp_path: Path, host: LabHost) -> Project:
    """Return a project with that host and a slow payload."""
    made = write_project(tmp_path, [host])
    made.payload("slow", SLOW)
    made.payload("crashes", "def run(ctx):\n    raise RuntimeError('no \\ud800 luck \\x1b[31m')\n")
    made.payload("exits", "import sys\n\ndef run(ctx):\n    sys.exit(7)\n")
    made.payload("killed", "import os\n\ndef run(ctx):\n    os.kill(os.getpid(), 9)\n")
    made.payload("weird", "def run(ctx):\n    ctx.emit({'nan': 'nan', 'deep': [[[1]]], 'text': '\\x00\\x1b'})\n")
    return made


@pytest.mark.lab
@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("play", "weird", "--on", "documents/200"), 0),
        (("play", "crashes", "--on", "documents/200"), 3),
        (("play", "exits", "--on", "documents/200"), 3),
        (("play", "killed", "--on", "documents/200"), 3),
        (("play", "weird", "--on", "documents"), 3),
        (("exec", "--on", "documents/200", "--", "sh", "-c", "exit 9"), 1),
        (("exec", "--on", "documents/200", "--exit-status", "--", "sh", "-c", "exit 9"), 9),
        (("exec", "--on", "documents/200", "--", "/no/such/program"), 3),
        (("play", "slow", "--on", "documents/200", "--limit", "run=500ms"), 3),
    ],
)
def test_run_document_is_strict(project: Project, words: tuple[str, ...], status: int) -> None:
    at = words.index("--") if "--" in words else len(words)
    result = project.run(*words[:at], "--output", "json", *words[at:])
    assert result.status == status, result
    jsonschema.validate(result.document, report.run_schema())


@pytest.mark.lab
@pytest.mark.parametrize(
    "words",
    [
        ("play",),
        ("play", "nosuch", "--on", "documents"),
        ("play", "slow", "--on", "nosuch"),
        ("play", "slow", "--no-such-flag"),
        ("play", "slow", "--limit", "run=30"),
        ("play", "slow", "--set", "nosuch=1"),
        ("nosuch",),
        ("run", "/no/such/file.py", "--on", "documents/200"),
    ],
)
def test_error_document_is_strict(project: Project, words: tuple[str, ...]) -> None:
    result = project.run(*words, "--output", "json")
    assert result.status == 2, result
    jsonschema.validate(result.document, report.error_schema())
    assert result.stderr


def _ended_at_work(project: Project, number: int = signal.SIGINT) -> Result:
    """Send a signal to a run whose payload is at work."""
    with Started(project.argv("play", "slow", "--on", "documents/200", "--output", "json", "-v")) as command:
        command.says(b" run$", on="stderr")
        return command.end(number)


@pytest.mark.lab
def test_interrupt_confirms_the_kill(project: Project, host: LabHost) -> None:
    result = _ended_at_work(project)
    assert result.status == 130, result
    document = result.document
    jsonschema.validate(document, report.run_schema())
    assert document["status"] == "interrupted"
    outcome = result.outcome("documents/200")
    assert outcome["status"] == "cancelled"
    assert outcome["survivors"] == 0
    wait_for(lambda: not host.guest(200).processes(), "the guest to be empty")


@pytest.mark.lab
def test_second_interrupt_leaves_at_once_and_names_what_is_open(project: Project, host: LabHost) -> None:
    project.payload("stubborn", STUBBORN)
    with Started(project.argv("play", "stubborn", "--on", "documents/200", "--output", "jsonl")) as command:
        command.says(b'"type": "record"')
        command.send(signal.SIGINT)
        command.says(b"nterrupt", on="stderr")
        result = command.end()
    assert result.status == 130
    assert "documents/200" in result.stderr
    wait_for(lambda: not host.guest(200).processes(), "the guest to be empty")


@pytest.mark.lab
def test_sigterm_ends_in_order(project: Project) -> None:
    result = _ended_at_work(project, signal.SIGTERM)
    assert result.status == result.document["exit_code"] == 143, result
    assert result.document["status"] == "terminated"
    jsonschema.validate(result.document, report.run_schema())
    assert result.outcome("documents/200")["status"] == "cancelled"


@pytest.mark.lab
def test_head_ends_it_without_a_traceback(project: Project, host: LabHost) -> None:
    done = piped(project.argv("play", "slow", "--on", "documents/200", "--output", "jsonl"), "head -n 3")
    assert done.status == 141, done
    assert len(done.stdout.splitlines()) == 3
    assert "Traceback" not in done.stderr
    wait_for(lambda: not host.guest(200).processes(), "the guest to be empty")


@pytest.mark.lab
def test_table_into_a_closed_pipe(project: Project) -> None:
    done = piped(project.argv("play", "weird", "--on", "documents/200"), "exec 0<&-")
    assert done.status == 141, done
    assert "Traceback" not in done.stderr


@pytest.mark.lab
def test_jsonl_tells_records_as_they_come(project: Project) -> None:
    result = project.run("play", "slow", "--on", "documents/200", "--output", "jsonl", "--limit", "run=1s")
    events = [strict_json(line) for line in result.stdout.splitlines()]
    for event in events:
        jsonschema.validate(event, report.event_schema())
    kinds = [event["type"] for event in events]
    assert kinds[0] == "run_started"
    assert kinds[-1] == "run_finished"
    assert kinds.count("outcome") == 1
    assert kinds.count("record") >= 5
