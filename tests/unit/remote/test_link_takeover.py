"""A run that another controller takes up, or looks at, while more is said than is kept: it gets all, in order."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from remoterun.remote import wire
from tests.unit.remote.test_link import _attach, _link, _turn

if TYPE_CHECKING:
    from remoterun.remote.link import Link
    from remoterun.remote.system import socket

_SAID = 100
_ROOM, _KEEP = 1 << 22, 1 << 20


class Controller:
    """Be one controller: take what comes, and acknowledge it when asked to."""

    def __init__(self, leg: socket.socket, nonce: bytes) -> None:
        self.leg = leg
        self.taken: list[int] = []
        self._decoder = wire.Decoder(nonce)
        self._assembler = wire.Assembler(1 << 20)
        self._encoder = wire.Encoder(nonce, 9)
        leg.setblocking(False)

    def take(self, link: Link) -> None:
        """Take all that the supervisor has to say now."""
        while True:
            _turn(link)
            try:
                data = self.leg.recv(1 << 16)
            except BlockingIOError:
                return
            bodies = [(frame.kind, self._assembler.add(frame)) for frame in self._decoder.feed(data)]
            self.taken += [int(body[:6]) for kind, body in bodies if kind == wire.RECORD and body is not None]

    def acknowledge(self, link: Link, number: int) -> None:
        """Say that all before a number have arrived."""
        for frame in self._encoder.frames(wire.ACK, number.to_bytes(8, "big")):
            self.leg.send(frame)
        _turn(link)


def _say(link: Link, numbers: range) -> None:
    for number in numbers:
        link.say(wire.RECORD, b"%06d" % number + bytes(9_000))


@pytest.mark.parametrize("name", [b"second  ", wire.LOOKER], ids=["another", "looker"])
def test_what_another_has_is_kept_for_who_has_it_not(name: bytes) -> None:
    key = f"takeover-{os.getpid()}"
    link, leg = _link(key, room=_ROOM, keep=_KEEP)
    first = Controller(leg, b"nonce  0")
    _say(link, range(_SAID))
    first.take(link)
    first.acknowledge(link, _SAID)
    assert first.taken == list(range(_SAID))
    assert (link.spool.first, link.spool.acknowledged) == (0, _SAID)

    found = _attach(link, key, b"nonce  1", (name, 1, 0, False))
    assert isinstance(found, tuple)
    second = Controller(found[0], b"nonce  1")
    # More than is kept is said before it could be sent all that was said until now.
    _say(link, range(_SAID, 2 * _SAID))
    second.acknowledge(link, 5)
    second.take(link)
    assert second.taken == list(range(2 * _SAID))
    second.acknowledge(link, 2 * _SAID)
    assert link.settled
    assert not link.full
    link.close()


def test_who_takes_a_run_up_is_waited_for() -> None:
    key = f"waiting-{os.getpid()}"
    link, leg = _link(key, room=1 << 18, keep=_KEEP)
    first = Controller(leg, b"nonce  0")
    for number in range(_SAID):
        _say(link, range(number, number + 1))
        first.take(link)
        first.acknowledge(link, number + 1)
    assert not link.full
    found = _attach(link, key, b"nonce  1", (b"second  ", 1, 0, False))
    assert isinstance(found, tuple)
    # It has all of that still to take: the payload is to wait, or what is kept would grow without end.
    assert link.full
    second = Controller(found[0], b"nonce  1")
    second.take(link)
    second.acknowledge(link, _SAID)
    assert second.taken == list(range(_SAID))
    assert link.settled
    link.close()
