"""Ctrl-C and SIGTERM: how a command ends while nothing of it runs on a target.

Loaded before everything else, so nothing that takes time is imported here. Handlers leave by themselves where they can:
what a handler raises may be swallowed or wrapped by whatever is being imported.
"""

from __future__ import annotations

# What `signal` is made of: that one takes 9 ms to import, in which a signal would find no handler.
import _signal  # type: ignore[import-not-found]
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from remoterun.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_SAID: Final = {_signal.SIGINT: "interrupted", _signal.SIGTERM: "terminated"}
# The document `remoterun/error/1`, before anything is there that could write it.
_DOCUMENT: Final = (
    '{"schema": "remoterun/error/1", "remoterun": "%(version)s", "status": "%(said)s", "exit_code": %(status)d, '
    '"message": "%(message)s", "problems": [{"file": null, "line": null, "path": null, "message": "%(message)s", '
    '"nearest": []}]}\n'
)
_MOST_TICKS: Final = 60
# sudo, uv and such pass a SIGTERM on which the whole group or service has got already.
_TWICE_S: Final = 0.5


class SignalledError(BaseException):
    """Say that a signal ends the command. Not an Exception: imports that go on after an error would swallow that."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def status(self) -> int:
        """Return the exit status that says so."""
        return 128 + self.number


def handle(handler: Callable[[int, FrameType | None], object]) -> None:
    """Let a handler have Ctrl-C and SIGTERM from here on."""
    _signal.signal(_signal.SIGINT, handler)
    before = _signal.getsignal(_signal.SIGTERM)
    _signal.signal(_signal.SIGTERM, _OneOfTwo(handler, before.came if isinstance(before, _OneOfTwo) else 0.0))


class _OneOfTwo:
    """Pass a SIGTERM on, but not one that comes a moment after another."""

    def __init__(self, handler: Callable[[int, FrameType | None], object], came: float) -> None:
        self._handler = handler
        self.came = came

    def __call__(self, number: int, frame: FrameType | None) -> None:
        before, self.came = self.came, time.monotonic()
        if not before or self.came - before >= _TWICE_S:
            self._handler(number, frame)


def ignore() -> None:
    """Let no signal change an end that has been told."""
    for number in (_signal.SIGALRM, *_SAID):
        _signal.signal(number, _signal.SIG_IGN)


def leave_at_once(*, document: bool) -> None:
    """Let Ctrl-C and SIGTERM end the process where it stands, since nothing has been started.

    That is told on standard error, and with `document` as one document on standard output.
    """

    def leave(number: int, _frame: FrameType | None) -> None:
        for ours in _SAID:
            _signal.signal(ours, _signal.SIG_DFL)  # a second one does not wait for a reader
        status, said = 128 + number, _SAID[number]
        message = f"{said} before anything was started"
        if document:
            _write(1, _DOCUMENT % {"version": VERSION, "said": said, "status": status, "message": message})
        _write(2, f"remoterun: {message}\n")
        os._exit(status)

    handle(leave)


def _write(number: int, text: str) -> None:
    with suppress(OSError):
        os.write(number, text.encode("ascii"))


def finish(number: int | None = None) -> None:
    """Let the result be written, the last thing that a command does, whatever signals come; `number` has come already.

    After a signal the process leaves when the reader of standard output takes nothing for a second, or has not taken
    all in a minute; after a second signal at once.
    """
    if isinstance(_signal.getsignal(_signal.SIGINT), _Finishing):
        return
    finishing = _Finishing(number)
    handle(finishing)
    _signal.signal(_signal.SIGALRM, finishing.tick)
    finishing.go_on()


def hurried() -> bool:
    """Tell whether a signal has come, and only a result is still to be written."""
    handler = _signal.getsignal(_signal.SIGINT)
    return isinstance(handler, _Finishing) and handler.number is not None


class _Finishing:
    """Handle signals while a result is written."""

    def __init__(self, number: int | None) -> None:
        self.number = number
        self._ticks = 0

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if self.number is not None:
            os._exit(128 + number)
        self.number = number

    def go_on(self) -> None:
        """Look again in a second; that also wakes a write that began just when a signal came."""
        _signal.setitimer(_signal.ITIMER_REAL, 1.0)

    def tick(self, _number: int, _frame: FrameType | None) -> None:
        """Leave when that is due."""
        if self.number is not None:
            self._ticks += 1
            if self._ticks > _MOST_TICKS or not room_comes(1):
                os._exit(128 + self.number)
        self.go_on()


def room_comes(descriptor: int) -> bool:
    """Wait a second until whoever reads a descriptor takes something, or it is known to be broken."""
    import select

    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(1000))
