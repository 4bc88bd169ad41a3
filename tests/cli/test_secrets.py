"""Secrets on the command line: they reach what they are meant for, and are seen nowhere else."""

from __future__ import annotations

import base64
import json
import signal
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.support.homes import keep_state_in
from tests.support.project import Project, remoterun
from tests.support.started import Started

TOKEN = 'hf_q"uo\\te/Abc123'
KEY = "-----BEGIN KEY-----\nMIIEvQIBADANBg\n-----END KEY-----\n"
INVENTORY = f"""\
defaults: {{python: {sys.executable}}}
hosts:
  here: {{transport: local}}
"""
PLAYBOOK = """\
secrets:
  token: {env: MY_TOKEN}
  key: {file: key.pem}
  asked: {command: [cat, ../asked]}
steps:
  - payload: tell
    params: {token: {secret: token}}
    env: {API_KEY: {secret: key}, ASKED: {secret: asked}, PLAIN: plain}
"""
TELL = """\
import base64, glob, json, os, sys, urllib.parse

def words(path):
    try:
        return open(path, "rb").read()
    except OSError:
        return b""

def run(ctx):
    token, key, asked = ctx.params["token"], os.environ["API_KEY"], os.environ["ASKED"]
    seen = [path for path in glob.glob("/proc/[0-9]*/cmdline")
            if any(value.encode() in words(path) for value in (token, asked))]
    ctx.emit({"lengths": [len(token), len(key), len(asked)], "in_argv": seen, "plain": os.environ["PLAIN"]})
    ctx.emit({"token": token, "list": [{"inner": "x" + json.dumps(token)}], asked: 1})
    ctx.log("log " + urllib.parse.quote(token))
    ctx.progress(1, 2, "bytes", "at " + token)
    ctx.finding("T1", "bad", token, "is " + base64.b64encode(asked.encode()).decode(), evidence={"key": key})
    for number in range(3):
        sys.stdout.write(token[:9]); sys.stdout.flush()
        sys.stdout.write(token[9:] + "\\n"); sys.stdout.flush()
    sys.stderr.write(key)
    if ctx.params["crash"]:
        raise ValueError("cannot use " + token)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Return a project with a playbook whose secrets can be had."""
    folder = tmp_path / "project"
    (folder / "playbooks").mkdir(parents=True)
    (folder / "inventory.yaml").write_text(INVENTORY, "utf-8")
    (folder / "playbooks/tell-all.yaml").write_text(PLAYBOOK, "utf-8")
    (folder / "playbooks/key.pem").write_text(KEY, "utf-8")
    (folder / "asked").write_text("answer-1234567\n", "utf-8")
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    keep_state_in(tmp_path / "state", monkeypatch)
    made = Project(folder=folder)
    params = {"token": {"type": "string", "required": True}, "crash": {"type": "bool", "default": False}}
    made.payload("tell", TELL, params=params)
    return made


def everything_kept(state: Path) -> bytes:
    """Return all that the history holds, what is compressed in it as well."""
    data = b"".join(path.read_bytes() for path in state.rglob("*") if path.is_file())
    found, at = [data], data.find(b"\x78\x01")
    while at >= 0:
        try:
            found.append(zlib.decompressobj().decompress(data[at:]))
        except zlib.error:
            found.append(b"")
        at = data.find(b"\x78\x01", at + 1)
    return b"".join(found)


def leaks(text: str | bytes) -> list[str]:
    """Return the parts of secrets that stand in a text."""
    data = text if isinstance(text, bytes) else text.encode()
    parts = ("te/Abc", "te%2FAbc", "MIIEvQIBADANBg", "answer-1234", "YW5zd2Vy")
    return [part for part in parts if part.encode() in data]


@pytest.mark.parametrize("output", ["json", "jsonl", "table"])
def test_they_reach_the_payload_and_nothing_else(project: Project, tmp_path: Path, output: str) -> None:
    result = project.run("play", "tell-all", "--output", output, "-vv")
    assert result.status == 1, result.stderr
    assert leaks(result.stdout) == []
    assert leaks(result.stderr) == []
    assert leaks(everything_kept(tmp_path / "state")) == []
    if output == "json":
        outcome = result.outcome("here")
        first, second = outcome["records"]
        assert first == {"lengths": [len(TOKEN), len(KEY) - 1, 14], "in_argv": [], "plain": "plain"}
        assert second == {"token": "[secret token]", "list": [{"inner": 'x"[secret token]"'}], "[secret asked]": 1}
        assert outcome["stdout"] == "[secret token]\n" * 3
        assert outcome["stderr"] == "[secret key]"
        assert outcome["truncated"] is False
        assert outcome["log"] == ["log [secret token]"]
        assert outcome["findings"][0]["subject"] == "[secret token]"
        assert outcome["findings"][0]["evidence"] == {"key": "[secret key]"}
    elif output == "jsonl":
        assert b"[secret token]" in result.stdout


def test_a_crash_is_told_without_them(project: Project) -> None:
    result = project.run("play", "tell-all", "--set", "crash=true", "--output", "json", "-vv")
    outcome = result.outcome("here")
    assert outcome["error"]["code"] == "payload_crashed"
    assert outcome["error"]["message"] == "ValueError: cannot use [secret token]"
    assert "[secret token]" in outcome["stderr"]
    assert leaks(result.stdout) == leaks(result.stderr) == []


def test_a_dry_run_fetches_nothing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_TOKEN")
    (project.folder / "playbooks/key.pem").unlink()
    text = project.run("play", "tell-all", "--dry-run").stdout.decode()
    assert "secret token: env MY_TOKEN\n" in text
    assert "param        token = the secret token\n" in text
    assert "env          API_KEY = the secret key\n" in text
    document = project.run("play", "tell-all", "--dry-run", "--output", "json").document
    assert document["secrets"] == {
        "token": {"env": "MY_TOKEN"},
        "key": {"file": str(project.folder / "playbooks/key.pem")},
        "asked": {"command": ["cat", "../asked"]},
    }
    (job,) = document["jobs"]
    assert job["secret_params"] == {"token": "token"}
    assert job["secret_env"] == {"API_KEY": "key", "ASKED": "asked"}
    assert job["params"] == {"crash": False}


def test_what_cannot_be_had_is_told_at_once_before_anything(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MY_TOKEN")
    (project.folder / "playbooks/key.pem").write_text("short", "utf-8")
    (project.folder / "asked").unlink()
    result = project.run("play", "tell-all", "--output", "json")
    assert result.status == 2
    assert [problem["path"] for problem in result.document["problems"]] == [
        "secrets.token",
        "secrets.key",
        "secrets.asked",
    ]
    assert "No such file" in result.document["problems"][2]["message"]
    assert list((tmp_path / "state").rglob("history*")) == []


def test_a_flag_beats_the_playbook(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_TOKEN")
    result = project.run(
        *("play", "tell-all", "--set", "token=just text", "--env", "ASKED=a word", "--output", "json"),
    )
    assert result.outcome("here")["records"][0]["lengths"] == [9, len(KEY) - 1, 6]
    assert result.outcome("here")["records"][1]["token"] == "just text"


def test_parameters_that_are_no_text_take_no_secret(project: Project) -> None:
    path = project.folder / "playbooks/wrong.yaml"
    path.write_text(PLAYBOOK.replace("params: {", "params: {crash: {secret: key}, tokn: {secret: key}, "), "utf-8")
    result = project.run("play", "wrong", "--output", "json")
    told = {problem["path"].rpartition(".")[2]: problem["message"] for problem in result.document["problems"]}
    assert told["crash"] == "is a bool with rules of its own: a secret is any text"
    assert told["tokn"].startswith("there is no such parameter")


def test_programs_get_them_and_their_output_is_clean(project: Project, tmp_path: Path) -> None:
    code = (
        "import os, sys; t = os.environ['MY_TOKEN']; sys.stdout.write(t[:5]); sys.stdout.flush(); print(t[5:], len(t))"
    )
    flags = ("--on", "here", "--secret", "MY_TOKEN", "--secret", f"PEM=file:{project.folder / 'playbooks/key.pem'}")
    result = project.run("exec", *flags, "--", sys.executable, "-c", code)
    assert (result.status, result.stdout) == (0, f"[secret MY_TOKEN] {len(TOKEN)}\n".encode())
    cut = "import os, sys; sys.stdout.write('x ' + os.environ['PEM'][:3])"
    result = project.run("exec", *flags, "--", sys.executable, "-c", cut)
    assert result.stdout == b"x ---"
    assert leaks(everything_kept(tmp_path / "state")) == []


def test_a_target_that_repeats_what_it_is_told_gives_nothing_away(project: Project, tmp_path: Path) -> None:
    parrot = tmp_path / "python3"
    # Without their first byte the frames of a request are noise.
    code = "import os\nwhile data := os.read(0, 1 << 16): os.write(1, data.replace(bytes([0xF7]), b''))"
    parrot.write_text(f"#!{sys.executable}\n{code}\n", "utf-8")
    parrot.chmod(0o755)
    result = project.run("play", "tell-all", "--python", str(parrot), "--limit", "enter=3s", "--output", "json", "-vv")
    outcome = result.outcome("here")
    assert outcome["status"] in {"failed", "timeout"}
    assert "[secret token]" in outcome["noise"]
    assert leaks(result.stdout) == leaks(result.stderr) == []
    kept = base64.b64decode(outcome.get("noise_b64", ""))
    assert leaks(kept) == []
    assert leaks(everything_kept(tmp_path / "state")) == []


def test_live_output_is_not_held_up(project: Project) -> None:
    code = "import sys; print('ready', flush=True); sys.stdin.read(); import time; time.sleep(600)"
    argv = project.argv("exec", "--on", "here", "--secret", "MY_TOKEN", "--", sys.executable, "-c", code)
    with Started(argv) as command:
        command.says(b"^ready$")
        assert command.end(signal.SIGTERM).status == 143


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("MY-TOKEN", "environment variable"),
        ("X=hunter2hunter2", "neither env:VARIABLE nor file:PATH"),
        ("X=env:1", "environment variable"),
        ("X=command:x", "neither"),
        ("NOT_SET_HERE", "NOT_SET_HERE is not set"),
    ],
)
def test_mistakes_in_the_flag(project: Project, word: str, told: str) -> None:
    result = project.run("exec", "--on", "here", "--secret", word, "--", "true")
    assert result.status == 2
    assert told in result.stderr
    assert "hunter2" not in result.stderr


def test_a_name_is_not_given_twice(project: Project) -> None:
    result = project.run("exec", "--on", "here", "--secret", "MY_TOKEN", "--env", "MY_TOKEN=x", "--", "true")
    assert "given by --env as well" in result.stderr
    result = project.run("play", "tell-all", "--secret", "token=env:MY_TOKEN", "--secret", "key=env:MY_TOKEN")
    assert "the playbook has a secret of this name" in result.stderr
    assert "--secret token" not in result.stderr


def test_a_rerun_fetches_them_again(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert project.run("play", "tell-all").status == 1
    monkeypatch.setenv("MY_TOKEN", "another-token-1")
    done = _again("rerun", "last", "--output", "json")
    (outcome,) = done["outcomes"]
    assert outcome["records"][0]["lengths"][0] == len("another-token-1")
    assert "another-token" not in json.dumps(done)
    monkeypatch.delenv("MY_TOKEN")
    assert _again("rerun", "last", "--output", "json")["problems"][0]["path"] == "secrets.token"
    assert leaks(everything_kept(tmp_path / "state")) == []


def test_a_run_that_is_left_alone_and_attached_to_later(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert project.run("play", "tell-all", "--detach").status in {0, 3}
    monkeypatch.delenv("MY_TOKEN")
    assert _again("attach", "last", "--output", "json")["problems"][0]["path"] == "secrets.token"
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    done = _again("attach", "last", "--output", "json")
    (outcome,) = done["outcomes"]
    assert outcome["records"][0]["lengths"] == [len(TOKEN), len(KEY) - 1, 14]
    assert leaks(json.dumps(done)) == []
    assert leaks(everything_kept(tmp_path / "state")) == []


def test_a_run_is_cancelled_without_its_secrets(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = "import time; time.sleep(600)"
    flags = ("--on", "here", "--secret", "MY_TOKEN", "--detach")
    assert project.run("exec", *flags, "--", sys.executable, "-c", wait).status in {0, 3}
    monkeypatch.delenv("MY_TOKEN")
    done = remoterun("cancel", "last")
    assert done.status == 0, done.stderr
    assert "secrets.MY_TOKEN: the environment variable MY_TOKEN is not set" in done.stderr


def _again(*words: str) -> Any:
    return json.loads(remoterun(*words).stdout)
