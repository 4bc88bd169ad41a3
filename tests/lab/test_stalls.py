"""Every phase stalled once, at a host and behind a jump host: each ends with its own limit, and all of them at once.

What is stalled elsewhere:

========================================  ==============================================================================
a payload in state D                      tests/faults/test_target_kills.py: a_payload_that_hangs_on_storage
a program that hangs before its start     tests/faults/test_target_kills.py: a_program_that_hangs_before_its_start
code that travels too slowly              tests/lab/test_states.py: upload_that_does_not_end
a frozen guest                            tests/lab/test_states.py: frozen_guest; test_connections.py: a_frozen_guest
packets dropped under a running payload   tests/lab/test_connections.py: a_network_that_does_not_come_back
resolving at one of several addresses     tests/conformance/test_transports_dial.py
========================================  ==============================================================================
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path

import asyncssh
import pytest

from remoterun.errors import CODES
from remoterun.model import Host, LimitHit, Limits, Outcome, Plan, RunStatus
from remoterun.runner import execute
from tests.conformance.servers import Keys
from tests.support.here import job, nothing_left, payload
from tests.support.project import REMOTERUN
from tests.support.stalling import (
    Deaf,
    Make,
    Place,
    Undecided,
    cut_at_exec,
    full_backlog,
    make_keys,
    mute,
    relays,
    says,
    serves,
)

_LIMITS = Limits(connect=8.0, enter=8.0, upload=8.0, idle=8.0, stall=6.0, run=6.0, lease=3.0)
# A killed payload has its grace; a machine with other work to do takes its time.
_SLACK_S = 20.0

_LARGE = f"# {os.urandom(60_000).hex()}\nctx.emit({{}})"
_TALKS = """
import os, time
ctx.emit({'first': 1})
while not (ctx.params['ends'] and os.path.exists(ctx.params['mark'])):
    time.sleep(0.1)
    ctx.emit({})
"""
_SLEEPS = "import time\nctx.emit({})\ntime.sleep(600)"
_BUSY = "ctx.emit({})\nwhile True:\n    pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Say how something stalls and what must come of it; `limit` is also the beginning of the error's code."""

    make: Make
    source: str = "ctx.emit({})"
    limits: Limits = _LIMITS
    status: str
    phase: str
    limit: str | None


def _connect(make: Make) -> Stall:
    return Stall(make=make, status="unreachable", phase="connect", limit="connect")


def _enter(make: Make) -> Stall:
    return Stall(make=make, status="timeout", phase="enter", limit="enter")


_CONNECTING = {
    "tcp": _connect(full_backlog),
    "banner": _connect(says(b"")),
    "key exchange": _connect(says(b"SSH-2.0-OpenSSH_9.2\r\n")),
    "authentication": _connect(serves(Undecided)),
}
_SILENT = {
    name: Stall(make=relays(b'"first"', ends=False), source=_TALKS, status="lost", phase="run", limit="idle")
    for name in ("silence", "result")
}
_RUNNING = {
    "busy": Stall(make=relays(), source=_BUSY, status="timeout", phase="collect", limit="run"),
    "asleep": Stall(
        make=relays(),
        source=_SLEEPS,
        limits=replace(_LIMITS, run=None),
        status="timeout",
        phase="collect",
        limit="stall",
    ),
    "close": Stall(make=relays(lingers=True), status="ok", phase="collect", limit=None),
}
_STALLS = {
    **_CONNECTING,
    "channel": _enter(serves(Deaf)),
    "exec": _enter(cut_at_exec),
    "first byte": _enter(mute),
    "upload": Stall(
        make=relays(b'"sha256"'),
        source=_LARGE,
        status="timeout",
        phase="upload",
        limit="upload",
    ),
    **_SILENT,
    **_RUNNING,
}


class _Gate(asyncssh.SSHServer):
    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return True


class _ShutGate(asyncssh.SSHServer):
    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        # What asyncssh waits for may be awaited as well.
        return asyncio.get_running_loop().create_future()  # type: ignore[return-value]


_AT_THE_JUMP = {**_CONNECTING, "channel": _connect(serves(_ShutGate))}
_WAYS = {
    **{(name, "at the host"): stall for name, stall in _STALLS.items()},
    **{(name, "behind a jump host"): stall for name, stall in _STALLS.items()},
    **{(name, "at the jump host"): stall for name, stall in _AT_THE_JUMP.items()},
}


async def _hosts(place: Place) -> dict[tuple[str, str], Host]:
    gate = replace(await place.toy(server_factory=_Gate), key="gate")
    beyond = await place.toy()
    found = {}
    for (name, way), stall in _WAYS.items():
        host = await stall.make(place.part(name, way))
        if way == "at the host":
            found[name, way] = host
        elif way == "behind a jump host":
            found[name, way] = replace(host, jump=(gate,))
        else:
            found[name, way] = replace(beyond, jump=(replace(host, key="gate"),))
    return found


@dataclass(frozen=True, slots=True)
class Ended:
    """Hold what became of all of them, and how long that took."""

    outcomes: dict[str, Outcome]
    status: RunStatus
    took_s: float


async def _stall_everything(keys: Keys, folder: Path, run_id: str) -> Ended:
    place = Place(keys, folder)
    async with place.close:
        place.close.push_async_callback(place.served)
        jobs = []
        for (name, way), host in (await _hosts(place)).items():
            stall = _WAYS[name, way]
            work = payload(stall.source, mark=str(place.part(name, way).mark), ends=name == "result")
            planned = job(work, limits=stall.limits)
            jobs.append(replace(planned, target=replace(planned.target, id=f"{name} {way}", host=host)))
        plan = Plan(run_id=run_id, playbook="stall", playbook_sha256=None, jobs=tuple(jobs))
        begun = time.monotonic()
        run = await execute(plan, lambda event: None)
        took = time.monotonic() - begun
    return Ended({outcome.target: outcome for outcome in run.outcomes}, run.status, took)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    """Generate the keys of server and client."""
    return make_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def ended(keys: Keys, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Run into everything at once, and find nothing left behind."""
    home = tmp_path_factory.mktemp("stalls")
    (home / "run").mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as patch, nothing_left() as run_id:
        patch.setenv("HOME", str(home))
        patch.setenv("XDG_RUNTIME_DIR", str(home / "run"))
        return asyncio.run(_stall_everything(keys, home, run_id))


@pytest.mark.parametrize(("name", "way"), _WAYS)
def test_a_stall_ends_with_its_own_limit(ended: Ended, name: str, way: str) -> None:
    stall, outcome = _WAYS[name, way], ended.outcomes[f"{name} {way}"]
    assert (outcome.status.value, outcome.phase.value) == (stall.status, stall.phase), outcome.error
    if stall.limit is None:
        assert outcome.error is None
        assert outcome.timings_s["total"] < _SLACK_S
        return
    limit = getattr(stall.limits, stall.limit)
    assert outcome.error is not None
    assert outcome.error.code == f"{stall.limit}_timeout"
    assert outcome.error.limit == LimitHit(
        name=stall.limit, value_s=limit, key=f"limits.{stall.limit}", set_by="default"
    )
    assert outcome.error.hint == CODES[outcome.error.code].hint != ""
    assert limit <= outcome.timings_s["total"] < limit + _SLACK_S
    assert way != "at the jump host" or "jump host" in outcome.error.message


def test_all_stalls_together_take_no_longer_than_one(ended: Ended) -> None:
    assert ended.status is RunStatus.INCOMPLETE
    assert ended.took_s < 8.0 + _SLACK_S


def test_a_few_that_hang_cost_the_others_nothing(keys: Keys, tmp_path: Path) -> None:
    """One in twenty does not answer, and waits for its limit while all others are done."""

    async def work(run_id: str) -> Ended:
        place = Place(keys, tmp_path)
        async with place.close:
            place.close.push_async_callback(place.served)
            well = await relays()(place)
            hanging = [await stall.make(place) for stall in (_STALLS["banner"], _STALLS["channel"])]
            jobs = []
            for number in range(40):
                planned = job(payload("ctx.emit({})"), limits=_LIMITS)
                host = hanging[number // 20] if number % 20 == 7 else well
                jobs.append(replace(planned, target=replace(planned.target, id=f"{number}", host=host)))
            plan = Plan(run_id=run_id, playbook="hang", playbook_sha256=None, jobs=tuple(jobs), targets_at_once=8)
            begun = time.monotonic()
            run = await execute(plan, lambda event: None)
            return Ended({each.target: each for each in run.outcomes}, run.status, time.monotonic() - begun)

    with nothing_left() as run_id:
        ended = asyncio.run(work(run_id))
    troubled = {each.target: each.error.code for each in ended.outcomes.values() if each.error}
    assert troubled == {"7": "connect_timeout", "27": "enter_timeout"}
    assert ended.took_s < 8.0 + _SLACK_S


_QUIET = (
    "ip link add quiet0 type veth peer name quiet1",
    "ip addr add 10.9.9.1/24 dev quiet0",
    "ip link set quiet0 up",
    "ip link set quiet1 up",
    "ip neigh add 10.9.9.2 lladdr 02:00:0a:09:09:02 dev quiet0",
)
_FAR = "hosts: {far: {address: far.example, ssh_config: none, python: /usr/bin/python3}}\n"


@pytest.mark.lab
def test_a_name_server_that_says_nothing(tmp_path: Path) -> None:
    """Its answer is waited for in the C library, where nothing can be cancelled."""
    (tmp_path / "resolv.conf").write_text("nameserver 10.9.9.2\noptions timeout:30 attempts:1\n")
    (tmp_path / "nsswitch.conf").write_text("hosts: dns\n")
    (tmp_path / "inventory.yaml").write_text(_FAR)
    mounts = [f"mount --bind '{tmp_path}/{name}' /etc/{name}" for name in ("resolv.conf", "nsswitch.conf")]
    # A network of its own, in which the name server's packets go nowhere.
    inside = " && ".join([*_QUIET, *mounts, 'exec "$@"'])
    argv = [*REMOTERUN, "exec", "--project", str(tmp_path), "--on", "far", "--limit", "connect=2s", "--output", "json"]
    begun = time.monotonic()
    done = subprocess.run(
        ["unshare", "--mount", "--net", "/bin/sh", "-c", inside, "sh", *argv, "--", "true"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    took = time.monotonic() - begun
    assert done.returncode == 3, done
    (outcome,) = json.loads(done.stdout)["outcomes"]
    error = outcome["error"]
    assert (outcome["status"], outcome["phase"], error["code"]) == ("unreachable", "connect", "connect_timeout")
    assert "resolving far.example" in error["message"]
    assert error["limit"] == {"name": "connect", "value_s": 2.0, "key": "limits.connect", "set_by": "--limit connect"}
    assert took < 2 + _SLACK_S
