"""`remoterun inventory`: what the inventory says, and whether it is right."""

from __future__ import annotations

from typing import Annotated

import typer

from remoterun.api import Choice, Project
from remoterun.cli.fitting import write_line, write_rows
from remoterun.cli.options import Format, OutputOption, ProjectOption
from remoterun.cli.output import write_json
from remoterun.errors import ConfigError
from remoterun.model import Json, Target, format_duration

app = typer.Typer(help="What the inventory says, and whether it is right.", no_args_is_help=True)

SCHEMA = "remoterun/inventory/1"


@app.command("list")
def list_(
    *,
    on: Annotated[list[str] | None, typer.Option("--on", metavar="PATTERN", help="Only these; default: all.")] = None,
    project: ProjectOption = None,
    output: OutputOption = Format.TABLE,
) -> int:
    """List the targets, with everything resolved."""
    targets = Project.load(project).select(Choice(on=tuple(on or ())), ("all",))
    if output is Format.TABLE:
        write_rows([("TARGET", "NAME", "ADDRESS", "INTERPRETER", "TAGS"), *map(_row, targets)])
    else:
        document: dict[str, Json] = {"schema": SCHEMA, "targets": [describe(target) for target in targets]}
        write_json(document, indent=output.indent)
    return 0


@app.command()
def check(*, project: ProjectOption = None, output: OutputOption = Format.TABLE) -> int:
    """Check inventory, playbooks, payloads and audit.yaml; say every problem at once."""
    from remoterun.cli.checking import Checking

    found = Checking(project)
    if found.problems:
        raise ConfigError(found.problems)
    names = found.project.catalog.names()
    counts = {"targets": len(found.project.inventory.targets), "playbooks": len(found.files), "payloads": len(names)}
    if output is Format.TABLE:
        from remoterun.report.text import plural

        said = ", ".join(plural(count, name.removesuffix("s")) for name, count in counts.items())
        audit = ", audit.yaml" if found.has_audit else ""
        write_line(f"{found.root or 'no project here'}: ok, {said}{audit}")
    else:
        document: dict[str, Json] = {"schema": "remoterun/check/1", "status": "ok", **counts, "audit": found.has_audit}
        write_json(document, indent=output.indent)
    return 0


def describe(target: Target) -> dict[str, Json]:
    """Tell a resolved target as plain values; of its environment only the names, since the values may be secrets."""
    host = target.host
    return {
        "id": target.id,
        "name": target.name,
        "host": host.key,
        "guest": target.guest,
        "address": host.address,
        "port": host.port,
        "user": host.user,
        "transport": host.transport,
        "hop": target.hop,
        "become": host.become,
        "jump": [jump.address for jump in host.jump] if host.jump is not None else None,
        "interpreter": target.interpreter,
        "venv": target.venv,
        "guest_user": target.user,
        "env": [*sorted(target.env)],
        "vars": dict(target.vars),
        "tags": [*sorted(target.tags)],
        "limits": {name: format_duration(value) for name, value in target.limits.items()},
    }


def _row(target: Target) -> tuple[str, ...]:
    host = target.host
    login = f"{host.user}@" if host.user else ""
    address = (
        "local" if host.transport == "local" else f"{login}{host.address}" + (f":{host.port}" if host.port else "")
    )
    return target.id, target.name or "-", address, target.interpreter, " ".join(sorted(target.tags)) or "-"
