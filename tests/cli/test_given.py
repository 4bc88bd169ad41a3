"""What a command line reads besides its words, and where its result goes: standard input, files, pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.homes import keep_state_in
from tests.support.lab import wait_for
from tests.support.project import Project, strict_json
from tests.support.started import Started

INVENTORY = f"""\
defaults: {{python: {sys.executable}}}
hosts:
  one: {{transport: local}}
  two: {{transport: local}}
  three: {{transport: local}}
"""
MANIFEST = """\
# /// payload
# name = "say"
# version = "1.0.0"
# description = "Say what it was given."
# [params.word]
# type = "string"
# default = "nothing"
# [params.count]
# type = "int"
# default = 1
# [params.many]
# type = "list"
# items = "string"
# default = []
# ///
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return a project of three targets that are all this machine."""
    (tmp_path / "inventory.yaml").write_text(INVENTORY, "utf-8")
    (tmp_path / "payloads").mkdir()
    (tmp_path / "payloads" / "say.py").write_text(f"{MANIFEST}def run(ctx):\n    ctx.emit(ctx.params)\n", "utf-8")
    return Project(folder=tmp_path)


# --- targets from standard input --------------------------------------------------------------------------------------


def test_targets_come_from_standard_input(project: Project) -> None:
    said = b"\xef\xbb\xbfone   # the first\n\n# all of it\r\nthree\n"
    result = project.run("play", "say", "--on", "-", "--output", "json", stdin=said)
    assert [item["target"] for item in result.document["outcomes"]] == ["one", "three"]


def test_those_to_leave_out_too(project: Project) -> None:
    result = project.run("inventory", "list", "--output", "json")
    assert result.status == 0
    result = project.run("play", "say", "--on", "*", "--not", "-", "--output", "json", stdin=b"two")
    assert [item["target"] for item in result.document["outcomes"]] == ["one", "three"]


@pytest.mark.parametrize(
    ("words", "stdin", "message"),
    [
        (["play", "say", "--on", "-"], b"", "names no target"),
        (["play", "say", "--on", "-"], b"# only a comment\n", "names no target"),
        (["play", "say", "--on", "-"], b"one\n\xff\n", "not UTF-8"),
        (["play", "say", "--on", "-", "--on", "-"], b"one\n", "read once, and --on - reads it"),
        (["play", "say", "--on", "-", "--params", "@-"], b"one\n", "read once"),
        (["run", "-", "--on", "-"], b"one\n", "the script reads it"),
        (["play", "say", "--on", "-"], b"four\n", "four"),
    ],
)
def test_what_standard_input_cannot_give_is_told(
    project: Project, words: list[str], stdin: bytes, message: str
) -> None:
    result = project.run(*words, stdin=stdin)
    assert result.status == 2
    assert message in result.stderr


# --- parameters from files --------------------------------------------------------------------------------------------


def test_parameters_come_from_files_and_the_nearest_wins(project: Project) -> None:
    base, more = project.folder / "base.yaml", project.folder / "more.json"
    base.write_text("word: from the file\ncount: 3\nmany: [\"it's\", '$HOME', 'ü']\n", "utf-8")
    more.write_text(json.dumps({"count": 4}), "utf-8")
    files = ["--params", f"@{base}", "--params", f"@{more}", "--set", "word=nearer"]
    result = project.run("play", "say", "--on", "one", *files, "--output", "json")
    (record,) = result.outcome("one")["records"]
    assert record == {"word": "nearer", "count": 4, "many": ["it's", "$HOME", "ü"]}


def test_parameters_come_from_standard_input(project: Project) -> None:
    result = project.run(
        "play", "say", "--on", "one", "--params", "@-", "--output", "json", stdin=b'{"word": "\\n\'\\""}'
    )
    assert result.outcome("one")["records"][0]["word"] == "\n'\""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"- a\n- b\n", "mapping"),
        (b"word: [\n", "not YAML"),
        (b"wort: x\n", "wort"),
        (b"count: many\n", "count"),
        (b"\xff\xfe", "UTF-8"),
    ],
)
def test_parameters_that_are_none_are_told(project: Project, content: bytes, message: str) -> None:
    (project.folder / "bad.yaml").write_bytes(content)
    result = project.run("play", "say", "--on", "one", "--params", f"@{project.folder}/bad.yaml")
    assert result.status == 2
    assert message in result.stderr


def test_a_wrong_parameter_of_a_file_is_no_mistake_of_the_playbook(project: Project) -> None:
    (project.folder / "playbooks").mkdir()
    (project.folder / "playbooks/mine.yaml").write_text("{targets: one, steps: [{payload: say, params: {word: 3}}]}")
    (project.folder / "given.yaml").write_text("{word: 5, wrod: x}")
    result = project.run("play", "mine", "--params", f"@{project.folder}/given.yaml")
    assert [line.split(": ")[0].strip() for line in result.stderr.splitlines()[1:]] == ["params.wrod", "params.word"]


def test_a_params_file_is_named_with_an_at(project: Project) -> None:
    for words in (["--params", "bad.yaml"], ["--params", "@"], ["--params", "@/nowhere/at/all.yaml"]):
        assert project.run("play", "say", "--on", "one", *words).status == 2


# --- the result in a file ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["json", "jsonl", "table"])
def test_the_result_goes_to_a_file_whole(project: Project, form: str) -> None:
    out = project.folder / "result"
    result = project.run("play", "say", "--on", "one", "--output", form, "-o", str(out))
    assert (result.status, result.stdout) == (0, b"")
    content = out.read_bytes()
    assert b"nothing" in content
    if form == "json":
        assert strict_json(content)["status"] == "ok"
    assert [path.name for path in project.folder.iterdir() if path.name.startswith(".result")] == []


def test_what_stood_there_stays_until_everything_is_written(project: Project) -> None:
    out = project.folder / "result.json"
    out.write_text("the former", "utf-8")
    out.chmod(0o640)
    assert project.run("play", "nothing-such", "--on", "one", "--output", "json", "-o", str(out)).status == 2
    assert out.read_text("utf-8") == "the former"
    assert project.run("play", "say", "--on", "one", "--output", "json", "-o", str(out)).status == 0
    assert strict_json(out.read_bytes())["status"] == "ok"
    assert out.stat().st_mode & 0o777 == 0o640


def test_a_command_that_is_killed_leaves_what_stood_there(project: Project) -> None:
    out = project.folder / "result.json"
    out.write_text("the former", "utf-8")
    started = project.folder / "started"
    program = ["sh", "-c", 'touch "$1"; sleep 60', "-", str(started)]
    with Started(project.argv("exec", "--on", "one", "--output", "json", "-o", str(out), "--", *program)) as command:
        wait_for(started.exists, what="the program's start")
        command.end(signal.SIGKILL)
    assert out.read_text("utf-8") == "the former"
    assert not list(project.folder.glob(".result*"))


def test_an_interrupted_run_is_written_too(project: Project) -> None:
    out = project.folder / "result.json"
    started = project.folder / "started"
    program = ["sh", "-c", 'touch "$1"; sleep 60', "-", str(started)]
    with Started(project.argv("exec", "--on", "one", "--output", "json", "-o", str(out), "--", *program)) as command:
        wait_for(started.exists, what="the program's start")
        assert command.end().status == 130
    assert strict_json(out.read_bytes())["status"] == "interrupted"


def test_ctrl_c_before_anything_has_started_leaves_nothing(project: Project) -> None:
    words = ["play", "say", "--on", "one", "--params", "@-", "-o", str(project.folder / "result.json")]
    with Started(project.argv(*words), stdin=subprocess.PIPE) as command:
        stat = Path(f"/proc/{command.pid}/wchan")
        wait_for(lambda: "pipe" in stat.read_text(), what="its reading of standard input")
        assert command.end().status == 130
    assert not [path.name for path in project.folder.iterdir() if "result" in path.name]


def test_a_link_stays_a_link(project: Project) -> None:
    real, link = project.folder / "real.json", project.folder / "link.json"
    link.symlink_to(real)
    assert project.run("play", "say", "--on", "one", "--output", "json", "-o", str(link)).status == 0
    assert link.is_symlink()
    assert strict_json(real.read_bytes())["status"] == "ok"


def test_a_pipe_is_written_to_as_it_is(project: Project) -> None:
    pipe = project.folder / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
        assert project.run("play", "say", "--on", "one", "--output", "json", "-o", str(pipe)).status == 0
        assert reader.stdout is not None
        assert strict_json(reader.stdout.read())["status"] == "ok"
    assert project.run("play", "say", "--on", "one", "-o", os.devnull).status == 0


@pytest.mark.parametrize(
    ("name", "message"), [("json", "--output json"), ("", "names a file"), ("/no/such/x", "No such")]
)
def test_a_file_that_cannot_be_is_told_before_anything_starts(project: Project, name: str, message: str) -> None:
    result = project.run("play", "say", "--on", "one", "-o", name)
    assert result.status == 2
    assert message in result.stderr


def test_a_name_may_be_as_long_as_names_can_be(project: Project) -> None:
    name = "\u4e2d" * 84
    assert project.run("play", "say", "--on", "one", "--output", "json", "-o", str(project.folder / name)).status == 0
    assert strict_json((project.folder / name).read_bytes())["status"] == "ok"


def test_links_that_lead_in_a_circle_are_told_before_anything_starts(project: Project) -> None:
    link = project.folder / "link.json"
    link.symlink_to(link)
    result = project.run("play", "say", "--on", "one", "-o", str(link))
    assert (result.status, "symbolic links" in result.stderr) == (2, True)


def test_the_result_takes_the_place_of_nothing_that_the_run_needs(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project.folder
    keep_state_in(folder / "state", monkeypatch)
    assert project.run("play", "say", "--on", "one").status == 0
    (folder / "playbooks").mkdir()
    (folder / "playbooks" / "talk.yaml").write_text("steps: [{payload: say}]\n")
    (folder / "params.json").write_text("{}")
    (folder / "link.yaml").symlink_to("inventory.yaml")
    os.link(folder / "params.json", folder / "hard.json")
    before = {path: path.read_bytes() for path in folder.rglob("*.[yj]*") if path.is_file()}
    for out, what in (
        ("link.yaml", "the inventory"),
        ("playbooks/../inventory.yaml", "the inventory"),
        ("playbooks/talk.yaml", "the playbook talk"),
        ("audit.yaml", "the audit's settings"),
        ("hard.json", "--params"),
        ("events.jsonl", "--events"),
        ("new.prom", "--metrics"),
        ("state/remoterun/history.sqlite3", "the history"),
    ):
        beside = ["--events", str(folder / "events.jsonl"), "--metrics", str(folder / "new.prom")]
        beside += ["--params", f"@{folder / 'params.json'}"]
        result = project.run("play", "say", "--on", "one", *beside, "-o", str(folder / out))
        assert (result.status, f"is the file of {what} as well" in result.stderr) == (2, True), out
    assert {path: path.read_bytes() for path in before} == before
    assert not (folder / "events.jsonl").exists()


def test_a_full_disk_is_told(project: Project) -> None:
    result = project.run("play", "say", "--on", "one", "-o", "/dev/full")
    assert (result.status, result.stdout) == (3, b"")
    assert "No space left" in result.stderr
    assert project.run("play", "say", "--on", "one", "--output", "json", "-o", "/dev/full").stdout == b""


# --- standard input that nobody asked for -----------------------------------------------------------------------------


@pytest.mark.parametrize(("said", "told"), [(b"hi", True), (b"", False)])
def test_a_program_gets_no_standard_input_and_that_is_said(project: Project, said: bytes, told: bool) -> None:
    done = project.run("exec", "--on", "one", "--", "cat", stdin=said)
    assert (done.status, done.stdout) == (0, b"")
    assert ("what is on standard input is not passed on" in done.stderr) is told


def test_a_file_on_standard_input_is_not_passed_on_either(project: Project) -> None:
    data = project.folder / "data"
    data.write_text("hi", "utf-8")
    with data.open("rb") as file:
        done = subprocess.run(
            project.argv("exec", "--on", "one", "--", "cat"), stdin=file, capture_output=True, timeout=60, check=False
        )
        assert (done.returncode, done.stdout, file.tell()) == (0, b"", 0)
    assert b"is not passed on" in done.stderr


def test_a_script_on_standard_input_is_none_of_its_data(project: Project) -> None:
    done = project.run("run", "-", "--on", "one", stdin=b"print(input())")
    assert "is not passed on" not in done.stderr
    assert "EOFError" in done.stderr
