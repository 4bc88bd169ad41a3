"""The outermost frame of the command line: every end of a command becomes an exit status and a message.

Standard output carries only the chosen format, errors included; everything for people goes to standard error.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from remoterun.cli.fitting import tell_line, tell_lines
from remoterun.cli.output import OutputError, ReaderGoneError, end_of, machine_format, tell, write_document
from remoterun.cli.signals import SignalledError
from remoterun.cli.surroundings import settle_home, told
from remoterun.errors import BugError, ConfigError, Problem
from remoterun.model import RunStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remoterun.cli.app import Command

_LOOKING = ("inventory", "payload")


def run(argv: Sequence[str], command: Command | None = None) -> int:
    """Run one command line and return its exit status; `command` is what runs, remoterun itself when left out."""
    settle_home()
    return end_of(lambda: _run(argv, command))


def _run(argv: Sequence[str], command: Command | None) -> int:
    from typer.exceptions import TyperException

    from remoterun.cli import app

    try:
        status = (command or app.command(argv)).main(list(argv), prog_name="remoterun", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except ConfigError as error:
        return _end(argv, error.problems, RunStatus.INVALID)
    except TyperException as error:
        from remoterun.cli.advice import usage_problem

        problem = usage_problem(argv, error)
        # Where there were no words, the help has been shown, and there is no more to say.
        return _end(argv, (problem,), RunStatus.INVALID) if problem.message else RunStatus.INVALID.exit_code
    except SignalledError as error:
        return _signalled(argv, error)
    except (ReaderGoneError, OutputError):
        raise
    except Exception as error:
        if isinstance(error.__cause__, SignalledError):
            # It came while a class was being made: Python 3.11 wraps whatever is raised there.
            return _signalled(argv, error.__cause__)
        found = told(error)
        return _bug(argv, error) if found is None else _end(argv, (found[0],), found[1])


def _end(argv: Sequence[str], problems: Sequence[Problem], status: RunStatus) -> int:
    """Tell problems, in the chosen format too, and return the exit status that belongs to them."""
    if len(problems) == 1:
        tell_line(f"remoterun: {problems[0]}")
    else:
        # Who only looks has nothing to start.
        more = "" if argv[0] in _LOOKING else "; nothing was started"
        tell_lines([f"remoterun: {len(problems)} problems{more}:", *(f"  {problem}" for problem in problems)])
    wanted = machine_format(argv)
    if wanted:
        try:
            write_document(_document(problems, status, wanted))
        except OutputError as error:
            tell(f"remoterun: {error}\n")
    return status.exit_code


def _document(problems: Sequence[Problem], status: RunStatus, wanted: str) -> bytes:
    from remoterun.report import dump, error_document

    if wanted == "junit":
        from remoterun.report.junit import junit_problems

        return junit_problems(problems)
    document = error_document(problems, status=status)
    return dump(document) if wanted == "json" else json.dumps(document, allow_nan=False).encode("ascii") + b"\n"


def _signalled(argv: Sequence[str], error: SignalledError) -> int:
    """End for a signal; a hangup has no document, since it says that nobody is there any more."""
    for status in (RunStatus.INTERRUPTED, RunStatus.TERMINATED):
        if status.exit_code == error.status:
            return _end(argv, (Problem(message=f"{status} before anything was started"),), status)
    return error.status


def _bug(argv: Sequence[str], error: Exception) -> int:
    """Say a bug of ours in one line and keep the traceback in a file of its own, or tell it where none can be made."""
    import tempfile
    import traceback

    if isinstance(error, BugError):
        said, traced = str(error), error.traceback
    else:
        said, traced = f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))
    try:
        with tempfile.NamedTemporaryFile(prefix="remoterun-bug-", suffix=".txt", delete=False) as file:
            file.write(traced.encode("utf-8", "backslashreplace"))
        where = f"in {file.name}"
    except OSError:
        tell(traced.encode("utf-8", "backslashreplace"))
        where = "on standard error"
    return _end(argv, (Problem(message=f"a bug in remoterun: {said}; the traceback is {where}"),), RunStatus.ERROR)
