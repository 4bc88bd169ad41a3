"""The closed lists of words: statuses, phases, severities, and how a run is dealt with."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
"""A JSON value; numbers are finite."""


class Status(StrEnum):
    """Say what became of one target and step."""

    OK = "ok"
    FINDINGS = "findings"
    FAILED = "failed"
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    LOST = "lost"
    CANCELLED = "cancelled"
    NOT_STARTED = "not_started"
    RUNNING = "running"

    @property
    def has_result(self) -> bool:
        """Tell whether it says what is the matter with the target, and not only why that is not known."""
        return self is Status.OK or self is Status.FINDINGS


class Phase(StrEnum):
    """Name the part of a target's way that an outcome ended in."""

    PLAN = "plan"
    CONNECT = "connect"
    ENTER = "enter"
    UPLOAD = "upload"
    RUN = "run"
    COLLECT = "collect"


class RunStatus(StrEnum):
    """Say what became of a whole run; `exit_code` maps it for the shell."""

    OK = "ok"
    FINDINGS = "findings"
    INVALID = "invalid"
    INCOMPLETE = "incomplete"
    ERROR = "error"
    INTERRUPTED = "interrupted"
    TERMINATED = "terminated"
    DETACHED = "detached"

    @property
    def exit_code(self) -> int:
        """Map to the process's exit status, as the README lists them."""
        codes = {"ok": 0, "findings": 1, "invalid": 2, "incomplete": 3, "error": 4, "interrupted": 130}
        return {**codes, "terminated": 143, "detached": 0}[self.value]


class Severity(StrEnum):
    """Rank a finding: info < suspect < bad."""

    INFO = "info"
    SUSPECT = "suspect"
    BAD = "bad"

    @property
    def rank(self) -> int:
        """Order severities: 0 info, 1 suspect, 2 bad."""
        return ("info", "suspect", "bad").index(self.value)


class Manner(StrEnum):
    """Say how a run is dealt with: followed to its end, or not."""

    FOLLOW = "follow"
    """Start what does not go on yet, and follow it."""
    LEAVE = "leave"
    """Start it, and leave it to itself."""
    ATTACH = "attach"
    """Follow what goes on."""
    COLLECT = "collect"
    """Take what is done, and leave the rest to itself."""
    CANCEL = "cancel"
    """End what goes on."""

    @property
    def starts(self) -> bool:
        """Tell whether something may be started."""
        return self in (Manner.FOLLOW, Manner.LEAVE)

    @property
    def lets_go_on(self) -> bool:
        """Tell whether the run is left at work where whoever looks after it is ended."""
        return self in (Manner.ATTACH, Manner.COLLECT)
