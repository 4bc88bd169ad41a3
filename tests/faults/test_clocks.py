"""Clocks that jump, stand still or differ: no limit goes by the time of day, and none by another machine's clock."""

from __future__ import annotations

import ast
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import remoterun
from remoterun.model import Status
from tests.faults.test_lease import Legs
from tests.support.here import play
from tests.support.lab import Guest, Lab, LabHost, guest, send, wait_for
from tests.support.lab.pythons import pythons
from tests.support.project import Project, write_project
from tests.support.watched import Watched

_ON = "timely/200"
_COUNT = """\
import time

def run(ctx):
    for number in range(100):
        ctx.emit({"number": number})
        time.sleep(ctx.params["pause"])
"""
_PAUSE = {"pause": {"type": "float", "default": 0.1, "help": "Seconds between records."}}
# Started with every Python of the controller: its time of day is what a file says it is late or early by.
_TIME_OF_DAY = """\
import os, time

_real = time.time

def _set():
    with open(os.environ["TIME_OF_DAY"]) as file:
        return _real() + float(file.read())

time.time = _set
"""
_HOUR_S = 3600


class Clock:
    """Set the time of day of a controller, and of nobody else."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(_TIME_OF_DAY)
        self._file = folder / "offset"
        self.environment = {"PYTHONPATH": str(folder), "TIME_OF_DAY": str(self._file)}
        self.set(0)

    def set(self, offset_s: float) -> None:
        """Be late or early by so much from now on."""
        new = self._file.with_suffix(".new")
        new.write_text(str(offset_s))
        new.rename(self._file)


@pytest.fixture
def host(lab: Lab) -> LabHost:
    """Return the host of these tests."""
    return lab.host("timely", guests=[guest(200)])


@pytest.fixture
def project(host: LabHost, tmp_path: Path) -> Iterator[Project]:
    """Return a project of that host, and look at the end for what was left in its guest."""
    made = write_project(tmp_path / "project", [host])
    made.payload("count", _COUNT, params=_PAUSE)
    yield made
    _wait_until_empty(host.guest(200))


def _wait_until_empty(box: Guest) -> None:
    wait_for(lambda: box.processes() == [], "nothing of ours in the guest", limit_s=30)


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return the time of day of controllers that are started from here on."""
    made = Clock(tmp_path / "clock")
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


def _payloads(box: Guest) -> list[int]:
    """Return the processes that are neither leg nor supervisor."""
    return [each.pid for each in box.processes() if "-c" not in each.cmdline]


def _kill_everything(box: Guest) -> None:
    doomed = [each.pid for each in box.processes()]
    # Stopped first, or one of them would see another die.
    send(signal.SIGSTOP, *doomed)
    send(signal.SIGKILL, *doomed)


def _cut(host: LabHost) -> None:
    sessions = [each for each in host.processes() if any(word.startswith("sshd: root") for word in each.cmdline)]
    send(signal.SIGKILL, *(each.pid for each in sessions))


@pytest.mark.lab
@pytest.mark.parametrize("offset_s", [-_HOUR_S, _HOUR_S], ids=["back", "forward"])
def test_a_time_of_day_that_jumps_ends_nothing(host: LabHost, project: Project, clock: Clock, offset_s: float) -> None:
    watched = Watched(project.argv("play", "count", "--on", _ON, "--set", "pause=0.06"))
    try:
        watched.until_records(_ON, 10)
        clock.set(offset_s)
        _cut(host)
        (outcome,) = watched.finish(statuses=(0,))
    finally:
        watched.kill()
    assert (outcome["status"], outcome["connections"]) == ("ok", 2)
    assert [record["number"] for record in outcome["records"]] == list(range(100))


@pytest.mark.lab
def test_a_time_of_day_that_jumps_is_no_lease_that_has_ended(host: LabHost, project: Project, clock: Clock) -> None:
    watched = Watched(project.argv("play", "count", "--on", _ON))
    try:
        watched.until_records(_ON, 10)
        clock.set(_HOUR_S)
        _kill_everything(host.guest(200))
        (outcome,) = watched.finish()
    finally:
        watched.kill()
    assert (outcome["status"], outcome["error"]["code"]) == ("failed", "payload_killed")


@pytest.mark.lab
@pytest.mark.parametrize("cut", [True, False], ids=["connection lost", "connection kept"])
def test_a_laptop_that_slept_too_long_is_told_so_whatever_its_time_of_day(
    host: LabHost, project: Project, clock: Clock, *, cut: bool
) -> None:
    """It stands still for longer than the lease, as a program does while its machine is suspended."""
    watched = Watched(project.argv("play", "count", "--on", _ON, "--lease", "2s"))
    try:
        watched.until_records(_ON, 10)
        watched.process.send_signal(signal.SIGSTOP)
        clock.set(-_HOUR_S)
        if cut:
            _cut(host)
        wait_for(lambda: _payloads(host.guest(200)) == [], "the target to end the payload", limit_s=30)
        watched.process.send_signal(signal.SIGCONT)
        (outcome,) = watched.finish()
    finally:
        watched.kill()
    error = outcome["error"]
    assert (outcome["status"], error["code"]) == ("lost", "lease_expired")
    assert error["limit"] == {"name": "lease", "value_s": 2.0, "key": "limits.lease", "set_by": "--limit lease"}
    assert "--lease" in error["hint"]
    assert "--detach" in error["hint"]


_OTHER_CLOCK = """\
#!/bin/sh
exec unshare --time --fork --monotonic $$0000 --boottime $$0000 -- {python} "$@"
"""


@pytest.mark.lab
def test_processes_of_a_target_may_have_clocks_of_their_own(tmp_path: Path) -> None:
    """Each connection finds another uptime, as after a live migration; the supervisor keeps the one it began with."""
    python = tmp_path / "python"
    python.write_text(_OTHER_CLOCK.format(python=pythons()["3.11"]))
    python.chmod(0o755)
    gates = tmp_path / "gates"
    gates.mkdir()
    legs = Legs((20, 60), gates)
    outcome = play(legs.work, str(python), at_record=legs)
    assert (outcome.status, outcome.connections) == (Status.OK, 3), outcome.error
    assert [record["n"] for record in outcome.records] == list(range(200))


# --- by looking at the code ---

_BY_TIME_OF_DAY = {"time.time", "time.time_ns", "time.localtime", "time.gmtime", "time.ctime", "time.CLOCK_REALTIME"}
_DATES = ("datetime.now", "datetime.utcnow", "datetime.today", "date.today", "now_text")
# Each run says when it began and ended.
_STAMPS = {"runner/execute.py": ["now_text", "now_text"]}


def _times_of_day(path: Path) -> list[str]:
    """Return whatever in a module asks for the time of day."""
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    names = [ast.unparse(node) for node in nodes if isinstance(node, (ast.Attribute, ast.Name))]
    return [name for name in names if name in _BY_TIME_OF_DAY or name.endswith(_DATES)]


@pytest.mark.parametrize("room", ["remote", "runner", "transports"])
def test_where_limits_are_kept_nobody_asks_for_the_time_of_day(room: str) -> None:
    (root,) = remoterun.__path__
    found = {
        path.relative_to(root).as_posix(): names
        for path in Path(root, room).rglob("*.py")
        if (names := _times_of_day(path))
    }
    assert found == {name: names for name, names in _STAMPS.items() if name.startswith(f"{room}/")}
