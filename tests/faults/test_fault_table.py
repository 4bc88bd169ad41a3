"""What may go wrong with a target in the middle of a run: what is told, how soon, and that nothing of ours stays there.

docs/faults.md is the whole table, and says where the rows are that have their place elsewhere.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from remoterun.errors import CODES
from tests.support.lab import Guest, Lab, LabHost, Process, guest, send, wait_for
from tests.support.project import Project, write_project
from tests.support.watched import Watched

pytestmark = pytest.mark.lab

# It does not end before somebody has done what they meant to.
_COUNT = """\
import os, time

def run(ctx):
    for number in range(60):
        while number == 59 and not os.path.exists("/root/done"):
            time.sleep(0.01)
        ctx.emit({"number": number})
        time.sleep(0.05)
"""
# More than what travels with a request, so that it is kept on the target.
_LARGE = f"FILLER = {os.urandom(40_000).hex()!r}\ndef run(ctx):\n    ctx.emit({{'ran': len(FILLER)}})\n"
_GREEDY = """\
def run(ctx):
    ctx.emit({"ready": 1})
    taken = []
    while True:
        taken.append(b"x" * (1 << 20))
"""
_PLACES = ("/root/.cache", "/tmp", "/run", "/dev/shm", "/var/tmp")
_LEASE_S = 6
# Besides the limit in question: this machine has other work to do.
_SLACK_S = 20.0


@pytest.fixture(scope="module")
def host(lab: Lab) -> LabHost:
    """Return the host whose guests suffer here."""
    return lab.host("suffers")


@pytest.fixture
def box(host: LabHost) -> Iterator[Guest]:
    """Return a guest for one test, and look at its end for what was left there."""
    made = host.fresh_guest()
    yield made
    if made.ctid not in host.guests:
        return
    if not made.running:
        made.start()
    _nothing_left(made)
    made.destroy()


def _nothing_left(box: Guest) -> None:
    wait_for(lambda: box.processes() == [], f"nothing of ours in {box.ctid}", limit_s=_LEASE_S + _SLACK_S)
    wait_for(lambda: _hops(box.host) == [], "no hop to be left", limit_s=_SLACK_S)
    found = box.sh(
        "find /run /dev/shm /tmp /var/tmp -name 'remoterun*'; find /root/.cache/remoterun -type f -name '*.*' 2>&1"
    )
    left = [line for line in found.stdout.splitlines() if "No such file" not in line]
    assert left == [], found
    # What is kept is whole: named by the hash of what it holds, or signed.
    packs = box.sh("cd /root/.cache/remoterun/packs 2>/dev/null && sha256sum * 2>/dev/null").stdout.split()
    assert packs[::2] == packs[1::2]


def _hops(host: LabHost) -> list[Process]:
    names = ("lxc-attach", "pct")
    return [each for each in host.processes() if any(name in word for name in names for word in each.cmdline[:2])]


@pytest.fixture
def project(host: LabHost, box: Guest, tmp_path: Path) -> Project:
    """Return a project of that guest."""
    made = write_project(tmp_path / "project", [host])
    for name, source in (("count", _COUNT), ("large", _LARGE), ("greedy", _GREEDY)):
        made.payload(name, source)
    return made


def _target(box: Guest) -> str:
    return f"{box.host.name}/{box.ctid}"


def _play(project: Project, box: Guest, payload: str) -> dict[str, Any]:
    return project.run("play", payload, "--on", _target(box), "--output", "json").outcome(_target(box))


def _in_the_middle(project: Project, box: Guest, fault: Callable[[], None]) -> dict[str, Any]:
    """Let something happen while a run is at work, and return its outcome; it may not take long."""
    argv = project.argv("play", "count", "--on", _target(box), "--lease", f"{_LEASE_S}s")
    watched = Watched(argv)
    try:
        watched.until_records(_target(box), 10)
        fault()
        if box.ctid in box.host.guests and box.running:
            box.write("/root/done", "")
        begun = time.monotonic()
        (outcome,) = watched.finish()
        assert time.monotonic() - begun < _LEASE_S + _SLACK_S
    finally:
        watched.kill()
    numbers = [record["number"] for record in outcome["records"]]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= 10
    assert outcome["records"] == watched.records(_target(box))
    assert (outcome["status"] == "ok") == (len(numbers) == 60 and outcome["error"] is None)
    return outcome


def _told(outcome: dict[str, Any]) -> tuple[str, str, str | None]:
    """Return status, phase and code; an error comes with the hint of its code, which may name the host or the guest."""
    error = outcome["error"]
    host, _, guest = outcome["target"].partition("/")
    commands = {"guest_stopped": f"`pct start {guest}`", "guest_frozen": f"`lxc-unfreeze -n {guest}`"}
    if error is not None and error["code"] in commands:
        assert commands[error["code"]] in error["hint"]
    elif error is not None:
        typed = re.sub(r" --project [^ `]+", "", error["hint"])
        assert typed == CODES[error["code"]].hint.replace("--on TARGET", f"--on {host}")
    return outcome["status"], outcome["phase"], error and error["code"]


# --- disks ---


def _lay_over(box: Guest, options: str, then: str = "true", places: Sequence[str] = _PLACES) -> None:
    """Put another file system over every place that could take something of ours, or some of them."""
    for place in places:
        box.sh(f"mkdir -p {place} && mount -t tmpfs -o {options} none {place} && cd {place} && {then}", check=True)


_FILL = "dd if=/dev/zero of=filler bs=4k 2>/dev/null; test -s filler"


@pytest.mark.parametrize(
    ("options", "then"),
    [("size=16k", _FILL), ("size=48k", "true"), ("ro", "true"), ("noexec", "true")],
    ids=["full", "nearly full", "read-only", "noexec"],
)
def test_a_disk_that_takes_nothing_costs_nothing(project: Project, box: Guest, options: str, then: str) -> None:
    _lay_over(box, options, then)
    for _ in range(2):
        outcome = _play(project, box, "large")
        assert _told(outcome) == ("ok", "collect", None)
        assert outcome["records"] == [{"ran": 80_000}]


@pytest.fixture
def many(project: Project) -> Project:
    """Return the project with a program that has a large file beside it, and another program, which it runs."""
    folder = project.folder / "payloads/many"
    folder.mkdir()
    (folder / "payload.toml").write_text(
        'name = "many"\nversion = "1.0.0"\ndescription = "A program with files."\nprogram = "main"\n'
        '[pack]\ninclude = ["large", "helper"]\n'
    )
    (folder / "main").write_text('#!/bin/sh\n"$REMOTERUN_FOLDER/helper" || echo \'{"ran": false}\'\n')
    (folder / "helper").write_text('#!/bin/sh\nprintf \'{"place": "%s"}\\n\' "${0%/remoterun-*}"\n')
    for name in ("main", "helper"):
        (folder / name).chmod(0o755)
    (folder / "large").write_bytes(os.urandom(200_000))
    return project


@pytest.mark.parametrize(
    ("options", "then"),
    [("size=16k", _FILL), ("size=64k", "true"), ("nr_inodes=2", "true"), ("ro", "true"), ("noexec", "true")],
    ids=["full", "nearly full", "without inodes", "read-only", "noexec"],
)
def test_a_place_that_cannot_hold_a_program_is_passed_over(many: Project, box: Guest, options: str, then: str) -> None:
    _lay_over(box, options, then, places=("/run",))
    outcome = _play(many, box, "many")
    assert _told(outcome) == ("ok", "collect", None)
    assert outcome["records"] == [{"place": "/dev/shm"}]


def test_a_program_with_files_says_when_there_is_no_room_for_them(many: Project, box: Guest) -> None:
    # The program itself is run from memory, what it runs is not.
    for options, record in (("noexec", {"ran": False}), ("size=1m", {"place": "/run"})):
        _lay_over(box, options)
        outcome = _play(many, box, "many")
        assert _told(outcome) == ("ok", "collect", None)
        assert outcome["records"] == [record]
    _lay_over(box, "size=64k")
    assert _told(_play(many, box, "many")) == ("failed", "upload", "no_space")


# --- here ---

_FOREIGN = "Gr\u00f6\u00dfe \u65e5\u672c \U0001f600"


@pytest.mark.parametrize("locale", ["C", "POSIX", "de_DE.ISO-8859-1"])
def test_the_locale_here_changes_nothing(
    project: Project, box: Guest, monkeypatch: pytest.MonkeyPatch, locale: str
) -> None:
    project.payload("foreign", f"def run(ctx):\n    ctx.emit({{'text': {_FOREIGN!r}}})\n    print({_FOREIGN!r})\n")
    for name, value in {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}.items():
        monkeypatch.setenv(name, value)
    outcome = _play(project, box, "foreign")
    assert _told(outcome) == ("ok", "collect", None)
    assert (outcome["records"], outcome["stdout"]) == ([{"text": _FOREIGN}], f"{_FOREIGN}\n")
    shown = project.run("play", "foreign", "--on", _target(box), "-v")
    assert (shown.status, "Traceback" in shown.stderr) == (0, False), shown


# --- processes of ours, and the payload ---


def _ours(box: Guest) -> dict[str, Process]:
    """Find leg, supervisor and payload: the supervisor leads a session of its own."""
    found = {}
    for process in box.processes():
        if "-c" not in process.cmdline:
            found["payload"] = process
        else:
            found["supervisor" if process.session == process.pid else "leg"] = process
    assert sorted(found) == ["leg", "payload", "supervisor"]
    return found


def _kill(box: Guest, *names: str) -> None:
    ours = _ours(box)
    doomed = [ours[name].pid for name in names]
    send(signal.SIGSTOP, *doomed)
    send(signal.SIGKILL, *doomed)


def test_a_killed_leg_is_replaced(project: Project, box: Guest) -> None:
    outcome = _in_the_middle(project, box, lambda: _kill(box, "leg"))
    assert _told(outcome) == ("ok", "collect", None)
    assert (outcome["connections"], outcome["survivors"]) == (2, 0)


@pytest.mark.parametrize("names", [("supervisor",), ("leg", "supervisor"), ("payload",)], ids=" and ".join)
def test_a_run_whose_processes_are_killed_is_told_as_that(project: Project, box: Guest, names: tuple[str, ...]) -> None:
    outcome = _in_the_middle(project, box, lambda: _kill(box, *names))
    status, _, code = _told(outcome)
    assert (status, code) == ("failed", "payload_killed")


def test_a_payload_that_takes_all_memory_is_killed_alone(host: LabHost, tmp_path: Path) -> None:
    limit = "lxc.cgroup2.memory.max" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else ""
    box = host.fresh_guest(lxc=(f"{limit or 'lxc.cgroup.memory.limit_in_bytes'} = {96 << 20}",))
    project = write_project(tmp_path / "project", [host])
    project.payload("greedy", _GREEDY)
    outcome = _play(project, box, "greedy")
    assert _told(outcome) == ("failed", "collect", "payload_killed")
    assert "SIGKILL" in outcome["error"]["message"]
    assert (outcome["records"], outcome["survivors"], outcome["connections"]) == ([{"ready": 1}], 0, 1)
    _nothing_left(box)
    box.destroy()


# --- guest and host ---


def test_a_guest_that_is_stopped(project: Project, box: Guest) -> None:
    outcome = _in_the_middle(project, box, box.stop)
    assert _told(outcome) == ("failed", "run", "guest_stopped")


def test_a_guest_that_is_restarted(project: Project, box: Guest) -> None:
    def restart() -> None:
        box.stop()
        box.start()

    outcome = _in_the_middle(project, box, restart)
    status, _, code = _told(outcome)
    # Whoever comes back in between finds it stopped, and else nothing of the run.
    assert (status, code) in {("failed", "guest_stopped"), ("failed", "payload_killed")}


def test_a_guest_that_moves_to_another_node(project: Project, box: Guest) -> None:
    def move() -> None:
        text = box.host.path(f"/etc/pve/nodes/{box.host.node}/lxc/{box.ctid}.conf").read_text()
        box.destroy()
        box.host.write_guest_config(box.ctid, text, node="elsewhere")

    outcome = _in_the_middle(project, box, move)
    assert _told(outcome) == ("failed", "run", "guest_not_found")


def test_a_guest_that_is_frozen_for_a_while(project: Project, box: Guest) -> None:
    def freeze() -> None:
        box.freeze()
        time.sleep(2)  # how long it lasts is what is tested
        box.thaw()

    outcome = _in_the_middle(project, box, freeze)
    assert _told(outcome) == ("ok", "collect", None)
    assert outcome["connections"] == 1


def test_a_host_key_that_changes_between_two_connections(lab: Lab, tmp_path: Path) -> None:
    host = lab.host("reinstalled", guests=[guest(200)])
    project = write_project(tmp_path / "project", [host])
    project.payload("count", _COUNT)

    def change() -> None:
        host.rotate_host_key()
        sessions = [each for each in host.processes() if any(word.startswith("sshd: root") for word in each.cmdline)]
        send(signal.SIGKILL, *(each.pid for each in sessions))

    outcome = _in_the_middle(project, host.guest(200), change)
    status, _, code = _told(outcome)
    assert (status, code) == ("unreachable", "host_key_changed")
    # Nobody talks to it again: the target ends the run by itself.
    _nothing_left(host.guest(200))
