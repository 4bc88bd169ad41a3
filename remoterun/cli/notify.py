"""`remoterun notify`: whether those who are told of an audit can be told."""

from __future__ import annotations

from typing import Annotated

import typer

from remoterun.audit import load_settings
from remoterun.audit.file import FILE_NAME
from remoterun.cli.audit import project_root
from remoterun.cli.options import ProjectOption  # noqa: TC001  # typer reads it
from remoterun.cli.output import write
from remoterun.errors import ConfigError, Problem
from remoterun.model import RunStatus

app = typer.Typer(help="Who is told of what an audit finds.", no_args_is_help=True)


@app.callback()
def _notify() -> None:
    """Keep `test` a command of its own, though there is no other."""


@app.command("test")
def send(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these of audit.yaml's alerts.to.")
    ] = None,
    *,
    project: ProjectOption = None,
) -> int:
    """Send everybody a message now, and show who took it.

    Exit status 3 when somebody could not be told.
    """
    from remoterun.audit.notify import NotifyError, need_apprise, send_test

    root = project_root(project)
    alerts = load_settings(root).alerts
    if alerts is None:
        message = "nobody is to be told: add `to`, such as `to: {chat: {file: chat.url}}`"
        raise ConfigError(Problem(file=str(root / FILE_NAME), path="alerts", message=message))
    unknown = [name for name in names or () if name not in alerts.to]
    if unknown:
        known = ", ".join(alerts.to)
        raise ConfigError(Problem(message=f"alerts.to has no {name}: there are {known}") for name in unknown)
    need_apprise()
    status = 0
    for name in names or alerts.to:
        try:
            send_test(alerts.to[name], root.name)
        except NotifyError as error:
            status = RunStatus.INCOMPLETE.exit_code
            write(f"{name}: was not told: {error}\n")
        else:
            write(f"{name}: was told\n")
    return status
