"""Ending an audit from outside: a signal may come before, while or after something runs on targets."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from remoterun.model import RunStatus
    from remoterun.runner import Control


class Ending:
    """Be told to end by `end`, in a signal's handler too; `status` says so, and is None until then."""

    def __init__(self) -> None:
        self.status: RunStatus | None = None
        self._running: tuple[asyncio.AbstractEventLoop, Control] | None = None

    def end(self, status: RunStatus) -> None:
        """End what runs in an orderly way, and start nothing more; the first one counts, a second one hurries."""
        hurry, self.status = self.status is not None, self.status or status
        if self._running is None or self._running[0].is_closed():
            return
        loop, control = self._running
        loop.call_soon_threadsafe(control.abort if hurry else lambda: control.cancel(self.status or status))

    @contextmanager
    def reaching(self, control: Control) -> Iterator[None]:
        """Let it reach a run of the running loop, also when it came just before."""
        self._running = (asyncio.get_running_loop(), control)
        if self.status is not None:
            control.cancel(self.status)
        try:
            yield
        finally:
            self._running = None
