"""The outermost frame of the command line: every end of a command becomes an exit status and a message.

Standard output carries only the chosen format, errors included; everything for people goes to standard error.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from remoterun.cli.output import EarlyInterruptError, OutputError, ReaderGoneError, tell, write
from remoterun.errors import ConfigError, Problem
from remoterun.model import RunStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remoterun.cli.app import Command

SIGPIPE_STATUS = 141
SIGTERM_STATUS = 143


def run(argv: Sequence[str], command: Command | None = None) -> int:
    """Run one command line and return its exit status; `command` is what runs, remoterun itself when left out."""
    try:
        return _run(argv, command)
    except (ReaderGoneError, BrokenPipeError):
        # The reader has what it wanted (`| head`). Python's own flush at exit would complain, so stdout becomes
        # nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return SIGPIPE_STATUS


def _run(argv: Sequence[str], command: Command | None) -> int:
    from typer.exceptions import Abort, TyperException

    from remoterun.cli import app

    try:
        status = (command or app.command(argv)).main(list(argv), prog_name="remoterun", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except ConfigError as error:
        return _invalid(argv, error.problems)
    except TyperException as error:
        return _invalid(argv, (Problem(message=error.format_message()),))
    except (KeyboardInterrupt, EarlyInterruptError, Abort):
        _say_problems(argv, (Problem(message="interrupted before anything was started"),), RunStatus.INTERRUPTED)
        return RunStatus.INTERRUPTED.exit_code
    except (ReaderGoneError, BrokenPipeError):
        raise
    except OutputError as error:
        # What ran has run, but its result is lost: that is incomplete.
        tell(f"remoterun: {error}\n")
        return RunStatus.INCOMPLETE.exit_code
    except Exception as error:
        if isinstance(error.__cause__, SystemExit):
            # A signal that came while a class was being made: Python 3.11 wraps whatever is raised there.
            raise error.__cause__ from None
        return _bug(argv, error)


def machine_format(argv: Sequence[str]) -> str | None:
    """Look for ``--output json`` or ``jsonl`` before anything is parsed: usage errors come in that format too."""
    words = list(argv)
    if "--" in words:
        words = words[: words.index("--")]
    found = None
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in {"--output", "-o"} and not equals:
            value = words[index + 1] if index + 1 < len(words) else ""
        elif word.startswith("-o") and not word.startswith("--"):
            value = word[2:].removeprefix("=")
        elif name != "--output":
            continue
        # The last one counts, as it does once everything is parsed.
        found = value if value in {"json", "jsonl"} else None
    return found


def _invalid(argv: Sequence[str], problems: Sequence[Problem]) -> int:
    _say_problems(argv, problems, RunStatus.INVALID)
    return RunStatus.INVALID.exit_code


def _say_problems(argv: Sequence[str], problems: Sequence[Problem], status: RunStatus) -> None:
    from remoterun.report import clean, dump, error_document

    wanted = machine_format(argv)
    if wanted:
        document = error_document(problems, status=status)
        write(dump(document) if wanted == "json" else json.dumps(document, allow_nan=False) + "\n")
    lines = [clean(str(problem)) for problem in problems]
    listed = "".join(f"\n  {line}" for line in lines)
    text = f"remoterun: {lines[0]}\n" if len(lines) == 1 else f"remoterun: nothing was started:{listed}\n"
    tell(text)


def _bug(argv: Sequence[str], error: Exception) -> int:
    """Say a bug of ours in one line and keep the traceback in a file of its own."""
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile("w", prefix="remoterun-bug-", suffix=".txt", delete=False) as file:
        file.write("".join(traceback.format_exception(error)))
    message = f"a bug in remoterun: {type(error).__name__}: {error}; the traceback is in {file.name}"
    _say_problems(argv, (Problem(message=message),), RunStatus.ERROR)
    return RunStatus.ERROR.exit_code
