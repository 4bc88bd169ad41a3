"""What has changed, on the command line: three audits of two targets, of which one gets a damaged checkpoint."""

from __future__ import annotations

import os
import pty
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from jsonschema import Draft202012Validator
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from remoterun.compare import diff_schema
from remoterun.history.document import history_schema
from tests.support.audits import audited, keep, nan, run
from tests.support.homes import keep_state_in
from tests.support.project import REMOTERUN, Project, Result, remoterun, strict_json

INVENTORY = """\
defaults: {{python: {python}}}
hosts:
  one: {{transport: local, vars: {{checkpoints: {folder}/one}}}}
  two: {{transport: local, vars: {{checkpoints: {folder}/two}}}}
"""


def _save(path: Path, step: int, *, nan: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(step)
    weight = torch.randn(16, 16, generator=generator)
    if nan:
        weight[0, 0] = float("nan")
    torch.save({"model": {"layer.weight": weight}, "global_step": step}, path)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Return a project of two targets, both this machine, each with checkpoints of its own."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "inventory.yaml").write_text(INVENTORY.format(python=sys.executable, folder=tmp_path), "utf-8")
    keep_state_in(tmp_path / "state", monkeypatch)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)  # with no project at hand
    for name in ("one", "two"):
        _save(tmp_path / name / "step_100/checkpoint.pt", 100)
    return Project(folder=folder)


def _audit(project: Project, *words: str) -> Result:
    return project.run("play", "check-ckpt", "--on", "one", "--on", "two", "--quiet", *words)


def _kinds(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [(change["kind"], change["target"]) for change in document["changes"]]


def test_three_audits_tell_one_story(project: Project, tmp_path: Path) -> None:
    bad = tmp_path / "one/step_200/checkpoint.pt"
    metrics = tmp_path / "remoterun.prom"
    assert _audit(project).status == 0
    only = remoterun("diff")
    assert (only.status, "no earlier run of check-ckpt is there to compare" in only.stderr) == (2, True)
    _save(bad, 200, nan=True)
    second = _audit(project, "--output", "junit", "--metrics", str(metrics))
    assert second.status == 1

    found = remoterun("diff", "--output", "json")
    Draft202012Validator(diff_schema()).validate(found.document)
    assert found.status == found.document["exit_code"] == 1
    new = [change for change in found.document["changes"] if change["kind"] == "finding_new"]
    assert [(each["target"], each["rule"], each["tensor"]) for each in new if each["severity"] == "bad"] == [
        ("one", "CK001", "model.layer.weight")
    ]
    assert ("checkpoint_new", "one") in _kinds(found.document)
    text = remoterun("diff").stdout.decode()
    assert "new findings" in text
    assert "step_200: model.layer.weight: 1 NaN" in text
    assert "\x1b" not in text
    cases = ElementTree.fromstring(second.stdout).iter("testcase")
    assert {case.get("name"): case.find("failure") is not None for case in cases} == {"one": True, "two": False}
    samples = [
        sample
        for family in text_string_to_metric_families(metrics.read_text("utf-8"))  # type: ignore[no-untyped-call]
        for sample in family.samples
    ]
    assert [each.value for each in samples if each.labels.get("rule") == "CK001"] == [1.0]
    steps = {each.labels["target"]: each.value for each in samples if each.name.endswith("checkpoint_step")}
    assert steps == {"one": 200.0, "two": 100.0}

    shutil.rmtree(bad.parent)
    assert _audit(project).status == 0
    gone = remoterun("diff", "--output", "json").document
    assert {("finding_gone", "one"), ("checkpoint_vanished", "one")} == set(_kinds(gone))
    assert all(change["vanished"] for change in gone["changes"] if change["kind"] == "finding_gone")
    assert remoterun("diff", gone["after"]["run_id"]).status == 1

    assert _audit(project).status == 0
    same = remoterun("diff")
    assert (same.status, same.stdout.decode().splitlines()[-1][:20]) == (0, "nothing is different")
    across = remoterun("diff", "last", found.document["before"]["run_id"], "--output", "json").document
    assert (across["before"], across["changed"]) == (found.document["before"], False)


def test_projects_with_targets_of_the_same_names_are_told_apart(project: Project, tmp_path: Path) -> None:
    other = Project(folder=tmp_path / "other")
    other.folder.mkdir()
    (other.folder / "inventory.yaml").write_text(INVENTORY.format(python=sys.executable, folder=other.folder), "utf-8")
    for name in ("one", "two"):
        _save(other.folder / name / "step_900/checkpoint.pt", 900)
    runs = [_audit(each, "--output", "json").document["run_id"] for each in (project, other, project)]
    found = remoterun("diff", "--output", "json")
    assert (found.status, found.document["before"]["run_id"]) == (0, runs[0])
    assert remoterun("diff", "--project", str(other.folder)).status == 2
    refused = remoterun("diff", runs[1], runs[2])
    assert (refused.status, "runs of one project can be compared" in refused.stderr) == (2, True)
    shown = remoterun("history", "--project", str(other.folder / "."), "--output", "json").document
    assert {trail["project"] for trail in shown["trails"]} == {str(other.folder)}
    assert [len(trail["runs"]) for trail in remoterun("history", "--output", "json").document["trails"]] == [2, 2, 1, 1]
    assert remoterun("history", "--project", str(tmp_path)).status == 2


def test_what_is_compared_when_nothing_is_named(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs of `sh` have nothing in common but the word, and those of another project are not at hand."""
    runs = [_audit(project, "--output", "json").document["run_id"] for _ in range(2)]
    for _ in range(2):
        project.run("exec", "--on", "one", "--", "sh", "-c", "true")
    assert remoterun("diff", "--output", "json").document["after"]["run_id"] == runs[1]
    assert remoterun("diff", "--playbook", "sh").status == 0
    other = tmp_path / "other"
    other.mkdir()
    (other / "inventory.yaml").write_text("hosts: {}\n", "utf-8")
    monkeypatch.chdir(other)
    refused = remoterun("diff")
    assert (refused.status, f"no two runs of one playbook or payload to compare, in {other}" in refused.stderr) == (
        2,
        True,
    )
    monkeypatch.chdir(project.folder)
    assert remoterun("diff", "--output", "json").document["before"]["run_id"] == runs[0]


def test_checks_in_a_projects_folder_are_runs_of_it(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever checks a folder twice in a project's folder compares these two, and neither with what it plays."""
    monkeypatch.chdir(project.folder)
    _audit(project)
    first = remoterun("check", "../one", "--quiet", "--output", "json").document["run_id"]
    _save(tmp_path / "one/step_200/checkpoint.pt", 200, nan=True)
    assert remoterun("check", "../one", "--quiet").status == 1
    found = remoterun("diff", "--output", "json")
    assert (found.status, found.document["before"]["run_id"]) == (1, first)
    assert ("checkpoint_new", str(tmp_path / "one")) in _kinds(found.document)
    assert remoterun("report", "-o", "page.html").status == 0
    # One that is checked elsewhere is not at hand, but it is told how to get at it.
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert remoterun("check", "two", "--quiet").status == 0
    assert remoterun("diff", "last").status == 0
    other = tmp_path / "other"
    other.mkdir()
    (other / "inventory.yaml").write_text("hosts: {}\n", "utf-8")
    monkeypatch.chdir(other)
    refused = remoterun("diff")
    assert (refused.status, "`remoterun diff RUN` compares one of them" in refused.stderr) == (2, True)


def test_a_history_on_a_terminal_fits_it_and_one_of_a_target_is_whole(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [nan(3, f"layer.{number}", rule=f"CK{number:03}") for number in range(40)]
    keep(tmp_path / "state/remoterun", run(0, audited("one", [3], *many)))
    keep(tmp_path / "state/remoterun", run(1, audited("one", [3], *many[:30])))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")

    def shown(*words: str) -> list[str]:
        leader, follower = pty.openpty()
        command = [*REMOTERUN, "history", *words]
        with os.fdopen(leader, "rb", buffering=0) as screen, subprocess.Popen(command, stdout=follower):
            os.close(follower)
            text = b""
            with suppress(OSError):  # what a terminal says when nobody has it open any more
                while piece := screen.read(1 << 16):
                    text += piece
        return re.sub(r"\x1b\[[0-9;]*m", "", text.decode()).splitlines()

    first = shown()
    assert len(first) < 24
    assert any("more; -v shows all" in line for line in first)
    whole = shown("--target", "one")
    assert "findings that went away" in whole
    assert sum(line.startswith("  bad ") for line in whole) == 40
    assert len(shown("-v")) > 24


def test_a_history_in_a_project_is_of_its_payloads(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _audit(project)
    keep(tmp_path / "state/remoterun", run(0, audited("other", [1])), project="/")
    project.run("exec", "--on", "one", "--", "true")
    monkeypatch.chdir(project.folder)
    text = remoterun("history").stdout.decode()
    assert "other" not in text
    assert "programs and scripts are left out (true); --all shows them" in text
    assert "runs outside of this project are left out; --all shows them" in text
    everything = remoterun("history", "--all").stdout.decode()
    assert "check-ckpt of /\n" in everything.replace("  1 run", "\n")
    assert f"true of {project.folder}" in everything
    assert "left out" not in everything
    document = remoterun("history", "--output", "json")
    assert {trail["target"] for trail in document.document["trails"]} == {"one", "two"}
    assert document.stderr.count("left out") == 2
    assert "true  1 run" in remoterun("history", "--playbook", "true").stdout.decode()


def test_where_a_history_may_go_on_is_said(project: Project, tmp_path: Path) -> None:
    state, old, here = tmp_path / "state/remoterun", str(tmp_path / "old place"), str(project.folder)
    for day, where in enumerate((old, old, here)):
        keep(state, run(day, audited("kpro6/200", [1])), project=where)
    said = f"{old} is gone, but has a history: if it was {here}, go on with that by `remoterun history move '{old}' "
    assert said in remoterun("history").stderr
    assert said in remoterun("diff").stderr
    assert said in remoterun("diff", "--project", here).stderr
    assert said not in remoterun("history", "--project", str(tmp_path)).stderr
    assert remoterun("history", "move", old, "--project", here).status == 0
    after = remoterun("history"), remoterun("diff")
    assert [(result.status, result.stderr) for result in after] == [(0, "")] * 2
    assert remoterun("history", "move", here, "--project", here).status == 2


def test_the_result_goes_to_a_file_whole_or_not_at_all(project: Project, tmp_path: Path) -> None:
    _audit(project)
    _save(tmp_path / "one/step_200/checkpoint.pt", 200)
    _audit(project)
    file = tmp_path / "out"
    for words in (["diff"], ["history"], ["history", "--output", "json"]):
        shown = remoterun(*words)
        written = remoterun(*words, "-o", str(file))
        assert (written.status, written.stdout, file.read_bytes()) == (shown.status, b"", shown.stdout)
    file.write_bytes(b"old")
    for words in (["diff", "--playbook", "none"], ["history", "--playbook", "none"], ["diff", "--tolerance", "much"]):
        assert remoterun(*words, "-o", str(file)).status == 2
        assert file.read_bytes() == b"old"
    assert remoterun("history", "-o", str(file), "gc").status == 2
    assert remoterun("diff", "-o", str(tmp_path / "nowhere" / "x")).status == 2
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["out"]


@pytest.mark.parametrize("terminal", [True, False])
def test_what_takes_long_once_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)  # with no project at hand
    folder = tmp_path / "remoterun"
    for day in range(25):
        keep(folder, run(day, audited("one", [3])))
    with closing(sqlite3.connect(folder / "history.sqlite3")) as database, database:
        database.execute("DELETE FROM entries")
        database.execute("UPDATE runs SET followed = 0")
    leader, follower = pty.openpty()
    with os.fdopen(leader, "rb", buffering=0) as seen:
        stderr = follower if terminal else subprocess.PIPE
        done = subprocess.run([*REMOTERUN, "history"], stdout=subprocess.PIPE, stderr=stderr, timeout=60, check=True)
        os.write(follower, b"\n")
        said = done.stderr if not terminal else seen.read(1 << 16)
        os.close(follower)
    if terminal:
        assert said.startswith(b"\rremoterun: bringing the history up to date, once: 1 of 25 runs")
        assert said.rstrip().endswith(b"\r\x1b[K")
    else:
        assert said == b"remoterun: bringing the history up to date, once: 25 runs\n"
    again = remoterun("history")
    assert (again.stdout, again.stderr) == (done.stdout, "")


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_state_in(tmp_path / "state", monkeypatch)
    monkeypatch.chdir(tmp_path)
    for day in range(2):
        keep(tmp_path / "state/remoterun", run(day, audited("kpro6/200", [1])))
    for words in (["history"], ["diff"], ["report"], ["show", "last"], ["history", "--output", "json"]):
        result = remoterun(*words, "-o", "/dev/full")
        assert (result.status, result.stdout) == (3, b"")
        assert result.stderr == "remoterun: /dev/full cannot be written: No space left on device\n"


def test_history_tells_runs_and_since_when(project: Project, tmp_path: Path) -> None:
    _audit(project)
    _save(tmp_path / "two/step_200/checkpoint.pt", 200, nan=True)
    for _ in range(2):
        _audit(project)
    shown = remoterun("history", "--output", "json")
    Draft202012Validator(history_schema()).validate(shown.document)
    trails = {trail["target"]: trail for trail in shown.document["trails"]}
    assert [run["status"] for run in trails["two"]["runs"]] == ["findings", "findings", "ok"]
    assert [run["newest_step"] for run in trails["two"]["runs"]] == [200, 200, 100]
    since = {finding["since"]["run_id"] for finding in trails["two"]["findings"] if finding["severity"] == "bad"}
    assert since == {trails["two"]["runs"][1]["run"]["run_id"]}
    assert {finding["severity"] for finding in trails["one"]["findings"]} <= {"info"}
    text = remoterun("history").stdout.decode()
    assert "  two  .!!  step 200  findings  1 bad" in text
    assert "since" in text
    only = remoterun(
        "history", "--target", "t*", "--playbook", "check-ckpt", "--newest", "1", "--output", "json"
    ).document
    assert [(trail["target"], len(trail["runs"])) for trail in only["trails"]] == [("two", 1)]
    assert remoterun("history", "gc").stdout == b"0 runs forgotten\n"


def test_a_target_that_cannot_be_entered_is_unknown(project: Project) -> None:
    _audit(project)
    inventory = project.folder / "inventory.yaml"
    inventory.write_text(inventory.read_text("utf-8").replace("two: {", "two: {python: /none, "), "utf-8")
    assert _audit(project).status == 3
    document = remoterun("diff", "--output", "json").document
    assert _kinds(document) == [("target_unreachable", "two")]
    assert [(each["target"], each["runs"], each["code"]) for each in document["silent"]] == [
        ("two", 1, "interpreter_missing")
    ]
    assert "two  failed  interpreter_missing: " in remoterun("diff").stdout.decode()


REFUSED = (
    ("diff last last last", "two runs can be compared; 3 were named"),
    ("diff last --playbook check-ckpt", "--playbook chooses the newest run"),
    ("diff last", "no earlier run of check-ckpt"),
    ("diff last last", "did not come before"),
    ("diff --playbook other", "no two runs of other"),
    ("diff 2099", "no run 2099 has been kept"),
    ("diff --output junit", "junit tells of runs"),
    ("history --target three", "no run of a target like three has been kept"),
    ("history --playbook probe", "no run of a playbook like probe has been kept"),
)


def test_what_cannot_be_told_is_said(project: Project) -> None:
    _audit(project)
    for words, message in REFUSED:
        result = remoterun(*words.split())
        assert (result.status, message in result.stderr) == (2, True), (words, result.stderr)


def test_metrics_are_refused_before_anything_runs_and_change_no_result(project: Project, tmp_path: Path) -> None:
    for words in (["--metrics", str(tmp_path / "no/file")], ["--metrics", str(tmp_path / "file"), "--detach"]):
        refused = _audit(project, *words)
        assert (refused.status, "--metrics: " in refused.stderr) == (2, True)
    assert remoterun("runs").status == 2
    (tmp_path / "taken").mkdir()
    result = _audit(project, "--metrics", str(tmp_path / "taken"), "--output", "json")
    assert (result.status, result.document["status"]) == (0, "ok")
    assert "the metrics can't be written" in result.stderr
    kept = remoterun("show", "last", "--output", "junit")
    assert kept.status == 0
    assert [case.get("name") for case in ElementTree.fromstring(kept.stdout).iter("testcase")] == ["one", "two"]


def test_problems_are_told_as_tests_too(project: Project) -> None:
    result = project.run("play", "check-ckpt", "--on", "nobody", "--output", "junit")
    assert result.status == 2
    (case,) = ElementTree.fromstring(result.stdout).iter("testcase")
    assert case.find("error") is not None


@pytest.mark.parametrize("document", ["diff", "history"])
def test_schemas_are_printed(document: str) -> None:
    schema = strict_json(remoterun("schema", document).stdout)
    Draft202012Validator.check_schema(schema)
    assert schema["title"] == f"remoterun/{document}/1"
