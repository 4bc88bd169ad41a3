"""Ask a person at the terminal: one question at a time, with the live display out of the way, the answer unseen."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

from remoterun.cli.output import tell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from types import FrameType

_LONGEST = 4096


class Asker:
    """Ask on standard error and read from standard input, both of which are terminals."""

    def __init__(self, paused: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self._paused = paused
        self._lock = asyncio.Lock()

    async def __call__(self, question: str) -> str | None:
        """Return the answer, or None where there is none any more. Cancelling leaves the terminal as it was."""
        async with self._lock:
            with self._paused(), suppress(termios.error):  # it is gone
                return await _hidden_line(question, sys.stdin.fileno())
        return None


def can_ask() -> bool:
    """Tell whether somebody is there: a job in the background would be stopped by the kernel for reading."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:  # not the terminal that jobs are controlled from
        return True


async def _hidden_line(question: str, terminal: int) -> str | None:
    loop = asyncio.get_running_loop()
    line: asyncio.Future[bytes] = loop.create_future()

    def readable() -> None:
        if line.done():
            return
        try:
            line.set_result(os.read(terminal, _LONGEST))
        except BlockingIOError:
            pass
        except OSError:  # it is gone
            line.set_result(b"")

    with _unseen(terminal):
        tell(question)
        loop.add_reader(terminal, readable)
        try:
            data = await line
        finally:
            loop.remove_reader(terminal)
            tell("\n")
    return data.decode("utf-8", "replace").rstrip("\r\n") if data else None


@contextmanager
def _unseen(terminal: int) -> Iterator[None]:
    """Keep a terminal from showing what is typed, for as long; a signal that ends the program ends that first."""
    before = termios.tcgetattr(terminal)
    hidden = [*before]
    hidden[3] = before[3] & ~termios.ECHO
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def give_back() -> None:
        with suppress(termios.error):  # it is gone
            termios.tcsetattr(terminal, termios.TCSANOW, before)

    def show_and_pass_on(number: int, frame: FrameType | None) -> None:
        give_back()
        handler = handlers[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    for number in handlers:
        signal.signal(number, show_and_pass_on)
    try:
        # What was typed before the question is no answer to it.
        termios.tcsetattr(terminal, termios.TCSAFLUSH, hidden)
        yield
    finally:
        give_back()
        for number, handler in handlers.items():
            if signal.getsignal(number) is show_and_pass_on:
                signal.signal(number, handler)
