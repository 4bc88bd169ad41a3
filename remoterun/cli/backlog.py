"""Output that its readers have not taken yet: it goes out as they take it, and holds back who adds too much to it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from remoterun.console.outlet import Outlet
    from remoterun.runner import Control

MOST_BYTES: Final = 64 << 20
"""About how much may wait: a quarter of it freely, the rest in equal shares for all targets."""
_FREE_BYTES: Final = MOST_BYTES // 4


class Backlog:
    """Watch over what waits in some outlets, inside a running loop.

    A reader may pause for hours (a pager does). Who has added more than its share by then is not read any further, so
    its program waits as it would for a terminal; all other targets go on.
    """

    def __init__(self, outlets: Iterable[Outlet], control: Control, targets: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._outlets = [outlet for outlet in outlets if outlet.pipe is not None]
        self._control = control
        self._share = (MOST_BYTES - _FREE_BYTES) // max(targets, 1)
        self._waiting = 0
        self._added: dict[str, int] = {}
        self._held: set[str] = set()
        self._watched: set[int] = set()

    def note(self, target: str) -> None:
        """Look again, after something of a target has been written."""
        before = self._waiting
        self._look()
        if self._waiting > max(before, _FREE_BYTES):
            self._added[target] = self._added.get(target, 0) + self._waiting - before
            if self._added[target] > self._share:
                self._held.add(target)
                self._control.hold(target)

    def close(self) -> None:
        """Watch no more."""
        for descriptor in self._watched:
            self._loop.remove_writer(descriptor)
        self._watched.clear()

    def _look(self) -> None:
        self._waiting = sum(outlet.waiting for outlet in self._outlets)
        for outlet in self._outlets:
            if outlet.waiting and outlet.pipe is not None and outlet.pipe not in self._watched:
                self._watched.add(outlet.pipe)
                self._loop.add_writer(outlet.pipe, self._pump, outlet, outlet.pipe)
        if self._waiting <= _FREE_BYTES and self._added:
            self._added.clear()
            if self._held:
                self._held.clear()
                self._control.go_on()

    def _pump(self, outlet: Outlet, descriptor: int) -> None:
        """Hand on what a reader takes now."""
        outlet.pump()
        if not outlet.waiting:
            self._watched.discard(descriptor)
            self._loop.remove_writer(descriptor)
        self._look()
