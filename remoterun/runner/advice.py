"""What to do about the ends of which more is known than their codes say: the words, parameters and status of a job."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from remoterun.errors import CODES
from remoterun.inventory.here import is_path
from remoterun.model import ExecWork, Job, PayloadWork

if TYPE_CHECKING:
    from collections.abc import Mapping

_NO_FILE: Final = "No such file or directory"
# By how the messages of systems end.
_REASONS: Final[Mapping[str, str]] = {
    "Permission denied": "It is a folder, or may not be executed, or not be reached: look with `ls -ld` there.",
    "Exec format error": (
        "A script needs a first line such as `#!/bin/sh`, or its shell in front of it (`-- sh FILE`); another program "
        "is damaged, or made for another kind of machine: `file` says for which."
    ),
}
# What programs get on a target when nothing else is said; there it is part of what is uploaded.
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What people type first in a shell, and no program does; `test`, `echo` and others are programs as well.
_BUILTINS: Final = frozenset(
    {"cd", "source", ".", "export", "alias", "ulimit", "umask", "eval", "set", "unset", "exec"}
)
_STATUSES: Final[Mapping[int, str]] = {
    126: "A shell says so of a program that it may not execute: look at its mode (`ls -l`) there.",
    127: f"A shell says so where it finds no such program: it looked in {_PATH}, unless PATH was set otherwise.",
    137: CODES["payload_killed"].hint,
}


def not_started(job: Job, message: str) -> str | None:
    """Say what to do where a program could not be started; None where the code's own hint has to do."""
    if not isinstance(job.work, ExecWork):
        return None
    if not message.endswith(_NO_FILE):
        return next((hint for reason, hint in _REASONS.items() if message.endswith(reason)), None)
    word = job.work.argv[0].decode("utf-8", "replace")
    if len(word.split()) > 1 and len(job.work.argv) == 1:
        line = shlex.quote(word) if word.isprintable() else "COMMAND"
        return f"No shell splits it into words: leave out the quotes around them, or start one with `-- sh -c {line}`."
    if "/" in word:
        return "It is not there; of a script, its first line (`#!`) may name an interpreter that is not there."
    if word in _BUILTINS:
        words = [arg.decode("utf-8", "replace") for arg in job.work.argv]
        # `source` is bash's own word for it.
        line = shlex.join([words[0].replace("source", "."), *words[1:]])
        shown = shlex.quote(f"{line}; ...") if line.isprintable() else "COMMAND"
        return f"Only a shell knows this, and it changes that shell alone: start one for all of it, `-- sh -c {shown}`."
    said = job.env.get("PATH")
    path = f"PATH={said}, as `env` says" if said is not None else f"PATH={_environment(job)}{_PATH}"
    return f"It is not installed there, or not in {path}; name its full path, or set another PATH with `--env`."


def _environment(job: Job) -> str:
    return "" if job.target.venv is None else f"{job.target.venv}/bin:"


def nothing_found(job: Job, message: str) -> str | None:
    """Say where else to look where there was nothing to check: by the parameters whose values the message holds."""
    if not isinstance(job.work, PayloadWork):
        return None
    told = {name: value for name, value in job.work.params.items() if isinstance(value, str) and value in message}
    named = {name: value for name, value in told.items() if value}
    # These have no parameter of that name to set: it is what the target is.
    own = {name for name, value in named.items() if value in map(str, job.target.vars.values())}
    own = own if is_path(job.target) else set()
    flags = [f"`--set {name}={_placeholder(value)}`" for name, value in named.items() if name not in own]
    if own:
        return f"Name another folder or file{''.join(f', or change it with {flag}' for flag in flags)}."
    return f"Look elsewhere with {' or '.join(flags)}, in a playbook under `params`." if flags else None


def _placeholder(value: str) -> str:
    return "DIR" if value.startswith(("/", "~")) else "VALUE"


def exited(status: int) -> str:
    """Say what to do about an exit status; nothing where the program's own words have to do."""
    return _STATUSES.get(status, "")
