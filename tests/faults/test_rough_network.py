"""Networks that are slow, lose packets or change their order, and such that pass packets only one way.

The packets are real: a host's wire ends in a program that treats them so.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lab import Guest, Lab, LabHost, guest, wait_for
from tests.support.lab.rough import Direction
from tests.support.lab.rough_link import Terms
from tests.support.project import Project, write_project
from tests.support.watched import Watched

pytestmark = pytest.mark.lab

_ON = "rough/200"
_FAR = Terms(latency_s=0.075, jitter_s=0.01, loss=0.02, reorder=0.05, duplicate=0.01)
# It notes in the guest that it was started, each time it is.
_COUNT = """\
import time

def run(ctx):
    with open("/root/started", "a") as file:
        file.write("x")
    for number in range(200):
        time.sleep(ctx.params["pause"])
        ctx.emit({"number": number})
"""
_PAUSE = {"pause": {"type": "float", "default": 0.02, "help": "Seconds before each record."}}
_one_way = pytest.mark.parametrize("way", ["there", "back"])


@pytest.fixture
def host(lab: Lab, seed: int) -> LabHost:
    """Return the host that is hard to reach."""
    return lab.host("rough", guests=[guest(200)], rough=str(seed))


@pytest.fixture
def project(host: LabHost, tmp_path: Path) -> Iterator[Project]:
    """Return a project of that host, and look at the end for what was left in its guest."""
    made = write_project(tmp_path / "project", [host])
    made.payload("count", _COUNT, params=_PAUSE)
    box = host.guest(200)
    box.path("/root/started").unlink(missing_ok=True)
    yield made
    host.heal()
    _nothing_left(box)


def _nothing_left(box: Guest) -> None:
    wait_for(lambda: box.processes() == [], "nothing of ours in the guest", limit_s=30)
    assert box.sh("find /run /dev/shm /tmp -name 'remoterun*'").stdout == ""


def _started(host: LabHost) -> str:
    """Return a sign for each time that the payload was started."""
    path = host.guest(200).path("/root/started")
    return path.read_text() if path.exists() else ""


def _play(project: Project, *words: str) -> Watched:
    return Watched(project.argv("play", "count", "--on", _ON, *words))


def _passes(watched: Watched) -> None:
    """Take a run to its end: every record is there once, and in order."""
    (outcome,) = watched.finish(90, statuses=(0,))
    assert (outcome["status"], outcome["error"]) == ("ok", None)
    assert [record["number"] for record in outcome["records"]] == list(range(200))
    assert outcome["records"] == watched.records(_ON)


def test_a_far_and_lossy_network_costs_time_and_nothing_else(host: LabHost, project: Project) -> None:
    before = host.rough.counts["back"]
    host.rough.shape(_FAR)
    watched = _play(project)
    _passes(watched)
    assert _started(host) == "x"
    after = host.rough.counts["back"]
    # It was as bad as it was meant to be.
    assert all(after[name] > before[name] for name in ("passed", "held_back"))


def test_checkpoints_are_checked_over_a_far_and_lossy_network(host: LabHost, project: Project) -> None:
    torch = pytest.importorskip("torch", reason="torch is the oracle of this test")
    from tests.unit.payloads.check_ckpt.support import save, training_state

    state = training_state()
    first = next(iter(state["model_state_dict"].values()))
    first.view(-1)[:3] = float("nan")
    save(state, host.guest(200).path("/workspace/checkpoints/step_2000/checkpoint.pt"))
    host.rough.shape(_FAR)
    result = project.run("play", "check-ckpt", "--on", _ON, "--no-cache", "--output", "json")
    outcome = result.outcome(_ON)
    assert (result.status, outcome["status"], outcome["error"]) == (1, "findings", None), result
    record = outcome["records"][0]
    tensors = [value for value in state["model_state_dict"].values() if torch.is_floating_point(value)]
    assert record["params"] == sum(tensor.numel() for tensor in tensors)
    assert (record["nan_weights"], record["step"]) == (3, 2000)
    assert "CK001" in record["findings"]


@_one_way
def test_packets_dropped_one_way_for_8_seconds_cost_nothing(host: LabHost, project: Project, way: Direction) -> None:
    watched = _play(project, "--set", "pause=0.05")
    try:
        watched.until_records(_ON, 20)
        host.rough.drop(way)
        time.sleep(8)  # the silence is what is tested
        host.heal()
        _passes(watched)
    finally:
        watched.kill()
    assert _started(host) == "x"


@_one_way
def test_packets_dropped_one_way_for_good_lose_the_run_and_leave_nothing(
    host: LabHost, project: Project, way: Direction
) -> None:
    limits = ("--lease", "3s", "--limit", "idle=6s", "--limit", "connect=2s")
    watched = _play(project, "--set", "pause=1", *limits)
    try:
        watched.until_records(_ON, 2)
        host.rough.drop(way)
        begun = time.monotonic()
        (outcome,) = watched.finish()
        assert time.monotonic() - begun < 60
    finally:
        watched.kill()
    assert outcome["status"] == "lost"
    assert outcome["error"]["code"] in {"idle_timeout", "connection_lost", "lease_expired"}
    assert outcome["records"] == watched.records(_ON)
    # Nobody can tell the target: it ends the run by itself.
    _nothing_left(host.guest(200))
    assert _started(host) == "x"


# --- connections of which one half is lost while the target starts ---


def _cut_at_the_start(host: LabHost, way: Direction) -> None:
    """Lose whatever is on its way when the payload begins: the connection is slow enough for that to be its word."""
    wait_for(lambda: _started(host) != "", "the payload to begin", limit_s=60)
    host.rough.drop(way)


@_one_way
def test_a_connection_that_is_half_lost_at_the_start_and_heals(host: LabHost, project: Project, way: Direction) -> None:
    host.rough.shape(Terms(latency_s=0.1))
    watched = _play(project)
    try:
        _cut_at_the_start(host, way)
        time.sleep(6)  # the silence is what is tested
        host.heal()
        _passes(watched)
    finally:
        watched.kill()
    assert _started(host) == "x"


def test_a_connection_that_is_half_lost_at_the_start_starts_nothing_twice(host: LabHost, project: Project) -> None:
    """Nothing was heard of the payload, and yet it runs: nobody starts it again."""
    host.rough.shape(Terms(latency_s=0.1))
    limits = [word for limit in ("enter=4s", "idle=4s", "connect=3s") for word in ("--limit", limit)]
    watched = _play(project, "--set", "pause=1", "--lease", "6s", *limits)
    try:
        _cut_at_the_start(host, "back")
        (outcome,) = watched.finish()
    finally:
        watched.kill()
        host.heal()
    told = outcome["status"], outcome["error"]["code"]
    # Whether the first word of the target was among what was lost is a matter of its speed.
    assert told in {("timeout", "enter_timeout"), ("lost", "idle_timeout"), ("lost", "connection_lost")}
    assert outcome["records"] == []
    _nothing_left(host.guest(200))
    assert _started(host) == "x"
