"""Runs that go on without us, from the command line: what is fetched of them is kept, whoever had planned them."""

from __future__ import annotations

import json
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from remoterun.errors import TargetError
from remoterun.history.values import pack_outcome
from remoterun.model import ErrorInfo, Outcome, Phase, Status
from tests.support.homes import keep_state_in
from tests.support.lab import wait_for
from tests.support.project import Project, Result, remoterun
from tests.support.started import Started

INVENTORY = f"""\
defaults: {{python: {sys.executable}}}
hosts:
  one: {{transport: local, vars: {{wait: one}}}}
  two: {{transport: local, vars: {{wait: two}}}}
"""
# It goes on for as long as there is a file that says so.
SLOW = """\
import os, time

def run(ctx):
    ctx.emit({"n": 1})
    while os.path.exists(ctx.params["folder"] + "/" + ctx.params["wait"]):
        time.sleep(0.02)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Return a project of two targets, both this machine, with a history of its own."""
    made = Project(folder=tmp_path / "project")
    made.folder.mkdir()
    (made.folder / "inventory.yaml").write_text(INVENTORY, "utf-8")
    params = {
        "folder": {"type": "path", "default": str(made.folder), "help": "Where the files are."},
        "wait": {"type": "string", "var": "wait", "required": True, "help": "What to wait for."},
    }
    made.payload("slow", SLOW, params=params)
    for name in ("one", "two"):
        (made.folder / name).touch()
    keep_state_in(tmp_path / "state", monkeypatch)
    return made


def detached(project: Project) -> str:
    result = project.run("play", "slow", "--detach", "--lease", "5m", "--output", "json")
    assert result.status == 0, result
    return str(result.document["run_id"])


def show(run_id: str) -> Result:
    return remoterun("show", run_id, "--output", "json")


def statuses(result: Result) -> dict[str, str]:
    return {
        "run": result.document["status"],
        **{item["target"]: item["status"] for item in result.document["outcomes"]},
    }


def fetched(project: Project, *words: str, status: int = 0) -> None:
    """Collect until it ends in a way."""

    def collects() -> bool:
        return project.run("collect", *words, "--quiet", "--output", "json").status == status

    wait_for(collects, "the run to be done", limit_s=60)


def forget_plan(tmp_path: Path) -> None:
    """Leave a plan that this version can't read."""
    with closing(sqlite3.connect(tmp_path / "state/remoterun/history.sqlite3")) as database, database:
        database.execute("UPDATE runs SET plan = x'00'")


def test_what_is_fetched_of_a_run_that_another_version_has_planned_is_kept(project: Project, tmp_path: Path) -> None:
    run_id = detached(project)
    forget_plan(tmp_path)
    refused = project.run("collect", run_id)
    assert (refused.status, f"remoterun collect {run_id} --on TARGET" in refused.stderr) == (2, True)
    (project.folder / "two").unlink()
    fetched(project, run_id, "--on", "two")
    assert statuses(show(run_id)) == {"run": "detached", "one": "running", "two": "ok"}
    # Whoever has its outcome is not asked again, and loses nothing.
    again = project.run("collect", run_id, "--on", "two", "--output", "json")
    assert "no target at work that was asked for" in again.stderr
    (project.folder / "one").unlink()
    fetched(project, run_id, "--on", "all")
    whole = show(run_id)
    assert statuses(whole) == {"run": "ok", "one": "ok", "two": "ok"}
    assert [outcome["records"] for outcome in whole.document["outcomes"]] == [[{"n": 1}]] * 2


@pytest.mark.parametrize(
    "words",
    [("--not", "two"), ("--on", "all", "--and", "o*"), ("--on", "firsts"), ("--on", "-")],
)
def test_only_what_is_chosen_of_a_run_is_ended(project: Project, words: tuple[str, ...]) -> None:
    run_id = detached(project)
    # Of a run that is known here, what its targets were called then counts, and a group of the project as it is now.
    with (project.folder / "inventory.yaml").open("a") as file:
        file.write("groups: {firsts: [one]}\n")
    ended = project.run("cancel", run_id, *words, "--output", "json", stdin=b"one\n" if "-" in words else b"")
    assert statuses(ended)["one"] == "cancelled", ended.stderr
    assert statuses(show(run_id)) == {"run": "detached", "one": "cancelled", "two": "running"}
    strange = project.run("cancel", run_id, "--on", "two", "--not", "tow")
    assert (strange.status, "did you mean two?" in strange.stderr) == (2, True), strange.stderr
    over = project.run("cancel", run_id, "--on", "one")
    assert (over.status, f"no target at work on run {run_id} is chosen" in over.stderr) == (2, True)
    assert project.run("cancel", run_id, "--quiet", "--output", "json").status == 0


def test_what_nobody_could_confirm_as_ended_is_asked_once_more(project: Project, tmp_path: Path) -> None:
    run_id = detached(project)
    # As an end that was asked for over a connection that broke.
    unsure = Outcome(
        target="one",
        name=None,
        step=0,
        status=Status.CANCELLED,
        phase=Phase.RUN,
        error=ErrorInfo.of(TargetError("cancelled", "the run was cancelled")),
        connections=1,
    )
    with closing(sqlite3.connect(tmp_path / "state/remoterun/history.sqlite3")) as database, database:
        database.execute(
            "UPDATE jobs SET status = 'cancelled', outcome = ? WHERE target = 'one'", (pack_outcome(unsure),)
        )
    assert show(run_id).outcome("one")["survivors"] is None
    ended = project.run("cancel", run_id, "--on", "one", "--output", "json")
    outcome = ended.outcome("one")
    assert (outcome["status"], outcome["survivors"]) == ("cancelled", 0)
    assert outcome["error"]["hint"] == f"`remoterun resume {run_id}` does what is left of it."
    assert project.run("cancel", run_id, "--quiet", "--output", "json").status == 0


def test_whoever_ends_a_run_that_is_over_is_told_that_nothing_is_left(project: Project) -> None:
    with Started(project.argv("play", "slow", "--output", "jsonl")) as playing:
        playing.says(rb'"type": ?"record"', times=2)
        assert playing.end(signal.SIGINT).status == 130
    ended = project.run("cancel", "last", "--output", "json")
    assert (ended.status, statuses(ended)["run"], "is complete" in ended.stderr) == (0, "interrupted", True)


def test_what_is_at_work_is_not_complete_and_whoever_resumes_it_is_told(project: Project) -> None:
    run_id = detached(project)
    told = remoterun("resume", run_id, "--output", "json")
    assert statuses(told) == {"run": "detached", "one": "running", "two": "running"}
    assert f"2 targets are at work on run {run_id}:" in told.stderr
    assert "is complete" not in told.stderr
    assert project.run("cancel", run_id, "--quiet", "--output", "json").status == 0


def test_each_target_of_a_run_of_another_machine_is_kept_and_found_again(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = detached(project)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    (project.folder / "one").unlink()
    fetched(project, run_id, "--on", "one")
    assert project.run("collect", run_id, "--on", "two", "--output", "json").status == 3
    assert statuses(show(run_id)) == {"run": "detached", "one": "ok", "two": "running"}
    (project.folder / "two").unlink()
    # Nobody has to say any more where it runs.
    fetched(project, run_id)
    assert statuses(show(run_id)) == {"run": "ok", "one": "ok", "two": "ok"}


def test_each_target_has_its_outcome_among_the_events_whoever_has_fetched_it(project: Project, tmp_path: Path) -> None:
    run_id = detached(project)
    (project.folder / "two").unlink()
    fetched(project, run_id, "--on", "two", status=3)
    (project.folder / "one").unlink()
    file = tmp_path / "events.jsonl"
    told = project.run("attach", run_id, "--output", "jsonl", "--events", str(file))
    assert told.status == 0, told.stderr
    assert file.read_bytes() == told.stdout
    events = [json.loads(line) for line in told.stdout.splitlines()]
    assert [(event["type"], event.get("target")) for event in events] == [
        ("run_started", None),
        ("record", "two"),
        ("outcome", "two"),
        ("record", "one"),
        ("outcome", "one"),
        ("run_finished", None),
    ]


def test_ctrl_c_leaves_a_run_at_work_that_was_only_followed(project: Project) -> None:
    words = ("--detach", "--lease", "5m", "--targets-at-once", "1", "--output", "json")
    run_id = str(project.run("play", "slow", *words).document["run_id"])
    with Started(project.argv("attach", run_id, "--output", "jsonl")) as following:
        following.says(rb'"type": ?"record"')
        # The second target has to wait for its turn to be followed.
        done = following.end(signal.SIGINT)
    assert done.status == 130
    assert f"remoterun cancel {run_id}" in done.stderr
    assert "not confirmed" not in done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["status"], last["counts"]["running"]) == ("interrupted", 2)
    assert statuses(show(run_id)) == {"run": "detached", "one": "running", "two": "running"}
    for name in ("one", "two"):
        (project.folder / name).unlink()
    fetched(project, run_id)
    whole = show(run_id)
    assert statuses(whole) == {"run": "ok", "one": "ok", "two": "ok"}
    assert [outcome["records"] for outcome in whole.document["outcomes"]] == [[{"n": 1}]] * 2


# Who comes first waits for one file, who comes second for the other.
SAYS = """\
cd "$1"
if mkdir first 2>/dev/null; then file=one; else file=two; fi
echo "said $file"; echo "warned $file" >&2
while [ -e "$file" ]; do sleep 0.02; done
echo "done $file"; exit "$2"
"""


def said(project: Project, status: int) -> str:
    words = ("--detach", "--lease", "5m", "--output", "json", "--", "/bin/sh", "-c", SAYS, "-", str(project.folder))
    result = project.run("exec", "--on", "all", *words, str(status))
    assert result.status == 0, result
    return str(result.document["run_id"])


@pytest.mark.parametrize("command", ["collect", "attach", "resume"])
def test_whoever_asks_for_a_run_of_programs_again_gets_all_they_have_said(project: Project, command: str) -> None:
    run_id = said(project, 0)
    (project.folder / "one").unlink()
    (project.folder / "two").unlink()
    fetched(project, run_id)
    shown, again = remoterun("show", run_id), remoterun(command, run_id)
    assert sorted(again.stdout.splitlines()) == [
        *(b"== one", b"== two"),
        *(b"done one", b"done two", b"said one", b"said two"),
    ]
    assert again.stdout == shown.stdout
    assert sorted(line for line in again.stderr.splitlines() if "warned" in line) == ["warned one", "warned two"]
    assert again.status == 0
    # Whoever wants nothing of it to be left wants none of that.
    assert project.run("cancel", run_id).stdout == b""


@pytest.mark.parametrize("command", ["collect", "attach"])
def test_what_programs_have_said_is_not_all_unless_it_is_from_the_beginning(project: Project, command: str) -> None:
    run_id = said(project, 0)
    (project.folder / "two").unlink()

    def one_is_fetched() -> bool:
        found = project.run("collect", run_id, "--quiet", "--output", "json")
        return sorted(item["status"] for item in found.document["outcomes"]) == ["ok", "running"]

    wait_for(one_is_fetched, "one target to be done", limit_s=60)
    partly = project.run("collect", run_id)
    assert (partly.status, b"done two" in partly.stdout, b"done one" in partly.stdout) == (3, True, False)
    (project.folder / "one").unlink()
    if command == "collect":
        wait_for(lambda: b"done one" in project.run(command, run_id).stdout, "the other to be done", limit_s=60)
    whole = project.run(command, run_id)
    assert (whole.status, b"done one" in whole.stdout, b"done two" in whole.stdout) == (0, True, True)


@pytest.mark.parametrize(("code", "status"), [(0, 0), (3, 1)])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_whoever_asks_for_a_run_that_a_signal_has_ended_has_not_been_ended(
    project: Project, tmp_path: Path, number: int, code: int, status: int
) -> None:
    run_id = said(project, code)
    (project.folder / "one").unlink()
    (project.folder / "two").unlink()
    fetched(project, run_id, status=status)
    # As a signal that came when all outcomes were there.
    ended = "interrupted" if number == signal.SIGINT else "terminated"
    with closing(sqlite3.connect(tmp_path / "state/remoterun/history.sqlite3")) as database, database:
        database.execute("UPDATE runs SET status = ?", (ended,))
    for command in ("collect", "attach", "resume"):
        again = remoterun(command, run_id, "--output", "json")
        # What became of the run stays what it is.
        assert (again.status, again.document["status"], again.document["exit_code"]) == (status, ended, 128 + number)
    assert project.run("cancel", run_id, "--output", "json").status == 0


def test_a_run_that_was_ended_before_all_was_done_is_incomplete_to_whoever_asks(project: Project) -> None:
    with Started(project.argv("play", "slow", "--output", "jsonl")) as playing:
        playing.says(rb'"type": ?"record"', times=2)
        assert playing.end(signal.SIGTERM).status == 143
    for command in ("collect", "attach"):
        again = project.run(command, "last", "--output", "json")
        assert (again.status, statuses(again)["run"], "is complete" in again.stderr) == (3, "terminated", True)
