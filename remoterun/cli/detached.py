"""`remoterun attach`, `collect` and `cancel`: what goes on at targets without us."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from remoterun.api import Choice, Project
from remoterun.cli.history import RunArgument, print_again, print_said, programs_of
from remoterun.cli.options import Flags
from remoterun.cli.output import tell
from remoterun.cli.perform import perform, print_kept
from remoterun.cli.sharing import taking
from remoterun.errors import ConfigError, Problem
from remoterun.history import History, HistoryError, PlanError, default_folder
from remoterun.inventory.selection import build_index
from remoterun.model import Manner, OtherWork, Phase, RunStatus, Status

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from remoterun.history import Kept
    from remoterun.model import Outcome, Plan, Run

# As `new_run_id` makes them: the beginning of one will not do where there is nothing to compare it with.
_RUN_ID: Final = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}")
# What no look at a target changes any more.
_UNKNOWN = frozenset({Status.RUNNING, Status.LOST, Status.CANCELLED})
_ENDED = frozenset({RunStatus.INTERRUPTED.exit_code, RunStatus.TERMINATED.exit_code})
_FLAGS = (
    # How to get there, where the run was started on another machine.
    *("on", "without", "only", "project", "venv", "python", "user", "guest_user", "port", "identity", "known_hosts"),
    *("host_key", "ssh_config", "jump", "hop", "become"),
    *("output", "file", "events", "quiet", "verbose"),
)


class GoingOnError(HistoryError):
    """Say that another process follows the run."""


@taking(Flags, *_FLAGS)
def attach(run: RunArgument, *, flags: Flags) -> int:
    """Follow a run that goes on without us, from its beginning to its end: one detached, or one whose process is gone.

    Ctrl-C leaves it at work, for its lease; `remoterun cancel` ends it. Exit status 3 where a target that could not be
    reached, or was not chosen, is still at work.
    """
    return _unless_at_work(*_take_up(run, flags, Manner.ATTACH))


@taking(Flags, *_FLAGS)
def collect(run: RunArgument, *, flags: Flags) -> int:
    """Fetch what is finished of a run that goes on without us, and leave the rest of it to itself.

    Exit status 3 while a target is still at work.
    """
    return _unless_at_work(*_take_up(run, flags, Manner.COLLECT))


@taking(Flags, *_FLAGS)
def cancel(run: RunArgument, *, flags: Flags) -> int:
    """End a run that goes on without us, or what is left of it on some targets, and wait until they confirm it.

    Exit status 0 when nothing of it is left there.
    """
    found, status = _take_up(run, flags, Manner.CANCEL)
    if status in _ENDED:
        return status
    left = [outcome for outcome in found.outcomes if _may_go_on(outcome)]
    return RunStatus.INCOMPLETE.exit_code if left else 0


def _may_go_on(outcome: Outcome) -> bool:
    if outcome.survivors is None and outcome.error is not None and outcome.error.code == "lease_expired":
        # The target has said so: nothing is left there.
        return False
    return outcome.status in _UNKNOWN and outcome.phase is not Phase.PLAN and outcome.survivors != 0


def _unless_at_work(run: Run, status: int) -> int:
    """Return the exit status of whoever waits for a run: that it goes on is no end."""
    return RunStatus.INCOMPLETE.exit_code if run.status is RunStatus.DETACHED else status


def _take_up(name: str, flags: Flags, manner: Manner) -> tuple[Run, int]:
    """Go to the targets that have no outcome yet, or those chosen of them; what is known of the others stays."""
    choice = flags.choice()
    try:
        with History.open(default_folder()) as history:
            kept = history.find(name)
            if kept.running:
                raise GoingOnError(f"run {kept.run_id} is followed by another process: press Ctrl-C there first")
            earlier, plan = history.run(kept), _plan_of(history, kept, anything=bool(choice.on))
    except HistoryError as error:
        if isinstance(error, GoingOnError | PlanError) or not _RUN_ID.fullmatch(name):
            raise
        if not choice.on:
            raise HistoryError(f"{error}; if it was started on another machine, say where it runs: --on") from error
        return _look_after(name, flags, choice, manner)
    if plan is None:
        return _look_after(kept.run_id, flags, choice, manner, earlier)
    if any(job.step for job in plan.jobs):
        raise HistoryError(f"run {kept.run_id} has several steps: `remoterun resume {kept.run_id}` goes on with it")
    more = _beyond(earlier, plan, flags, choice)
    return perform(more, flags.showing(), manner=manner) if more else _go_on(earlier, plan, flags, choice, manner)


def _go_on(earlier: Run, plan: Plan, flags: Flags, choice: Choice, manner: Manner) -> tuple[Run, int]:
    """Go to what a run that is known here has left open."""
    # Whoever ends a run wants to know of each target that nothing is left there.
    doubted = _may_go_on if manner is Manner.CANCEL else _is_open
    at_work = [outcome for outcome in earlier.outcomes if _is_open(outcome) or doubted(outcome)]
    chosen = _chosen(plan, choice, flags.project)
    wanted = [outcome for outcome in at_work if outcome.target in chosen]
    if at_work and not wanted:
        raise ConfigError(Problem(path="--on", message=f"no target at work on run {plan.run_id} is chosen"))
    if not wanted:
        tell(f"run {plan.run_id} is complete: every target has its outcome\n")
        return earlier, _tell_again(earlier, plan, flags, manner)
    known = tuple(outcome for outcome in earlier.outcomes if outcome not in wanted)
    programs = programs_of(plan)
    if programs and manner is not Manner.CANCEL:
        # It is part of the result, and what comes now is not all of it.
        fetched = [outcome for outcome in known if not _is_open(outcome)]
        print_said(fetched, flags, several=len(earlier.outcomes) > 1)
    return perform(plan, flags.showing(), programs=programs, earlier=replace(earlier, outcomes=known), manner=manner)


def _chosen(plan: Plan, choice: Choice, project: Path | None) -> frozenset[str]:
    """Return the ids of a plan's targets that are chosen, by what they were called then; groups are those of now.

    Raises:
        ConfigError: with every pattern that means none of them.
    """
    targets = list({job.target.id: job.target for job in plan.jobs}.values())
    index = build_index(targets, {target.host.key: None for target in targets}, {})
    problems: list[Problem] = []

    def union(flag: str, patterns: Sequence[str]) -> frozenset[str]:
        ids: frozenset[str] = frozenset()
        for pattern in patterns:
            try:
                ids |= index.match(pattern)
            except ConfigError as error:
                group = index.everything.intersection(Project.load(project).inventory.groups.get(pattern, ()))
                ids |= group
                problems.extend(replace(each, path=flag) for each in (() if group else error.problems))
        return ids

    chosen = union("--on", choice.on) if choice.on else index.everything
    chosen -= union("--not", choice.without)
    chosen &= union("--and", choice.only) if choice.only else chosen
    if problems:
        raise ConfigError(problems)
    return chosen


def _beyond(earlier: Run, plan: Plan, flags: Flags, choice: Choice) -> Plan | None:
    """Of a run that another machine started, return where else it is to be looked after than was asked for before.

    None when that is nowhere else.
    """
    if not choice.on or not all(isinstance(job.work, OtherWork) for job in plan.jobs):
        return None
    chosen = Project.load(flags.project).plan_other(plan.run_id, choice)
    ended = {outcome.target for outcome in earlier.outcomes if not _is_open(outcome)}
    jobs = tuple(job for job in chosen.jobs if job.target.id not in ended)
    known = {job.target.id for job in plan.jobs}
    return replace(chosen, jobs=jobs) if any(job.target.id not in known for job in jobs) else None


def _plan_of(history: History, kept: Kept, *, anything: bool) -> Plan | None:
    """Return the plan of a run; None for one that can't be read any more, where it is said whom to ask.

    Raises:
        PlanError: it can't be read, and nobody said.
    """
    try:
        return history.plan(kept)
    except PlanError:
        if not anything:
            raise
        return None


def _look_after(
    run_id: str, flags: Flags, choice: Choice, manner: Manner, earlier: Run | None = None
) -> tuple[Run, int]:
    """Go to targets at work on a run of which no plan is known here: they know. Not to those with an outcome."""
    plan = Project.load(flags.project).plan_other(run_id, choice)
    ended = {outcome.target for outcome in (earlier.outcomes if earlier else ()) if not _is_open(outcome)}
    left = tuple(job for job in plan.jobs if job.target.id not in ended)
    if earlier is not None and not left:
        tell(f"run {run_id} has no target at work that was asked for\n")
        return earlier, _tell_again(earlier, plan, flags, manner)
    return perform(replace(plan, jobs=left), flags.showing(), manner=manner)


def _tell_again(run: Run, plan: Plan, flags: Flags, manner: Manner) -> int:
    """Tell what is known already, and return the exit status that belongs to it."""
    if manner is Manner.CANCEL:
        # What it has said and how it had ended then are no answer to whoever wants nothing of it to be left.
        print_kept(run, plan, flags.showing(), programs=programs_of(plan))
        return 0
    status = print_again(run, plan, flags)
    return RunStatus.INCOMPLETE.exit_code if any(map(_is_open, run.outcomes)) else status


def _is_open(outcome: Outcome) -> bool:
    """Tell whether a target may still be at work: it was left to itself, or what followed it was cut."""
    cut = outcome.error is not None and outcome.error.code in {"run_cut", "connection_lost"}
    return outcome.status is Status.RUNNING or cut
