"""Carry out a plan for the command line: display, interrupts, the chosen format on stdout, exit status."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from remoterun.api import carry_out, secrets_of
from remoterun.cli import signals
from remoterun.cli.asking import Asker, can_ask
from remoterun.cli.backlog import Backlog
from remoterun.cli.eventsink import EventSink, events_of, events_of_outcome, to_all
from remoterun.cli.options import Format, Showing
from remoterun.cli.output import no_output, read_to_the_end, tell, use_color, write, write_document, write_pieces
from remoterun.console.outlet import Outlet, same_place
from remoterun.errors import ConfigError, Problem, clean
from remoterun.events import OutcomeReady, RunStarted, TargetMoved
from remoterun.model import Manner, PayloadWork, Phase, RunStatus, Status

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

    from remoterun.console import Console
    from remoterun.events import Event, OnEvent
    from remoterun.model import Job, Plan, Run

_TICK_S = 0.5
DETACHED_LEASE_S = 24 * 3600.0


def perform(
    plan: Plan,
    showing: Showing,
    *,
    programs: bool = False,
    earlier: Run | None = None,
    manner: Manner = Manner.FOLLOW,
) -> tuple[Run, int]:
    """Run a plan to its end and print it; return the run and the exit status.

    `programs`: the plan runs a person's script or program, whose output is the result: it streams as it comes, and no
    table follows. `earlier`: what is known of a run that is taken up again.
    """
    performance = _Performance(plan, showing, programs=programs, earlier=earlier, manner=manner)
    run = performance.play()
    if showing.metrics is not None:
        _write_metrics(run, showing.metrics)
    if performance.unwritable is not None:
        raise no_output(performance.unwritable)
    print_run(run, showing, programs=programs)
    tell_at_work(run, is_kept=performance.is_kept)
    return run, run.status.exit_code


def tell_at_work(run: Run, *, is_kept: bool = True) -> None:
    """Tell how many targets are at work on a run, if any, and what to do about them, also where no history has it."""
    at_work = [outcome for outcome in run.outcomes if outcome.status is Status.RUNNING]
    if at_work:
        count = f"{len(at_work)} target{'s are' if len(at_work) > 1 else ' is'}"
        where = "" if is_kept else "".join(f" --on {shlex.quote(outcome.target)}" for outcome in at_work)
        tell(
            f"{count} at work on run {run.run_id}:\n"
            f"  remoterun attach {run.run_id}{where}   # watch it to its end\n"
            f"  remoterun collect {run.run_id}{where}  # fetch what is done by now\n"
            f"  remoterun cancel {run.run_id}{where}   # end it\n"
        )


def detachable(plan: Plan, *, lease_given: bool) -> Plan:
    """Return a plan that can be left to itself: with a lease that outlasts the controller.

    Raises:
        ConfigError: when it has several steps, or its targets would not go on alone.
    """
    payloads = {job.step: job.work.pack.ref.name for job in plan.jobs if isinstance(job.work, PayloadWork)}
    if len(payloads) > 1:
        steps = f"{plan.playbook} has {len(payloads)}, and a step begins only where the one before it went well"
        raise ConfigError(
            f"--detach leaves one step to itself; {steps}. Play it without --detach, or detach its payloads in turn: "
            f"remoterun play {payloads[0]} --detach, remoterun collect last, remoterun play {payloads[1]} --detach"
        )
    jobs = plan.jobs if lease_given else tuple(map(_with_long_lease, plan.jobs))
    if any(job.limits.lease is None for job in jobs):
        raise ConfigError("--detach needs a lease: with none, a target ends its work when the connection ends")
    return replace(plan, jobs=jobs)


def _with_long_lease(job: Job) -> Job:
    if job.limits.lease is not None and job.limits.lease >= DETACHED_LEASE_S:
        return job
    limits = replace(job.limits, lease=DETACHED_LEASE_S)
    return replace(job, limits=limits, limits_set_by={**job.limits_set_by, "lease": "--detach"})


class _Performance:
    """Hold what one run on the command line needs besides the run itself."""

    def __init__(self, plan: Plan, showing: Showing, *, programs: bool, earlier: Run | None, manner: Manner) -> None:
        from remoterun.history import Journal, default_folder
        from remoterun.runner import Control

        self._plan = plan
        self._earlier = earlier
        self._manner = manner
        # Before anything else: Ctrl-C still leaves at once.
        self._vault = secrets_of(plan, earlier, _warn if manner is Manner.CANCEL else None)
        self.is_kept = True
        self._journal = Journal(default_folder(), self._not_kept, earlier)
        self._showing = showing
        self._events = None if showing.events is None else EventSink(showing.events)
        self._programs = programs
        self._pending: dict[str, None] = {}
        self._ending = False
        self._signal: int | None = None
        self._control = Control()
        self.unwritable: Exception | None = None

    def play(self) -> Run:
        """Run the plan under the display, with the signals in hand."""
        lines = Outlet(sys.stdout, on_broken=self._reader_gone) if self._showing.output is Format.JSONL else None
        # What a slow reader has not taken by the end is waited for outside the loop.
        with self._console() as console:
            run = asyncio.run(self._play(console, lines))
            signals.finish(self._signal)
        if lines is not None:
            lines.drain()
        if self._events is not None:
            self._events.close()
        return run

    async def _play(self, console: Console, lines: Outlet | None) -> Run:
        self._catch_signals(console)
        ticking = asyncio.create_task(_tick(console))
        streams = [*([] if lines is None else [lines]), *([] if self._events is None else [self._events.outlet])]
        outlets = (*console.outlets, *streams)
        backlog = Backlog(outlets, self._control, len({job.target.id for job in self._plan.jobs}))
        try:
            return await carry_out(
                self._plan,
                self._listener(console, to_all(streams), backlog),
                self._control,
                self._earlier,
                vault=self._vault,
                manner=self._manner,
                ask=Asker(console.paused) if can_ask() else None,
            )
        finally:
            backlog.close()
            ticking.cancel()
            self._journal.close()

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
            followed=self._showing.output is Format.TABLE and same_place(sys.stderr, sys.stdout),
            hurried=signals.hurried,
        )

    def _listener(self, console: Console, write: OnEvent, backlog: Backlog) -> OnEvent:
        def listen(event: Event) -> None:
            self._journal(event)
            self._note(event)
            console(event)
            write(event)
            if isinstance(event, RunStarted):
                self._tell_known(console, write)
            backlog.note(getattr(event, "target", ""))

        return listen

    def _tell_known(self, console: Console, write: OnEvent) -> None:
        """Tell what an earlier part of the run has found: nobody goes there again, and the journal has it."""
        for outcome in self._earlier.outcomes if self._earlier is not None else ():
            console.known(outcome)
            for event in events_of_outcome(outcome):
                write(event)

    def _not_kept(self, why: str) -> None:
        self.is_kept = False
        tell(f"remoterun: {why}\n")

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
        """Cancel the run on a signal; not by `loop.add_signal_handler`, whose handlers end before the result is out."""
        loop = asyncio.get_running_loop()

        def handle(number: int, _frame: FrameType | None) -> None:
            self._signal = number
            if loop.is_closed():
                return
            loop.call_soon_threadsafe(self._end, console, number)

        signals.handle(handle)

    def _end(self, console: Console, number: int) -> None:
        """End the run in an orderly way by the first signal, and at once by the second; or only what looks after it."""
        if self._ending:
            if not self._manner.lets_go_on:
                console.left(tuple(self._pending))
            self._control.abort()
            return
        self._ending = True
        if number == signal.SIGINT and not self._manner.lets_go_on:
            console.cancelling()
        self._control.cancel(RunStatus.TERMINATED if number == signal.SIGTERM else RunStatus.INTERRUPTED)


def _warn(problem: Problem) -> None:
    """Tell of a secret that is missing where that must hold nothing up."""
    tell(f"remoterun: {clean(str(problem))}; where the output has it, it stays\n")


async def _tick(console: Console) -> None:
    while True:
        await asyncio.sleep(_TICK_S)
        console.tick()


def print_kept(run: Run, plan: Plan, showing: Showing, *, programs: bool) -> None:
    """Print a run that is over in the chosen format, and its events to wherever they are wanted."""
    if showing.events is not None:
        sink = EventSink(showing.events)
        write_event = to_all([sink.outlet])
        with read_to_the_end():
            for event in events_of(run, plan):
                write_event(event)
                # Nothing runs that a slow reader could hold up, and a run may be large.
                sink.outlet.drain()
        sink.close()
    if showing.output is Format.JSONL:
        from remoterun.report import event_line

        with read_to_the_end():
            for line in filter(None, map(event_line, events_of(run, plan))):
                write(line)
    print_run(run, showing, programs=programs)


def print_run(run: Run, showing: Showing, *, programs: bool) -> None:
    """Print the run in the chosen format."""
    if showing.output is Format.JSON:
        from remoterun.report import json_pieces

        write_pieces(json_pieces(run))
    elif showing.output is Format.JUNIT:
        from remoterun.report.junit import junit

        write_document(junit([run]))
    elif showing.output is Format.TABLE and programs:
        from remoterun.report import short_summary

        if not showing.quiet:
            tell(short_summary(run, width=_width(), color=use_color(sys.stderr)))
    elif showing.output is Format.TABLE:
        from remoterun.report import write_table

        if sys.stdout.isatty() and sys.stderr.isatty() and not showing.quiet:
            # On one screen the lines of the finished targets stand right above.
            tell("\n")
        with read_to_the_end():
            write_table(run, write, width=_width(), color=use_color(sys.stdout), verbose=showing.verbose)


def _write_metrics(run: Run, path: Path) -> None:
    """Write a run's metrics; what can't be written changes nothing of its result."""
    from remoterun.report.files import write_whole
    from remoterun.report.metrics import openmetrics

    try:
        write_whole(path, openmetrics([run], time.time()))
    except OSError as error:
        tell(f"remoterun: the metrics can't be written to {clean(str(path))}: {error.strerror or error}\n")


def _width() -> int:
    return shutil.get_terminal_size().columns
