"""`remoterun runs`, `show`, `resume` and `rerun`: what was run, and what is left of it to do."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from remoterun.api import new_run_id
from remoterun.cli import completing
from remoterun.cli.fitting import write_rows
from remoterun.cli.options import Flags, Format, OutputOption
from remoterun.cli.output import tell, use_color, write, write_json
from remoterun.cli.perform import perform, print_kept, print_run, tell_at_work
from remoterun.cli.sharing import taking
from remoterun.errors import ConfigError, Problem, clean
from remoterun.history import History, HistoryError, Kept, default_folder
from remoterun.history.database import project_name
from remoterun.model import Captured, ExecWork, Json, Outcome, Plan, Run, RunStatus, ScriptWork, Status, judge
from remoterun.model.times import seconds_between

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA = "remoterun/runs/1"
# What ended without saying what is the matter with the target.
_UNFINISHED = frozenset({Status.LOST, Status.CANCELLED, Status.NOT_STARTED})
# The most cells of a place, and the most where 80 columns have to do.
_WIDEST, _NARROW = 32, 20
_HEAD = ("RUN", "PROJECT", "PLAYBOOK", "TARGET", "STATUS", "TOOK", "OUTCOMES")

RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="The id of a run or its beginning, or last for the newest.",
        autocompletion=completing.runs,
    ),
]


def runs(
    *,
    newest: Annotated[int, typer.Option("--newest", min=1, metavar="N", help="So many, the newest.")] = 20,
    output: OutputOption = Format.TABLE,
) -> int:
    """List the runs that were kept, the newest first."""
    with History.open(default_folder()) as history:
        found = history.runs(newest)
    if output is Format.TABLE:
        several = len({run.project for run in found}) > 1
        left_out: list[tuple[str, ...]] = [() if several else ("PROJECT",), ("PROJECT",), ("PROJECT", "TOOK")]
        rows, narrow = ([_HEAD, *(_row(run, widest) for run in found)] for widest in (_WIDEST, _NARROW))
        write_rows(*(_without(rows, names) for names in left_out), _without(narrow, ("PROJECT", "OUTCOMES")))
    else:
        document: dict[str, Json] = {"schema": SCHEMA, "runs": [_describe(run) for run in found]}
        write_json(document, indent=output.indent)
    return 0


def _without(rows: list[tuple[str, ...]], names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Leave columns out."""
    return [tuple(cell for name, cell in zip(_HEAD, row, strict=True) if name not in names) for row in rows]


def _row(kept: Kept, widest: int) -> tuple[str, ...]:
    from remoterun.report.table import counted
    from remoterun.report.text import clip, clip_start, human_seconds

    # Of a long path the end tells most.
    project = clip_start(project_name(kept.project) or "-", widest)
    target = f"{kept.targets} targets" if kept.target is None else clip_start(clean(kept.target), widest)
    seconds = seconds_between(kept.started_at, kept.finished_at) if kept.finished_at else None
    took = "-" if seconds is None else human_seconds(seconds)
    counts = ", ".join(counted(count, status) for status, count in sorted(kept.counts.items()))
    missing = kept.jobs - sum(kept.counts.values())
    more = f"{missing} without an outcome"
    if kept.running or kept.status is RunStatus.DETACHED:
        more = f"{missing} to come" if kept.running else f"{missing} at work"
    outcomes = ", ".join(filter(None, (counts, more if missing else "")))
    playbook = clip(clean(kept.playbook), widest) if widest == _NARROW else kept.playbook
    return kept.run_id, project, playbook, target, _status(kept), took, outcomes


def _status(kept: Kept) -> str:
    if kept.status is not None:
        return kept.status.value
    return "running" if kept.running else "cut"


def _describe(kept: Kept) -> dict[str, Json]:
    return {
        "run_id": kept.run_id,
        "project": project_name(kept.project),
        "playbook": kept.playbook,
        "status": _status(kept),
        "started_at": kept.started_at,
        "finished_at": kept.finished_at,
        "target": kept.target,
        "targets": kept.targets,
        "jobs": kept.jobs,
        "counts": {status.value: count for status, count in kept.counts.items()},
    }


@taking(Flags, "output", "file", "events", "quiet", "verbose")
def show(run: RunArgument, *, flags: Flags) -> int:
    """Show a run again, or what has arrived of one that was cut or is going on."""
    with History.open(default_folder()) as history:
        kept = history.find(run)
        found = history.run(kept)
        plan = history.plan(kept) if flags.output is Format.JSONL or flags.events is not None else None
    programs = _is_of_programs(found)
    if programs:
        print_said(found.outcomes, flags, several=len(found.outcomes) > 1)
    if plan is None:
        print_run(found, flags.showing(), programs=programs)
    else:
        print_kept(found, plan, flags.showing(), programs=programs)
    return 0


def print_again(run: Run, plan: Plan, flags: Flags) -> int:
    """Print a run of which nothing is left to do, as it was shown, and return the exit status of whoever asks for it.

    That a signal has ended the run is no end of this command: what counts is what the run has left.
    """
    programs = programs_of(plan) or _is_of_programs(run)
    if programs:
        print_said(run.outcomes, flags, several=len(run.outcomes) > 1)
    print_kept(run, plan, flags.showing(), programs=programs)
    return judge(run.outcomes).exit_code


def print_said(outcomes: Sequence[Outcome], flags: Flags, *, several: bool) -> None:
    """Print what programs have said, where that is the result; of several targets, behind their names."""
    for outcome in outcomes if flags.output is Format.TABLE else ():
        if several:
            write(f"== {clean(outcome.target)}\n")
        write(_said(outcome.stdout, sys.stdout))
        tell(_said(outcome.stderr, sys.stderr))


def _is_of_programs(run: Run) -> bool:
    # What has no outcome yet does not say what it is.
    known = [outcome for outcome in run.outcomes if outcome.status not in {Status.RUNNING, Status.LOST}]
    return bool(known) and all(outcome.payload is None for outcome in known)


def _said(captured: Captured, stream: TextIO) -> str | bytes:
    """Return what a program has said: byte for byte, but on a terminal only what was let through the first time."""
    if not stream.isatty():
        return captured.data
    from remoterun.console.programs import TerminalFilter

    safe = TerminalFilter(color=use_color(stream))
    return safe.feed(captured.data) + safe.finish()


@taking(Flags, "output", "file", "events", "quiet", "verbose")
def resume(run: RunArgument, *, flags: Flags) -> int:
    """Do what is left of a run: targets without an outcome, and those that were lost, cancelled or not started.

    Everything runs as it was planned then; what is done stays as it is.
    """
    with History.open(default_folder()) as history:
        kept = history.find(run)
        if kept.running:
            raise HistoryError(f"run {kept.run_id} is going on in another process")
        earlier, plan = history.run(kept), history.plan(kept)
    final = tuple(outcome for outcome in earlier.outcomes if outcome.status not in _UNFINISHED)
    if len(final) == len(earlier.outcomes):
        if not any(outcome.status is Status.RUNNING for outcome in final):
            tell(f"run {kept.run_id} is complete: every target has its outcome\n")
        status = print_again(earlier, plan, flags)
        tell_at_work(earlier)
        return status
    programs = programs_of(plan)
    if programs:
        print_said(final, flags, several=len(earlier.outcomes) > 1)
    return perform(plan, flags.showing(), programs=programs, earlier=replace(earlier, outcomes=final))[1]


@taking(Flags, "output", "file", "events", "quiet", "verbose")
def rerun(
    run: RunArgument,
    *,
    only: Annotated[
        list[Status] | None,
        typer.Option(
            "--only",
            metavar="STATUS",
            help=f"Only targets with an outcome of this status: {', '.join(Status)}. Repeat for more; default: all.",
        ),
    ] = None,
    flags: Flags,
) -> int:
    """Run again what a run did, as a new run: the same payloads, parameters and limits."""
    with History.open(default_folder()) as history:
        kept = history.find(run)
        earlier, plan = history.run(kept), history.plan(kept)
    wanted = set(only or Status)
    targets = {outcome.target for outcome in earlier.outcomes if outcome.status in wanted}
    if not targets:
        named = " or ".join(sorted(status.value for status in wanted))
        raise ConfigError(Problem(path="--only", message=f"no target of run {kept.run_id} is {named}"))
    jobs = tuple(job for job in plan.jobs if job.target.id in targets)
    again = replace(plan, run_id=new_run_id(), jobs=jobs)
    return perform(again, flags.showing(), programs=programs_of(plan))[1]


def programs_of(plan: Plan) -> bool:
    """Tell whether a plan runs a person's script or program."""
    return any(isinstance(job.work, ScriptWork | ExecWork) for job in plan.jobs)
