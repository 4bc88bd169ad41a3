"""The numbered messages between a supervisor and its controllers, over real sockets, with every kind of loss."""

from __future__ import annotations

import json
import os
import select
import struct
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from remoterun.remote import wire
from remoterun.remote.link import FORGOTTEN, OLDER, Link, RunsAlreadyError, attach
from remoterun.remote.system import socket

_ROOM, _KEEP = 1 << 16, 1 << 17


def _link(key: str, *, lease: float | None = 60.0, room: int = _ROOM, keep: int = _KEEP) -> tuple[Link, socket.socket]:
    """Make a supervisor's side, and the socket of the leg that started it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    request: dict[str, object] = {
        "lease": lease,
        "spool": (room, keep),
        "attach": (b"first   ", 1, 0, False),
        "about": b"{}",
    }
    link = Link(theirs.detach(), b"nonce  0", request)
    link.listen(key)
    return link, ours


def _turn(link: Link, wait_ms: int = 0) -> list[int]:
    """Let the supervisor deal with everything that is there."""
    kinds: list[int] = []
    poll = select.poll()
    link.register(poll)
    for fd, event in poll.poll(wait_ms):
        kinds += link.ready(fd, event)
    return kinds


def _attach(
    link: Link, key: str, nonce: bytes, wanted: tuple[bytes, int, int, bool]
) -> tuple[socket.socket, int, int, bytes] | int | None:
    """Attach a leg while the supervisor goes on."""
    with ThreadPoolExecutor(1) as pool:
        asked: Future[Any] = pool.submit(attach, key, nonce, wanted)
        while not asked.done():
            _turn(link, 10)
    found: tuple[socket.socket, int, int, bytes] | int | None = asked.result()
    return found


@pytest.fixture
def key() -> str:
    return f"test/{os.urandom(8).hex()}"


class Losses(RuleBasedStateMachine):
    """Drop connections between frames and inside them: what a controller takes is always exactly what was said."""

    @initialize()
    def begin(self) -> None:
        self.key = f"test/{os.urandom(8).hex()}"
        self.link, self.leg = _link(self.key)
        self.said: list[tuple[int, bytes]] = []
        self.taken: list[tuple[int, bytes]] = []
        self.generation = 1
        self.connected = True
        self._fresh(b"nonce  0")

    def _fresh(self, nonce: bytes) -> None:
        self.leg.setblocking(False)
        self.decoder = wire.Decoder(nonce)
        self.assembler = wire.Assembler(1 << 20)
        self.encoder = wire.Encoder(nonce, 0)

    @rule(kind=st.sampled_from([wire.RECORD, wire.FINDING, wire.STDOUT]), size=st.integers(0, 12_000))
    def say(self, kind: int, size: int) -> None:
        """Say something of any size, as long as there is room."""
        if not self.link.full:
            body = struct.pack(">I", len(self.said)) + bytes(size)
            self.said.append((kind, body))
            self.link.say(kind, body)

    @rule(kind=st.sampled_from([wire.HEARTBEAT, wire.PROGRESS]))
    def mention(self, kind: int) -> None:
        """Say what is worth nothing later."""
        self.link.say(kind, b"{}")

    @precondition(lambda self: self.connected)
    @rule(count=st.integers(1, 20_000))
    def read(self, count: int) -> None:
        """Take bytes, wherever they end."""
        self.link.flush()
        try:
            data = self.leg.recv(count)
        except BlockingIOError:
            return
        for frame in self.decoder.feed(data):
            body = self.assembler.add(frame)
            if body is not None and frame.kind not in (wire.HEARTBEAT, wire.PROGRESS):
                self.taken.append((frame.kind, body))

    @precondition(lambda self: self.connected)
    @rule()
    def acknowledge(self) -> None:
        """Say how much has arrived."""
        for frame in self.encoder.frames(wire.ACK, struct.pack(">Q", len(self.taken))):
            self.leg.send(frame)
        _turn(self.link)

    @precondition(lambda self: self.connected)
    @rule(noticed=st.booleans())
    def lose(self, noticed: bool) -> None:
        """Lose the connection, with all that is on its way; the supervisor may not hear of it before the next one."""
        self.leg.close()
        self.connected = False
        if noticed:
            _turn(self.link)

    @rule()
    def come_back(self) -> None:
        """Connect again, also while the old connection seems to be there."""
        self.generation += 1
        nonce = b"nonce%3d" % (self.generation % 1000)
        found = _attach(self.link, self.key, nonce, (b"first   ", self.generation, len(self.taken), True))
        assert isinstance(found, tuple), found
        if self.connected:
            self.leg.close()
        self.leg, first, count, about = found
        assert first <= len(self.taken)
        assert (count, about) == (len(self.said), b"{}")
        self.connected = True
        self._fresh(nonce)

    @rule()
    def come_late(self) -> None:
        """Arrive with a connection that was given up before."""
        wanted = (b"first   ", self.generation - 1, 0, True)
        assert _attach(self.link, self.key, b"nonce  0", wanted) == OLDER

    @invariant()
    def nothing_is_missing_or_repeated(self) -> None:
        """Compare, whatever has happened."""
        if hasattr(self, "said"):
            assert self.taken == self.said[: len(self.taken)]

    def teardown(self) -> None:
        """Come back a last time: everything arrives."""
        if not hasattr(self, "said"):
            return
        self.come_back()
        for _ in range(10_000):
            if len(self.taken) == len(self.said):
                break
            self.read(20_000)
        assert self.taken == self.said
        self.acknowledge()
        assert self.link.settled
        self.leg.close()
        self.link.close()


TestLosses = Losses.TestCase
TestLosses.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_only_one_supervisor_has_a_run(key: str) -> None:
    link, leg = _link(key)
    with pytest.raises(RunsAlreadyError):
        _link(key)
    link.close()
    again, other = _link(key)
    again.close()
    leg.close()
    other.close()


def test_a_run_without_a_lease_is_found_by_nobody(key: str) -> None:
    link, leg = _link(key, lease=None)
    assert not link.resumable
    assert attach(key, b"nonce  1", (b"first   ", 2, 0, True)) is None
    link.close()
    leg.close()


def test_last_words_are_heard_though_nothing_can_be_answered(key: str) -> None:
    """A leg that was frozen says what had come for it, and is gone before its supervisor looks."""
    link, leg = _link(key)
    for frame in wire.Encoder(b"nonce  0", 0).frames(wire.CANCEL):
        leg.send(frame)
    leg.close()
    link.say(wire.RECORD, b"said in the meantime")
    assert wire.CANCEL in _turn(link)
    assert link.lease is None
    _turn(link)
    assert link.lost
    link.close()


def test_who_came_last_has_the_run(key: str) -> None:
    link, leg = _link(key)
    newer = _attach(link, key, b"nonce  1", (b"second  ", 1, 0, True))
    assert isinstance(newer, tuple)
    (told,) = wire.Decoder(b"nonce  0").feed(leg.recv(4096))
    assert (told.kind, json.loads(told.body)["code"]) == (wire.PROBLEM, "taken_over")
    assert leg.recv(10) == b""
    assert _attach(link, key, b"nonce  2", (b"first   ", 2, 0, True)) == OLDER
    link.close()


def test_a_look_takes_nobodys_place(key: str) -> None:
    link, leg = _link(key)
    looking = _attach(link, key, b"nonce  1", (wire.LOOKER, 1, 0, True))
    assert isinstance(looking, tuple)
    # Whoever has the run is to come back, and is told of nothing.
    assert leg.recv(10) == b""
    newer = _attach(link, key, b"nonce  2", (b"second  ", 1, 0, True))
    assert isinstance(newer, tuple)
    # Nor is the look, which it had lost its place to.
    assert looking[0].recv(10) == b""
    newer[0].close()
    link.close()


def test_what_is_kept_no_more_is_not_pretended(key: str) -> None:
    link, leg = _link(key, room=1 << 20, keep=10_000)
    for number in range(20):
        link.say(wire.RECORD, b"%d" % number + bytes(1000))
    assert link.spool.first == 0, "what has not arrived is kept in any case"
    leg.setblocking(False)
    encoder = wire.Encoder(b"nonce  0", 0)
    leg.send(encoder.frames(wire.ACK, struct.pack(">Q", 15))[0])
    _turn(link)
    assert 0 < link.spool.first <= 15
    assert _attach(link, key, b"nonce  1", (b"other   ", 1, 0, True)) == FORGOTTEN
    assert _attach(link, key, b"nonce  1", (b"first   ", 2, 21, True)) == FORGOTTEN
    found = _attach(link, key, b"nonce  1", (b"first   ", 2, 15, True))
    assert isinstance(found, tuple)
    found[0].close()
    link.close()


@pytest.mark.parametrize(
    "said", [b"", b"x", b"\0" * 27, b"GET / HTTP/1.1\r\n\r\n" * 9], ids=["nothing", "little", "short", "much"]
)
def test_whoever_asks_for_nothing_sensible_changes_nothing(key: str, said: bytes) -> None:
    link, leg = _link(key)
    callers = []
    for _ in range(20):
        caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        caller.setblocking(False)
        if _connects(caller.connect, key):
            caller.send(said) if said else None
            callers.append(caller)
        _turn(link, 10)
        _turn(link, 10)
    link.say(wire.RECORD, b"here")
    assert b"here" in leg.recv(4096)
    for caller in callers:
        caller.close()
    _turn(link, 10)
    link.close()


def _connects(connect: Callable[[bytes], None], key: str) -> bool:
    from remoterun.remote.link import address

    try:
        connect(address(key))
    except OSError:
        return False
    return True
