"""Carry out a plan for the command line: display, interrupts, the chosen format on stdout, exit status."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from remoterun.api import aplay
from remoterun.cli.guard import SIGTERM_STATUS
from remoterun.cli.options import Format, Showing
from remoterun.cli.output import no_output, tell, write
from remoterun.console.outlet import Outlet
from remoterun.events import OutcomeReady, TargetMoved
from remoterun.model import Phase, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from remoterun.console import Console
    from remoterun.events import Event, OnEvent
    from remoterun.model import Plan, Run

_TICK_S = 0.5


def perform(plan: Plan, showing: Showing, *, programs: bool = False) -> tuple[Run, int]:
    """Run a plan to its end and print it; return the run and the exit status.

    `programs`: the plan runs a person's script or program, whose output is the result: it streams as it comes, and no
    table follows.
    """
    performance = _Performance(plan, showing, programs=programs)
    run = performance.play()
    if performance.unwritable is not None:
        raise no_output(performance.unwritable)
    _print(run, showing, programs=programs)
    return run, SIGTERM_STATUS if performance.terminated else run.status.exit_code


class _Performance:
    """Hold what one run on the command line needs besides the run itself."""

    def __init__(self, plan: Plan, showing: Showing, *, programs: bool) -> None:
        from remoterun.runner import Control

        self._plan = plan
        self._showing = showing
        self._programs = programs
        self._pending: dict[str, None] = {}
        self._interrupts = 0
        self._control = Control()
        self.terminated = False
        self.unwritable: Exception | None = None

    def play(self) -> Run:
        """Run the plan under the display, with the signals in hand."""
        lines = Outlet(sys.stdout, on_broken=self._reader_gone) if self._showing.output is Format.JSONL else None
        # What a slow reader has not taken by the end is waited for outside the loop, where Ctrl-C works as usual.
        with self._console() as console:
            run = asyncio.run(self._play(console, lines))
        if lines is not None:
            lines.drain()
        return run

    async def _play(self, console: Console, lines: Outlet | None) -> Run:
        with suppress(NotImplementedError):
            self._catch_signals(console)
        ticking = asyncio.create_task(_tick(console.tick, lines.pump if lines is not None else None))
        try:
            return await aplay(self._plan, self._listener(console, lines), self._control)
        finally:
            ticking.cancel()

    def _console(self) -> Console:
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
            on_output_closed=self._reader_gone if streams_out else None,
        )

    def _listener(self, console: Console, lines: Outlet | None) -> OnEvent:
        if lines is not None:
            from remoterun.report import event_line

        def listen(event: Event) -> None:
            self._note(event)
            console(event)
            line = event_line(event) if lines is not None else None
            if line is not None and lines is not None:
                lines.write(line)

        return listen

    def _reader_gone(self, error: Exception) -> None:
        self.unwritable = error
        self._control.cancel()

    def _note(self, event: Event) -> None:
        """Keep the targets where something may run that nobody has confirmed as ended."""
        if isinstance(event, TargetMoved) and event.phase is Phase.ENTER and not event.waiting:
            self._pending[event.target] = None
        elif isinstance(event, OutcomeReady):
            outcome = event.outcome
            if outcome.status is not Status.CANCELLED or outcome.survivors == 0 or not outcome.connections:
                self._pending.pop(outcome.target, None)

    def _catch_signals(self, console: Console) -> None:
        loop = asyncio.get_running_loop()
        control = self._control

        def interrupt() -> None:
            self._interrupts += 1
            if self._interrupts == 1:
                console.cancelling()
                control.cancel()
            else:
                console.left(tuple(self._pending))
                control.abort()

        def terminate() -> None:
            self.terminated = True
            control.cancel()

        loop.add_signal_handler(signal.SIGINT, interrupt)
        loop.add_signal_handler(signal.SIGTERM, terminate)


async def _tick(*calls: Callable[[], None] | None) -> None:
    while True:
        await asyncio.sleep(_TICK_S)
        for call in calls:
            if call is not None:
                call()


def _print(run: Run, showing: Showing, *, programs: bool) -> None:
    """Print the run in the chosen format."""
    if showing.output is Format.JSON:
        from remoterun.report import to_json

        write(to_json(run))
    elif showing.output is Format.TABLE and programs:
        from remoterun.report import short_summary

        if not showing.quiet:
            tell(short_summary(run, width=_width(), color=use_color(sys.stderr)))
    elif showing.output is Format.TABLE:
        from remoterun.report import table

        if sys.stdout.isatty() and sys.stderr.isatty() and not showing.quiet:
            # On one screen the lines of the finished targets stand right above.
            tell("\n")
        write(table(run, width=_width(), color=use_color(sys.stdout), verbose=showing.verbose))


def _width() -> int:
    return shutil.get_terminal_size().columns


def use_color(stream: object) -> bool:
    """Tell whether a stream is a terminal that wants colour (https://no-color.org)."""
    isatty = getattr(stream, "isatty", None)
    return bool(isatty and isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
