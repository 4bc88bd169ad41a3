"""`remoterun payload`: what can be run, in which versions, with which parameters."""

from __future__ import annotations

import json
import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remoterun.api import Project
from remoterun.cli import completing
from remoterun.cli.dryrun import show_plan
from remoterun.cli.fitting import write_line
from remoterun.cli.options import Flags, Format, OutputOption, ProjectOption
from remoterun.cli.output import tell, write, write_json
from remoterun.cli.perform import perform
from remoterun.cli.sharing import taking
from remoterun.errors import ConfigError
from remoterun.model import CacheWork, Json, format_duration

if TYPE_CHECKING:
    from remoterun.catalog import Param, PayloadInfo

app = typer.Typer(help="What can be run, in which versions, with which parameters.", no_args_is_help=True)

LIST_SCHEMA = "remoterun/payloads/1"
SHOW_SCHEMA = "remoterun/payload/1"


class Kind(StrEnum):
    """Name a form of payload."""

    PACKAGE = "package"
    FILE = "file"
    PROGRAM = "program"


@app.command("list")
def list_(*, project: ProjectOption = None, output: OutputOption = Format.TABLE) -> int:
    """List the payloads that can be played."""
    catalog = Project.load(project).catalog
    payloads = catalog.payloads
    if output is not Format.TABLE:
        if catalog.problems:
            raise ConfigError(catalog.problems)
        document: dict[str, Json] = {"schema": LIST_SCHEMA, "payloads": [_summary(info) for info in payloads]}
        write_json(document, indent=output.indent)
        return 0
    heads = [f"{info.name} {info.version}" for info in payloads]
    width = max(map(len, heads), default=0)
    for head, info in zip(heads, payloads, strict=True):
        shadows = f", shadows {info.shadows}" if info.shadows else ""
        write_line(f"{head:<{width}}  {info.description} ({info.origin}{shadows})", hang=width + 2)
    if catalog.problems:
        raise ConfigError(catalog.problems)
    return 0


@app.command()
def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A payload, with or without a version: check-ckpt, check-ckpt@1.",
            autocompletion=completing.payloads,
        ),
    ],
    *,
    project: ProjectOption = None,
    output: OutputOption = Format.TABLE,
) -> int:
    """Show one payload: parameters, defaults, limits, and the hash of its code."""
    info = Project.load(project).catalog.find(name)
    if output is not Format.TABLE:
        document: dict[str, Json] = {
            "schema": SHOW_SCHEMA,
            **_summary(info),
            "rules": list(info.rules),
            "params": [_param(param) for param in info.params],
        }
        write_json(document, indent=output.indent)
        return 0
    _write_about(info)
    return 0


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The payload's name, such as disk-speed.")],
    *,
    kind: Annotated[
        Kind,
        typer.Option(
            "--kind", metavar="KIND", help="package: a Python package; file: a single file; program: any program."
        ),
    ] = Kind.PACKAGE,
    project: ProjectOption = None,
) -> int:
    """Write a small payload that works, into the project's payloads folder."""
    from remoterun.catalog import Catalog, scaffold
    from remoterun.inventory import FILE_NAME, find_project

    if name in Catalog.load(None).names():
        # It would be played instead, and say that all is well.
        raise ConfigError(
            f"a payload named {name!r} is there already, and this would take its place: choose another name"
        )
    root = find_project(Path.cwd(), project) or Path.cwd()
    for path in scaffold(name, root / "payloads", kind.value):
        write(f"{path}\n")
    where, play = shlex.quote(str(root)), f"remoterun play {name}"
    if (root / FILE_NAME).is_file():
        tell(f"to play it:\n  {play} --project {where} --on TARGET\n")
    else:
        tell(
            f"nothing finds it here until there is an {FILE_NAME}; for one with this machine alone, and to play it:\n"
            f"  echo 'hosts: {{here: {{transport: local}}}}' > {shlex.quote(str(root / FILE_NAME))}\n"
            f"  {play} --project {where} --on here\n"
        )
    return 0


@app.command()
@taking(Flags)
def gc(*, flags: Flags) -> int:
    """Empty what remoterun keeps on targets: code of payloads, and what check-ckpt remembers of checkpoints."""
    plan = Project.load(flags.project).plan_work("payload gc", CacheWork(), flags.choice())
    return show_plan(plan, flags.output) if flags.dry_run else perform(plan, flags.showing())[1]


def _write_about(info: PayloadInfo) -> None:
    pack = info.pack()
    write_line(f"{info.name} {info.version} ({info.origin})")
    write_line(info.description, hang=0)
    write_line("")
    write_line(f"sha256  {pack.sha256}", hang=8)
    write_line(f"code    {len(pack.data)} bytes, from {info.path}", hang=8)
    requires = "".join(f", {name}" for name in info.requires)
    write_line(f"needs   Python >= {info.python[0]}.{info.python[1]}{requires}", hang=8)
    for limit, value in info.limits.items():
        write_line(f"limit   {limit} = {format_duration(value)}", hang=8)
    if info.rules:
        rules = f"{len(info.rules)}, from {info.rules[0]} to {info.rules[-1]}" if len(info.rules) > 1 else info.rules[0]
        write_line(f"rules   {rules}, for --ignore and --severity", hang=8)
    if info.params:
        write_line("")
        write_line("parameters, given as --set NAME=VALUE or under `params:`")
    width = max((len(param.name) for param in info.params), default=0)
    for param in info.params:
        default = "required" if param.required else f"default {json.dumps(param.default)}"
        about = f"{param.type}{_bounds(param)}, {default}  {param.help}"
        write_line(f"  {param.name:<{width}}  {about}", hang=width + 4)


def _summary(info: PayloadInfo) -> dict[str, Json]:
    return {
        "name": info.name,
        "version": info.version,
        "description": info.description,
        "origin": info.origin,
        "path": str(info.path),
        "shadows": info.shadows,
        "sha256": info.pack().sha256,
        "requires": list(info.requires),
        "limits": {name: format_duration(value) for name, value in info.limits.items()},
    }


def _param(param: Param) -> dict[str, Json]:
    return {
        "name": param.name,
        "type": param.type,
        "required": param.required,
        "default": param.default,
        "help": param.help,
        "choices": [*param.choices],
        "min": param.min,
        "max": param.max,
        "items": param.items,
        "var": param.var,
    }


def _bounds(param: Param) -> str:
    """Say what a value may be, beyond its type."""
    if param.choices:
        return f" ({' | '.join(map(str, param.choices))})"
    words = [f"{word} {value}" for word, value in (("from", param.min), ("to", param.max)) if value is not None]
    return f" ({' '.join(words)})" if words else ""
