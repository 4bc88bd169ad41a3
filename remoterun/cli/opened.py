"""The history as commands open it: what takes long the first time after an update is told on standard error."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from remoterun.cli.output import tell
from remoterun.history import History, default_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

_WORTH_TELLING: Final = 20
"""So many runs take about a second."""
_EVERY_S: Final = 0.1


@contextmanager
def opened() -> Iterator[History]:
    """Open the history of this user.

    Raises:
        HistoryError: when there is none, or it can't be read.
    """
    progress = _Progress(is_terminal=sys.stderr.isatty())
    try:
        with History.open(default_folder(), progress.step) as history:
            yield history
    finally:
        progress.end()


class _Progress:
    """Tell how far it is: in one line that changes on a terminal, and once elsewhere."""

    def __init__(self, *, is_terminal: bool) -> None:
        self._is_terminal = is_terminal
        self._told_at: float | None = None

    def step(self, done: int, total: int) -> None:
        """Take that so many runs were looked at."""
        now = time.monotonic()
        if total < _WORTH_TELLING:
            return
        if self._is_terminal:
            if self._told_at is None or now - self._told_at >= _EVERY_S:
                self._told_at = now
                tell(f"\rremoterun: bringing the history up to date, once: {done} of {total} runs")
        elif self._told_at is None:
            self._told_at = now
            tell(f"remoterun: bringing the history up to date, once: {total} runs\n")

    def end(self) -> None:
        """Leave the line to what comes next."""
        if self._is_terminal and self._told_at is not None:
            tell("\r\x1b[K")
