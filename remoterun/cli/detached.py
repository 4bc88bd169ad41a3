"""`remoterun attach`, `collect` and `cancel`: what goes on at targets without us."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated

import typer

from remoterun.cli.history import RunArgument, programs_of
from remoterun.cli.options import Flags, sharing
from remoterun.cli.output import tell
from remoterun.cli.perform import perform, print_run
from remoterun.errors import ConfigError, Problem
from remoterun.history import History, HistoryError, default_folder
from remoterun.model import Manner, Phase, RunStatus, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from remoterun.model import Outcome, Plan, Run

# What no look at a target changes any more.
_UNKNOWN = frozenset({Status.RUNNING, Status.LOST, Status.CANCELLED})


@sharing("output", "quiet", "verbose")
def attach(run: RunArgument, *, flags: Flags) -> int:
    """Follow a run that goes on without us, from its beginning to its end: one detached, or one whose process is gone.

    Ctrl-C ends the run, as it does everywhere else.
    """
    return _take_up(run, flags, Manner.ATTACH)[1]


@sharing("output", "quiet", "verbose")
def collect(run: RunArgument, *, flags: Flags) -> int:
    """Fetch what is finished of a run that goes on without us, and leave the rest of it to itself.

    Exit status 3 while a target is still at work.
    """
    found, status = _take_up(run, flags, Manner.COLLECT)
    at_work = any(outcome.status is Status.RUNNING for outcome in found.outcomes)
    return RunStatus.INCOMPLETE.exit_code if at_work else status


@sharing("output", "quiet", "verbose")
def cancel(
    run: RunArgument,
    *,
    on: Annotated[
        list[str] | None,
        typer.Option("--on", metavar="PATTERN", help="Only these targets: id, name or glob. Repeat for more."),
    ] = None,
    flags: Flags,
) -> int:
    """End a run that goes on without us, and wait until its targets confirm it.

    Exit status 0 when nothing of it is left anywhere.
    """
    found, status = _take_up(run, flags, Manner.CANCEL, _chosen(on) if on else None)
    if status not in {0, RunStatus.INCOMPLETE.exit_code}:
        return status
    left = [outcome for outcome in found.outcomes if _may_go_on(outcome)]
    return RunStatus.INCOMPLETE.exit_code if left else 0


def _may_go_on(outcome: Outcome) -> bool:
    return outcome.status in _UNKNOWN and outcome.phase is not Phase.PLAN and outcome.survivors != 0


def _chosen(patterns: list[str]) -> Callable[[Outcome], bool]:
    def chosen(outcome: Outcome) -> bool:
        names = (outcome.target, outcome.name or outcome.target)
        return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)

    return chosen


def _take_up(
    name: str, flags: Flags, manner: Manner, chosen: Callable[[Outcome], bool] | None = None
) -> tuple[Run, int]:
    """Go to the targets that have no outcome yet, or those chosen of them; what is known of the others stays."""
    with History.open(default_folder()) as history:
        kept = history.find(name)
        if kept.running:
            raise HistoryError(f"run {kept.run_id} is going on in another process: Ctrl-C there ends it")
        earlier, plan = history.run(kept), history.plan(kept)
    if any(job.step for job in plan.jobs):
        raise HistoryError(f"run {kept.run_id} has several steps: `remoterun resume {kept.run_id}` goes on with it")
    at_work = [outcome for outcome in earlier.outcomes if _is_open(outcome)]
    wanted = [outcome for outcome in at_work if chosen is None or chosen(outcome)]
    if at_work and not wanted:
        raise ConfigError(Problem(path="--on", message=f"no target at work on run {kept.run_id} is called so"))
    if not wanted:
        tell(f"run {kept.run_id} is complete: every target has its outcome\n")
        print_run(earlier, flags.showing(), programs=programs_of(plan))
        return earlier, earlier.status.exit_code
    known = tuple(outcome for outcome in earlier.outcomes if outcome not in wanted)
    return _perform(plan, flags, manner, replace(earlier, outcomes=known))


def _is_open(outcome: Outcome) -> bool:
    """Tell whether a target may still be at work: it was left to itself, or what followed it was cut."""
    cut = outcome.error is not None and outcome.error.code in {"run_cut", "connection_lost"}
    return outcome.status is Status.RUNNING or cut


def _perform(plan: Plan, flags: Flags, manner: Manner, earlier: Run) -> tuple[Run, int]:
    return perform(plan, flags.showing(), programs=programs_of(plan), earlier=earlier, manner=manner)
