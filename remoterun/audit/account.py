"""What an audit does, step by step as it does it: for whoever watches, or reads its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from remoterun.audit.summary import counts_text
from remoterun.errors import clean
from remoterun.events import OutcomeReady
from remoterun.report.table import counted, outcome_line
from remoterun.report.text import plural, render

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from remoterun.audit.notify import Delivery
    from remoterun.compare import Difference
    from remoterun.events import Event
    from remoterun.model import Plan, Run

Say: TypeAlias = "Callable[[str], object]"


class Account:
    """Say what happens, a line at a time; nothing where nobody wants to know."""

    def __init__(self, say: Say | None = None) -> None:
        self._say = say

    def say(self, text: str) -> None:
        """Say a step in words of one's own."""
        if self._say is not None:
            self._say(clean(text))

    def planned(self, plans: Sequence[Plan]) -> None:
        """Say what will be played."""
        self.say(f"to be played: {', '.join(f'{plan.playbook} on {_targets(plan)}' for plan in plans)}")

    def playing(self, plan: Plan) -> None:
        """Say that a run begins."""
        self.say(f"playing {plan.playbook}: run {plan.run_id}")

    def heard(self, event: Event) -> None:
        """Say what became of a target."""
        if self._say is not None and isinstance(event, OutcomeReady):
            outcome = event.outcome
            name = f" {outcome.name}" if outcome.name else ""
            self.say(f"  {outcome.target}{name}  {render(outcome_line(outcome), color=False)}")

    def played(self, run: Run) -> None:
        """Say how a run ended."""
        seen = [outcome.status for outcome in run.outcomes]
        counts = ", ".join(counted(seen.count(status), status) for status in dict.fromkeys(seen))
        self.say(f"{run.playbook} ended: {run.status} ({counts})")

    def compared(self, difference: Difference) -> None:
        """Say with what a run was compared, and what came of that."""
        before = difference.before
        there = (
            "with nothing, since no audit has reported one before" if before is None else f"with run {before.run_id}"
        )
        self.say(f"{difference.playbook} compared {there}: {counts_text(difference)}")

    def written(self, kind: str, path: str, problem: str | None) -> None:
        """Say that a report is there, or why not."""
        self.say(problem or f"report {kind} written: {path}")

    def delivered(self, delivery: Delivery) -> None:
        """Say who was told, and who was not."""
        told = [f"told {', '.join(delivery.sent)}"] if delivery.sent else []
        held = [f"{', '.join(delivery.held)} had enough messages this hour"] if delivery.held else []
        for text in (*told, *held, *delivery.failed) or ("nobody has to be told of anything",):
            self.say(text)


def _targets(plan: Plan) -> str:
    return plural(len({job.target.id for job in plan.jobs}), "target")
