"""Many targets at once: each has its outcome, and a sick one delays nobody."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.lab import Lab, guest
from tests.support.project import Project, write_project

CONNECT_S = 3


@pytest.fixture
def project(lab: Lab, tmp_path: Path) -> Project:
    """Return a project of five hosts with one guest each."""
    hosts = lab.hosts_at_once({f"five{number}": [guest(200)] for number in range(1, 6)})
    made = write_project(tmp_path, hosts)
    made.payload("hello", "def run(ctx):\n    ctx.emit({'hello': 1})\n")
    return made


@pytest.mark.lab
def test_two_of_five_unreachable(lab: Lab, project: Project) -> None:
    silent, refusing = lab.host("five2", guests=[guest(200)]), lab.host("five4", guests=[guest(200)])
    silent.drop_packets()
    refusing.stop_sshd()
    try:
        start = time.monotonic()
        result = project.run("play", "hello", "--on", "all", "--limit", f"connect={CONNECT_S}s", "--output", "json")
        took = time.monotonic() - start
        with_rest = project.run("play", "hello", "--on", "all", "--not", "five2", "--not", "five4", "--output", "json")
    finally:
        silent.heal()
        refusing.start_sshd()
    assert result.status == 3, result
    statuses = {item["target"]: item["status"] for item in result.document["outcomes"]}
    assert statuses == {
        "five1/200": "ok",
        "five2/200": "unreachable",
        "five3/200": "ok",
        "five4/200": "unreachable",
        "five5/200": "ok",
    }
    assert result.outcome("five2/200")["error"]["code"] == "connect_timeout"
    assert result.outcome("five2/200")["error"]["limit"]["key"] == "limits.connect"
    assert result.outcome("five4/200")["error"]["code"] == "connect_refused"
    assert with_rest.status == 0
    # The limit, and not a sum of limits: what starting the program takes here is left out by what the target itself
    # was charged.
    assert result.outcome("five2/200")["timings_s"]["connect"] < CONNECT_S + 1
    assert took < 2 * CONNECT_S + 10


@pytest.mark.lab
def test_slow_target_delays_no_other(lab: Lab, project: Project) -> None:
    source = """\
import socket, time

def run(ctx):
    if socket.gethostname() == "slow":
        time.sleep(600)
"""
    project.payload("mixed", source)
    lab.host("five1", guests=[guest(200)]).guest(200).sh("hostname slow", check=True)
    try:
        result = project.run("play", "mixed", "--on", "all", "--limit", "run=2s", "--output", "json")
    finally:
        lab.host("five1", guests=[guest(200)]).guest(200).sh("hostname fast", check=True)
    assert result.outcome("five1/200")["error"]["code"] == "run_timeout"
    others = [item for item in result.document["outcomes"] if item["target"] != "five1/200"]
    assert [item["status"] for item in others] == ["ok"] * 4


@pytest.mark.lab
def test_later_step_does_not_start_after_a_failed_one(project: Project) -> None:
    project.payload("breaks", "def run(ctx):\n    raise RuntimeError('no')\n")
    folder = project.folder / "playbooks"
    folder.mkdir()
    (folder / "two.yaml").write_text("targets: five1\nsteps:\n  - payload: breaks\n  - payload: hello\n", "utf-8")
    result = project.run("play", "two", "--output", "json")
    assert result.outcome("five1/200", 0)["error"]["code"] == "payload_crashed"
    second = result.outcome("five1/200", 1)
    assert second["status"] == "not_started"
    assert second["error"]["code"] == "earlier_step"
