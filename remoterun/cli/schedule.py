"""`remoterun schedule`: a systemd timer or a crontab line that starts a project's audit."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from remoterun.audit import load_settings
from remoterun.audit.file import nothing_to_play
from remoterun.audit.schedule import Schedule, schedule_name
from remoterun.cli.audit import project_root
from remoterun.cli.options import ProjectOption  # noqa: TC001  # typer reads it
from remoterun.cli.output import tell, write
from remoterun.cli.sharing import Shared, taking
from remoterun.errors import ConfigError, Problem
from remoterun.model import parse_duration
from remoterun.report.documents import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remoterun.audit import Settings

app = typer.Typer(help="When a project is audited without anybody: systemd or cron.", no_args_is_help=True)

_EVERY: Final = "1h"


class Scheduler(StrEnum):
    """Name who starts audits."""

    USER = "user"
    SYSTEM = "system"
    CRON = "cron"


@dataclass(frozen=True, slots=True, kw_only=True)
class Where(Shared):
    """Hold the flags that say whose audits are started, and who starts them."""

    user: Annotated[bool, typer.Option("--user", help="A systemd timer of yours; the default but for root.")] = False
    system: Annotated[bool, typer.Option("--system", help="A systemd timer of the machine; the default for root.")] = (
        False
    )
    cron: Annotated[bool, typer.Option("--cron", help="A line in your crontab: what is new comes as mail.")] = False
    project: ProjectOption = None

    @property
    def scheduler(self) -> Scheduler:
        """Return who starts them.

        Raises:
            ConfigError: several are named.
        """
        chosen = [kind for kind, said in zip(Scheduler, (self.user, self.system, self.cron), strict=True) if said]
        if len(chosen) > 1:
            raise ConfigError(f"--{' and --'.join(chosen)} exclude each other: choose one")
        if chosen:
            return chosen[0]
        return Scheduler.SYSTEM if os.geteuid() == 0 else Scheduler.USER


@dataclass(frozen=True, slots=True, kw_only=True)
class When(Where):
    """Hold the flags that also say when, and where it is told."""

    every: Annotated[
        str | None, typer.Option("--every", metavar="DURATION", help=f"How often: 15m, 6h, 1d. Default: {_EVERY}.")
    ] = None
    calendar: Annotated[
        str | None,
        typer.Option(
            "--calendar",
            metavar="WHEN",
            help="When, instead: 'Mon..Fri 06:30' for systemd, '30 6 * * 1-5' for cron, or daily, hourly.",
        ),
    ] = None
    log: Annotated[
        Path | None,
        typer.Option("--log", metavar="FILE", help="With --cron: append what is new here, instead of mail."),
    ] = None

    def schedule(self, kind: Scheduler) -> Schedule:
        """Return what is to be started and when.

        Raises:
            ConfigError: the flags do not go together, or say no time.
        """
        from remoterun.audit.systemd import check_calendar

        if self.every is not None and self.calendar is not None:
            raise ConfigError("--every and --calendar exclude each other: choose one")
        if self.log is not None and kind is not Scheduler.CRON:
            raise ConfigError(Problem(path="--log", message="systemd keeps the log itself: see it with journalctl -u"))
        if self.calendar is not None and kind is not Scheduler.CRON:
            check_calendar(self.calendar)
        every_s = None if self.calendar is not None else parse_duration(self.every or _EVERY)
        if self.calendar is None and every_s is None:
            raise ConfigError(Problem(path="--every", message="none is never: `remoterun schedule remove` does that"))
        log = str(self.log.absolute()) if self.log else None
        return Schedule.here(project_root(self.project), every_s=every_s, calendar=self.calendar, log=log)


IntoOption = Annotated[
    Path | None,
    typer.Option("--into", metavar="DIR", help="Only put systemd's units into this folder, and start nothing."),
]


@app.command()
@taking(When)
def show(*, flags: When) -> int:
    """Show what `install` would install, and install nothing."""
    from remoterun.audit import crontab, systemd

    kind = flags.scheduler
    schedule = flags.schedule(kind)
    if kind is Scheduler.CRON:
        write(crontab.lines(schedule))
        return 0
    folder = systemd.unit_folder(os.environ, user=kind is Scheduler.USER)
    texts = systemd.units(schedule, user=kind is Scheduler.USER)
    write("\n".join(f"# {folder / name}\n{text}" for name, text in texts.items()))
    return 0


@app.command()
@taking(When)
def install(*, into: IntoOption = None, flags: When) -> int:
    """Let the project be audited from now on; what was installed for it before is replaced."""
    from remoterun.audit import crontab, systemd

    kind = flags.scheduler
    schedule = flags.schedule(kind)
    _look_at(load_settings(schedule.project), schedule)
    if kind is Scheduler.CRON:
        _refuse_into(into)
        _look_back(schedule.project)
        return _said([*crontab.install(schedule), _undone(kind, schedule.project)])
    is_user = kind is Scheduler.USER
    folder = into or systemd.unit_folder(os.environ, user=is_user)
    done = systemd.install(schedule, folder, user=is_user, start=into is None)
    _look_back(schedule.project)
    if into is None:
        done.append(_undone(kind, schedule.project))
        if is_user:
            done.append("it runs while you are logged in; `loginctl enable-linger` lets it run always")
    return _said(done)


@app.command()
@taking(Where)
def remove(*, into: IntoOption = None, flags: Where) -> int:
    """Let the project be audited no more; its history and its files stay."""
    from remoterun.audit import crontab, systemd

    kind = flags.scheduler
    given = flags.project
    # What has moved is to be found under the name of the folder that it had.
    name = schedule_name(given.resolve() if given is not None and not given.exists() else project_root(given))
    if kind is Scheduler.CRON:
        _refuse_into(into)
        return _said(crontab.remove(name))
    is_user = kind is Scheduler.USER
    folder = into or systemd.unit_folder(os.environ, user=is_user)
    done, failed = systemd.remove(name, folder, user=is_user, start=into is None)
    _said(done)
    if failed is not None:
        raise ConfigError(f"systemd may go by the units that were removed until it ends, if it runs: {failed}")
    return 0


def _look_at(settings: Settings, schedule: Schedule) -> None:
    """Refuse to schedule what can't be played, and warn of what will not be there.

    Raises:
        ConfigError: audit.yaml names no playbook.
    """
    if not settings.playbooks:
        raise nothing_to_play(schedule.project)
    for name, source in settings.alerts.to.items() if settings.alerts else ():
        if source.kind == "env" and source.words[0] not in schedule.environment:
            tell(
                f"remoterun: alerts.to.{name} takes its URL from {source.words[0]}, which is not in the environment of "
                "cron and systemd: take it from a file, or see docs/cron.md\n"
            )


def _look_back(project: Path) -> None:
    """Tell of histories that may be this project's, if it has moved: before its audits tell people everything anew."""
    from remoterun.cli.opened import former_projects
    from remoterun.history import History, HistoryError, default_folder

    with suppress(HistoryError), History.open(default_folder()) as history:
        for hint in former_projects(history, [str(plain(str(project)))]):
            tell(f"remoterun: {hint}\n")


def _refuse_into(into: Path | None) -> None:
    if into is not None:
        raise ConfigError(Problem(path="--into", message="is for systemd's units: a crontab has its own place"))


def _undone(kind: Scheduler, project: Path) -> str:
    return f"to undo it: remoterun schedule remove --{kind} --project {shlex.quote(str(project))}"


def _said(done: Sequence[str]) -> int:
    for line in done:
        write(f"{line}\n")
    return 0
