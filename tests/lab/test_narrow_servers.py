"""Whole runs on hosts that allow little at once: what they refuse is asked for again, and nothing is started twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.lab import Lab
from tests.support.project import write_project

pytestmark = pytest.mark.lab

_MARK = """\
import os

def run(ctx):
    with open("/tmp/started", "a") as file:
        file.write("x")
    ctx.emit({"said": open("/tmp/started").read()})
"""


@pytest.mark.parametrize("config", ["MaxSessions 1", "MaxSessions 2", "MaxStartups 1:50:3\nMaxSessions 1"])
def test_all_guests_of_a_narrow_host_come_through_once(lab: Lab, tmp_path: Path, config: str) -> None:
    name = "narrow" + "".join(filter(str.isdigit, config))
    host = lab.host(name, guests=range(200, 208), sshd_config=config)
    project = write_project(tmp_path, [host])
    project.payload("mark", _MARK)
    result = project.run("play", "mark", "--on", "all", "--output", "json")
    assert result.status == 0, result
    outcomes = result.document["outcomes"]
    assert [(outcome["status"], outcome["records"]) for outcome in outcomes] == [("ok", [{"said": "x"}])] * 8
    # A session that was refused is no connection to a target.
    assert [outcome["connections"] for outcome in outcomes] == [1] * 8
