"""`remoterun audit`: one unattended job, for cron and systemd."""

from __future__ import annotations

import math
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remoterun.audit import BUSY_STATUS, BusyError, Ending, ExitOn, exit_code, load_settings
from remoterun.audit.words import SPLAY_AT_MOST_S
from remoterun.cli import completing, signals
from remoterun.cli.fitting import tell_line
from remoterun.cli.options import ProjectOption  # noqa: TC001  # typer reads it
from remoterun.cli.output import tell, write_document, write_pieces
from remoterun.errors import ConfigError, Problem
from remoterun.inventory import FILE_NAME, find_project
from remoterun.model import RunStatus, format_duration, parse_duration
from remoterun.model.times import now_text

if TYPE_CHECKING:
    from types import FrameType

    from remoterun.audit.outcome import Audit


class AuditFormat(StrEnum):
    """Name what standard output carries."""

    TEXT = "text"
    JSON = "json"


def audit(
    playbooks: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PLAYBOOK]...",
            help="Playbooks or payloads, in place of those of audit.yaml.",
            autocompletion=completing.playbooks,
        ),
    ] = None,
    *,
    project: ProjectOption = None,
    splay: Annotated[
        str | None, typer.Option("--splay", metavar="DURATION", help="Wait for a random time up to this first.")
    ] = None,
    exit_on: Annotated[
        ExitOn | None,
        typer.Option(
            "--exit-on",
            metavar="WHEN",
            help="What the exit status tells of. always: of what was found, as play does; changed: only of what is "
            "other than at the last audit; findings: not of targets without a result. Default: always.",
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say what is done, step by step, and that nothing is new.")
    ] = False,
    output: Annotated[
        AuditFormat, typer.Option("--output", metavar="FORMAT", help="What standard output carries: text or json.")
    ] = AuditFormat.TEXT,
) -> int:
    """Audit the project unattended: quiet unless something changed or was not looked at; people are told once.

    Exit status 75 when another audit of the project goes on.
    """
    from remoterun.audit.job import perform_audit, wait_for_turn
    from remoterun.history import default_folder

    root = project_root(project)
    settings = load_settings(root)
    splay_s = _seconds(splay) if splay is not None else settings.splay_s
    ending = Ending()
    try:
        wait_for_turn(root, default_folder(), splay_s, lambda wait_s: _waiting(wait_s) if verbose else None)
        signals.handle(lambda number, frame: _end(ending, number, frame))
        done = perform_audit(root, default_folder(), settings, playbooks or (), ending, _say if verbose else None)
    except BusyError as error:
        return _busy(root, error, output)
    signals.finish(None if ending.status is None else ending.status.exit_code - 128)
    # Who was not told is among the steps already.
    for said in (*done.problems, *(() if verbose else done.delivery.failed)):
        tell_line(f"remoterun: {said}")
    wanted = exit_on or settings.exit_on
    _write(done, wanted, output, verbose=verbose)
    return exit_code(done, wanted)


def _write(done: Audit, exit_on: ExitOn, output: AuditFormat, *, verbose: bool) -> None:
    """Write what an audit has to say: nothing, where nothing is other than at the last one."""
    if output is AuditFormat.JSON:
        from remoterun.audit.document import audit_pieces

        write_pieces(audit_pieces(done, exit_on))
    elif verbose:
        from remoterun.audit.summary import sentences

        _say(f"done, with exit status {exit_code(done, exit_on)}")
        if sys.stdout.isatty() and sys.stderr.isatty():
            tell("\n")
        write_document(sentences(done))
    elif done.noteworthy:
        from remoterun.audit.summary import paragraph

        write_document(paragraph(done))


def project_root(project: Path | None) -> Path:
    """Return the folder of the project.

    Raises:
        ConfigError: there is none.
    """
    root = find_project(None, project)
    if root is None:
        raise ConfigError(
            Problem(path="--project", message=f"no folder from here upwards has an {FILE_NAME}: name the project's")
        )
    return root


def _seconds(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ConfigError as error:
        raise ConfigError(Problem(path="--splay", message=error.problems[0].message)) from error
    if seconds is not None and seconds > SPLAY_AT_MOST_S:
        raise ConfigError(Problem(path="--splay", message=f"{text} is too long: at most 30d"))
    return seconds or 0.0


def _waiting(wait_s: float) -> None:
    tell_line(f"remoterun: begins in {format_duration(math.ceil(wait_s))}")


def _say(text: str) -> None:
    """Say a step and when it was, in UTC as everywhere; standard output is the result's."""
    tell_line(f"{now_text()[11:19]}  {text}", hang=12)


def _end(ending: Ending, number: int, _frame: FrameType | None) -> None:
    ending.end(RunStatus.TERMINATED if number == signal.SIGTERM else RunStatus.INTERRUPTED)


def _busy(root: Path, error: BusyError, output: AuditFormat) -> int:
    tell_line(f"remoterun: {error}")
    if output is AuditFormat.JSON:
        from remoterun.audit.document import busy_document
        from remoterun.report import dump

        write_document(dump(busy_document(str(root), error.holder, BUSY_STATUS)))
    return BUSY_STATUS
