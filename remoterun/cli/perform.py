"""Carry out a plan for the command line: display, interrupts, the chosen format on stdout, exit status."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from remoterun.api import aplay
from remoterun.cli.guard import SIGTERM_STATUS
from remoterun.cli.options import Format, Showing
from remoterun.cli.output import ReaderGoneError, write
from remoterun.model import OutcomeReady, RunStarted, Status

if TYPE_CHECKING:
    from remoterun.console import Console
    from remoterun.model import Event, OnEvent, Plan, Run
    from remoterun.runner import Control

_TICK_S = 0.5


def perform(plan: Plan, showing: Showing, *, programs: bool = False) -> tuple[Run, int]:
    """Run a plan to its end and print it; return the run and the exit status.

    `programs`: the plan runs a person's script or program, whose output is the result: it streams as it comes, and no
    table follows.
    """
    performance = _Performance(plan, showing, programs=programs)
    run = asyncio.run(performance.play())
    if not performance.readable:
        raise ReaderGoneError
    _print(run, showing, programs=programs)
    return run, SIGTERM_STATUS if performance.terminated else run.status.exit_code


class _Performance:
    """Hold what one run on the command line needs besides the run itself."""

    def __init__(self, plan: Plan, showing: Showing, *, programs: bool) -> None:
        self._plan = plan
        self._showing = showing
        self._programs = programs
        self._pending: dict[tuple[str, int], None] = {}
        self._interrupts = 0
        self.terminated = False
        self.readable = True

    async def play(self) -> Run:
        """Run the plan under the display, with the signals in hand."""
        from remoterun.runner import Control

        control = Control()
        with self._console(control) as console:
            with suppress(NotImplementedError):
                self._catch_signals(control, console)
            ticking = asyncio.create_task(_tick(console.tick))
            try:
                return await aplay(self._plan, self._listener(console, control), control)
            finally:
                ticking.cancel()

    def _console(self, control: Control) -> Console:
        from remoterun.console import Console

        streams_out = self._programs and self._showing.output is Format.TABLE
        return Console(
            stream=sys.stderr,
            width=shutil.get_terminal_size().columns,
            height=shutil.get_terminal_size().lines,
            color=use_color(sys.stderr),
            verbosity=-1 if self._showing.quiet else self._showing.verbose,
            is_terminal=sys.stderr.isatty() and os.environ.get("TERM") != "dumb",
            output=sys.stdout if streams_out else None,
            on_output_closed=partial(self._reader_gone, control) if streams_out else None,
        )

    def _listener(self, console: Console, control: Control) -> OnEvent:
        jsonl = self._showing.output is Format.JSONL
        if jsonl:
            from remoterun.report import event_line

        def listen(event: Event) -> None:
            self._note(event)
            console(event)
            line = event_line(event) if jsonl else None
            if line is not None and self.readable:
                try:
                    write(line)
                except ReaderGoneError:
                    self._reader_gone(control)

        return listen

    def _reader_gone(self, control: Control) -> None:
        self.readable = False
        control.cancel()

    def _note(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._pending = {(job.target.id, job.step): None for job in event.plan.jobs}
        elif isinstance(event, OutcomeReady):
            # A cancellation that the target did not confirm leaves its survivors unknown.
            outcome = event.outcome
            if outcome.status is not Status.CANCELLED or outcome.survivors == 0 or not outcome.connections:
                self._pending.pop((outcome.target, outcome.step), None)

    def _catch_signals(self, control: Control, console: Console) -> None:
        loop = asyncio.get_running_loop()

        def interrupt() -> None:
            self._interrupts += 1
            if self._interrupts == 1:
                console.cancelling()
                control.cancel()
            else:
                console.left(tuple(target for target, _ in self._pending))
                control.abort()

        def terminate() -> None:
            self.terminated = True
            control.cancel()

        loop.add_signal_handler(signal.SIGINT, interrupt)
        loop.add_signal_handler(signal.SIGTERM, terminate)


async def _tick(tick: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(_TICK_S)
        tick()


def _print(run: Run, showing: Showing, *, programs: bool) -> None:
    """Print the run in the chosen format."""
    if showing.output is Format.JSON:
        from remoterun.report import to_json

        write(to_json(run))
    elif showing.output is Format.TABLE and programs:
        from remoterun.report import short_summary

        if not showing.quiet:
            sys.stderr.write(short_summary(run, width=_width(), color=use_color(sys.stderr)))
    elif showing.output is Format.TABLE:
        from remoterun.report import table

        write(table(run, width=_width(), color=use_color(sys.stdout), verbose=showing.verbose))


def _width() -> int:
    return shutil.get_terminal_size().columns


def use_color(stream: object) -> bool:
    """Tell whether a stream is a terminal that wants colour (https://no-color.org)."""
    isatty = getattr(stream, "isatty", None)
    return bool(isatty and isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
