"""The tree of commands."""

from __future__ import annotations

import os
import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, TypeAlias, cast

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    _Built: TypeAlias = Callable[..., int] | typer.Typer


class Command(Protocol):
    """Be what typer builds: a command line that can be run on words."""

    def main(self, args: Sequence[str], *, prog_name: str, standalone_mode: bool) -> object:
        """Run the words; errors come out as exceptions when not standalone."""


def _version(*, value: bool) -> None:
    if value:
        from remoterun import __version__

        typer.echo(f"remoterun {__version__}")
        raise typer.Exit


def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Run versioned diagnostic payloads inside containers over SSH and gather structured JSON."""


def _play() -> _Built:
    from remoterun.cli.play import play

    return play


def _check() -> _Built:
    from remoterun.cli.check import check

    return check


def _run() -> _Built:
    from remoterun.cli.play import run

    return run


def _exec() -> _Built:
    from remoterun.cli.play import exec_

    return exec_


def _runs() -> _Built:
    from remoterun.cli.history import runs

    return runs


def _show() -> _Built:
    from remoterun.cli.history import show

    return show


def _report() -> _Built:
    from remoterun.cli.report import report

    return report


def _history() -> _Built:
    from remoterun.cli.diff import app

    return app


def _diff() -> _Built:
    from remoterun.cli.diff import diff

    return diff


def _resume() -> _Built:
    from remoterun.cli.history import resume

    return resume


def _rerun() -> _Built:
    from remoterun.cli.history import rerun

    return rerun


def _attach() -> _Built:
    from remoterun.cli.detached import attach

    return attach


def _collect() -> _Built:
    from remoterun.cli.detached import collect

    return collect


def _cancel() -> _Built:
    from remoterun.cli.detached import cancel

    return cancel


def _audit() -> _Built:
    from remoterun.cli.audit import audit

    return audit


def _schedule() -> _Built:
    from remoterun.cli.schedule import app

    return app


def _notify() -> _Built:
    from remoterun.cli.notify import app

    return app


def _inventory() -> _Built:
    from remoterun.cli.inventory import app

    return app


def _hostkeys() -> _Built:
    from remoterun.cli.hostkeys import app

    return app


def _payload() -> _Built:
    from remoterun.cli.payload import app

    return app


def _schema() -> _Built:
    from remoterun.cli.schema import schema

    return schema


def _demo() -> _Built:
    from remoterun.cli.demo import demo

    return demo


_PANELS: Final[Mapping[str, Mapping[str, Callable[[], _Built]]]] = MappingProxyType(
    {
        "Look at targets": {"play": _play, "check": _check, "run": _run, "exec": _exec},
        "Look back at runs": {"runs": _runs, "show": _show, "report": _report, "history": _history, "diff": _diff},
        "Go on with runs": {
            "resume": _resume,
            "rerun": _rerun,
            "attach": _attach,
            "collect": _collect,
            "cancel": _cancel,
        },
        "Unattended": {"audit": _audit, "schedule": _schedule, "notify": _notify},
        "Set up": {"inventory": _inventory, "hostkeys": _hostkeys, "payload": _payload},
        "Find your way": {"demo": _demo, "schema": _schema},
    }
)
_COMMANDS: Final = tuple(name for panel in _PANELS.values() for name in panel)


class _InOrder(TyperGroup):
    """List the commands as they are listed here; typer's own order has groups of commands last."""

    def list_commands(self, ctx: object) -> list[str]:
        return [name for name in _COMMANDS if name in self.commands]


class _Plain(TyperCommand):
    """Write what has to be given as people know it: `PATH...`, where typer has `{PATH...}`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Take out the braces."""
        return [re.sub(r"^\{(.*)\}$", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]


def _unwrapped(function: Callable[..., object] | None) -> str | None:
    """Return a command's description with a line for each paragraph: the terminal's width breaks them, and not ours."""
    if function is None or function.__doc__ is None:
        return None
    return "\n\n".join(" ".join(each.split()) for each in re.split(r"\n\s*\n", function.__doc__.strip()))


def _add(app: typer.Typer, name: str, built: _Built, panel: str) -> None:
    if not isinstance(built, typer.Typer):
        app.command(name, rich_help_panel=panel, cls=_Plain, help=_unwrapped(built))(built)
        return
    for command in built.registered_commands:
        command.cls, command.help = _Plain, _unwrapped(command.callback)
    app.add_typer(built, name=name, rich_help_panel=panel)


def _first_word(argv: Sequence[str]) -> str:
    """Return the command that is asked for, also where a shell asks what may follow it."""
    if not argv and "_REMOTERUN_COMPLETE" in os.environ:
        from remoterun.cli.completing import typed_words

        # What is still being typed may become any of them.
        words = typed_words()
        return words[1] if len(words) > 1 and words[1] in _COMMANDS else ""
    return argv[0] if argv else ""


def command(argv: Sequence[str] = ()) -> Command:
    """Build the command line: only the command that the words begin with, or all of them.

    Typer takes ten times as long to build them all as to build one.
    """
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        callback=_root,
        cls=_InOrder,
        epilog="New here? remoterun demo",
    )
    first = _first_word(argv)
    for panel, commands in _PANELS.items():
        for name, build in commands.items():
            if first not in _COMMANDS or name == first:
                _add(app, name, build(), panel)
    return cast("Command", typer.main.get_command(app))
