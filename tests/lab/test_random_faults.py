"""Random faults on eight targets: one outcome each, never a false ok, never a hang, never a leftover.

A round is known by the run's seed and its number, and prints what it did; ``REMOTERUN_SEED=N pytest -k 'faults and 3'``
does round 3 again. ``make soak`` does many.
"""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.campaign import turns
from tests.support.lab import Guest, Lab, LabHost, Process, guest, send, wait_for
from tests.support.lab.rough import Direction
from tests.support.lab.rough_link import Terms
from tests.support.project import Project, remoterun, write_project
from tests.support.watched import Watched

pytestmark = pytest.mark.lab

_RECORDS = 40
_COUNT = f"""\
import time

def run(ctx):
    for number in range({_RECORDS}):
        ctx.emit({{"number": number}})
        time.sleep(0.05)
"""
_LIMITS = ("connect=3s", "enter=4s", "upload=4s", "idle=4s", "run=30s")
# Those that have to be at work first, and to come back, may be on a machine with other work to do.
_PATIENT = ("connect=15s", "enter=30s", "upload=15s", "idle=10s", "run=60s")
_HANG_S = 120.0
_ONE_WAY: dict[str, Direction] = {"packets there dropped": "there", "packets back dropped": "back"}
_FAR = Terms(latency_s=0.05, jitter_s=0.02, loss=0.03, reorder=0.1, duplicate=0.02)
# On the way to a target: nothing of them ends a run, unless together they take as long as its lease.
_ON_THE_WAY = ("connections killed", "packets dropped", *_ONE_WAY, "server away", "slow", "far")
_IN_THE_GUEST = ("frozen", "leg stopped", "supervisor stopped", "payload stopped")
_DEADLY = ("leg killed", "supervisor killed", "both killed", "payload killed", "guest stopped")
_HERE = ("asleep", "interrupted")
# What may be said of a target that did not come through. Damage is not among it: nothing here damages a byte.
_TROUBLES = {
    *("connect_refused", "connect_failed", "connect_timeout", "enter_timeout", "upload_timeout", "idle_timeout"),
    *("connection_lost", "lease_expired", "payload_killed", "guest_frozen", "guest_stopped", "session_refused"),
    # Something was killed while it was entered.
    *("interpreter_broken", "enter_failed"),
    "cancelled",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Say what happens when, where, and for how long; `ctid` 0 is the host, and no host is the controller."""

    at: float
    what: str
    host: str
    ctid: int
    lasts: float

    def __str__(self) -> str:
        """Show it in one line."""
        where = f"{self.host}/{self.ctid or 'host'}" if self.host else "controller"
        return f"{self.at:5.2f} s  {where}: {self.what} ({self.lasts:.2f} s)"


def _draw(chance: random.Random, *, at_work: bool) -> list[Fault]:
    faults = []
    kinds = [*_ON_THE_WAY * 2, *_IN_THE_GUEST, *_DEADLY, "asleep"]
    if at_work:
        # Before, there might be no outcomes yet.
        kinds += ["interrupted"] * 2
    for _ in range(chance.randint(2, 7)):
        what = chance.choice(kinds)
        if what == "interrupted":
            # The second one would have it leave at once, which is another promise.
            kinds = [kind for kind in kinds if kind != what]
        faults.append(
            Fault(
                at=chance.uniform(0, 2),
                what=what,
                host="" if what in _HERE else chance.choice(["faulty0", "faulty1"]),
                ctid=0 if what in (*_ON_THE_WAY, *_HERE) else chance.randint(200, 203),
                lasts=0.0 if what in (*_DEADLY, "connections killed", "interrupted") else chance.uniform(0.1, 2.5),
            )
        )
    return sorted(faults, key=lambda fault: fault.at)


@pytest.fixture(scope="module")
def hosts(lab: Lab) -> dict[str, LabHost]:
    """Return the hosts that are ill-treated here, and nowhere else."""
    guests = [guest(ctid) for ctid in range(200, 204)]
    return {name: lab.host(name, guests=guests, rough=name) for name in ("faulty0", "faulty1")}


@pytest.fixture
def project(hosts: dict[str, LabHost], tmp_path: Path) -> Project:
    """Return a project of these hosts."""
    made = write_project(tmp_path / "project", list(hosts.values()))
    made.payload("count", _COUNT)
    return made


@pytest.fixture(autouse=True)
def healed(hosts: dict[str, LabHost]) -> Iterator[None]:
    """Leave the hosts as they were, whatever has happened."""
    yield
    for host in hosts.values():
        host.heal()
        for place in host.guests.values():
            place.thaw()
            if not place.running:
                place.start()


class Trial:
    """Run a command line and let faults happen to it."""

    def __init__(self, hosts: dict[str, LabHost], project: Project, lease: str, limits: Sequence[str]) -> None:
        self._hosts = hosts
        self._undo: list[tuple[float, Fault, list[int]]] = []
        words = [word for limit in limits for word in ("--limit", limit)]
        self.watched = Watched(project.argv("play", "count", "--on", "all", "--lease", lease, *words))

    def all_at_work(self) -> bool:
        """Tell whether each target has emitted something."""
        return len({line["target"] for line in self.watched.lines("record")}) == 8

    def suffer(self, faults: list[Fault]) -> None:
        """Let everything happen at its time; what lasts is undone at its end, also after the run's."""
        begun = time.monotonic()
        waiting = list(faults)
        while waiting or self._undo:
            self._undo.sort(key=lambda item: item[0])
            due = min([fault.at for fault in waiting[:1]] + [end for end, _, _ in self._undo[:1]])
            self._wait(begun + due)
            if waiting and waiting[0].at <= due:
                fault = waiting.pop(0)
                self._undo.append((fault.at + fault.lasts, fault, self._begin(fault)))
            else:
                _, fault, pids = self._undo.pop(0)
                self._end(fault, pids)

    def _wait(self, until: float) -> None:
        while (left := until - time.monotonic()) > 0:
            try:
                self.watched.process.wait(left)
            except subprocess.TimeoutExpired:
                return
            if self.watched.process.returncode is not None:
                return

    def _begin(self, fault: Fault) -> list[int]:
        """Make a fault, and return the processes that are to be let go on at its end."""
        if not fault.host:
            self.watched.process.send_signal(signal.SIGSTOP if fault.what == "asleep" else signal.SIGINT)
            return []
        host = self._hosts[fault.host]
        if not fault.ctid:
            _begin_on_the_way(host, fault.what)
            return []
        place = host.guest(fault.ctid)
        if fault.what == "frozen":
            place.freeze()
        elif fault.what == "guest stopped":
            place.stop()
        else:
            who, _, how = fault.what.partition(" ")
            return _signal(place, who, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        return []

    def _end(self, fault: Fault, pids: list[int]) -> None:
        if not fault.host:
            if fault.what == "asleep":
                self.watched.process.send_signal(signal.SIGCONT)
            return
        host = self._hosts[fault.host]
        if fault.what in ("packets dropped", *_ONE_WAY, "slow", "far"):
            host.heal()
        elif fault.what == "server away":
            host.start_sshd()
        elif fault.what == "frozen":
            host.guest(fault.ctid).thaw()
        elif fault.what == "guest stopped" and not host.guest(fault.ctid).running:
            host.guest(fault.ctid).start()
        send(signal.SIGCONT, *pids)


def _begin_on_the_way(host: LabHost, what: str) -> None:
    if what == "packets dropped":
        host.drop_packets()
    elif what in _ONE_WAY:
        host.rough.drop(_ONE_WAY[what])
    elif what == "slow":
        host.slow_down("200kbit")
    elif what == "far":
        host.rough.shape(_FAR)
    elif what == "server away":
        _kill_server(host)
    else:
        sessions = [each for each in host.processes() if any(word.startswith("sshd: root") for word in each.cmdline)]
        send(signal.SIGKILL, *(each.pid for each in sessions))


def _kill_server(host: LabHost) -> None:
    # Two of these may overlap, and then there is nothing left to kill.
    doomed = [each.pid for each in host.processes() if each.name == "sshd"]
    send(signal.SIGKILL, *doomed)
    wait_for(lambda: not any(each.pid in doomed for each in host.processes()), "sshd to end")


def _signal(place: Guest, who: str, number: int) -> list[int]:
    if not place.running:
        return []
    pids = [
        each.pid for each in place.processes() if who == _role(each) or (who == "both" and _role(each) != "payload")
    ]
    # All of them at once, or one of them would see the other die.
    send(signal.SIGSTOP, *pids)
    send(number, *pids)
    return pids


def _role(process: Process) -> str:
    """Tell which of ours a process is: the supervisor leads a session, and the leg is in that of the hop."""
    if "-c" not in process.cmdline:
        return "payload"
    return "supervisor" if process.session == process.pid else "leg"


@pytest.mark.parametrize("turn", turns(15, 100))
def test_whatever_happens_each_target_has_one_true_outcome(
    hosts: dict[str, LabHost], project: Project, turn: int, seed: int
) -> None:
    chance = random.Random(f"{seed} {turn}")
    at_work = chance.random() < 0.6
    lease = chance.choice([3, 10])
    faults = _draw(chance, at_work=at_work)
    print(f"round {turn} of seed {seed}: lease {lease} s, {'all at work' if at_work else 'from the start'}")
    print("\n".join(map(str, faults)))
    trial = Trial(hosts, project, f"{lease}s", _PATIENT if at_work else _LIMITS)
    try:
        if at_work:
            wait_for(trial.all_at_work, "all targets to be at work", limit_s=60)
        trial.suffer(faults)
        interrupted = any(fault.what == "interrupted" for fault in faults)
        outcomes = trial.watched.finish(_HANG_S, statuses=(0, 3, 130) if interrupted else (0, 3))
    finally:
        trial.watched.kill()
    _judge(outcomes, trial.watched, faults, lease=lease, at_work=at_work)
    shown = remoterun("show", "last", "--output", "json").document
    kept = {outcome["target"]: outcome for outcome in shown["outcomes"]}
    assert {target: len(outcome["records"]) for target, outcome in kept.items()} == {
        outcome["target"]: len(outcome["records"]) for outcome in outcomes
    }
    for host in hosts.values():
        _nothing_left(host, lease + 25.0)


def _nothing_left(host: LabHost, limit_s: float) -> None:
    wait_for(lambda: not _hops(host), f"no hop to be left on {host.name}", limit_s=limit_s)
    guests = list(host.guests.values())
    wait_for(
        lambda: not any(place.processes() for place in guests),
        f"the guests of {host.name} to be empty",
        limit_s=limit_s,
    )
    for place in guests:
        assert place.sh("ls -d /run/remoterun-* /dev/shm/remoterun-* /tmp/remoterun-* 2>/dev/null").stdout == ""


def _hops(host: LabHost) -> list[Process]:
    names = ("lxc-attach", "pct")
    return [each for each in host.processes() if any(name in word for name in names for word in each.cmdline[:2])]


def _judge(
    outcomes: list[dict[str, Any]], watched: Watched, faults: list[Fault], *, lease: float, at_work: bool
) -> None:
    targets = [f"faulty{number}/{ctid}" for number in range(2) for ctid in range(200, 204)]
    assert sorted(outcome["target"] for outcome in outcomes) == targets
    for outcome in outcomes:
        code = outcome["error"] and outcome["error"]["code"]
        print(f"{outcome['target']}: {outcome['status']} {code} {len(outcome['records'])} {outcome['connections']}")
        numbers = [record["number"] for record in outcome["records"]]
        shown = [record["number"] for record in watched.records(outcome["target"])]
        assert numbers == shown == list(range(len(numbers)))
        assert (outcome["status"] == "ok") == (code is None)
        if outcome["status"] == "ok":
            assert len(numbers) == _RECORDS
        else:
            assert code in _TROUBLES, outcome
        if at_work and _is_survivable(outcome["target"], faults, lease):
            assert outcome["status"] == "ok", outcome


def _is_survivable(target: str, faults: list[Fault], lease: float) -> bool:
    """Tell whether what happened to a target was only on its way, and did not take too long."""
    host, _, ctid = target.partition("/")
    met = [fault for fault in faults if fault.host in ("", host) and fault.ctid in (0, int(ctid))]
    return (
        all(fault.what in (*_ON_THE_WAY, "asleep") for fault in met) and sum(fault.lasts for fault in met) < lease / 3
    )
