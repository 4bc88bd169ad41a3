"""What a command says is to be done, where a newcomer's first tries fail."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.support.project import REMOTERUN, Project, Result, remoterun

ROOT = {"params": {"root": {"type": "path", "default": "/", "help": "Where to look"}}}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "inventory.yaml").write_text("hosts: {here: {transport: local}}\n")
    return Project(folder=tmp_path)


def here(folder: Path, *words: str, **more: str) -> Result:
    """Run a command line in a folder, whose project counts unless the environment names another."""
    environment = {name: value for name, value in os.environ.items() if name != "REMOTERUN_PROJECT"} | more
    return remoterun(*words, cwd=folder, env=environment, timeout=120)


def test_a_command_line_in_quotes(project: Project) -> None:
    error = project.run("exec", "--on", "here", "--output", "json", "--", "echo hi").outcome("here")["error"]
    assert error["message"] == "echo hi: No such file or directory"
    assert "`-- sh -c 'echo hi'`" in error["hint"]


def test_a_script_of_a_shell_is_told_how_it_runs(project: Project) -> None:
    (project.folder / "a b.sh").write_text("#!/usr/bin/env bash\necho $((40 + 2))\n")
    told = here(project.folder, "run", "a b.sh", "--on", "here")
    assert told.status == 2
    command = re.search(r"`run` takes Python: `remoterun (.*)`\n", told.stderr)
    assert command is not None
    line = f"{shlex.join(REMOTERUN)} {command[1].replace('TARGET', 'here')}"
    done = subprocess.run(["/bin/sh", "-c", line], cwd=project.folder, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, b"42\n"), done.stderr


def test_a_python_that_a_shell_starts_is_python(project: Project) -> None:
    (project.folder / "both").write_text("#!/bin/sh\n''':'\nexec python3 \"$0\"\n'''\nprint(42)\n")
    assert here(project.folder, "run", "both", "--on", "here").stdout == b"42\n"


def test_nothing_to_check_names_the_parameter_that_can_be_set(project: Project) -> None:
    (project.folder / "empty").mkdir()
    root = f"root={project.folder}/empty"
    played = project.run("play", "check-ckpt", "--on", "here", "--set", root, "--output", "json")
    assert "`--set root=DIR`" in played.outcome("here")["error"]["hint"]
    checked = here(project.folder, "check", "empty", "--output", "json")
    assert checked.outcome("empty")["error"]["hint"] == "Name another folder or file."


def test_what_is_not_finished_is_no_pass_of_a_play(project: Project) -> None:
    (project.folder / "runs").mkdir()
    (project.folder / "runs" / "step_5.pt.tmp").write_bytes(b"half")
    root = f"root={project.folder}/runs"
    played = project.run("play", "check-ckpt", "--on", "here", "--set", root, "--output", "json")
    assert played.status == 3
    error = played.outcome("here")["error"]
    assert error["message"].endswith("nothing is finished: step_5.pt.tmp")
    assert error["hint"] == "Run again when the save is done."


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("", "Look elsewhere with `--set root=DIR`, in a playbook under `params`."),
        (", hint='Ask its owner.'", "Ask its owner."),
        (", ''", ""),
    ],
)
def test_a_payload_says_what_to_do_where_there_was_nothing_to_check(project: Project, said: str, hint: str) -> None:
    project.payload("closed", f"def run(ctx):\n    ctx.nothing('no way into ' + ctx.params['root']{said})\n", **ROOT)
    played = project.run("play", "closed", "--on", "here", "--set", "root=/theirs", "--output", "json")
    error = played.outcome("here")["error"]
    assert (error["code"], error["message"], error["hint"]) == ("nothing_to_check", "no way into /theirs", hint)


def test_a_limit_is_told_with_the_place_where_it_was_set(project: Project) -> None:
    (project.folder / "inventory.yaml").write_text(
        "hosts: {here: {transport: local, limits: {run: 100ms, enter: 9s}}}\n"
    )
    inventory = project.run("exec", "--on", "here", "--", "sleep", "9")
    assert (
        b"  limit: run 100ms (limits.run; set by inventory: limits.run)\n"
        in inventory.stdout + inventory.stderr.encode()
    )
    flag = project.run("exec", "--on", "here", "--limit", "run=150ms", "--output", "json", "--", "sleep", "9")
    limit = {"name": "run", "value_s": 0.15, "key": "limits.run", "set_by": "--limit run"}
    assert flag.outcome("here")["error"]["limit"] == limit
    assert here(project.folder, "show", "last", "--output", "json").outcome("here")["error"]["limit"] == limit


def test_a_dry_run_tells_where_limits_are_set(project: Project) -> None:
    project.payload("slow", "def run(ctx):\n    pass\n", limits={"run": "3h"})
    (project.folder / "inventory.yaml").write_text("hosts: {here: {transport: local, limits: {stall: 2h, idle: 2h}}}\n")
    file = project.folder / "playbooks/all.yaml"
    file.parent.mkdir()
    file.write_text("limits: {idle: 3h, enter: 1m}\nsteps: [{payload: slow, limits: {enter: 2m, connect: 2m}}]\n")
    (job,) = project.run("play", "all", "--limit", "connect=3m", "--dry-run", "--output", "json").document["jobs"]
    assert job["limits_set_by"] == {
        "run": "payload slow: limits.run",
        "stall": "inventory: limits.stall",
        "idle": f"{file}: limits.idle",
        "enter": f"{file}: steps.0.limits.enter",
        "connect": "--limit connect",
    }
    assert job["limits"]["lease"] == "2m", "one that nobody set is the default"


def test_without_an_inventory_it_is_said_where_one_was_looked_for(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    for words in (("play", "probe"), ("exec", "--on", "web", "--", "true")):
        told = here(folder, *words)
        assert told.status == 2
        assert f"matches no target: there is no inventory.yaml in {folder} or a folder above it" in told.stderr
        assert "--on root@address" in told.stderr
        assert "`remoterun check DIR`" in told.stderr


def test_a_folder_that_is_named_is_where_an_inventory_is_missing(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "inventory.yaml").write_text("hosts: {here: {transport: local}}\n")
    told = here(tmp_path, "inventory", "list", "--project", "bare")
    assert "'all' matches no target: there is no inventory.yaml in the folder that --project names" in told.stderr
    told = here(tmp_path, "inventory", "list", REMOTERUN_PROJECT=str(tmp_path / "bare"))
    assert f"there is no inventory.yaml in {tmp_path}/bare; " in told.stderr
    (tmp_path / "bare/inventory.yaml").write_text("hosts: {}\n")
    told = here(tmp_path, "inventory", "list", "--project", "bare")
    assert "the inventory has none" in told.stderr


def test_no_flag_is_named_as_the_place_of_a_limit_that_nobody_gave(project: Project) -> None:
    (project.folder / "runs").mkdir()
    checked = here(project.folder, "check", "runs", "--dry-run", "--output", "json").document["jobs"][0]
    assert (checked["limits"]["lease"], checked["limits_set_by"]["lease"]) == ("none", "check-ckpt: limits.lease")
    words = ("exec", "--on", "here", "--detach", "--dry-run", "--output", "json")
    left = project.run(*words, "--", "true").document["jobs"][0]
    assert (left["limits"]["lease"], left["limits_set_by"]) == ("24h", {"lease": "--detach"})
    given = project.run(*words, "--lease", "5m", "--", "true").document["jobs"][0]
    assert (given["limits"]["lease"], given["limits_set_by"]) == ("5m", {"lease": "--limit lease"})
