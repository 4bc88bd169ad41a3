"""What shells offer while a command line is typed; bash and fish are asked themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import needed
from tests.support.project import REMOTERUN, Project, remoterun

INVENTORY = f"""\
defaults: {{python: {sys.executable}}}
hosts:
  here: {{transport: local, tags: [gpu]}}
  kpro6:
    guests: {{200: {{name: trainer}}, 201: {{}}}}
groups:
  fleet: {{members: [kpro6]}}
"""
MANIFEST = """\
# /// payload
# name = "say"
# version = "1.0.0"
# description = "Say what it was given."
# rules = ["SY001"]
# [params.word]
# type = "string"
# default = ""
# help = "what to say"
# [params.count]
# type = "int"
# default = 1
# ///
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Return a project with a playbook and a payload; the working directory is in it."""
    (tmp_path / "inventory.yaml").write_text(INVENTORY, "utf-8")
    (tmp_path / "payloads").mkdir()
    (tmp_path / "payloads" / "say.py").write_text(f"{MANIFEST}def run(ctx):\n    pass\n", "utf-8")
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "playbooks" / "nightly.yaml").write_text("targets: [fleet]\nsteps: [{payload: say}]\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    made = Project(folder=tmp_path)
    assert made.run("play", "nightly", "--dry-run").status == 0
    return made


def offered(line: str) -> list[str]:
    """Return what bash is told for a line that ends where the cursor stands."""
    at = len(line.split()) - (not line.endswith(" "))
    env = {**os.environ, "_REMOTERUN_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(at)}
    done = remoterun(env=env)
    assert (done.status, done.stderr) == (0, "")
    return done.stdout.decode().split()


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("line", "among"),
    [
        ("remoterun pl", {"play"}),
        ("remoterun play ", {"nightly", "say", "check-ckpt", "probe"}),
        ("remoterun play ni", {"nightly"}),
        ("remoterun play say --on ", {"all", "here", "kpro6", "kpro6/200", "kpro6/201", "trainer", "fleet", "tag:gpu"}),
        ("remoterun play say --on kpro6/", {"kpro6/200", "kpro6/201"}),
        ("remoterun exec --not tr", {"trainer"}),
        ("remoterun play say --set ", {"word=", "count="}),
        ("remoterun play nightly --set w", {"word="}),
        ("remoterun play say --ignore ", {"SY001"}),
        ("remoterun play say --limit ru", {"run="}),
        ("remoterun payload show pr", {"probe"}),
        ("remoterun play say --outp", {"--output"}),
        ("remoterun play say --output ", {"table", "json", "jsonl"}),
    ],
)
def test_names_of_the_project_are_offered(line: str, among: set[str]) -> None:
    words = set(offered(line))
    assert among <= words
    assert all(word.startswith(line.rpartition(" ")[2]) for word in words)


def test_the_project_that_is_named_is_the_one_that_counts(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert "kpro6/200" not in offered("remoterun play say --on kpro6/")
    assert "kpro6/200" in offered(f"remoterun play say --project {project.folder} --on kpro6/")


def test_runs_are_offered_newest_first(project: Project) -> None:
    assert offered("remoterun show ") == []
    ids = [project.run("play", "say", "--on", "here", "--output", "json").document["run_id"] for _ in range(2)]
    found = offered("remoterun show ")
    assert found == ["last", *reversed(ids)]
    assert offered(f"remoterun resume {ids[1][:-1]}") == [ids[1]]


def test_a_project_that_cannot_be_read_offers_nothing(project: Project) -> None:
    (project.folder / "inventory.yaml").write_text("hosts: [", "utf-8")
    assert offered("remoterun play say --on ") == []
    assert offered("remoterun play nothing-such --set ") == []


@pytest.mark.usefixtures("project")
def test_hostile_names_are_not_offered(project: Project) -> None:
    (project.folder / "playbooks" / "a b.yaml").write_text("steps: [{payload: say}]\n", "utf-8")
    (project.folder / "playbooks" / "esc\x1b[2Jape.yaml").write_text("steps: [{payload: say}]\n", "utf-8")
    for name in ("a;reboot", "a$(id)", "a`id`", "a*", "a'b", "a|b", "a&b", "a>b"):
        (project.folder / "playbooks" / f"{name}.yaml").write_text("steps: [{payload: say}]\n", "utf-8")
    assert not [word for word in offered("remoterun play ") if word.startswith(("a", "b", "esc"))]


# --- real shells ------------------------------------------------------------------------------------------------------


def script_for(name: str, folder: Path) -> Path:
    """Write what a shell has to source."""
    env = {**os.environ, "_REMOTERUN_COMPLETE": f"source_{name}"}
    script = folder / f"completion.{name}"
    script.write_bytes(subprocess.run(REMOTERUN, env=env, capture_output=True, check=True).stdout)
    return script


def on_path(folder: Path) -> dict[str, str]:
    """Return an environment in which `remoterun` is this one."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    program = bin_folder / "remoterun"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m remoterun "$@"\n', "utf-8")
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "PYTHONPATH": str(Path(__file__).parents[2])}


def test_bash_completes(project: Project) -> None:
    script = script_for("bash", project.folder)
    asked = (
        f"source {script}; COMP_WORDS=(remoterun play say --on kpro6/); COMP_CWORD=4; "
        "_remoterun_completion remoterun; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(
        [needed("bash"), "-c", asked], env=on_path(project.folder), capture_output=True, check=True, timeout=60
    )
    assert done.stdout.decode().split() == ["kpro6/200", "kpro6/201"]


def test_fish_completes_with_explanations(project: Project) -> None:
    script = script_for("fish", project.folder)
    asked = f"source {script}; complete -C 'remoterun play '"
    done = subprocess.run(
        [needed("fish"), "--no-config", "-c", asked],
        env=on_path(project.folder),
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert "nightly\ta playbook of the project" in done.stdout.decode().splitlines()


def test_zsh_is_told_in_its_own_words(project: Project) -> None:
    assert "compdef _remoterun_completion remoterun" in script_for("zsh", project.folder).read_text("utf-8")
    env = {**os.environ, "_REMOTERUN_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "remoterun play ni"}
    done = subprocess.run(REMOTERUN, env=env, capture_output=True, check=True, timeout=60)
    assert '"nightly":"a playbook of the project"' in done.stdout.decode()
