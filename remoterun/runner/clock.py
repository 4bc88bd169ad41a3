"""Where a job's time goes."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# The loop's clock stands still on Linux while a laptop sleeps, and on macOS this one does not.
_UPTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def uptime() -> float:
    """Return seconds by a clock that goes on while this machine sleeps, and that nobody can set."""
    return time.clock_gettime(_UPTIME)


class Clock:
    """Split one job's time into its phases."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._start = self._since = self._loop.time()
        self._name = "queued"
        self._spent: dict[str, float] = {}

    def now(self, name: str) -> None:
        """Close the current phase and open another."""
        at = self._loop.time()
        self._spent[self._name] = self._spent.get(self._name, 0.0) + at - self._since
        self._name, self._since = name, at

    def marks(self, marks: Mapping[str, float]) -> None:
        """Take over the phases a conversation has measured: when each began."""
        for name, at in sorted(marks.items(), key=lambda item: item[1]):
            if at > self._since:
                self._spent[self._name] = self._spent.get(self._name, 0.0) + at - self._since
                self._since = at
            self._name = name

    def timings(self) -> dict[str, float]:
        """Return seconds by phase, and the total, to the millisecond: as exact as they are kept."""
        self.now("end")
        names = ("queued", "connect", "enter", "upload", "run")
        spent = {name: self._spent[name] for name in names if name in self._spent}
        return {name: round(seconds, 3) for name, seconds in {**spent, "total": self._since - self._start}.items()}
