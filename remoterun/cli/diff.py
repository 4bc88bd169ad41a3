"""`remoterun history` and `diff`: how targets fared over their runs, what is different in one, what is forgotten."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from remoterun.cli import completing
from remoterun.cli.apart import into_file, kept_files
from remoterun.cli.fitting import tell_line
from remoterun.cli.opened import former_projects, opened, project_at_hand, tolerances_of
from remoterun.cli.options import FileOption, Format, OutputOption, ProjectOption
from remoterun.cli.output import use_color, write, write_json
from remoterun.cli.sharing import Shared, taking
from remoterun.errors import ConfigError, Problem, clean, show
from remoterun.history import History, HistoryError, default_folder
from remoterun.model import RunStatus, parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from remoterun.compare.numbers import Tolerance
    from remoterun.history import Kept
    from remoterun.model import Json


_MOST_NAMED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Looking(Shared):
    """Hold the flags of whoever looks back at runs: at which, and how they are shown."""

    project: Annotated[
        Path | None,
        typer.Option("--project", metavar="DIR", help="Only runs of this project, the folder it has or had."),
    ] = None
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose",
            "-v",
            count=True,
            metavar="",
            show_default=False,
            help="Say more: findings of severity info, next steps, whole lists.",
        ),
    ] = 0
    output: OutputOption = Format.TABLE
    file: FileOption = None

    @property
    def folder(self) -> str | None:
        """Return the name that runs of the project have kept."""
        return None if self.project is None else project_at_hand(self.project)

    def around(self, given: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Let the file of -o take the result."""
        del given
        return into_file(self.file, kept_files())

    def show(self, text: Callable[..., str], document: Callable[[], dict[str, Json]]) -> None:
        """Write the one or the other, as --output wants it."""
        if self.output is Format.TABLE:
            write(text(width=shutil.get_terminal_size().columns, color=use_color(sys.stdout), verbose=self.verbose))
        else:
            write_json(document(), indent=self.output.indent)


app = typer.Typer(
    help="How targets fared over their runs: a letter for each run, and since when findings are there.\n\n"
    "In a project's folder, those of its playbooks and payloads. On a terminal, what does not fit is shortened, and -v "
    "shows all. With --target, also findings that went away during these runs.",
    subcommand_metavar="[COMMAND] [ARGS]...",
)


@app.callback(invoke_without_command=True)
@taking(Looking)
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
    newest: Annotated[
        int, typer.Option("--newest", min=1, max=100_000, metavar="N", help="So many runs of each target, the newest.")
    ] = 30,
    everything: Annotated[
        bool, typer.Option("--all", help="Also runs of other projects, and those of programs and scripts.")
    ] = False,
    flags: Looking,
) -> int:
    """Show how targets fared, unless a command of its own was asked for."""
    if context.invoked_subcommand is not None:
        if flags.file is not None:
            raise ConfigError(
                Problem(path="-o", message=f"is for the history itself, not for {context.invoked_subcommand}")
            )
        return 0
    from remoterun.history.document import trails_document
    from remoterun.history.text import trails_text

    project = flags.folder if everything or flags.project else project_at_hand()
    with opened() as kept:
        trails = kept.trails(
            project=project,
            playbook=playbook,
            target=target,
            most=newest,
            with_ended=target is not None,
            programs=everything or playbook is not None,
        )
        hints = former_projects(kept, dict.fromkeys([project] if project else [trail.project for trail in trails]))
        notes = _left_out(kept, project, playbook, everything=everything)
    if not trails:
        raise HistoryError("; ".join([_nothing(target, playbook, project), *notes, *hints]))
    for said in [*hints, *(notes if flags.output is not Format.TABLE else ())]:
        tell_line(f"remoterun: {said}")
    # Who asks for one target wants to know all of it.
    is_screen = target is None and flags.file is None and sys.stdout.isatty()
    height = shutil.get_terminal_size().lines if is_screen else None
    flags.show(partial(trails_text, trails, height=height, notes=notes), partial(trails_document, trails))
    return 0


def _left_out(kept: History, project: str | None, playbook: str | None, *, everything: bool) -> list[str]:
    """Say which runs are there besides those that were chosen, and how they are shown."""
    lines = [line for line in kept.lines() if playbook in (None, line.playbook)] if not everything else []
    others = {line.project for line in lines} - {project} if project else set()
    programs = [] if playbook else [line for line in lines if project in (None, line.project) and kept.is_program(line)]
    names = list(dict.fromkeys(line.playbook for line in programs))
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    named = f"{', '.join(map(clean, names[:_MOST_NAMED]))}{more}"
    notes = [f"programs and scripts are left out ({named}); --all shows them"] if names else []
    if others:
        notes.append("runs outside of this project are left out; --all shows them")
    return notes


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


@app.command()
def move(
    former: Annotated[Path, typer.Argument(metavar="DIR", help="The folder that the project had before.")],
    *,
    project: ProjectOption = None,
) -> int:
    """Let a project that has moved go on with its history: with its runs, and with what its audits have told people."""
    from remoterun.audit import BusyError
    from remoterun.audit.moving import move as move_history
    from remoterun.cli.audit import project_root

    old, new = former.resolve(), project_root(project)
    if old == new:
        raise ConfigError(
            Problem(path="DIR", message=f"{new} is the project itself: name the folder that it had before")
        )
    try:
        count = move_history(default_folder(), old, new)
    except BusyError as error:
        raise ConfigError(f"{error}; try again when it has ended") from error
    said = "run is" if count == 1 else "runs are"
    write(f"{count} {said} of {clean(str(new))} now, which {clean(str(old))} had\n")
    return 0


def _nothing(target: str | None, playbook: str | None, project: str | None) -> str:
    said = (("target", target), ("playbook", playbook), ("project", project))
    named = [f"{what} like {value}" for what, value in said if value]
    return f"no run of a {' and a '.join(named)} has been kept" if named else "no run that has ended has been kept"


@taking(Looking)
def diff(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] [RUN]",
            help="Ids, their beginnings, or last. One: that run and the one before it. None: the newest one of a "
            "playbook or payload, in the project around this folder if there is one.",
            autocompletion=completing.runs,
        ),
    ] = None,
    *,
    playbook: Annotated[
        str | None,
        typer.Option("--playbook", metavar="PLAYBOOK", help="Without RUN: the newest of this playbook or payload."),
    ] = None,
    tolerance: Annotated[
        list[str] | None,
        typer.Option(
            "--tolerance",
            metavar="[NAME=]N[%]",
            help="How far numbers may move, such as 5%, or weight_norm=0.5%; NAME may be a glob. Repeat for more. "
            "Default: what audit.yaml says.",
        ),
    ] = None,
    flags: Looking,
) -> int:
    """Tell what is different in a run from the one before it: findings, targets, checkpoints, facts and numbers.

    Compared are runs of one playbook of one project. Exit status: 0 when nothing is different, 1 when something is, 2
    when there is nothing to compare.
    """
    from remoterun.compare import difference_document, difference_text

    tolerances = _tolerances(tolerance or ())
    with opened() as kept:
        before, after = _chosen(kept, runs or [], playbook, flags)
        difference = kept.difference(before, after, tolerances or tolerances_of(after))
    flags.show(partial(difference_text, difference), partial(difference_document, difference))
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


def _chosen(kept: History, names: list[str], playbook: str | None, flags: Looking) -> tuple[Kept, Kept]:
    """Return the two runs to compare, the earlier one first.

    Raises:
        HistoryError: when there are no such two.
    """
    for flag, value in (("--playbook", playbook), ("--project", flags.project)):
        if names and value is not None:
            raise HistoryError(f"{flag} chooses the newest run, so it goes with no RUN")
    if len(names) > 2:
        raise HistoryError(f"two runs can be compared; {len(names)} were named")
    if len(names) == 2:
        first, second = (kept.find(name) for name in names)
        return (first, second) if kept.came_before(first, second) else (second, first)
    if not names:
        return _newest(kept, playbook, flags)
    after = kept.find(names[0])
    before = kept.previous(after)
    if before is None:
        raise HistoryError(f"no earlier run of {after.playbook} is there to compare {after.run_id} with")
    return before, after


def _newest(kept: History, playbook: str | None, flags: Looking) -> tuple[Kept, Kept]:
    chosen = project_at_hand(flags.project)
    newest = kept.comparable(playbook=playbook, project=chosen)
    project = chosen or next((last.project for last in kept.runs(1)), "")
    hints = former_projects(kept, [project]) if newest is None or newest[1].project != project else []
    if newest is None:
        playbooks, projects = playbook or "one playbook or payload", chosen or "one project"
        only = kept.newest(playbook=playbook, project=chosen)
        nothing = f"there are no two runs of {playbooks} to compare, in {projects}"
        if only is not None:
            nothing = f"no earlier run of {only.playbook} is there to compare {only.run_id} with: run it once more"
        raise HistoryError("; ".join([nothing, *_elsewhere(kept, chosen), *hints]))
    for hint in hints:
        tell_line(f"remoterun: {hint}")
    return newest


def _elsewhere(kept: History, project: str | None) -> list[str]:
    """Say how runs are compared that belong to another project, or to none, where there are such."""
    if project is None or all(run.project == project for run in kept.runs()):
        return []
    return ["`remoterun runs` lists those of other folders too, and `remoterun diff RUN` compares one of them"]
