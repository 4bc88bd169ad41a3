"""`remoterun play`, `run` and `exec`: everything that starts something on targets."""

import ast
import re
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from remoterun.api import Project
from remoterun.cli import completing
from remoterun.cli.apart import metrics_file
from remoterun.cli.dryrun import show_plan
from remoterun.cli.given import something_unread
from remoterun.cli.options import (
    DetachOption,
    Flags,
    IgnoreOption,
    MetricsOption,
    ParamsOption,
    SetOption,
    SeverityOption,
)
from remoterun.cli.output import tell
from remoterun.cli.perform import detachable, perform
from remoterun.cli.sharing import taking
from remoterun.cli.values import rule_changes, word
from remoterun.errors import ConfigError
from remoterun.model import ExecWork, Manner, ScriptWork

_SCRIPT_MAX = 16 << 20
STDIN_NAME = "<stdin>"
_SHELL = re.compile(rb"#!\s*(?:\S*/env\s+)?(?:\S*/)?(?P<name>(?:ba|da|k|z)?sh)\b")


@taking(Flags)
def play(
    name: Annotated[
        str,
        typer.Argument(
            metavar="PLAYBOOK",
            help="A playbook of the project, or a payload.",
            autocompletion=completing.playbooks,
        ),
    ],
    *,
    params: ParamsOption = None,
    set_: SetOption = None,
    ignore: IgnoreOption = None,
    severity: SeverityOption = None,
    detach: DetachOption = False,
    metrics: MetricsOption = None,
    flags: Flags,
) -> int:
    """Run a playbook or a payload on targets and show what it found.

    For example: remoterun play check-ckpt --on kpro6/200 --set root=/ckpt
    """
    showing = flags.showing(metrics_file(metrics, detach=detach))
    choice = flags.choice(params=set_, files=params, rules=rule_changes(ignore, severity))
    plan = Project.load(flags.project).plan_play(name, choice)
    if detach:
        plan = detachable(plan, lease_given=flags.lease is not None)
    if flags.dry_run:
        return show_plan(plan, flags.output)
    return perform(plan, showing, manner=Manner.LEAVE if detach else Manner.FOLLOW)[1]


_OwnStatus = Annotated[
    bool, typer.Option("--exit-status", help="With one target: leave with the program's own exit status.")
]


@taking(Flags)
def run(
    script: Annotated[str, typer.Argument(metavar="SCRIPT.py", help="A local Python file, or - for standard input.")],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGS...", help="What the script finds in sys.argv.")
    ] = None,
    *,
    exit_status: _OwnStatus = False,
    detach: DetachOption = False,
    flags: Flags,
) -> int:
    """Run a local Python file in the targets' environments, with exact arguments; nothing is installed there.

    The script's own standard input is empty.
    """
    name, source = _read_script(script)
    work = ScriptWork(name=name, source=source, args=tuple(word(text) for text in args or ()))
    return _program(name, work, flags, own_status=exit_status, detach=detach)


@taking(Flags)
def exec_(
    argv: Annotated[
        list[str], typer.Argument(metavar="-- PROGRAM ARGS...", help="The program and its exact arguments.")
    ],
    *,
    exit_status: _OwnStatus = False,
    detach: DetachOption = False,
    flags: Flags,
) -> int:
    """Run any program on targets, word for word: no shell in between.

    The program's standard input is empty: nothing that is piped in here reaches it.
    """
    return _program(
        argv[0], ExecWork(argv=tuple(word(text) for text in argv)), flags, own_status=exit_status, detach=detach
    )


def _program(name: str, work: ScriptWork | ExecWork, flags: Flags, *, own_status: bool, detach: bool) -> int:
    """Run a person's script or program; one that fails by itself is exit status 1, or its own if asked for."""
    choice = flags.choice(reads_stdin="the script" if name == STDIN_NAME else None)
    plan = Project.load(flags.project).plan_work(name, work, choice)
    if detach:
        plan = detachable(plan, lease_given=flags.lease is not None)
    if own_status and detach:
        raise ConfigError("--exit-status needs the program's end, and --detach does not wait for it")
    if own_status and len(plan.jobs) != 1:
        raise ConfigError(f"--exit-status needs exactly one target; {len(plan.jobs)} were chosen")
    if flags.dry_run:
        return show_plan(plan, flags.output)
    if not flags.quiet and something_unread():
        tell("remoterun: what is on standard input is not passed on: programs on targets get none\n")
    manner = Manner.LEAVE if detach else Manner.FOLLOW
    run, status = perform(plan, flags.showing(), programs=True, manner=manner)
    own = run.outcomes[0].exit_status
    return own if own_status and status in {0, 1} and own is not None else status


def _read_script(path: str) -> tuple[str, bytes]:
    """Return name and source of a script; ``-`` reads standard input.

    Raises:
        ConfigError: when it cannot be read or is too large.
    """
    try:
        if path == "-":
            source = sys.stdin.buffer.read(_SCRIPT_MAX + 1)
        else:
            with Path(path).open("rb") as file:
                source = file.read(_SCRIPT_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if len(source) > _SCRIPT_MAX:
        raise ConfigError(f"{path}: is larger than {_SCRIPT_MAX >> 20} MiB, the most a script may have")
    if (shell := _SHELL.match(source)) and not _is_python(source):
        word = shell["name"].decode()
        how = f'remoterun exec --on TARGET -- {word} -c "$(cat {shlex.quote(path)})"'
        raise ConfigError(f"{path}: is a script of {word}, and `run` takes Python: `{how}`")
    return (STDIN_NAME if path == "-" else Path(path).name), source


def _is_python(source: bytes) -> bool:
    """Tell whether this Python can read a source: some begin as a script of a shell that starts Python with them."""
    try:
        compile(source, "", "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True
