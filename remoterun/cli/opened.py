"""The history as commands open it: what takes long the first time after an update is told on standard error."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from remoterun.cli.fitting import tell_line
from remoterun.cli.output import tell
from remoterun.errors import ConfigError
from remoterun.history import History, default_folder
from remoterun.report.documents import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from remoterun.compare.numbers import Tolerance
    from remoterun.history import Kept

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


def project_at_hand(named: Path | None = None) -> str | None:
    """Return the name that runs have kept of a project that may be gone, or else of the one around us, if any."""
    from remoterun.inventory import find_project

    root = find_project() if named is None else named.resolve()
    return None if root is None else str(plain(str(root)))


def former_projects(history: History, projects: Iterable[str]) -> list[str]:
    """Say of projects how they go on with the history of a folder that is gone."""
    from remoterun.history.text import former_text

    found = ((project, history.gone_projects(project)) for project in projects)
    return [former_text(project, former) for project, former in found if former]


def tolerances_of(run: Kept) -> Sequence[Tolerance]:
    """Return how far numbers may move by what audits of a run's project go by; a wrong audit.yaml is told of."""
    from remoterun.audit import load_settings
    from remoterun.history.database import project_name

    project = project_name(run.project)
    if project is None:
        return ()
    try:
        return load_settings(Path(project)).tolerances
    except (ConfigError, OSError, ValueError) as error:
        tell_line(f"remoterun: the tolerances of audit.yaml do not count: {error}")
        return ()


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
