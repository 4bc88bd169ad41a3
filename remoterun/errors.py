"""What can go wrong, as one tree of exceptions and one closed list of error codes; how messages quote others' words.

::

    RemoterunError
    ├── ConfigError      a file, flag or selection is wrong: every problem at once (exit 2)
    ├── BugError         an error that nobody expected, as text, because it held secrets (exit 4)
    └── TargetError      what went wrong on one target: becomes its outcome, never a traceback

A target's trouble is a value: the runner turns a `TargetError` into the `error` of that target's outcome.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Comparing costs the square of the length, and nobody mistypes a word of this size.
_LONGEST_GUESSED: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Name one thing wrong in what the user wrote.

    `path` is the dotted place inside the file (``hosts.kpro6.guests.200``), `line` counts from 1, `nearest` are the
    known names closest to an unknown one.
    """

    message: str
    file: str | None = None
    line: int | None = None
    path: str | None = None
    nearest: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        path = f"{self.path}: " if self.path else ""
        near = f" (did you mean {' or '.join(self.nearest)}?)" if self.nearest else ""
        return f"{where}: {path}{self.message}{near}" if where else f"{path}{self.message}{near}"


def nearest(word: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return up to three known words that look like an unknown one, the closest first."""
    if len(word) > _LONGEST_GUESSED:
        return ()
    import difflib

    by_lower = {name.lower(): name for name in known}
    return tuple(by_lower[name] for name in difflib.get_close_matches(word.lower(), by_lower, n=3))


# --- the words of others in our messages ------------------------------------------------------------------------------

_LONGEST_SHOWN: Final = 60

# ECMA-48: control sequences (CSI), control strings (OSC, DCS, SOS, PM, APC) and the short escapes, in their 7-bit and
# 8-bit forms. A control string ends at its line's end at the latest, so that a torn one cannot swallow what follows.
_CSI: Final = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
_CONTROL_STRING: Final = r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\r\n]*(?:\x07|\x1b\\|\x9c)?"
_SHORT: Final = r"\x1b[ -/]*[0-~]?"
ESCAPES: Final = f"{_CSI}|{_CONTROL_STRING}|{_SHORT}"
"""A pattern of what terminals obey; compiled on first use."""


def show(value: object) -> str:
    """Write a value that a user wrote as one may see it: quoted, escaped, shortened, never with a control character."""
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    try:
        text = repr(value[: _LONGEST_SHOWN + 1] if isinstance(value, str) else value)
    except (ValueError, RecursionError):  # an int of thousands of digits, a structure of hundreds of levels
        return "too large to show"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


def clean(text: str) -> str:
    """Take out whatever could move a cursor, recolour, reorder or hide: one line of visible characters remains.

    Escape sequences go as wholes. Line breaks, tabs and odd blanks become spaces; control and format characters
    (bidirectional overrides and zero-width ones are among these) vanish; a lone surrogate becomes U+FFFD.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _substitute(char) for char in re.sub(ESCAPES, "", text))


def _substitute(char: str) -> str:
    import unicodedata

    if char.isspace():
        return " "
    category = unicodedata.category(char)
    if category == "Cs":
        return "\ufffd"
    return "" if category in {"Cc", "Cf"} else char


# --- the exceptions ---------------------------------------------------------------------------------------------------


class RemoterunError(Exception):
    """Be the root of every error this package raises on purpose."""


class ConfigError(RemoterunError):
    """Carry every problem of a configuration, a flag or a selection at once."""

    def __init__(self, problems: Iterable[Problem] | Problem | str) -> None:
        if isinstance(problems, str):
            problems = Problem(message=problems)
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class BugError(RemoterunError):
    """Stand for an error that nobody expected, with its traceback as text: the error itself holds secrets."""

    def __init__(self, message: str, traceback: str) -> None:
        super().__init__(message)
        self.traceback = traceback


class TargetError(RemoterunError):
    """Say what went wrong on one target, by a code of `CODES`.

    Args:
        code: a key of `CODES`; anything else is a bug and raises KeyError. message: what happened, in words, with the
            subject in front. hint: what to do; the code's own hint when left out. limit: the name of the limit that
            ended it (`connect`, `enter`, ...), its value in seconds and the key that changes it.
    """

    def __init__(
        self, code: str, message: str, *, hint: str | None = None, limit: tuple[str, float, str] | None = None
    ) -> None:
        self.code = code
        self.message = message
        self.hint = CODES[code].hint if hint is None else hint
        self.limit = limit
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Code:
    """Describe an error code: the status its outcome has, what it means, what to do."""

    status: str
    meaning: str
    hint: str


_FAILED, _TIMEOUT, _UNREACHABLE, _LOST = "failed", "timeout", "unreachable", "lost"

CODES: Final[Mapping[str, Code]] = MappingProxyType(
    {
        # connect
        "dns_failed": Code(
            _UNREACHABLE,
            "The host's address could not be resolved.",
            "Check the address (`address` in the inventory, or `--on`), or the name in ssh_config.",
        ),
        "connect_refused": Code(
            _UNREACHABLE, "Nothing listens on the SSH port.", "Check that sshd runs there and that `port` is right."
        ),
        "connect_failed": Code(
            _UNREACHABLE,
            "The SSH connection broke before it was usable.",
            "Try `ssh -v` to the same host; the message says how far it came.",
        ),
        "connect_timeout": Code(
            _UNREACHABLE,
            "No usable SSH connection within the limit `connect`.",
            "Check the address and firewall, or raise `limits.connect` (`--limit connect=1m`).",
        ),
        "host_key_unknown": Code(
            _UNREACHABLE,
            "The host's key is in no known_hosts file and not pinned.",
            "Compare the fingerprint with the host's own (`remoterun hostkeys show --on TARGET`); trust it, and those "
            "of jump hosts, with `remoterun hostkeys accept --on TARGET`.",
        ),
        "host_key_changed": Code(
            _UNREACHABLE,
            "The host offers another key than the known or pinned one.",
            "Find out why before anything else (`remoterun hostkeys show --on TARGET` tells what it offers); if it was "
            "reinstalled, remove the old entry (`ssh-keygen -R ADDRESS`) or pin, "
            "then `remoterun hostkeys accept --on TARGET`.",
        ),
        "auth_failed": Code(
            _UNREACHABLE,
            "The host refused every key that was offered.",
            "Check `user` (`--user`) and `identity_file` (`--identity`), and that the agent holds the key "
            "(`ssh-add -l`).",
        ),
        "session_refused": Code(
            _UNREACHABLE,
            "The SSH server refused to open another session.",
            "Lower `concurrency.sessions` for this host, or raise MaxSessions there.",
        ),
        "too_many_files": Code(
            _UNREACHABLE,
            "This machine lets remoterun open no more files, and each connection is one.",
            "Raise its limit (`ulimit -n 4096`), or have fewer targets at work at a time (`--targets-at-once 16`).",
        ),
        # enter
        "pct_missing": Code(
            _FAILED, "There is no `pct` on the host.", "Is this a Proxmox host? For plain LXC use `hop: lxc`."
        ),
        "lxc_missing": Code(
            _FAILED, "There is no `lxc-attach` on the host.", "Install lxc there, or choose another `hop`."
        ),
        "not_permitted": Code(
            _FAILED,
            "The login may not enter guests.",
            "Log in as root, or set `become: sudo` and allow `/usr/sbin/pct` in sudoers without a password.",
        ),
        "sudo_refused": Code(
            _FAILED,
            "sudo on the host wants a password or refuses the command.",
            "Allow the command with NOPASSWD in sudoers; remoterun never types a password into sudo.",
        ),
        "guest_not_found": Code(
            _FAILED,
            "The host has no guest of that id.",
            "Check the id with `pct list` on the host; the guest may have moved to another node.",
        ),
        "guest_stopped": Code(
            _FAILED, "The guest is not running.", "Start it (`pct start ID`, `lxc-start -n ID`), then run again."
        ),
        "guest_frozen": Code(
            _TIMEOUT,
            "The guest is frozen, so nothing in it can run.",
            "Is a backup running? Thaw it (`lxc-unfreeze -n ID`) or wait, then run again.",
        ),
        "user_unknown": Code(
            _FAILED,
            "The guest has no such user, or has no `setpriv`.",
            "Check `user` of the guest in the inventory, or `--guest-user`.",
        ),
        "shell_missing": Code(
            _FAILED,
            "The target has no working /bin/sh.",
            "remoterun needs a POSIX shell on the target to find Python.",
        ),
        "interpreter_missing": Code(
            _FAILED,
            "There is no Python at that path on the target.",
            "Set `python` for this target in the inventory, or give `--python PATH`.",
        ),
        "interpreter_broken": Code(
            _FAILED,
            "The Python on the target did not start.",
            "Try it by hand on the target; the noise field holds what it printed.",
        ),
        "python_too_old": Code(
            _FAILED, "The Python on the target is older than 3.8.", "Point `venv` or `python` at a newer one."
        ),
        "venv_missing": Code(
            _FAILED,
            "There is no virtual environment at that path on the target.",
            "Set `venv` (`--venv`) to one that was found; where none was, set `python: python3` (`--python python3`) "
            "instead to do without one.",
        ),
        "enter_timeout": Code(
            _TIMEOUT,
            "The target did not answer within the limit `enter`.",
            "Is the host overloaded or the guest frozen? Raise `limits.enter` (`--limit enter=2m`) if it is only slow.",
        ),
        "enter_failed": Code(
            _FAILED,
            "The command that enters the target ended without starting Python.",
            "The message holds what the host printed.",
        ),
        # upload
        "upload_timeout": Code(
            _TIMEOUT,
            "The payload's code did not reach the target within the limit `upload`.",
            "The link is slow or stalled: raise `limits.upload` (`--limit upload=5m`).",
        ),
        "upload_damaged": Code(
            _FAILED,
            "The payload's code arrived with another hash than it was sent with.",
            "Run again; if it happens twice, the path between is damaging data.",
        ),
        "no_space": Code(_FAILED, "The target has no room to hold the payload.", "Free memory or disk on the target."),
        # run
        "start_failed": Code(
            _FAILED,
            "The payload's process could not be started.",
            "The message holds the reason that the target gave.",
        ),
        "module_missing": Code(
            _FAILED,
            "The payload needs a Python module that this interpreter does not have.",
            "Point `venv` at the environment that has it, or install it there.",
        ),
        "nothing_to_check": Code(
            _FAILED,
            "The payload found nothing to check, which is never a pass.",
            "Name another place: `remoterun check DIR`, or the payload's parameter for it (`--set root=DIR`, "
            "or the variable that it comes from).",
        ),
        "payload_failed": Code(
            _FAILED, "The payload said that it could not do its work.", "The message holds the payload's own words."
        ),
        "payload_crashed": Code(
            _FAILED, "The payload ended with an uncaught error, or without finishing.", "stderr holds the traceback."
        ),
        "payload_killed": Code(
            _FAILED,
            "A signal that remoterun did not send ended the payload.",
            "SIGKILL mostly means the kernel's out-of-memory killer: look at `dmesg` there.",
        ),
        "processes_left": Code(
            _FAILED,
            "The program is done, but processes it started could not be killed.",
            "They hang in the kernel, mostly on storage: look for state D with `ps` on the target.",
        ),
        "nonzero_exit": Code(
            _FAILED, "The program ended with a non-zero exit status.", "stderr and exit_status say more."
        ),
        "output_limit": Code(
            _FAILED,
            "The target sent more than the limits of an outcome allow.",
            "Let the payload emit fewer or smaller records.",
        ),
        "run_timeout": Code(
            _TIMEOUT,
            "The payload ran longer than the limit `run` and was killed.",
            "Raise `limits.run` (`--limit run=2h`, or `none`), or narrow the work.",
        ),
        "total_timeout": Code(
            _TIMEOUT, "The target took longer than the limit `total`.", "Raise `limits.total` (`--limit total=4h`)."
        ),
        "idle_timeout": Code(
            _LOST,
            "Nothing at all came from the target within the limit `idle`.",
            "The network or the guest stopped; what had arrived is kept.",
        ),
        "stall_timeout": Code(
            _TIMEOUT,
            "The payload made no progress within the limit `stall` and was killed.",
            "Is its storage hanging? Raise `limits.stall` (`--limit stall=30m`) if the work is only slow.",
        ),
        # collect
        "connection_lost": Code(
            _LOST, "The connection ended before the result was complete.", "Run again; what had arrived is kept."
        ),
        "run_cut": Code(
            _LOST,
            "The run's own process ended before this target was done (killed, or its machine went down).",
            "`remoterun resume RUN` does what is left of it; `remoterun show RUN` shows what had arrived.",
        ),
        "still_running": Code(
            _LOST,
            "The run is going on in another process, and this target has no outcome yet.",
            "Look again when it is done: `remoterun runs` tells.",
        ),
        "lease_expired": Code(
            _LOST,
            "The target heard nothing from the controller for the lease, and ended the run.",
            "Run again with a longer `--lease`, or with `--detach` and `remoterun collect` later.",
        ),
        "taken_over": Code(
            _LOST,
            "Another remoterun has taken this run up, and goes on with it.",
            "Look there, or take it back with `remoterun attach RUN`.",
        ),
        "output_forgotten": Code(
            _LOST,
            "The run goes on, but the target no longer keeps the beginning of what it said.",
            "`remoterun cancel RUN` ends it there; then run again.",
        ),
        "result_damaged": Code(
            _FAILED,
            "The result did not arrive whole: frames, counts or hash do not agree.",
            "Run again; if it happens twice, something on the target writes into the channel.",
        ),
        # any phase
        "cancelled": Code("cancelled", "The run was cancelled.", "`remoterun resume RUN` does what is left of it."),
        "earlier_step": Code(
            "not_started", "An earlier step of this target did not succeed.", "See the outcome of that step."
        ),
        "internal": Code(
            _FAILED,
            "remoterun itself failed on this target: a bug.",
            "Please report it; `log` of the outcome has the traceback.",
        ),
    }
)
