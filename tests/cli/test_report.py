"""`remoterun report` as it is typed: which runs, and where the page goes."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.homes import keep_state_in
from tests.support.project import Project, Result, remoterun

INVENTORY = f"""\
defaults: {{python: {sys.executable}}}
hosts:
  one: {{transport: local, vars: {{gate: open}}}}
"""
LOOK = """\
def run(ctx):
    ctx.emit({"kind": "checkpoint", "name": "step_1", "path": "/c/step_1", "verdict": "bad", "step": 1})
    ctx.finding("CK001", "bad", "step_1", "1 NaN", "Go back.", None, file="/c/step_1")
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Return a project whose payload `look` finds something, with a history of its own; reports go to its folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "inventory.yaml").write_text(INVENTORY, "utf-8")
    keep_state_in(tmp_path / "state", monkeypatch)
    made = Project(folder=folder)
    made.payload("look", LOOK)
    monkeypatch.chdir(folder)
    return made


def _report(*words: str, stdin: bytes = b"") -> Result:
    return remoterun("report", *words, stdin=stdin)


def _held(page: bytes) -> dict[str, Any]:
    """Return what a page holds, by the names of its parts."""
    parts = re.findall(rb'<script type="text/plain" id="([^"]+)">([^<]*)</script>', page)
    return {name.decode(): json.loads(gzip.decompress(base64.b64decode(data))) for name, data in parts}


def _play(project: Project) -> dict[str, Any]:
    return project.run("play", "look", "--on", "all", "--output", "json").document


def test_the_newest_run_goes_to_a_file_of_its_name(project: Project) -> None:
    run = _play(project)
    done = _report()
    name = f"remoterun-{run['run_id']}.html"
    assert (done.status, done.stdout.decode(), done.stderr) == (0, f"{name}\n", "")
    held = _held((project.folder / name).read_bytes())
    assert held["run-0"] == run
    assert held["index"]["differences"] == []


def test_several_runs_with_what_is_different_in_each(project: Project) -> None:
    first, second = _play(project), _play(project)
    done = _report("last", first["run_id"], second["run_id"], "-o", "page.html")
    assert (done.status, done.stdout) == (0, b"page.html\n")
    held = _held((project.folder / "page.html").read_bytes())
    assert [run["run_id"] for run in held["index"]["runs"]] == [first["run_id"], second["run_id"]]
    assert [each["after"]["run_id"] for each in held["index"]["differences"]] == [second["run_id"]]
    since = held["index"]["differences"][0]["persisting"][0]["since"]
    assert since == {"run_id": first["run_id"], "started_at": first["started_at"]}


def test_the_newest_runs_of_a_playbook(project: Project) -> None:
    project.payload("other", "def run(ctx):\n    ctx.emit({})\n")
    first = _play(project)
    project.run("play", "other", "--on", "all")
    runs = [_play(project), _play(project)]
    shown = _held(_report("--newest", "2", "-o", "-").stdout)["index"]["runs"]
    assert [run["run_id"] for run in shown] == [run["run_id"] for run in runs]
    shown = _held(_report("--newest", "9", "-o", "-").stdout)["index"]["runs"]
    assert [run["run_id"] for run in shown] == [run["run_id"] for run in (first, *runs)]


def test_without_a_name_the_newest_run_of_a_payload_in_this_project_is_shown(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.payload("other", "def run(ctx):\n    ctx.emit({})\n")
    other = project.run("play", "other", "--on", "all", "--output", "json").document
    run = _play(project)
    elsewhere = Project(folder=tmp_path / "elsewhere")
    elsewhere.folder.mkdir()
    (elsewhere.folder / "inventory.yaml").write_text(INVENTORY, "utf-8")
    elsewhere.payload("look", LOOK)
    away = _play(elsewhere)
    program = project.run("exec", "--on", "all", "--output", "json", "--", "sh", "-c", "true").document
    for words, shown in (
        ([], run),
        (["--newest", "3"], run),
        (["--playbook", "other"], other),
        (["--playbook", "sh"], program),
        (["last"], program),
    ):
        assert _held(_report(*words, "-o", "-").stdout)["run-0"] == shown, words
    monkeypatch.chdir(tmp_path)
    assert _held(_report("-o", "-").stdout)["run-0"] == away
    monkeypatch.chdir(elsewhere.folder)
    assert "no run of other has been kept in " in _report("--playbook", "other").stderr
    assert "--playbook: goes with no RUN" in _report("last", "--playbook", "other").stderr


def test_documents_instead_of_the_history(project: Project) -> None:
    run = _play(project)
    (project.folder / "run.json").write_text(json.dumps(run))
    later = {**run, "run_id": "../later", "started_at": "2199-01-01T00:00:00.000Z"}
    done = _report("--from", "run.json", "--from", "-", stdin=json.dumps(later).encode())
    assert (done.status, done.stdout) == (0, b"remoterun-___later.html\n")
    held = _held((project.folder / "remoterun-___later.html").read_bytes())
    assert (held["run-0"], held["run-1"]) == (run, later)


def test_a_file_is_read_once_and_never_written_over(project: Project) -> None:
    file = project.folder / "run.json"
    file.write_text(json.dumps(_play(project)))
    (project.folder / "link.json").symlink_to("run.json")
    os.link(file, project.folder / "hard.json")
    before = file.read_bytes()
    for name in ("run.json", "./run.json", "link.json", "hard.json", "../project/run.json"):
        done = _report("--from", "run.json", "--from", name)
        assert (done.status, f"{name} and run.json are one file" in done.stderr) == (2, True)
        done = _report("--from", "run.json", "-o", name)
        assert (done.status, f"{name} is the file of --from as well" in done.stderr) == (2, True)
    assert "- and - are one file" in _report("--from", "-", "--from", "-", stdin=before).stderr
    history = next((project.folder.parent / "state").rglob("history.sqlite3"))
    assert "is the file of the history as well" in _report("-o", str(history)).stderr
    assert file.read_bytes() == before
    assert list(project.folder.glob("*.html")) == []


WRONG = (
    (["--from", "none.json"], "none.json: --from: can't be read: No such file or directory"),
    (["--from", "inventory.yaml"], "inventory.yaml: --from: it is no JSON: Expecting value"),
    (["--from", "deep.json"], "deep.json: --from: it is no JSON: "),
    (["--from", "empty.json"], "empty.json: --from: it does not say its schema: only runs can be shown"),
    (["--from", "busy.json"], "busy.json: --from: it holds no run"),
    (["last", "--newest", "2"], "--newest: goes with no RUN: both say which runs to show"),
    (["nosuch"], "no run nosuch has been kept"),
    (["last", "-o", "json"], "-o names a file"),
    (["last", "-o", "nowhere/page.html"], "-o nowhere/page.html: cannot be written: No such file or directory"),
)


def test_what_can_not_be_shown_leaves_no_file(project: Project) -> None:
    _play(project)
    (project.folder / "deep.json").write_text("[" * 200_000)
    (project.folder / "empty.json").write_text("{}")
    (project.folder / "busy.json").write_text('{"schema": "remoterun/audit/1", "status": "busy"}')
    done = [_report(*words) for words, _ in WRONG]
    assert [(each.status, each.stdout) for each in done] == [(2, b"")] * len(WRONG)
    assert [
        (words, each.stderr) for (words, said), each in zip(WRONG, done, strict=True) if said not in each.stderr
    ] == []
    assert list(project.folder.glob("*.html")) == []


def test_without_a_history_there_is_nothing_to_show(project: Project) -> None:
    done = _report()
    assert done.status == 2
    assert "no run has been kept" in done.stderr
