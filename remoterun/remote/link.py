"""What ties a supervisor to its controller: numbered messages that are kept, and any leg to send them by.

A leg is one connection, and connections die. The supervisor listens on a socket in the abstract namespace of Linux, so
nothing of it lies on a disk and nothing of it outlives the supervisor; a later leg of the same run finds it by the
run's key and says which message is the next one it wants.
"""

from __future__ import annotations

import os
import select
import sys
import time

from remoterun.remote.system import sha256, socket
from remoterun.remote.wire import (
    ACK,
    CANCEL,
    HEARTBEAT,
    LOOKER,
    PROBLEM,
    PROGRESS,
    SUPERVISOR_STREAM,
    Decoder,
    Encoder,
    Struct,
    to_json,
)

# Controller, generation, the number of the next message, and the nonce of the frames on this connection.
_ASKED = Struct(">8sIQ8s")
# The answer, the first message that is still kept, how many there are, and the size of what follows: what to know of
# the run.
_ANSWER = Struct(">BQQI")
ACCEPTED, OLDER, FORGOTTEN, ENDING = 1, 2, 3, 4
TAKEN_OVER = "taken_over", "a newer connection has taken up the run"
# Worth nothing a moment later.
_TRANSIENT = (HEARTBEAT, PROGRESS)
_MAX_OUT = 1 << 18
_MAX_TRANSIENT = 1 << 16
_LINK_BYTES = 65536
_MAX_WAITING = 8
_ANSWER_S = 10.0
# TERM, grace, KILL.
_ENDING_S = 20.0
# What a message takes in memory besides its body, about.
_OVERHEAD = 120
_SO_PEERCRED = 17
_PEER = Struct("3i")
_NUMBER = Struct(">Q")


def address(key: str) -> bytes:
    """Return the name in the abstract namespace that the supervisor of a run listens on."""
    # The name is not the key: every user of the machine can read it.
    name: str = sha256(key.encode()).hexdigest()[:32]
    return b"\0remoterun/" + name.encode()


class RunsAlreadyError(Exception):
    """Say that another supervisor has this run already."""


class Spool:
    """Number messages and keep them: all that are not acknowledged, and of those that are, what there is room for.

    A controller that takes the run up again wants the missing ones; another that has none wants all of them.
    """

    def __init__(self, room: int, keep: int) -> None:
        self._room = room
        self._keep = keep
        self._messages: list[tuple[int, bytes]] = []
        self._size = self._open = 0
        self.first = self.acknowledged = 0

    @property
    def count(self) -> int:
        """Return how many messages there have been."""
        return self.first + len(self._messages)

    @property
    def full(self) -> bool:
        """Tell that the payload has to wait: nothing is dropped."""
        return self._open >= self._room

    def add(self, kind: int, body: bytes) -> None:
        """Keep one message."""
        self._messages.append((kind, body))
        self._size += len(body) + _OVERHEAD
        self._open += len(body) + _OVERHEAD

    def message(self, number: int) -> tuple[int, bytes]:
        """Return a message that is kept."""
        return self._messages[number - self.first]

    def rewind(self, number: int) -> None:
        """Take note that somebody else is to have all messages from a number on, whoever had them before."""
        self.acknowledged = number
        self._open = sum(len(body) + _OVERHEAD for _, body in self._messages[number - self.first :])

    def acknowledge(self, number: int, sent: int = sys.maxsize) -> None:
        """Take note that all messages before a number have arrived.

        Whoever is attached may have been sent less than another has acknowledged: from `sent` on, nothing is dropped.
        """
        number = max(self.acknowledged, min(number, self.count))
        for _, body in self._messages[self.acknowledged - self.first : number - self.first]:
            self._open -= len(body) + _OVERHEAD
        self.acknowledged = number
        drop = 0
        while self._size > self._keep and self.first + drop < min(number, sent):
            self._size -= len(self._messages[drop][1]) + _OVERHEAD
            drop += 1
        if drop:
            del self._messages[:drop]
            self.first += drop


class Link:
    """Send numbered messages by the leg that is attached, and take what the controller says.

    `lease` is how long to wait for a leg after the last sign of life, None when the run ends with its first one;
    `heard` is when that sign came.
    """

    def __init__(self, fd: int, nonce: bytes, request: dict[str, object]) -> None:
        spool: tuple[int, int] = request["spool"]  # type: ignore[assignment]
        asked: tuple[bytes, int, int, bool] = request["attach"]  # type: ignore[assignment]
        self.lease: float | None = request["lease"]  # type: ignore[assignment]
        self.spool = Spool(*spool)
        self.heard = time.monotonic()
        self._holder: tuple[bytes, int] = asked[:2]
        self._attached = asked[0]
        self._ousted: list[bytes] = []
        self._about: bytes = request["about"]  # type: ignore[assignment]
        self._leg: socket.socket | None = socket.socket(fileno=fd)
        self._listener: socket.socket | None = None
        self._waiting: dict[int, tuple[socket.socket, bytearray]] = {}
        self._begin(self._leg, nonce, 0)

    def _begin(self, leg: socket.socket, nonce: bytes, number: int) -> None:
        leg.setblocking(False)
        self._leg = leg
        self._encoder = Encoder(nonce, SUPERVISOR_STREAM)
        self._decoder = Decoder(nonce)
        self._out = bytearray()
        self._deaf = False
        self._sent = number

    def listen(self, key: str) -> None:
        """Be found by later legs, if any are to be waited for.

        Raises:
            RunsAlreadyError: when another supervisor has this run already.
        """
        if self.lease is None:
            return
        try:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.setblocking(False)
            listener.bind(address(key))
            listener.listen(_MAX_WAITING)
        except OSError as error:
            if is_listening(key):
                raise RunsAlreadyError("the run goes on here already") from error
            # Without such sockets nobody can come back, so there is nothing to wait for.
            self.lease = None
            return
        self._listener = listener

    @property
    def resumable(self) -> bool:
        """Tell whether a later leg could be attached."""
        return self._listener is not None

    @property
    def lost(self) -> bool:
        """Tell that no leg is attached."""
        return self._leg is None

    @property
    def full(self) -> bool:
        """Tell that the payload has to wait."""
        return self.spool.full and not (self.lost and self.lease is None)

    @property
    def settled(self) -> bool:
        """Tell that everything has arrived, or that nobody will ever ask for it."""
        return self.spool.acknowledged >= self.spool.count or (self.lost and self.lease is None)

    def say(self, kind: int, body: bytes) -> None:
        """Keep one message and send it when its turn comes; one that is worth nothing later, now or not at all."""
        if self.lost and self.lease is None:
            return
        if kind not in _TRANSIENT:
            self.spool.add(kind, body)
        elif self._leg is not None and self._sent == self.spool.count and len(self._out) < _MAX_TRANSIENT:
            self._out += b"".join(self._encoder.frames(kind, body))
        self.flush()

    def flush(self) -> None:
        """Write what goes without blocking."""
        while self._leg is not None and not self._deaf:
            while len(self._out) < _MAX_OUT and self._sent < self.spool.count:
                self._out += b"".join(self._encoder.frames(*self.spool.message(self._sent)))
                self._sent += 1
            if not self._out:
                return
            try:
                del self._out[: self._leg.send(self._out)]
            except BlockingIOError:
                return
            except OSError:
                # It takes no more, but what it said before is still to be heard.
                self._deaf = True
                self._out = bytearray()

    def drop(self) -> None:
        """Let go of the leg; what it has not passed on is sent again by the next one."""
        leg, self._leg = self._leg, None
        self._out = bytearray()
        if leg is not None:
            leg.close()

    def give_up(self) -> None:
        """Wait for nobody any more; a leg that still takes something is told how it ended."""
        self.lease = None
        if self.spool.full:
            # Nobody takes what is waiting: keeping it would keep the payload.
            self.drop()

    def close(self) -> None:
        """Let go of everything."""
        self.drop()
        for caller, _ in self._waiting.values():
            caller.close()
        self._waiting.clear()
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    # --- what comes in ---

    def register(self, poll: select.poll) -> None:
        """Have everything watched that may bring something."""
        if self._leg is not None:
            poll.register(self._leg.fileno(), select.POLLIN | (select.POLLOUT if self._out else 0))
        if self._listener is not None:
            poll.register(self._listener.fileno(), select.POLLIN)
        for fd in self._waiting:
            poll.register(fd, select.POLLIN)

    def ready(self, fd: int, event: int) -> list[int]:
        """Deal with a descriptor that is ours, and return the kinds of the messages that the controller sent."""
        if self._leg is not None and fd == self._leg.fileno():
            if event & select.POLLOUT:
                self.flush()
            return self._hear() if event & ~select.POLLOUT else []
        if self._listener is not None and fd == self._listener.fileno():
            self._accept()
        elif fd in self._waiting:
            self._admit(fd)
        return []

    def _hear(self) -> list[int]:
        if self._leg is None:
            return []
        try:
            data = self._leg.recv(_LINK_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.drop()
            return []
        kinds = []
        for frame in self._decoder.feed(data):
            self.heard = time.monotonic()
            kinds.append(frame.kind)
            if frame.kind == ACK and len(frame.body) == _NUMBER.size:
                self.spool.acknowledge(_NUMBER.unpack(frame.body)[0], self._sent)
            elif frame.kind == CANCEL:
                # Whoever cancels does not come back for the rest.
                self.lease = None
        return kinds

    def _accept(self) -> None:
        try:
            caller_fd, _ = self._listener._accept()  # type: ignore[union-attr]
        except OSError:
            return
        caller = socket.socket(fileno=caller_fd)
        if len(self._waiting) >= _MAX_WAITING or not _is_ours(caller):
            caller.close()
            return
        caller.setblocking(False)
        self._waiting[caller.fileno()] = (caller, bytearray())

    def _admit(self, fd: int) -> None:
        """Read what a new leg asks for, and attach it."""
        caller, said = self._waiting[fd]
        try:
            data = caller.recv(_ASKED.size - len(said))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        said += data
        if data and len(said) < _ASKED.size:
            return
        del self._waiting[fd]
        if not data:
            caller.close()
            return
        controller, generation, number, nonce = _ASKED.unpack(said)
        answer = self._judge(controller, generation, number)
        try:
            caller.send(_ANSWER.pack(answer, self.spool.first, self.spool.count, len(self._about)) + self._about)
        except OSError:
            answer = 0
        if answer != ACCEPTED:
            caller.close()
            return
        if controller != LOOKER:
            if controller != self._holder[0]:
                self._tell_ousted()
                self._ousted.append(self._holder[0])
                self.spool.rewind(number)
            self._holder = (controller, generation)
        self.drop()
        self._attached = controller
        self.heard = time.monotonic()
        self._begin(caller, nonce, number)
        self.flush()

    def _tell_ousted(self) -> None:
        """Tell the last controller why nothing more comes, if it takes that now: when it asks, all may have ended."""
        if self._attached == self._holder[0]:
            code, message = TAKEN_OVER
            self._out += b"".join(self._encoder.frames(PROBLEM, to_json({"code": code, "message": message}).encode()))
            self.flush()

    def _judge(self, controller: bytes, generation: int, number: int) -> int:
        """Answer a leg.

        A connection that was given up may still be on its way here: it must not drive out a newer one. And of two
        controllers only the one that came last may come back. Nobody may once the run is being ended.
        """
        if controller in self._ousted or (controller == self._holder[0] and generation < self._holder[1]):
            return OLDER
        if self.lease is None:
            # What is said now is kept for nobody, and half of a run is worse than none.
            return ENDING
        return ACCEPTED if self.spool.first <= number <= self.spool.count else FORGOTTEN


def peer(link: socket.socket) -> int:
    """Return the process at the other end of a connection that was made by name."""
    return _credentials(link)[0]


def _is_ours(caller: socket.socket) -> bool:
    """Tell whether the caller is this user or root: anybody can connect to a name in the abstract namespace."""
    return _credentials(caller)[1] in (0, os.geteuid())


def _credentials(link: socket.socket) -> tuple[int, int]:
    """Return pid and user of the other end."""
    try:
        pid, user, _ = _PEER.unpack(link.getsockopt(socket.SOL_SOCKET, _SO_PEERCRED, _PEER.size))
    except OSError:
        return 0, -1
    return pid, user


def is_listening(key: str) -> bool:
    """Tell whether a supervisor of this run is here."""
    caller = _call(key)
    if caller is not None:
        caller.close()
    return caller is not None


def _call(key: str) -> socket.socket | None:
    try:
        caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        caller.settimeout(_ANSWER_S)
        caller.connect(address(key))
    except OSError:
        return None
    return caller if _is_ours(caller) else None


def attach(
    key: str, nonce: bytes, wanted: tuple[bytes, int, int, bool]
) -> tuple[socket.socket, int, int, bytes] | int | None:
    """Ask the supervisor of a run for its messages, from one on.

    Args:
        key: the run's.
        nonce: of the frames on this connection.
        wanted: the controller, its generation, the number of the next message, and what only the leg looks at.

    Returns:
        The connection, the first message that is kept, how many there are, and what to know of the run; the
        supervisor's refusal; or None where there is no supervisor.

    Raises:
        OSError: when it does not answer.
    """
    caller = _call(key)
    if caller is None:
        return None
    caller.sendall(_ASKED.pack(*wanted[:3], nonce))
    verdict, first, count, size = _ANSWER.unpack(_receive(caller, _ANSWER.size))
    about = _receive(caller, size)
    if verdict != ACCEPTED:
        caller.close()
        return int(verdict)
    caller.setblocking(False)
    return caller, first, count, about


def wait_until_ended(key: str) -> None:
    """Wait for the supervisor of a run to be gone.

    Raises:
        OSError: when it takes longer than any end should.
    """
    give_up = time.monotonic() + _ENDING_S
    while is_listening(key):
        if time.monotonic() >= give_up:
            raise OSError("the run does not end")
        time.sleep(0.05)


def _receive(caller: socket.socket, size: int) -> bytes:
    answer = b""
    while len(answer) < size:
        data = caller.recv(size - len(answer))
        if not data:
            raise OSError("the supervisor hung up")
        answer += data
    return answer
