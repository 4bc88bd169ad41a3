"""A line in the user's crontab, between two of our own; all others are left as they are."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from remoterun.errors import ConfigError, Problem, clean
from remoterun.model import format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remoterun.audit.schedule import Schedule

_COMMAND_S: Final = 60.0
_FIELDS: Final = re.compile(r"[0-9A-Za-z*/,-]+(?: +[0-9A-Za-z*/,-]+){4}")
_WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "hourly": "0 * * * *",
        "daily": "0 0 * * *",
        "weekly": "0 0 * * 1",
        "monthly": "0 0 1 * *",
    }
)
# What the crontab of Debian and Fedora says of a user who has none, and that of BusyBox.
_NONE_YET: Final = ("no crontab for", "no such file")
_MINUTE_S, _HOUR_S, _DAY_S = 60.0, 3600.0, 86400.0


def lines(schedule: Schedule) -> str:
    """Return the lines of a schedule, its own marks around them.

    Raises:
        ConfigError: cron can't say when that is.
    """
    words = [f"{name}={shlex.quote(value)}" for name, value in sorted(schedule.environment.items())]
    words += [shlex.quote(word) for word in schedule.command]
    command = " ".join(words) + (f" >>{shlex.quote(schedule.log)} 2>&1" if schedule.log else "")
    begin, end = _marks(schedule.name)
    # cron takes a bare percent sign for a line break, also between quotes.
    return f"{begin}\n{_when(schedule)} {command.replace('%', chr(92) + '%')}\n{end}\n"


def _marks(name: str) -> tuple[str, str]:
    return f"# {name}: begin (remoterun schedule writes what stands between)", f"# {name}: end"


def _when(schedule: Schedule) -> str:
    if schedule.calendar is not None:
        if schedule.calendar in _WORDS:
            return _WORDS[schedule.calendar]
        if _FIELDS.fullmatch(schedule.calendar):
            return schedule.calendar
        message = f"{schedule.calendar!r} is neither {', '.join(_WORDS)} nor the five fields of cron, as '30 4 * * *'"
        raise ConfigError(Problem(path="--calendar", message=message))
    every_s = schedule.every_s
    if every_s in {_HOUR_S, _DAY_S}:
        return _WORDS["hourly" if every_s == _HOUR_S else "daily"]
    for unit_s, most, text in ((_MINUTE_S, 60, "*/{} * * * *"), (_HOUR_S, 24, "0 */{} * * *")):
        count = (every_s or 0.0) / unit_s
        if 0 < count < most and count.is_integer() and most % count == 0:
            return text.format(int(count))
    message = f"cron can't do {format_duration(every_s)}: it takes parts of an hour, of a day (15m, 6h), or 1d"
    raise ConfigError(Problem(path="--every", message=message))


# --- the crontab itself -----------------------------------------------------------------------------------------------


def install(schedule: Schedule) -> list[str]:
    """Put a schedule into the user's crontab, in place of what it had of it; return what was done.

    Raises:
        ConfigError: there is no cron, its crontab can't be read or written, or our marks in it are torn.
    """
    before = _read()
    rest, place = _without(before, schedule.name)
    ours = lines(schedule)
    head, tail = rest[:place], rest[place:]
    if head and not head.endswith("\n"):
        head += "\n"
    is_new = _write(before, head + ours + tail)
    return [
        f"the crontab {'starts the audit from now on' if is_new else 'is up to date, and starts the audit'}: "
        f"{_often(schedule)}"
    ]


def _often(schedule: Schedule) -> str:
    fields = _when(schedule)
    said = format_duration(schedule.every_s) if schedule.calendar is None else schedule.calendar
    return f"`{fields}`" if said == fields else f"{'every ' if schedule.calendar is None else ''}{said}, as `{fields}`"


def remove(name: str) -> list[str]:
    """Take a schedule out of the user's crontab; return what was done.

    Raises:
        ConfigError: as for `install`.
    """
    before = _read()
    if _write(before, _without(before, name)[0]):
        return ["the audit was taken out of the crontab"]
    return ["the crontab does not start the audit"]


def _without(text: str, name: str) -> tuple[str, int]:
    """Return a crontab without a schedule's lines, and where they stood, or its end."""
    begin, end = _marks(name)
    # Only a line break ends a line of cron.
    found = re.findall(r"[^\n]*\n|[^\n]+", text)
    bare = [line.rstrip("\r\n") for line in found]
    starts = [number for number, line in enumerate(bare) if line.startswith(begin.partition(" (")[0])]
    ends = [number for number, line in enumerate(bare) if line == end]
    if not starts and not ends:
        return text, len(text)
    if len(starts) != 1 or len(ends) != 1 or starts[0] > ends[0]:
        message = f"the lines `{begin}` and `{end}` do not stand there once each, in this order: mend that by hand"
        raise ConfigError(Problem(file="crontab", message=message))
    head = "".join(found[: starts[0]])
    return head + "".join(found[ends[0] + 1 :]), len(head)


def _program() -> str:
    program = shutil.which("crontab")
    if program is None:
        raise ConfigError("there is no `crontab` here: install cron, or use --user or --system for systemd")
    return program


def _read() -> str:
    done = _run([_program(), "-l"])
    if done.returncode == 0:
        return done.stdout
    if any(said in done.stderr.lower() for said in _NONE_YET):
        return ""
    said = clean(done.stderr.strip()) or f"exit status {done.returncode}"
    raise ConfigError(Problem(file="crontab", message=f"cannot be read: {said}"))


def _write(before: str, after: str) -> bool:
    """Replace the crontab, if there is anything new to it; say whether there was."""
    if before == after:
        return False
    done = _run([_program(), "-"], after)
    if done.returncode:
        said = clean(done.stderr.strip()) or f"exit status {done.returncode}"
        raise ConfigError(Problem(file="crontab", message=f"cannot be written: {said}"))
    return True


def _run(argv: list[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run(
            argv,
            # Bytes: as text, other people's carriage returns would become line breaks.
            input=stdin.encode("utf-8", "surrogateescape"),
            capture_output=True,
            # Its messages are read here.
            env={**os.environ, "LC_ALL": "C"},
            timeout=_COMMAND_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{argv[0]} did not do its work: {error}") from error
    said = (data.decode("utf-8", "surrogateescape") for data in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(argv, done.returncode, *said)
