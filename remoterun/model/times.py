"""Moments as documents write them: ISO 8601 in UTC, to the millisecond."""

from __future__ import annotations

from datetime import UTC, datetime


def moment_text(moment: datetime) -> str:
    """Write a moment that knows its zone."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def now_text() -> str:
    """Return the time as documents say it."""
    return moment_text(datetime.now(UTC))


def seconds_of(text: object) -> float | None:
    """Read a moment as seconds since 1970, without a zone as UTC; None for what is no moment."""
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    if moment is None:
        return None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    try:
        return aware.timestamp()
    except OverflowError:
        return None


def seconds_between(first: object, second: object) -> float | None:
    """Return how long after one moment another one is; None where either is none."""
    one, other = seconds_of(first), seconds_of(second)
    return None if one is None or other is None else other - one
