"""Ending a run from outside, in an orderly way or at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from remoterun.errors import TargetError
from remoterun.model import Phase, RunStatus

if TYPE_CHECKING:
    from remoterun.runner.conversation import Conversation


class Control:
    """Cancel a run from outside: `cancel` asks every target to end and confirm, `abort` leaves at once.

    Of a run that was only looked at, `cancel` leaves the targets at work.
    """

    def __init__(self) -> None:
        self.ended_as: RunStatus | None = None
        self._active: dict[asyncio.Task[object], Conversation | None] = {}

    @property
    def cancelled(self) -> bool:
        """Tell whether the run has been ended from outside."""
        return self.ended_as is not None

    def cancel(self, status: RunStatus = RunStatus.INTERRUPTED) -> None:
        """Start nothing more, end what runs, wait for the confirmations; the first one gives the run its status."""
        self.ended_as = self.ended_as or status
        for task, conversation in list(self._active.items()):
            if conversation is None or conversation.phase is Phase.ENTER:
                # Nothing was started there: a leg that finds its stdin at the end starts nothing.
                task.cancel()
            elif conversation.dialogue.manner.lets_go_on:
                if conversation.dialogue.collector.result is None:
                    conversation.left = True
                    task.cancel()
            else:
                conversation.cancel(cancelled())

    def hold(self, target: str) -> None:
        """Take nothing more from a target's program until `go_on`: nobody takes from us what it says."""
        for conversation in self._active.values():
            if conversation is not None and conversation.target == target:
                conversation.hold()

    def go_on(self) -> None:
        """Take again from everybody who was held."""
        for conversation in self._active.values():
            if conversation is not None:
                conversation.go_on()

    def abort(self) -> None:
        """Leave now: what is not confirmed stays unconfirmed."""
        self.ended_as = self.ended_as or RunStatus.INTERRUPTED
        for task in list(self._active):
            task.cancel()

    def enter(self, conversation: Conversation | None) -> None:
        """Note what the current task is doing, so that it can be cancelled in the right way."""
        task = asyncio.current_task()
        if task is not None:
            self._active[task] = conversation

    def leave(self) -> None:
        """Forget the current task."""
        task = asyncio.current_task()
        if task is not None:
            self._active.pop(task, None)


def cancelled() -> TargetError:
    """Return the error of a target whose run was cancelled."""
    return TargetError("cancelled", "the run was cancelled")
