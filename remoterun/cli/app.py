"""The tree of commands."""

from __future__ import annotations

import os
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final, Protocol, cast

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


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


def _play(app: typer.Typer) -> None:
    from remoterun.cli.play import play

    app.command("play")(play)


def _check(app: typer.Typer) -> None:
    from remoterun.cli.check import check

    app.command("check")(check)


def _run(app: typer.Typer) -> None:
    from remoterun.cli.play import run

    app.command("run")(run)


def _exec(app: typer.Typer) -> None:
    from remoterun.cli.play import exec_

    app.command("exec")(exec_)


def _inventory(app: typer.Typer) -> None:
    from remoterun.cli.inventory import app as inventory

    app.add_typer(inventory, name="inventory")


def _hostkeys(app: typer.Typer) -> None:
    from remoterun.cli.hostkeys import app as hostkeys

    app.add_typer(hostkeys, name="hostkeys")


def _payload(app: typer.Typer) -> None:
    from remoterun.cli.payload import app as payload

    app.add_typer(payload, name="payload")


def _schema(app: typer.Typer) -> None:
    from remoterun.cli.schema import schema

    app.command("schema")(schema)


def _runs(app: typer.Typer) -> None:
    from remoterun.cli.history import runs

    app.command("runs")(runs)


def _show(app: typer.Typer) -> None:
    from remoterun.cli.history import show

    app.command("show")(show)


def _resume(app: typer.Typer) -> None:
    from remoterun.cli.history import resume

    app.command("resume")(resume)


def _rerun(app: typer.Typer) -> None:
    from remoterun.cli.history import rerun

    app.command("rerun")(rerun)


def _attach(app: typer.Typer) -> None:
    from remoterun.cli.detached import attach

    app.command("attach")(attach)


def _collect(app: typer.Typer) -> None:
    from remoterun.cli.detached import collect

    app.command("collect")(collect)


def _cancel(app: typer.Typer) -> None:
    from remoterun.cli.detached import cancel

    app.command("cancel")(cancel)


def _history(app: typer.Typer) -> None:
    from remoterun.cli.diff import app as history

    app.add_typer(history, name="history")


def _diff(app: typer.Typer) -> None:
    from remoterun.cli.diff import diff

    app.command("diff")(diff)


def _report(app: typer.Typer) -> None:
    from remoterun.cli.report import report

    app.command("report")(report)


def _audit(app: typer.Typer) -> None:
    from remoterun.cli.audit import audit

    app.command("audit")(audit)


def _schedule(app: typer.Typer) -> None:
    from remoterun.cli.schedule import app as schedule

    app.add_typer(schedule, name="schedule")


def _notify(app: typer.Typer) -> None:
    from remoterun.cli.notify import app as notify

    app.add_typer(notify, name="notify")


def _demo(app: typer.Typer) -> None:
    from remoterun.cli.demo import demo

    app.command("demo")(demo)


_COMMANDS: Final[Mapping[str, Callable[[typer.Typer], None]]] = MappingProxyType(
    {
        "play": _play,
        "check": _check,
        "run": _run,
        "exec": _exec,
        "runs": _runs,
        "show": _show,
        "resume": _resume,
        "rerun": _rerun,
        "attach": _attach,
        "collect": _collect,
        "cancel": _cancel,
        "history": _history,
        "diff": _diff,
        "report": _report,
        "audit": _audit,
        "schedule": _schedule,
        "notify": _notify,
        "inventory": _inventory,
        "hostkeys": _hostkeys,
        "payload": _payload,
        "schema": _schema,
        "demo": _demo,
    }
)


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
    )
    first = _first_word(argv)
    for name, add in _COMMANDS.items():
        if first not in _COMMANDS or name == first:
            add(app)
    return cast("Command", typer.main.get_command(app))
