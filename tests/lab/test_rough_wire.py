"""Rough wires do to packets what they are told to, in the direction they are told, and go with their lab."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lab import Lab, LabError, LabHost, wait_for
from tests.support.lab.rough import Direction
from tests.support.lab.rough_link import Terms, Way

pytestmark = pytest.mark.lab

ROOT = Path(__file__).parents[2]


@pytest.fixture
def rough(lab: Lab) -> Iterator[LabHost]:
    """Return a host with a rough wire, and leave it healed."""
    host = lab.host("roughly", rough="1")
    yield host
    host.heal()


def connect_s(host: LabHost, timeout: float = 10.0) -> float:
    """Return how long it takes to open a connection: a packet there and one back."""
    begun = time.monotonic()
    socket.create_connection((host.address, host.port), timeout).close()
    return time.monotonic() - begun


@pytest.mark.parametrize(("ways", "at_least"), [(("there", "back"), 0.6), (("there",), 0.3), (("back",), 0.3)])
def test_latency(rough: LabHost, ways: tuple[Direction, ...], at_least: float) -> None:
    assert connect_s(rough) < 0.3
    rough.rough.shape(Terms(latency_s=0.3), *ways)
    assert connect_s(rough) >= at_least


@pytest.mark.parametrize("way", ["there", "back"])
def test_one_way_only(rough: LabHost, way: Direction) -> None:
    rough.rough.drop(way)
    with pytest.raises(TimeoutError):
        connect_s(rough, 0.5)
    before = rough.rough.counts
    with pytest.raises(TimeoutError):
        connect_s(rough, 0.5)
    after = rough.rough.counts
    assert after[way]["passed"] == before[way]["passed"]
    assert after[way]["lost"] > before[way]["lost"]
    if way == "back":
        assert after["there"]["passed"] > before["there"]["passed"]
    rough.heal()
    assert connect_s(rough) < 10


def test_what_is_on_its_way_is_lost_with_a_cut(rough: LabHost) -> None:
    rough.rough.shape(Terms(latency_s=0.5))
    before = rough.rough.counts["there"]["passed"]
    with socket.socket() as caller:
        caller.setblocking(False)
        caller.connect_ex((rough.address, rough.port))
        wait_for(lambda: rough.rough.counts["there"]["passed"] > before, "the first packet to be on its way")
        rough.rough.drop("there")
        assert select.select([], [caller], [], 0.8) == ([], [], [])
        rough.heal()
        # The next one comes a second after the first.
        assert select.select([], [caller], [], 10)[1] == [caller]


def test_bytes_arrive_whole_over_a_bad_network(rough: LabHost) -> None:
    rough.rough.shape(Terms(latency_s=0.01, jitter_s=0.005, loss=0.02, reorder=0.1, duplicate=0.05))
    done = rough.ssh("cat; head -c 400000 /dev/zero | tr '\\0' x", stdin=b"y" * 400_000)
    assert done.stdout == b"y" * 400_000 + b"x" * 400_000
    for counts in rough.rough.counts.values():
        assert min(counts.values()) > 0, counts


def test_a_narrow_way(rough: LabHost) -> None:
    rough.rough.shape(Terms(rate=100_000), "back")
    begun = time.monotonic()
    assert len(rough.ssh("head -c 200000 /dev/zero").stdout) == 200_000
    assert time.monotonic() - begun >= 1.9


def test_other_hosts_have_no_such_wire(lab: Lab) -> None:
    with pytest.raises(LabError, match="host bare has no rough wire"):
        _ = lab.host("bare", pct=False).rough


_MAKES_ONE = """
from tests.support.lab import Lab
with Lab() as lab:
    print(lab.host("outer", pct=False, rough="1").init_pid, lab.folder.name, flush=True)
    input()
"""


def test_it_goes_with_a_lab_that_is_killed() -> None:
    argv = [sys.executable, "-c", _MAKES_ONE]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        init, number = process.stdout.readline().decode().split()
        assert list(Path("/sys/class/net").glob(f"rrlab{number}h*"))
        process.kill()
    wait_for(lambda: not Path(f"/proc/{init}").exists(), "its host to end without being told")
    wait_for(lambda: not list(Path("/sys/class/net").glob(f"rrlab{number}h*")), "its wire to be gone")


# --- what becomes of each packet ---


def test_packets_without_terms_pass_at_once_and_in_order() -> None:
    way = Way("1")
    assert [way.arrivals(1500, now) for now in (1.0, 1.0, 2.0)] == [[1.0], [1.0], [2.0]]


def test_jitter_alone_changes_no_order() -> None:
    way = Way("2")
    way.terms = Terms(latency_s=0.1, jitter_s=0.09)
    arrivals = [at for number in range(200) for at in way.arrivals(100, number / 1000)]
    assert arrivals == sorted(arrivals)
    assert len(arrivals) == 200


def test_shares_are_about_what_was_asked_for_and_a_seed_repeats_them() -> None:
    terms = Terms(latency_s=0.1, loss=0.1, reorder=0.2, duplicate=0.3)

    def sent(seed: str) -> tuple[dict[str, int], list[list[float]]]:
        way = Way(seed)
        way.terms = terms
        arrivals = [way.arrivals(100, number / 100) for number in range(5000)]
        return way.counts, arrivals

    counts, arrivals = sent("3")
    assert sent("3") == (counts, arrivals)
    assert sent("4") != (counts, arrivals)
    assert counts["passed"] + counts["lost"] == 5000
    for name, share in {"lost": 0.1, "held_back": 0.9 * 0.2, "doubled": 0.9 * 0.3}.items():
        assert abs(counts[name] / 5000 - share) < 0.03, counts


def test_a_queue_that_is_full_takes_no_more() -> None:
    way = Way("5")
    way.terms = Terms(rate=1000)
    arrivals = [way.arrivals(1000, 0.0) for _ in range(10)]
    assert [at for (at,) in arrivals[:3]] == [1.0, 2.0, 3.0]
    assert arrivals[3:] == [[]] * 7
