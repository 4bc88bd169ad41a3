"""A payload that is half written: only what names it is stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.project import Project

HALF = '# /// payload\n# name = "half"\n# ///\n'


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "payloads").mkdir()
    (tmp_path / "payloads/half.py").write_text(HALF)
    (tmp_path / "inventory.yaml").write_text("hosts: {here: {transport: local}}\n")
    return Project(folder=tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        ("exec", "--on", "here", "--", "true"),
        ("play", "probe", "--on", "here", "--dry-run"),
        ("payload", "show", "check-ckpt"),
        ("inventory", "list"),
    ],
)
def test_what_does_not_name_it_goes_on(project: Project, words: tuple[str, ...]) -> None:
    result = project.run(*words)
    assert result.status == 0, result.stderr


@pytest.mark.parametrize("words", [("play", "half", "--on", "here"), ("payload", "show", "half@1")])
def test_what_names_it_is_told_all_that_is_wrong(project: Project, words: tuple[str, ...]) -> None:
    result = project.run(*words)
    assert result.status == 2
    for key in ("version", "description"):
        assert f"the payload half can't be used: {project.folder}/payloads/half.py: {key}: is required" in result.stderr


def test_a_playbook_that_names_it_says_where(project: Project) -> None:
    (project.folder / "playbooks").mkdir()
    file = project.folder / "playbooks/nightly.yaml"
    file.write_text("steps: [{payload: probe}, {payload: half}]\n")
    result = project.run("play", "nightly", "--on", "here")
    assert result.status == 2
    assert f"{file}: steps.1.payload: the payload half can't be used: {project.folder}" in result.stderr


def test_a_list_has_the_others_and_tells_of_it(project: Project) -> None:
    result = project.run("payload", "list")
    assert result.status == 2
    assert b"check-ckpt" in result.stdout
    assert "payloads/half.py: version: is required" in result.stderr
    as_json = project.run("payload", "list", "--output", "json")
    assert (as_json.status, as_json.document["schema"]) == (2, "remoterun/error/1")


def test_a_check_of_the_inventory_tells_of_it(project: Project) -> None:
    result = project.run("inventory", "check")
    assert result.status == 2
    assert "payloads/half.py: version: is required" in result.stderr
