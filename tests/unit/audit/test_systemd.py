"""Units beside what systemctl does with them: it is a program of our own here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from remoterun.audit.schedule import Schedule
from remoterun.audit.systemd import install, remove
from remoterun.errors import ConfigError

SYSTEMCTL = """\
#!/bin/sh
echo "$*" >> "$CALLS"
case " $* " in *" $FAILS "*) echo "it does not want to" >&2; exit 1;; esac
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
    monkeypatch.setenv("FAILS", "nothing")
    return tmp_path / "calls"


def test_only_a_timer_that_has_changed_is_restarted(tmp_path: Path, calls: Path) -> None:
    schedule = Schedule(name="audit", project=tmp_path, command=("true",), environment={}, every_s=3600.0)
    for folder in (tmp_path / "units", tmp_path / "written"):
        calls.unlink(missing_ok=True)
        for _ in range(2):
            install(schedule, folder, user=True, start=True)
        orders = [line.split()[1] for line in calls.read_text().splitlines()]
        assert orders == ["show", "daemon-reload", "enable", "restart", "show", "daemon-reload", "enable", "start"]


def test_a_service_without_its_timer_is_removed(tmp_path: Path, calls: Path) -> None:
    """What was cut has taken the timer away already, and systemctl fails to disable what is not there."""
    service = tmp_path / "audit.service"
    service.touch()
    assert remove("audit", tmp_path, user=True, start=True) == ([f"{service} was removed"], None)
    assert not service.exists()
    assert calls.read_text() == "--user daemon-reload\n--user reset-failed audit.service\n"


@pytest.mark.parametrize("fails", ["show", "daemon-reload", "enable", "restart"])
def test_what_systemd_does_not_want_leaves_everything_as_it_was(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    folder = tmp_path / "units"
    schedule = Schedule(name="audit", project=tmp_path, command=("true",), environment={}, every_s=3600.0)
    monkeypatch.setenv("FAILS", fails)
    with pytest.raises(ConfigError, match=f"systemctl --user {fails}.* failed: it does not want to"):
        install(schedule, folder, user=True, start=True)
    assert list(folder.glob("*")) == []
    orders = [line.split()[1] for line in calls.read_text().splitlines()]
    assert orders[-2:] == (["show"] if fails == "show" else ["disable", "daemon-reload"])

    monkeypatch.setenv("FAILS", "nothing")
    install(schedule, folder, user=True, start=True)
    units = {path: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setenv("FAILS", fails)
    with pytest.raises(ConfigError):
        install(replace(schedule, every_s=60.0), folder, user=True, start=True)
    assert {path: path.read_bytes() for path in folder.iterdir()} == units
    assert len(units) == 2


def test_units_are_removed_whatever_systemd_says(tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = Schedule(name="audit", project=tmp_path, command=("true",), environment={}, every_s=3600.0)
    folder = tmp_path / "units"
    for fails in ("disable", "daemon-reload", "no systemctl"):
        monkeypatch.setenv("FAILS", "nothing")
        install(schedule, folder, user=True, start=True)
        # As systemctl's `enable` leaves it.
        enabled = folder / "timers.target.wants/audit.timer"
        enabled.parent.mkdir(exist_ok=True)
        enabled.symlink_to(folder / "audit.timer")
        monkeypatch.setenv("FAILS", fails)
        if fails == "no systemctl":
            (calls.parent / "bin/systemctl").unlink()
            monkeypatch.setenv("PATH", str(calls.parent / "bin"))
        done, failed = remove("audit", folder, user=True, start=True)
        assert done == [f"{folder / f'audit.{kind}'} was removed" for kind in ("timer", "service")]
        assert failed is not None
        assert fails in failed
        assert not (folder / "audit.timer").exists()
        enabled.unlink(missing_ok=True)  # what works, `disable` here, does it itself
