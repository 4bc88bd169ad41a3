"""`remoterun history` and `diff`: how targets fared over their runs, what is different in one, what is forgotten."""

from __future__ import annotations

import shutil
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remoterun.cli import completing
from remoterun.cli.apart import kept_files, refuse_shared
from remoterun.cli.opened import opened
from remoterun.cli.options import Format, OutputOption, out_file
from remoterun.cli.output import into, use_color, write, write_json
from remoterun.errors import ConfigError, Problem, show
from remoterun.history import History, HistoryError, default_folder
from remoterun.model import RunStatus, parse_duration
from remoterun.report.documents import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remoterun.compare.numbers import Tolerance
    from remoterun.history import Kept

_VerboseOption = Annotated[
    int,
    typer.Option("--verbose", "-v", count=True, help="Say more: findings of severity info, next steps, whole lists."),
]

_ProjectOption = Annotated[
    Path | None, typer.Option("--project", metavar="DIR", help="Only runs of this project, the folder it has or had.")
]

_FileOption = Annotated[
    str | None, typer.Option("-o", metavar="FILE", help="Write that to a file instead, whole or not at all.")
]

app = typer.Typer(help="How targets fared over their runs: a letter for each run, and since when findings are there.")


@app.callback(invoke_without_command=True)
def history(
    context: typer.Context,
    *,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="TARGET",
            help="Only this one: an id or a name, or a glob of either.",
            autocompletion=completing.targets,
        ),
    ] = None,
    playbook: Annotated[
        str | None, typer.Option("--playbook", metavar="PLAYBOOK", help="Only runs of this playbook or payload.")
    ] = None,
    project: _ProjectOption = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=100_000, metavar="N", help="So many runs of each target, the newest.")
    ] = 30,
    verbose: _VerboseOption = 0,
    output: OutputOption = Format.TABLE,
    file: _FileOption = None,
) -> int:
    """Show how targets fared over their runs: a letter for each run, and since when findings are there.

    With --target, also findings that went away during these runs.
    """
    if context.invoked_subcommand is not None:
        if file is not None:
            raise ConfigError(
                Problem(path="-o", message=f"is for the history itself, not for {context.invoked_subcommand}")
            )
        return 0
    with opened() as kept:
        trails = kept.trails(
            project=_folder(project), playbook=playbook, target=target, most=limit, with_ended=target is not None
        )
    if not trails:
        raise HistoryError(_nothing(target, playbook, project))
    refuse_shared(file, kept_files())
    with into(out_file(file)):
        if output is Format.TABLE:
            from remoterun.history.text import trails_text

            write(trails_text(trails, width=_width(), color=use_color(sys.stdout), verbose=verbose))
        else:
            from remoterun.history.document import trails_document

            write_json(trails_document(trails), indent=output.indent)
    return 0


@app.command()
def gc(
    *,
    keep: Annotated[
        str, typer.Option("--keep", metavar="DURATION", help="Forget runs that began longer ago, such as 90d or 12h.")
    ] = "90d",
    output: OutputOption = Format.TABLE,
) -> int:
    """Forget old runs, as every run does by itself after 90 days."""
    seconds = parse_duration(keep)
    if seconds is None:
        raise ConfigError(Problem(path="--keep", message="none keeps everything: there is nothing to do"))
    with History.open(default_folder()) as history:
        count = history.forget(timedelta(seconds=seconds))
    if output is Format.TABLE:
        write(f"{count} {'run' if count == 1 else 'runs'} forgotten\n")
    else:
        write_json({"schema": "remoterun/history-gc/1", "forgotten": count}, indent=output.indent)
    return 0


def _folder(project: Path | None) -> str | None:
    """Return the name that runs of a project have kept."""
    return None if project is None else str(plain(str(project.resolve())))


def _nothing(target: str | None, playbook: str | None, project: Path | None) -> str:
    said = (("target", target), ("playbook", playbook), ("project", project))
    named = [f"{what} like {value}" for what, value in said if value]
    return f"no run of a {' and a '.join(named)} has been kept" if named else "no run that has ended has been kept"


def diff(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] [RUN]",
            help="Ids, their beginnings, or last. One: that run and the one before it. None: the newest one.",
            autocompletion=completing.runs,
        ),
    ] = None,
    *,
    playbook: Annotated[
        str | None,
        typer.Option("--playbook", metavar="PLAYBOOK", help="Without RUN: the newest of this playbook or payload."),
    ] = None,
    project: _ProjectOption = None,
    tolerance: Annotated[
        list[str] | None,
        typer.Option(
            "--tolerance",
            metavar="[NAME=]N[%]",
            help="How far numbers may move, such as 5%, or weight_norm=0.5%; NAME may be a glob. Repeat for more.",
        ),
    ] = None,
    verbose: _VerboseOption = 0,
    output: OutputOption = Format.TABLE,
    file: _FileOption = None,
) -> int:
    """Tell what is different in a run from the one before it: findings, targets, checkpoints, facts and numbers.

    Compared are runs of one playbook of one project. Exit status: 0 when nothing is different, 1 when something is, 2
    when there is nothing to compare.
    """
    tolerances = _tolerances(tolerance or ())
    with opened() as kept:
        before, after = _chosen(kept, runs or [], playbook, project)
        difference = kept.difference(before, after, tolerances)
    refuse_shared(file, kept_files())
    with into(out_file(file)):
        if output is Format.TABLE:
            from remoterun.compare import difference_text

            write(difference_text(difference, width=_width(), color=use_color(sys.stdout), verbose=verbose))
        else:
            from remoterun.compare import difference_document

            write_json(difference_document(difference), indent=output.indent)
    return (RunStatus.FINDINGS if difference.changed else RunStatus.OK).exit_code


def _tolerances(texts: Sequence[str]) -> list[Tolerance]:
    """Read what --tolerance says.

    Raises:
        ConfigError: with every text that is of no form it has.
    """
    from remoterun.compare.numbers import parse_tolerance

    found: list[Tolerance] = []
    problems: list[Problem] = []
    for text in texts:
        try:
            found.append(parse_tolerance(text))
        except ValueError as error:
            problems.append(Problem(path="--tolerance", message=f"{show(text)} {error}"))
    if problems:
        raise ConfigError(problems)
    return found


def _chosen(kept: History, names: list[str], playbook: str | None, project: Path | None) -> tuple[Kept, Kept]:
    """Return the two runs to compare, the earlier one first.

    Raises:
        HistoryError: when there are no such two.
    """
    for flag, value in (("--playbook", playbook), ("--project", project)):
        if names and value is not None:
            raise HistoryError(f"{flag} chooses the newest run, so it goes with no RUN")
    if len(names) > 2:
        raise HistoryError(f"two runs can be compared; {len(names)} were named")
    if len(names) == 2:
        first, second = (kept.find(name) for name in names)
        return (first, second) if kept.came_before(first, second) else (second, first)
    if not names:
        newest = kept.comparable(playbook=playbook, project=_folder(project))
        if newest is None:
            raise HistoryError(
                f"there are no two runs of {playbook or 'one playbook'} to compare, in {project or 'one project'}"
            )
        return newest
    after = kept.find(names[0])
    before = kept.previous(after)
    if before is None:
        raise HistoryError(f"no earlier run of {after.playbook} is there to compare {after.run_id} with")
    return before, after


def _width() -> int:
    return shutil.get_terminal_size().columns
