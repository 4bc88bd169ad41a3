"""`--events`: a run's events as JSON lines, beside whatever standard output carries."""

from __future__ import annotations

import fcntl
import os
import re
from typing import TYPE_CHECKING, Final

from remoterun.cli import signals
from remoterun.cli.output import tell
from remoterun.console.outlet import Outlet
from remoterun.errors import ConfigError, Problem, clean
from remoterun.events import OutcomeReady, RecordArrived, RunFinished, RunStarted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from remoterun.events import Event, OnEvent
    from remoterun.model import Outcome, Plan, Run

_FIRST_OWN: Final = 3
_LAST: Final = 1 << 20


class EventSink:
    """Write each event that is one for programs as a line, and flush it.

    A reader that leaves, or a file that can't be written any more, is told once and changes nothing of the run.
    """

    def __init__(self, where: str) -> None:
        """Open a file, or take a descriptor that whoever started this process has opened.

        Raises:
            ConfigError: when it can't be written.
        """
        self._where = where
        try:
            descriptor = _open(where)
        except OSError as error:
            raise _unusable(f"{where} cannot be written: {error.strerror}") from error
        self._file = os.fdopen(descriptor, "w", encoding="ascii")
        self.outlet = Outlet(self._file, on_broken=self._broken)

    def close(self) -> None:
        """Wait until everything is written, after a signal not longer than its reader takes some; and close it."""
        self.outlet.drain(signals.hurried)
        try:
            self._file.close()
        except OSError as error:
            if not self.outlet.broken:
                self._broken(error)

    def _broken(self, error: Exception) -> None:
        reason = getattr(error, "strerror", None) or error
        tell(f"remoterun: no more events are written to {clean(self._where)}: {reason}\n")


def to_all(outlets: Sequence[Outlet]) -> OnEvent:
    """Return what writes an event to some outlets, if it is one for programs."""
    from remoterun.report import event_line

    def tell_all(event: Event) -> None:
        line = event_line(event) if outlets else None
        for outlet in outlets if line is not None else ():
            outlet.write(line or b"")

    return tell_all


def events_of(run: Run, plan: Plan) -> Iterator[Event]:
    """Yield the events of a run that is over, as they were told while it went on."""
    yield RunStarted(plan=plan, started_at=run.started_at)
    for outcome in run.outcomes:
        yield from events_of_outcome(outcome)
    yield RunFinished(run=run)


def events_of_outcome(outcome: Outcome) -> Iterator[Event]:
    """Yield the events of a target and step that are over."""
    for record in outcome.records:
        yield RecordArrived(target=outcome.target, step=outcome.step, record=record)
    yield OutcomeReady(outcome=outcome)


def _open(where: str) -> int:
    number = re.fullmatch(r"fd:(\d{1,7})", where)
    if number is None:
        if where.startswith("fd:") or not where:
            raise _unusable(f"{where!r} is neither a file nor fd:NUMBER")
        return os.open(where, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    descriptor = int(number[1])
    if not _FIRST_OWN <= descriptor <= _LAST:
        raise _unusable("standard input, output and error have their own use: take fd:3 or above")
    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise _unusable(f"{where} is open for reading only")
    if not os.get_inheritable(descriptor):
        raise _unusable(f"{where} is a file of our own: whoever starts this has not opened it")
    os.set_inheritable(descriptor, False)  # noqa: FBT003  # positional only
    return descriptor


def _unusable(message: str) -> ConfigError:
    return ConfigError(Problem(path="--events", message=message))
