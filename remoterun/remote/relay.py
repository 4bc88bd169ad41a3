"""What a leg hears of its controller, and how it passes frames on to a supervisor and back."""

from __future__ import annotations

import os
import select
import time

from remoterun.remote.system import socket
from remoterun.remote.wire import CANCEL, RESULT, Assembler, Decoder, Frame, whole_frames

FLUSH_S = 30.0
_MAX_MESSAGE = 64 << 20
_RELAY_BYTES = 65536
_MAX_QUEUED = 256
_SILENT_S = 20.0
# After a freeze of all that is here, the other side needs as long to say a word as we do to miss it.
_THAW_S = 3.0
_HAND_OVER_S = 1.0
# A controller that sends nothing for so long while it is waited for has gone without a word.
_PATIENCE_S = 120.0


class GoneError(Exception):
    """Say that the controller has gone or cancelled before anything was started."""


class Inbox:
    """Read what the controller sends: bytes already taken from stdin first, then fd 0 without blocking."""

    def __init__(self, nonce: bytes, already: bytes) -> None:
        self._decoder = Decoder(nonce)
        self._assembler = Assembler(_MAX_MESSAGE)
        self._frames = self._decoder.feed(already)
        self.ended = False

    def fill(self) -> bool:
        """Read once; False when nothing is there now or ever again (then `ended`)."""
        try:
            data = os.read(0, _RELAY_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.ended = True
            return False
        self._frames += self._decoder.feed(data)
        return True

    def frames(self) -> list[Frame]:
        """Take the frames that have come."""
        frames, self._frames = self._frames, []
        return frames

    def message(self) -> tuple[int, bytes] | None:
        """Take the next whole message, None when it is not complete yet."""
        while self._frames:
            frame = self._frames.pop(0)
            body = self._assembler.add(frame)
            if body is not None:
                return frame.kind, body
        return None

    def wait_message(self, kind: int) -> bytes:
        """Wait for a message of this kind; others before it are ignored.

        Raises:
            GoneError: on a cancellation, the end of the stream, or a long silence.
        """
        while True:
            message = self.message()
            if message is None:
                if self.ended:
                    raise GoneError
                if not self.fill() and not self.ended and not select.select([0], [], [], _PATIENCE_S)[0]:
                    raise GoneError
            elif message[0] == CANCEL:
                raise GoneError
            elif message[0] == kind:
                return message[1]

    def still_wanted(self) -> None:
        """Look at everything that has come: a thawed or delayed leg must not start what was given up.

        Raises:
            GoneError: when a cancellation or the end of the stream is among it.
        """
        while self.fill():
            pass
        if self.ended or any(frame.kind == CANCEL for frame in self._frames):
            raise GoneError


class Relay:
    """Carry frames between fd 0, fd 1 and the supervisor's link, blocking on none of them.

    A network that drops everything leaves fd 1 full for hours: the leg still has to see the supervisor end, and end
    itself.
    """

    def __init__(self, link: socket.socket, inbox: Inbox) -> None:
        self._link = link
        self._inbox = inbox
        self._up = bytearray()
        self._down = bytearray()
        self._out: list[bytes] = []
        self._finished = False
        self._linked = True
        self._heard = time.monotonic()
        self._missed = False
        self.cancelled = False
        self.silent = False
        os.set_blocking(1, False)

    def run(self) -> bool:
        """Relay to the end; True when the supervisor's result went by."""
        give_up = None
        while self._linked or self._out:
            for frame in self._inbox.frames():
                self._down += frame.raw
                self.cancelled = self.cancelled or frame.kind == CANCEL
            if not self._linked and give_up is None:
                give_up = time.monotonic() + FLUSH_S
            if give_up is not None and time.monotonic() > give_up:
                break
            for number, event in self._poll().poll(1000 if give_up else self._patience_ms()):
                if number == 0:
                    self._inbox.fill()
                elif number == 1:
                    self._flush()
                else:
                    self._exchange(event)
            if self._inbox.ended:
                # Closing the link tells the supervisor, which ends the run or waits for another leg.
                self._hand_over()
                break
            if self._linked and self._is_silent():
                # A supervisor gives a sign of life every few seconds. This one was stopped, and will not end anything.
                self.silent = True
                break
        return self._finished

    def _patience_ms(self) -> float:
        return max(0.0, self._heard + _SILENT_S - time.monotonic()) * 1000 + 1

    def _is_silent(self) -> bool:
        """Tell whether the supervisor says nothing any more, although it was not frozen together with us."""
        if time.monotonic() - self._heard <= _SILENT_S:
            return False
        if not self._missed:
            self._missed = True
            self._heard = time.monotonic() - _SILENT_S + _THAW_S
            return False
        return True

    def _hand_over(self) -> None:
        """Pass on the controller's last words."""
        while self._inbox.fill():
            pass
        for frame in self._inbox.frames():
            self._down += frame.raw
            self.cancelled = self.cancelled or frame.kind == CANCEL
        self._link.settimeout(_HAND_OVER_S)
        try:
            self._link.sendall(self._down)
        except OSError:
            pass

    def _poll(self) -> select.poll:
        poll = select.poll()
        poll.register(0, select.POLLIN)
        if self._out:
            poll.register(1, select.POLLOUT)
        if self._linked:
            # A full queue towards the controller stops the reading: the supervisor then slows the payload down.
            wanted = select.POLLIN if len(self._out) < _MAX_QUEUED else 0
            if not wanted:
                self._heard = time.monotonic()
            poll.register(self._link.fileno(), wanted | (select.POLLOUT if self._down else 0))
        return poll

    def _flush(self) -> None:
        try:
            while self._out:
                written = os.write(1, self._out[0])
                self._out[0] = self._out[0][written:]
                if not self._out[0]:
                    del self._out[0]
        except BlockingIOError:
            pass
        except OSError:
            self._out.clear()
            self._inbox.ended = True

    def _exchange(self, event: int) -> None:
        if event & select.POLLOUT and self._down:
            try:
                del self._down[: self._link.send(self._down)]
            except BlockingIOError:
                pass
            except OSError:
                self._down.clear()
        if event & ~select.POLLOUT:
            try:
                data = self._link.recv(_RELAY_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self._linked = bool(data)
            self._heard = time.monotonic()
            self._missed = False
            self._up += data
            for raw in whole_frames(self._up):
                self._finished = self._finished or raw[20] == RESULT
                self._out.append(raw)
            self._flush()
