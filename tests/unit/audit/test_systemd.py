"""Units beside what systemctl does with them: it is a program of our own here."""

from __future__ import annotations

from pathlib import Path

import pytest

from remoterun.audit.schedule import Schedule
from remoterun.audit.systemd import install, remove

SYSTEMCTL = """\
#!/bin/sh
echo "$*" >> "$CALLS"
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file that says how systemctl was called."""
    program = tmp_path / "bin/systemctl"
    program.parent.mkdir()
    program.write_text(SYSTEMCTL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


def test_only_a_timer_that_has_changed_is_restarted(tmp_path: Path, calls: Path) -> None:
    schedule = Schedule(name="audit", project=tmp_path, command=("true",), environment={}, every_s=3600.0)
    for folder in (tmp_path / "units", tmp_path / "written"):
        calls.unlink(missing_ok=True)
        for _ in range(2):
            install(schedule, folder, user=True, start=True)
        orders = [line.split()[1] for line in calls.read_text().splitlines()]
        assert orders == ["daemon-reload", "enable", "restart", "daemon-reload", "enable", "start"]


def test_a_service_without_its_timer_is_removed(tmp_path: Path, calls: Path) -> None:
    """What was cut has taken the timer away already, and systemctl fails to disable what is not there."""
    service = tmp_path / "audit.service"
    service.touch()
    assert remove("audit", tmp_path, user=True, start=True) == [f"{service} was removed"]
    assert not service.exists()
    assert calls.read_text() == "--user daemon-reload\n--user reset-failed audit.service\n"
