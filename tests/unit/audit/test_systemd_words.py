"""Paths as systemd reads them: nothing in one is a variable, a specifier, or the beginning of another line."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from remoterun.audit.schedule import Schedule
from remoterun.audit.systemd import units
from remoterun.errors import ConfigError
from tests.support.programs import needed


def _service(project: str, program: str = "/bin/true") -> str:
    schedule = Schedule(
        name="audit", project=Path(project), command=(program, "--project", project), environment={}, every_s=3600.0
    )
    return units(schedule, user=False)["audit.service"]


def test_a_backslash_at_the_end_of_a_path_takes_in_no_other_line() -> None:
    lines = _service("/srv/fleet\\").splitlines()
    assert [line for line in lines if line.endswith("\\")] == []
    assert "Description=Audit of the remoterun project /srv/fleet\\/" in lines
    assert 'ExecStart="/bin/true" "--project" "/srv/fleet\\\\"' in lines


def test_only_what_systemd_looks_for_variables_in_has_its_dollars_doubled() -> None:
    assert 'ExecStart="/opt/$x%%/true" "--project" "/srv/$$x%%"' in _service("/srv/$x%", "/opt/$x%/true")


def test_what_is_not_utf8_is_refused() -> None:
    with pytest.raises(ConfigError, match="not UTF-8"):
        _service(os.fsdecode(b"/srv/fleet\xff"))


@pytest.mark.parametrize("name", ["fleet\\", "a 100% $HOME %h", 'it\'s "exact" #;', "\u65e5\u672c"])
def test_systemd_takes_them(tmp_path: Path, name: str) -> None:
    path = tmp_path / "audit.service"
    path.write_text(_service(f"/srv/{name}"), "utf-8")
    done = subprocess.run(
        [needed("systemd-analyze"), "verify", "--man=no", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert str(path) not in done.stderr, done.stderr
