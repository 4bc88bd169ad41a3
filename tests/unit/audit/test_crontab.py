"""When cron starts an audit: what its five fields can say, and what they can't."""

from __future__ import annotations

from pathlib import Path

import pytest

from remoterun.audit.crontab import lines
from remoterun.audit.schedule import Schedule, schedule_name
from remoterun.errors import ConfigError
from remoterun.model import parse_duration


def line(*, every: str | None = None, calendar: str | None = None) -> str:
    """Return the line between the marks."""
    schedule = Schedule(
        name="remoterun-audit-fleet-0",
        project=Path("/srv/fleet"),
        command=("/opt/remoterun", "audit"),
        environment={"PATH": "/usr/bin"},
        every_s=parse_duration(every) if every else None,
        calendar=calendar,
    )
    begin, middle, last = lines(schedule).splitlines()
    assert begin.startswith("# remoterun-audit-fleet-0: begin")
    assert last == "# remoterun-audit-fleet-0: end"
    return middle


@pytest.mark.parametrize(
    ("every", "fields"),
    [
        ("1m", "*/1 * * * *"),
        ("15m", "*/15 * * * *"),
        ("1h", "0 * * * *"),
        ("60m", "0 * * * *"),
        ("6h", "0 */6 * * *"),
        ("12h", "0 */12 * * *"),
        ("1d", "0 0 * * *"),
        ("24h", "0 0 * * *"),
    ],
)
def test_every_so_often(every: str, fields: str) -> None:
    assert line(every=every) == f"{fields} PATH=/usr/bin /opt/remoterun audit"


@pytest.mark.parametrize(
    ("calendar", "fields"),
    [("daily", "0 0 * * *"), ("weekly", "0 0 * * 1"), ("*/5 8-18 * * mon-fri", "*/5 8-18 * * mon-fri")],
)
def test_by_the_calendar(calendar: str, fields: str) -> None:
    assert line(calendar=calendar) == f"{fields} PATH=/usr/bin /opt/remoterun audit"


@pytest.mark.parametrize("every", ["7m", "90s", "90m", "5h", "2d", "7d"])
def test_what_would_not_come_evenly_is_refused(every: str) -> None:
    with pytest.raises(ConfigError, match=r"--every: cron can't do .*parts of an hour, of a day"):
        line(every=every)


@pytest.mark.parametrize("calendar", ["Mon 06:00", "0 0 * *", "0 0 * * * root", "@reboot", "0 0 * * %"])
def test_what_is_no_five_fields_is_refused(calendar: str) -> None:
    with pytest.raises(ConfigError, match="nor the five fields of cron"):
        line(calendar=calendar)


def test_names_of_projects_are_their_own(tmp_path: Path) -> None:
    names = [schedule_name(tmp_path / name) for name in ("a b", "a-b", "é", "x" * 300)]
    assert len(set(names)) == 4
    assert all(name.isascii() and len(name) < 60 and " " not in name for name in names)
