"""Durations, and what bounds a target's way and what a host is asked at once."""

from __future__ import annotations

import re
from dataclasses import field, fields, replace
from typing import TYPE_CHECKING, Final, Self

from remoterun.errors import ConfigError, Problem, nearest, show
from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_DURATION = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,9})?)(?P<unit>ms|s|m|h|d)")
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: object) -> float | None:
    """Read `500ms`, `30s`, `20m`, `2h` or `1d` as seconds, `none` as no limit.

    Raises:
        ConfigError: for anything else, bare numbers and zero included.
    """
    if text == "none":
        return None
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    seconds = float(match["number"]) * _UNIT_S[match["unit"]] if match else 0.0
    if seconds <= 0:
        raise ConfigError(f"{text!r} is not a duration: write 500ms, 30s, 20m, 2h or none")
    return seconds


def format_duration(seconds: float | None) -> str:
    """Write seconds the way `parse_duration` reads them, in the largest unit that is exact."""
    if seconds is None:
        return "none"
    for unit in ("h", "m", "s"):
        if seconds >= _UNIT_S[unit] and seconds % _UNIT_S[unit] == 0:
            return f"{seconds / _UNIT_S[unit]:.0f}{unit}"
    return f"{seconds * 1000:.0f}ms" if seconds < 1 else f"{seconds:g}s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bound each phase of a target's way, in seconds; None is no limit."""

    connect: float | None = field(
        default=15.0, metadata={"help": "resolve, TCP, key exchange and authentication, jump hosts included"}
    )
    enter: float | None = field(
        default=30.0, metadata={"help": "from the exec request until Python answers on the target"}
    )
    upload: float | None = field(default=60.0, metadata={"help": "sending the payload's code"})
    idle: float | None = field(default=45.0, metadata={"help": "silence: no frame at all from the target"})
    stall: float | None = field(default=600.0, metadata={"help": "no progress, record or output of the payload"})
    run: float | None = field(
        default=1800.0, metadata={"help": "the payload's running time, by the target's own clock"}
    )
    lease: float | None = field(
        default=120.0,
        metadata={
            "help": "how long the target goes on without a sign of life from here, after a lost connection; "
            "none: not at all"
        },
    )
    total: float | None = field(
        default=None, metadata={"help": "everything for one target and step, waiting for a slot left out"}
    )

    def merged(self, nearer: Mapping[str, float | None]) -> Self:
        """Return these limits with the nearer ones laid over them."""
        return replace(self, **nearer)


LIMIT_NAMES: Final = tuple(item.name for item in fields(Limits))
DEFAULT_LIMIT: Final = "default"
# As much as a text can say.
_MOST_S: Final = 1e14


def read_limits(said: Mapping[str, object], place: str) -> dict[str, float | None]:
    """Read limits by their names: texts as `parse_duration` takes them, seconds, or None for no limit.

    Raises:
        ConfigError: for every unknown name and everything that is no limit, at `place`.
    """
    limits: dict[str, float | None] = {}
    problems: list[Problem] = []
    for name, value in said.items():
        if name not in LIMIT_NAMES:
            message = f"there is no limit {name!r}; there are {', '.join(LIMIT_NAMES)}"
            problems.append(Problem(path=place, message=message, nearest=nearest(str(name), LIMIT_NAMES)))
            continue
        try:
            limits[name] = _seconds(value)
        except ConfigError as error:
            problems += [Problem(path=f"{place} {name}", message=problem.message) for problem in error.problems]
    if problems:
        raise ConfigError(problems)
    return limits


def _seconds(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not 0 < value <= _MOST_S:
            raise ConfigError(f"{show(value)} is not a number of seconds that can be a limit")
        return float(value)
    return None if value is None else parse_duration(value)


def laid_limits(layers: Iterable[tuple[str, Mapping[str, float | None]]]) -> tuple[Limits, dict[str, str]]:
    """Lay limits over each other, the nearest last; return them, and where those are set that a layer has.

    Each layer comes with what stands there before the name of a limit: ``--limit ``.
    """
    limits = Limits()
    set_by: dict[str, str] = {}
    for place, said in layers:
        limits = limits.merged(said)
        set_by.update({name: f"{place}{name}" for name in said})
    return limits, set_by


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """Bound what one host is asked at once.

    `logins`: unauthenticated connections (OpenSSH's MaxStartups 10:30:100 drops more); `enter`: hops starting at once
    (`pct` is a heavy Perl program); `sessions`: open sessions per connection (OpenSSH's MaxSessions is 10).
    """

    logins: int = 6
    enter: int = 4
    sessions: int = 8
