"""A run's events on the user's terminal: a live display, or plain lines where there is no terminal.

Everything goes to standard error, but for the standard output of programs (`run`, `exec`). How their output is shown:

- one target: raw. Into a pipe or file every byte goes through untouched; on a terminal only colours and simple cursor
  movements do, because a target is not trusted with the user's terminal. Where standard output and standard error
  lead to one place, lines of the one do not begin within lines of the other;
- several targets: line by line behind ``kpro6/200 | ``. A line longer than 64 KiB comes in pieces, the later ones
  behind ``kpro6/200 + ``. Into a pipe or file the line's own bytes are untouched; on a terminal only colours remain of
  its escapes, and a line that gets no end for about a second (a question, dots) comes in pieces as well.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Self, TextIO

from remoterun.console.board import Board
from remoterun.console.outlet import Outlet, leads_to_terminal, same_place
from remoterun.console.programs import Programs
from remoterun.console.screen import Screen
from remoterun.errors import clean
from remoterun.events import (
    Logged,
    OutcomeReady,
    OutputArrived,
    Progressed,
    RecordArrived,
    RunStarted,
    TargetMoved,
)
from remoterun.report.table import outcome_line
from remoterun.report.text import Page, Span, last_lines, pad, plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from remoterun.events import Event
    from remoterun.model import Outcome
    from remoterun.report.text import Line

__all__ = ["Console"]

_FRAME_S: Final = 0.1
_UNBROKEN: Final = 10_000
_ALL_LINES: Final = 1 << 30
_MOST_HELD: Final = 1 << 20


def _size_of(stream: TextIO, otherwise: tuple[int, int]) -> tuple[int, int]:
    try:
        columns, rows = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return otherwise
    return (columns, rows) if columns and rows else otherwise


class Console:
    """Show a run's events while they happen; call it with each event, and `tick` every second.

    A context manager: leaving it shows partial last lines, removes the live display, and waits for the readers of
    pipes. It never raises: a broken `stream` makes it silent, a broken `output` is told by `output_closed` and
    `on_output_closed`.

    Args:
        stream: where messages, the live display and the standard error of programs go.
        output: where the standard output of programs goes; None shows no output of programs at all.
        is_terminal: draw a live display, because `stream` is a terminal that can.
        color: colour what goes to terminals.
        verbosity: -1 only the output of programs and interruptions, 0 each outcome, 1 phases and logs too, 2 noise too.
        width: columns, where `stream` cannot tell; a terminal is asked each time, for it may be resized.
        height: rows, likewise.
        clock: returns monotonic seconds.
        on_output_closed: called once with the error, when `output` can't be written any more.
        followed: `stream` gets the result of the run as well, right when it is over.
        hurried: tells whether to give a reader of `stream` up that takes nothing.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        output: TextIO | None = None,
        is_terminal: bool,
        color: bool = False,
        verbosity: int = 0,
        width: int = 80,
        height: int = 24,
        clock: Callable[[], float] = time.monotonic,
        on_output_closed: Callable[[Exception], None] | None = None,
        followed: bool = False,
        hurried: Callable[[], bool] | None = None,
    ) -> None:
        shared = output is not None and same_place(stream, output)
        self._err = Outlet(stream, on_broken=on_output_closed if shared else None)
        self._out = self._err if shared or output is None else Outlet(output, on_broken=on_output_closed)
        self._shows_programs = output is not None
        streams = (("stdout", output), ("stderr", stream))
        self._terminals = [name for name, place in streams if place is not None and leads_to_terminal(place)]
        self._color = color
        self._verbosity = verbosity
        self._clock = clock
        self._followed = followed
        self._hurried = hurried
        self._size: Callable[[], tuple[int, int]] = lambda: _size_of(stream, (width, height))
        self._screen = Screen(self._err, color=color) if is_terminal and verbosity >= 0 else None
        self._board = Board()
        self._programs = Programs((), terminals=self._terminals, color=color)
        self._painted_at = float("-inf")
        self._mid_line = False
        self._paused = False
        self._held = ""

    @property
    def outlets(self) -> tuple[Outlet, ...]:
        """Return where its bytes go: one place, or two."""
        return (self._err,) if self._out is self._err else (self._err, self._out)

    @property
    def output_closed(self) -> bool:
        """Tell whether nobody reads `output` any more."""
        return self._out.broken

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Show what is left, remove the live display and wait until everything is written; may be called again."""
        for stream, output in self._programs.finish_all():
            self._show(stream, output)
        if self._screen:
            self._screen.erase(self._size()[0])
            self._screen = None
        self._out.drain(None if self._shows_programs else self._hurried)
        self._err.drain(self._hurried)

    def __call__(self, event: Event) -> None:
        """Take one event."""
        now = self._clock()
        match event:
            case RunStarted():
                self._begin(event, now)
            case TargetMoved():
                self._board.moved(event, now)
                queued = "queued for " if event.waiting else ""
                self._remark(1, event.target, f"{queued}{event.phase.value}")
            case Progressed():
                self._board.progressed(event, now)
            case RecordArrived():
                self._board.recorded(event.target, event.step)
            case OutputArrived() if self._shows_programs:
                self._show(event.stream, self._programs.show(event, now))
            case Logged():
                self._remark(1, event.target, f"log  {event.text}")
            case OutcomeReady():
                self._finish(event.outcome)
        self._refresh()

    def tick(self) -> None:
        """Let time pass: redraw clocks, show lines that get no end, hand on what a pipe's slow reader left waiting."""
        for stream, output in self._programs.let_go(self._clock()):
            self._show(stream, output)
        self._out.pump()
        self._err.pump()
        self._refresh()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the terminal to somebody else: no live display, and what there is to say is said afterwards."""
        if self._screen:
            self._screen.erase(self._size()[0])
        self._paused = True
        try:
            yield
        finally:
            self._paused = False
            held, self._held = self._held, ""
            self._above(held)
            self._refresh()

    def known(self, outcome: Outcome) -> None:
        """Take an outcome that an earlier part of the run has told of."""
        self._board.finished(outcome)

    def cancelling(self) -> None:
        """Tell what the first Ctrl-C does."""
        self._board.cancelling = True
        self._say(
            [Span("interrupted: cancelling, until every target has confirmed; Ctrl-C again leaves at once", "warn")]
        )

    def left(self, unconfirmed: Sequence[str]) -> None:
        """Tell what the second Ctrl-C leaves open: the targets where the end of the run is not confirmed."""
        if unconfirmed:
            names = ", ".join(unconfirmed)
            text = f"left; not confirmed as ended on {plural(len(unconfirmed), 'target')}: {names}"
        else:
            text = "left; confirmed as ended on every target"
        self._say([Span(text, "warn")])

    # --- events -------------------------------------------------------------------------------------

    def _begin(self, event: RunStarted, now: float) -> None:
        self._board.begin(event.plan, now)
        targets = self._board.targets
        shared = self._out is self._err
        self._programs = Programs(targets, terminals=self._terminals, color=self._color, shared=shared)
        if self._verbosity > 0 or (self._verbosity == 0 and not self._screen and not self._board.streams):
            self._say(
                [
                    Span(event.plan.playbook, "bold"),
                    Span(f": {plural(len(targets), 'target')}, run {event.plan.run_id}"),
                ]
            )

    def _finish(self, outcome: Outcome) -> None:
        for stream, output in self._programs.finish(outcome.target, outcome.step):
            self._show(stream, output)
        self._board.finished(outcome)
        if self._verbosity > 1:
            for line in last_lines(outcome.noise, _ALL_LINES)[0]:
                self._remark(2, outcome.target, f"noise  {line}")
        if self._verbosity > 0 or (self._verbosity == 0 and not self._speaks_for_itself()):
            step = [Span(f"step {outcome.step + 1}  ", "dim")] if self._board.several_steps else []
            self._say([self._target(outcome.target), *step, *outcome_line(outcome)])

    def _speaks_for_itself(self) -> bool:
        """Tell whether lines for outcomes would only repeat what programs print, or a result that comes at once."""
        at_once = self._screen is not None or (self._followed and not self._board.several_steps)
        return self._board.streams or (at_once and len(self._board.targets) == 1)

    def _remark(self, verbosity: int, target: str, text: str) -> None:
        if self._verbosity >= verbosity:
            self._say([self._target(target), Span(text, "dim")])

    def _target(self, target: str) -> Span:
        called = self._board.called.get(target, target)
        return Span(f"{pad(clean(called), min(self._board.widest, 32))}  ", "bold")

    # --- output -------------------------------------------------------------------------------------

    def _say(self, line: Line) -> None:
        """Write a line of our own."""
        page = Page(self._size()[0] if "stderr" in self._terminals else _UNBROKEN, color=self._color)
        page.line(*line, hang=4)
        self._above(f"\n{page.text()}" if self._mid_line else page.text())
        self._mid_line = False
        self._programs.broken_off()

    def _show(self, stream: str, output: str | bytes) -> None:
        """Write output of a program."""
        outlet = self._out if stream == "stdout" else self._err
        if not output:
            return
        if isinstance(output, bytes):
            outlet.write(output)
        elif outlet is not self._err:
            outlet.text(output)
        elif self._programs.raw:
            self._hand_over_terminal()
            outlet.text(output)
            self._mid_line = not output.endswith("\n")
        else:
            self._above(output)

    def _hand_over_terminal(self) -> None:
        """Give up the live display: a program that prints raw owns the terminal from its first byte on."""
        if self._screen:
            self._screen.erase(self._size()[0])
            self._screen = None

    def _above(self, text: str) -> None:
        if self._paused and len(self._held) < _MOST_HELD:
            self._held += text
        elif self._screen and not self._paused:
            self._paint(text)
        else:
            self._err.text(text)

    def _refresh(self) -> None:
        if self._screen and not self._paused and self._clock() - self._painted_at >= _FRAME_S:
            self._paint()

    def _paint(self, above: str = "") -> None:
        if self._screen is None:
            return
        self._painted_at = self._clock()
        columns, rows = self._size()
        unicode = self._err.encoding.lower().replace("-", "") == "utf8"
        lines = self._board.draw(self._painted_at, columns, rows - 2, unicode=unicode)
        self._screen.paint(lines, columns, above)
