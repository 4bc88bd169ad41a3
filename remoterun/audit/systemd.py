"""A systemd service and its timer: their text, and how they get to where systemd finds them."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from remoterun.errors import ConfigError, Problem, clean, show
from remoterun.model import format_duration
from remoterun.report.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remoterun.audit.schedule import Schedule

_SYSTEM_FOLDER: Final = Path("/etc/systemd/system")
_COMMAND_S: Final = 60.0

_SERVICE: Final = """\
[Unit]
Description=Audit of the remoterun project {title}
{network}
[Service]
Type=oneshot
ExecStart={command}
WorkingDirectory=/
{environment}
# Findings (1), another audit at work (75) and an end by `systemctl stop` (143, or SIGTERM before the first line) are
# results; everything else is a failure of this unit.
SuccessExitStatus=1 75 143 SIGTERM
# What runs on targets is ended by the audit itself, in order.
KillMode=mixed
TimeoutStopSec=2min
Nice=10
NoNewPrivileges=yes
RestrictSUIDSGID=yes
RestrictRealtime=yes
LockPersonality=yes
SystemCallArchitectures=native
{system}"""
# The manager of a user cannot do these without privileges of its own.
_SYSTEM_ONLY: Final = """\
ProtectSystem=full
ProtectClock=yes
ProtectHostname=yes
ProtectKernelModules=yes
"""
_TIMER: Final = """\
[Unit]
Description=When the remoterun project {title} is audited

[Timer]
{when}

[Install]
WantedBy=timers.target
"""


def units(schedule: Schedule, *, user: bool) -> dict[str, str]:
    """Return the texts of the units by their file names.

    Raises:
        ConfigError: something is not UTF-8, of which systemd reads nothing.
    """
    for text in (str(schedule.project), *schedule.command, *schedule.environment.values()):
        if not _is_utf8(text):
            raise ConfigError(f"{show(text)} is not UTF-8, which systemd does not read: use --cron, or another name")
    program, *words = schedule.command
    title = _title(str(schedule.project))
    service = _SERVICE.format(
        title=title,
        network="" if user else "Wants=network-online.target\nAfter=network-online.target\n",
        # It looks for variables in all words but the first.
        command=" ".join([_word(program), *(_word(word, command=True) for word in words)]),
        environment="\n".join(
            f"Environment={_word(f'{name}={value}')}" for name, value in sorted(schedule.environment.items())
        ),
        system="" if user else _SYSTEM_ONLY,
    )
    return {
        f"{schedule.name}.service": service,
        f"{schedule.name}.timer": _TIMER.format(title=title, when=_when(schedule, user=user)),
    }


def _when(schedule: Schedule, *, user: bool) -> str:
    if schedule.calendar is not None:
        # One that was missed while the machine was off is made up for.
        return f"OnCalendar={_literal(schedule.calendar)}\nPersistent=true"
    every = format_duration(schedule.every_s)
    return f"On{'Startup' if user else 'Boot'}Sec=2min\nOnUnitActiveSec={every}"


def _word(text: str, *, command: bool = False) -> str:
    """Write one word so that systemd reads exactly it (systemd.syntax(7), systemd.service(5))."""
    quoted = _literal(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{quoted.replace("$", "$$") if command else quoted}"'


def _literal(text: str) -> str:
    """Keep systemd from reading specifiers."""
    return text.replace("%", "%%")


def _title(path: str) -> str:
    """Write a folder's path at the end of a line, where a backslash would take in the next line."""
    return _literal(path) + ("/" if path.endswith("\\") else "")


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


# --- where they go ----------------------------------------------------------------------------------------------------


def unit_folder(environment: Mapping[str, str], *, user: bool) -> Path:
    """Return the folder of the units that a person makes."""
    if not user:
        return _SYSTEM_FOLDER
    config = environment.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "systemd" / "user"


def check_calendar(expression: str) -> None:
    """Ask systemd whether it knows when that is, where there is one to ask.

    Raises:
        ConfigError: it does not.
    """
    program = shutil.which("systemd-analyze")
    if program is None:
        return
    done = _run([program, "calendar", "--", expression])
    if done.returncode:
        said = clean(done.stderr.strip().splitlines()[0]) if done.stderr.strip() else "it is none"
        message = f"{expression!r} is no calendar expression of systemd: {said}"
        raise ConfigError(Problem(path="--calendar", message=f"{message} (try `systemd-analyze calendar`)"))


def install(schedule: Schedule, folder: Path, *, user: bool, start: bool) -> list[str]:
    """Write the units, where they are not there just so, and let systemd know of them; return what was done.

    What fails leaves everything as it was.

    Raises:
        ConfigError: a file can't be written, or systemd does not run or does not want them.
    """
    control = _systemctl(user=user) if start else None
    if control is not None:
        _reach(control)
    timer = f"{schedule.name}.timer"
    wanted = {folder / name: text.encode("utf-8") for name, text in units(schedule, user=user).items()}
    before = {path: _data(path) for path in wanted}
    try:
        for path, data in wanted.items():
            if before[path] != data:
                _write(path, data)
        if control is not None:
            _ordered([*control, "daemon-reload"])
            _ordered([*control, "enable", timer])
            # One that is active goes by what it said before.
            _ordered([*control, "start" if before == wanted else "restart", timer])
    except BaseException:
        _put_back(before, control, timer)
        raise
    done = [f"{path} {'is up to date' if before[path] == data else 'was written'}" for path, data in wanted.items()]
    return done if control is None else [*done, f"{timer} is enabled and started"]


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
    except OSError as error:
        raise ConfigError(Problem(file=str(path), message=f"cannot be written: {error.strerror}")) from error


def _put_back(before: Mapping[Path, bytes | None], control: Sequence[str] | None, timer: str) -> None:
    """Leave the units as they were, as far as that can be done."""
    is_new = None in before.values()
    if control is not None and is_new:
        _failed([*control, "disable", "--now", timer])
    for path, data in before.items():
        with suppress(OSError):
            if data is None:
                path.unlink(missing_ok=True)
            else:
                write_whole(path, data)
    if control is not None:
        _failed([*control, "daemon-reload"])
        if not is_new:
            _failed([*control, "start", timer])


def remove(name: str, folder: Path, *, user: bool, start: bool) -> tuple[list[str], str | None]:
    """Take the units away, as far as they are there; return what was done, and what systemd did not do.

    Raises:
        ConfigError: a file can't be removed.
    """
    timer, service = folder / f"{name}.timer", folder / f"{name}.service"
    paths = [path for path in (timer, service) if path.exists()]
    if not paths:
        return [f"{timer} is not there"], None
    try:
        control = _systemctl(user=user) if start else None
        failed = None
    except ConfigError:
        control, failed = None, "there is no systemctl here"
    # What was cut has taken the timer away already, and systemd wants nothing to do with one that is not there.
    if control is not None and timer in paths:
        failed = _failed([*control, "disable", "--now", timer.name])
    # What enables the timer is left where that failed.
    for path in (*paths, *([] if failed is None else [folder / "timers.target.wants" / timer.name])):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(Problem(file=str(path), message=f"cannot be removed: {error.strerror}")) from error
    if control is not None:
        failed = failed or _failed([*control, "daemon-reload"])
        # It would go on telling of a unit that had failed. That one did not is no mistake.
        _failed([*control, "reset-failed", service.name])
    return [f"{path} was removed" for path in paths], failed


def _data(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _systemctl(*, user: bool) -> list[str]:
    program = shutil.which("systemctl")
    if program is None:
        raise ConfigError("there is no systemctl here: use --cron, or --into DIR to only write the units")
    return [program, "--user"] if user else [program]


def _reach(control: Sequence[str]) -> None:
    """Make sure that systemd answers, before anything is written for it."""
    failed = _failed([*control, "show", "--property=Version"])
    if failed is not None:
        way_out = "use --cron, or --into DIR to only write the units"
        raise ConfigError(f"systemd does not run here, or does not answer: {way_out} ({failed})")


def _ordered(argv: Sequence[str]) -> None:
    failed = _failed(argv)
    if failed is not None:
        raise ConfigError(f"nothing was installed: {failed}")


def _failed(argv: Sequence[str]) -> str | None:
    """Give an order, and say how it failed, if it did."""
    try:
        done = _run(argv)
    except ConfigError as error:
        return str(error)
    if not done.returncode:
        return None
    said = clean(done.stderr.strip()) or f"exit status {done.returncode}"
    return f"`{' '.join(['systemctl', *argv[1:]])}` failed: {said}"


def _run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_COMMAND_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{argv[0]} did not do its work: {error}") from error
