"""Connections that die under a run, controllers that are killed, and runs that were never meant to be watched."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.campaign import turns
from tests.support.homes import keep_state_in
from tests.support.lab import Guest, Lab, LabHost, guest, send, wait_for
from tests.support.project import Project, Result, remoterun, write_project
from tests.support.started import Started

pytestmark = pytest.mark.lab

_COUNT = """\
import time

def run(ctx):
    for number in range(200):
        ctx.emit({"number": number})
        time.sleep(ctx.params["pause"])
"""
_PAUSE = {"pause": {"type": "float", "default": 0.02, "help": "Seconds between records."}}
# It waits at each of its gates for a file.
_GATES = (50, 100, 150)
_WAITS = f"""\
import os, time

def run(ctx):
    for number in range(200):
        while number in {_GATES} and not os.path.exists("/root/gate-%d" % number):
            time.sleep(0.01)
        ctx.emit({{"number": number}})
"""
# A family that hides from whoever looks at parents, groups and sessions.
_FAMILY = """\
import os, time

def run(ctx):
    for _ in range(2):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(600)
            os._exit(0)
    ctx.emit({"ready": 1})
    time.sleep(600)
"""


@pytest.fixture
def host(lab: Lab) -> LabHost:
    """Return the host whose connections are cut here, and nowhere else."""
    return lab.host("cut", guests=[guest(200), guest(201)])


@pytest.fixture
def project(host: LabHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Return a project of that host, with a history of its own; the gates of its guest are shut."""
    for number in _GATES:
        host.guest(200).path(f"/root/gate-{number}").unlink(missing_ok=True)
    keep_state_in(tmp_path / "state", monkeypatch)
    made = write_project(tmp_path / "project", [host])
    made.payload("count", _COUNT, params=_PAUSE)
    made.payload("family", _FAMILY)
    made.payload("waits", _WAITS)
    return made


@pytest.fixture(autouse=True)
def nothing_left(host: LabHost) -> Iterator[None]:
    """Look into the guests, when all is over, for what a run has left there."""
    yield
    host.heal()
    for number in (200, 201):
        _wait_until_empty(host.guest(number))


def _wait_until_empty(place: Guest, limit_s: float = 30) -> None:
    wait_for(lambda: place.processes() == [], f"nothing of ours in {place.ctid}", limit_s=limit_s)
    assert place.sh("ls -d /run/remoterun-* /dev/shm/remoterun-* /tmp/remoterun-* 2>/dev/null || true").stdout == ""


def _open(host: LabHost, *gates: int) -> None:
    for number in gates:
        host.guest(200).write(f"/root/gate-{number}", "")


def _connections(host: LabHost) -> list[int]:
    """Find the server's half of every connection."""
    return [each.pid for each in host.processes() if any(word.startswith("sshd: root") for word in each.cmdline)]


def _kill_connections(host: LabHost) -> int:
    """Kill the server's half of every connection, as a crash or an impatient administrator does."""
    found = _connections(host)
    send(signal.SIGKILL, *found)
    return len(found)


class Lines(Started):
    """Read what `--output jsonl` says."""

    def __init__(self, project: Project, *words: str) -> None:
        super().__init__(project.argv(*words, "--output", "jsonl"))

    def until(self, kind: str, count: int = 1) -> None:
        """Wait until so many lines of a type were shown."""
        self.says(b'"type": "%s"' % kind.encode(), count)

    def finish(self) -> dict[str, Any]:
        """Wait for the end, and return the only outcome."""
        self.result(limit_s=180)
        (outcome,) = [event for event in self.events() if event["type"] == "outcome"]
        return outcome

    def numbers(self) -> list[int]:
        """Return the records that were shown."""
        return [event["record"]["number"] for event in self.events() if event["type"] == "record"]


def _history(*words: str) -> Result:
    """Run a command that needs no project."""
    return remoterun(*words, timeout=180)


def test_a_killed_connection_is_replaced(host: LabHost, project: Project) -> None:
    lines = Lines(project, "play", "waits", "--on", "cut/200")
    lines.until("record", 50)
    assert _kill_connections(host)
    _open(host, *_GATES)
    outcome = lines.finish()
    assert (outcome["status"], outcome["error"]) == ("ok", None)
    assert (outcome["connections"], outcome["resumable"]) == (2, True)
    assert lines.numbers() == list(range(200))
    kept = _history("show", "last", "--output", "json")
    assert [record["number"] for record in kept.outcome("cut/200")["records"]] == list(range(200))


def test_a_connection_is_replaced_as_often_as_it_dies(host: LabHost, project: Project) -> None:
    lines = Lines(project, "play", "waits", "--on", "cut/200")
    for gate in _GATES:
        lines.until("record", gate)
        assert _kill_connections(host)
        _open(host, gate)
    outcome = lines.finish()
    assert (outcome["status"], outcome["connections"]) == ("ok", 4)
    assert lines.numbers() == list(range(200))


def test_a_server_that_is_away_for_a_while_is_waited_for(host: LabHost, project: Project) -> None:
    lines = Lines(project, "play", "count", "--on", "cut/200")
    lines.until("record", 30)
    host.stop_sshd(sessions=True)
    time.sleep(2)  # the server's absence is what is tested
    host.start_sshd()
    assert lines.finish()["status"] == "ok"
    assert lines.numbers() == list(range(200))


def test_packets_dropped_for_8_seconds_cost_nothing(host: LabHost, project: Project) -> None:
    lines = Lines(project, "play", "count", "--on", "cut/200", "--set", "pause=0.06")
    lines.until("record", 20)
    host.drop_packets()
    time.sleep(8)  # the silence is what is tested
    host.heal()
    outcome = lines.finish()
    assert (outcome["status"], outcome["error"]) == ("ok", None)
    assert lines.numbers() == list(range(200))


def test_a_network_that_does_not_come_back_loses_the_run_and_leaves_nothing(host: LabHost, project: Project) -> None:
    lines = Lines(
        project,
        *("play", "count", "--on", "cut/200", "--set", "pause=1"),
        *("--lease", "3s", "--limit", "idle=4s", "--limit", "connect=2s"),
    )
    lines.until("record", 2)
    host.drop_packets()
    outcome = lines.finish()
    assert outcome["status"] == "lost"
    assert outcome["error"]["code"] in {"idle_timeout", "connection_lost"}
    # The target ends it by itself, though nobody can tell it to.
    _wait_until_empty(host.guest(200))


def test_a_controller_that_comes_too_late_is_told_of_the_lease(host: LabHost, project: Project) -> None:
    lines = Lines(project, "play", "count", "--on", "cut/200", "--set", "pause=1", "--lease", "2s")
    lines.until("record", 2)
    # A laptop that sleeps: the program stands still, and its connection with it.
    lines.send(signal.SIGSTOP)
    _kill_connections(host)
    _wait_until_empty(host.guest(200))
    lines.send(signal.SIGCONT)
    outcome = lines.finish()
    assert (outcome["status"], outcome["error"]["code"]) == ("lost", "lease_expired")
    assert outcome["error"]["limit"] == {
        "name": "lease",
        "value_s": 2.0,
        "key": "limits.lease",
        "set_by": "--limit lease",
    }
    assert "--detach" in outcome["error"]["hint"]


@pytest.mark.parametrize("turn", turns(10, 50))
def test_a_killed_controller_leaves_nothing_after_the_lease(
    host: LabHost, project: Project, turn: int, seed: int
) -> None:
    chance = random.Random(f"{seed} {turn}")
    lines = Lines(project, "play", "count", "--on", "cut/200", "--set", "pause=0.01", "--lease", "2s")
    _kill_some_time(lines, chance, at_work=turn % 3 != 0)
    if turn % 2:
        _wait_until_empty(host.guest(200))
    kept = _history("show", "last", "--output", "json")
    if kept.status == 2:
        # Killed before it had begun anything.
        assert lines.numbers() == []
        return
    told = lines.numbers()
    assert [record["number"] for record in kept.outcome("cut/200")["records"]][: len(told)] == told
    done = _history("resume", "last", "--output", "json").outcome("cut/200")
    assert done["status"] == "ok"
    assert [record["number"] for record in done["records"]] == list(range(200))


def _kill_some_time(lines: Lines, chance: random.Random, *, at_work: bool) -> None:
    """Kill a controller at a random moment: at work, or on its way there."""
    if at_work:
        lines.until("record", chance.randint(1, 150))
    else:
        with contextlib.suppress(subprocess.TimeoutExpired):
            lines.process.wait(chance.uniform(0, 2))
    lines.end(signal.SIGKILL)


# --- left alone ---


def _detach(project: Project, *words: str) -> str:
    left = project.run("play", *words, "--detach", "--output", "json")
    assert left.status == 0, left
    document = left.document
    assert (document["status"], document["counts"]["running"]) == ("detached", len(document["outcomes"]))
    return str(document["run_id"])


def _collect(run_id: str) -> Result:
    return _history("collect", run_id, "--output", "json")


def test_a_run_is_left_alone_and_collected(host: LabHost, project: Project) -> None:
    run_id = _detach(project, "waits", "--on", "cut/200")
    (listed,) = json.loads(_history("runs", "--output", "json").stdout)["runs"]
    assert (listed["run_id"], listed["status"], listed["finished_at"]) == (run_id, "detached", None)
    early = _collect(run_id)
    assert early.status == 3
    assert early.outcome("cut/200")["status"] == "running"
    wait_for(lambda: not _connections(host), "the connection to be closed")
    # Nobody is connected, and all goes on.
    _open(host, *_GATES)
    wait_for(lambda: _collect(run_id).status == 0, "the run to be done", limit_s=60)
    kept = _history("show", run_id, "--output", "json")
    outcome = kept.outcome("cut/200")
    assert (kept.document["status"], outcome["status"]) == ("ok", "ok")
    assert [record["number"] for record in outcome["records"]] == list(range(200))
    assert outcome["payload"]["name"] == "waits"


def test_a_run_left_alone_is_followed_again(host: LabHost, project: Project) -> None:
    run_id = _detach(project, "count", "--on", "cut/200")
    result = _history("attach", run_id, "--output", "json")
    assert (result.status, result.outcome("cut/200")["status"]) == (0, "ok")
    assert len(result.outcome("cut/200")["records"]) == 200


def test_a_run_left_alone_is_cancelled(host: LabHost, project: Project) -> None:
    run_id = _detach(project, "family", "--on", "cut/200")
    wait_for(lambda: len(host.guest(200).processes()) >= 4, "the whole family")
    result = _history("cancel", run_id, "--output", "json")
    outcome = result.outcome("cut/200")
    assert (result.status, outcome["status"], outcome["survivors"]) == (0, "cancelled", 0)
    again = _history("cancel", run_id, "--output", "json")
    assert again.status == 0, again


def test_a_run_is_looked_after_from_another_machine(
    host: LabHost, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its id and an inventory are enough: what it is, the targets say."""
    first = _detach(project, "count", "--on", "cut/200", "--set", "pause=0.02")
    second = _detach(project, "family", "--on", "cut/200")
    keep_state_in(tmp_path / "elsewhere", monkeypatch)
    refused = _history("collect", first, "--output", "json")
    assert refused.status == 2
    assert "--on" in refused.document["message"]
    followed = project.run("attach", first, "--on", "cut/200", "--output", "json")
    outcome = followed.outcome("cut/200")
    assert (followed.status, outcome["status"], outcome["payload"]["name"]) == (0, "ok", "count")
    assert [record["number"] for record in outcome["records"]] == list(range(200))
    assert project.run("collect", second, "--on", "cut/200", "--output", "json").status == 3
    ended = _history("cancel", second, "--output", "json")
    assert (ended.status, ended.outcome("cut/200")["status"], ended.outcome("cut/200")["survivors"]) == (
        0,
        "cancelled",
        0,
    )
    nothing = project.run("attach", "20260101T000000Z-00000000", "--on", "cut/200", "--output", "json")
    assert nothing.outcome("cut/200")["error"]["code"] == "lease_expired"


def test_each_target_of_a_run_from_another_machine_is_asked(
    host: LabHost, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looked after one of them there knows nothing of the others, and must not take the run for complete."""
    run_id = _detach(project, "family", "--on", "cut")
    keep_state_in(tmp_path / "elsewhere", monkeypatch)
    for target in ("cut/200", "cut/201"):
        ended = project.run("cancel", run_id, "--on", target, "--output", "json")
        outcome = ended.outcome(target)
        assert (ended.status, outcome["status"], outcome["survivors"]) == (0, "cancelled", 0)


def test_a_program_left_alone_keeps_its_output(host: LabHost, project: Project) -> None:
    words = ("exec", "--on", "cut/200", "--detach", "--output", "json", "--", "/bin/sh", "-c", "sleep 1; echo done")
    assert project.run(*words).status == 0
    wait_for(lambda: _collect("last").status == 0, "the program to be done", limit_s=60)
    assert _history("show", "last", "--output", "json").outcome("cut/200")["stdout"] == "done\n"


def test_what_cannot_be_reached_is_not_given_up(host: LabHost, project: Project) -> None:
    """Whoever looks after a run and does not reach its target knows nothing new of it."""
    run_id = _detach(project, "family", "--on", "cut/200")
    host.stop_sshd()
    try:
        result = _collect(run_id)
    finally:
        host.start_sshd()
    assert result.status == 3
    outcome = result.outcome("cut/200")
    assert (outcome["status"], outcome["error"]["code"]) == ("running", "connect_refused")
    assert _history("cancel", run_id, "--output", "json").status == 0


def test_a_frozen_guest_that_thaws_does_not_go_on_late(host: LabHost, project: Project) -> None:
    lines = Lines(project, "play", "count", "--on", "cut/200", "--set", "pause=1", "--limit", "idle=3s")
    lines.until("record", 1)
    host.guest(200).freeze()
    try:
        outcome = lines.finish()
    finally:
        host.guest(200).thaw()
    assert (outcome["status"], outcome["error"]["code"]) == ("lost", "idle_timeout")
    # Its lease is not over: it was told to end, and hears of it when it thaws.
    _wait_until_empty(host.guest(200), 15)


def test_ctrl_c_without_a_connection_says_what_nobody_could_confirm(host: LabHost, project: Project) -> None:
    lines = Lines(project, "play", "family", "--on", "cut/200", "--lease", "6s", "-v")
    lines.until("record")
    host.stop_sshd(sessions=True)
    try:
        lines.says(b"taken up again", on="stderr")
        lines.send(signal.SIGINT)
        outcome = lines.finish()
    finally:
        host.start_sshd()
    assert lines.process.returncode == 130
    assert (outcome["status"], outcome["survivors"]) == ("cancelled", None)
    assert "within its lease of 6s" in outcome["error"]["message"]
    # And so it does.
    _wait_until_empty(host.guest(200))


def test_ctrl_c_ends_twenty_families_and_counts_them(lab: Lab, tmp_path: Path) -> None:
    hosts = lab.hosts_at_once({f"twenty{number}": [200, 201, 202, 203] for number in range(5)})
    project = write_project(tmp_path / "twenty", hosts)
    project.payload("family", _FAMILY)
    lines = Lines(project, "play", "family", "--on", "all")
    lines.until("record", 20)
    result = lines.end(limit_s=120)
    outcomes = [event for event in lines.events() if event["type"] == "outcome"]
    assert result.status == 130
    assert [(each["status"], each["survivors"]) for each in outcomes] == [("cancelled", 0)] * 20
    for each in hosts:
        for place in each.guests.values():
            _wait_until_empty(place)
