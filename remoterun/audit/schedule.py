"""When a project is audited, and by what command: what every kind of schedule has in common. Pure, but for `here`."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from remoterun.errors import ConfigError, show
from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

# What a shell of root has on Debian; nothing of whoever installs it is taken over, so that it works without them.
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_KEPT: Final = ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "SSL_CERT_FILE")
_LONGEST_SLUG: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Say what is started when: every so many seconds, or by a calendar expression of its scheduler.

    `name` is the same for the same project whenever it is installed, so that nothing is ever there twice. `command` and
    `environment` hold all that the audit needs.
    """

    name: str
    project: Path
    command: tuple[str, ...]
    environment: Mapping[str, str]
    every_s: float | None = None
    calendar: str | None = None
    log: str | None = None

    @classmethod
    def here(cls, project: Path, *, every_s: float | None, calendar: str | None, log: str | None = None) -> Self:
        """Schedule the audit of a project by the remoterun that runs now, for its user.

        Raises:
            ConfigError: something holds a control character, which no unit or crontab can.
        """
        own = {name: os.environ[name] for name in _KEPT if os.environ.get(name)}
        command = (*_program(), "audit", "--project", str(project))
        environment = {"PATH": _PATH, "LANG": "C.UTF-8", "HOME": str(Path.home()), **own}
        for text in (*command, *environment.values(), calendar or "", log or ""):
            if any(ord(char) < 32 or char == "\x7f" for char in text):
                raise ConfigError(f"{show(text)} holds a control character, which no schedule can")
        return cls(
            name=schedule_name(project),
            project=project,
            command=command,
            environment=environment,
            every_s=every_s,
            calendar=calendar,
            log=log,
        )


def schedule_name(project: Path) -> str:
    """Return the name of a project's schedule."""
    slug = re.sub(r"[^a-z0-9]+", "-", project.name.lower()).strip("-")[:_LONGEST_SLUG] or "project"
    return f"remoterun-audit-{slug}-{hashlib.sha256(os.fsencode(project)).hexdigest()[:8]}"


def _program() -> tuple[str, ...]:
    """Return how this very remoterun is started: its script, or its interpreter without the working directory's files.

    The interpreter's own path is kept, links and all: it is what makes a virtual environment one.
    """
    interpreter = Path(sys.executable).absolute()
    script = interpreter.with_name("remoterun")
    return (str(script),) if script.is_file() else (str(interpreter), "-P", "-m", "remoterun")
