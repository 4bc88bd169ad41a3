"""`remoterun check`: what check-ckpt does on a target, on this machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from remoterun.api import Project
from remoterun.cli.dryrun import show_plan
from remoterun.cli.options import Flags, IgnoreOption, ParamsOption, SetOption, SeverityOption
from remoterun.cli.perform import perform
from remoterun.cli.sharing import taking
from remoterun.cli.values import rule_changes
from remoterun.errors import ConfigError
from remoterun.inventory import find_project
from remoterun.inventory.here import absolute
from remoterun.model import Severity


@taking(Flags, "env", "limit", "no_cache", "output", "file", "events", "quiet", "verbose", "dry_run")
def check(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Folders of checkpoints, or single files.")],
    *,
    venv: Annotated[
        str | None, typer.Option("--venv", metavar="DIR", help="Use the Python of this virtual environment.")
    ] = None,
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="PATH", help="Use this Python: a path or a name. Default: remoterun's own."),
    ] = None,
    params: ParamsOption = None,
    set_: SetOption = None,
    ignore: IgnoreOption = None,
    severity: SeverityOption = None,
    fail_on: Annotated[
        Severity,
        typer.Option("--fail-on", help="The lowest severity that exit status 1 stands for.", rich_help_panel="The run"),
    ] = Severity.SUSPECT,
    flags: Flags,
) -> int:
    """Audit checkpoints on this machine, without SSH or an inventory.

    As `remoterun play check-ckpt` does elsewhere: no file is loaded or executed.
    Each PATH is judged by itself; to compare checkpoints, name their folder.
    """
    located = replace(flags, venv=_located(venv), python=python if python and "/" not in python else _located(python))
    choice = located.choice(params=set_, files=params, rules=rule_changes(ignore, severity))
    plan = replace(Project.none().plan_check(paths, choice, fail_on=fail_on), project=_project())
    return show_plan(plan, flags.output) if flags.dry_run else perform(plan, flags.showing())[1]


def _project() -> str:
    """Return whose run it is: `diff` and `report` look for runs of the project around the folder they start in.

    Nothing of it is read, so what may be wrong there keeps nobody from an audit.
    """
    try:
        root = find_project()
    except ConfigError:
        return ""
    return str(root) if root else ""


def _located(path: str | None) -> str | None:
    return None if path is None else str(absolute(path))
