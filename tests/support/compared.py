"""Runs compared by themselves, each followed after the one before it: the history has to come to the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remoterun.compare import Difference, Moment, State, TargetState, difference
from remoterun.compare.seen import see
from remoterun.compare.standing import advance, silence
from remoterun.compare.views import views

if TYPE_CHECKING:
    from collections.abc import Iterable

    from remoterun.compare.views import View
    from remoterun.model import Run


def compare(before: Run | None, after: Run, earlier: Iterable[Run] = ()) -> Difference:
    """Tell what is different in a run.

    Args:
        before: the run to compare with; None to tell everything of `after` as new.
        after: the run.
        earlier: runs of the same playbook before `before`, the oldest first: they tell since when things are as they
            are, and what was known last of targets that `before` says nothing of.
    """
    state = State()
    for run in (*earlier, *([before] if before is not None else [])):
        state = follow(state, run)
    return difference(state, after, state)


def follow(state: State, run: Run) -> State:
    """Return what is known after one more run."""
    now = Moment(run_id=run.run_id, at=run.started_at)
    seen_by = views(run)
    targets = dict(state.targets)
    for target, view in seen_by.items():
        targets[target] = _next(targets.get(target, TargetState()), view, now)
    return State(last=now, asked=frozenset(seen_by), targets=targets)


def _next(before: TargetState, view: View, now: Moment) -> TargetState:
    seen = {payload: see(outcomes) for payload, outcomes in view.told.items()}
    return TargetState(
        name=view.name or before.name,
        standing=advance(before.standing, view, seen, now)[0],
        silence=silence(before.silence, view, now),
        seen={**before.seen, **seen},
    )
