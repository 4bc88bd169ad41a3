"""Whatever prints into the channel, the result stays whole and the rest is kept apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.lab import Lab, LabHost, wait_for
from tests.support.project import Project, write_project

BASHRC = """\
echo "Welcome to the cluster"
printf '\\xf7RR\\xf8 looks like a frame'
( for i in 1 2 3 4 5 6 7 8 9 10; do echo "background job $i"; sleep 0.05; done ) &
"""

GARBAGE = """\
import os, sys, time

def run(ctx):
    print("garbage", "\\x00\\xff" * 1000)
    sys.stdout.flush()
    os.write(1, b"\\xf7RR\\xf8" + bytes(range(256)))
    os.write(2, b"stderr \\xff\\xfe")
    ctx.emit({"n": 1})
    os.close(1)
    ctx.emit({"n": 2})
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True:
                os.write(2, b"daemon\\n")
                time.sleep(0.05)
        os._exit(0)
    time.sleep(0.3)
    ctx.emit({"n": 3, "big": "x" * 500_000})
"""


@pytest.fixture
def host(lab: Lab) -> LabHost:
    """Return a host whose root prints at every login, also later."""
    noisy = lab.host("noisy-login", guests=[200])
    noisy.write("/root/.bashrc", BASHRC)
    noisy.write("/etc/motd", "motd of the day\n")
    return noisy


@pytest.fixture
def project(tmp_path: Path, host: LabHost) -> Project:
    """Return a project with that host and a payload that prints garbage."""
    made = write_project(tmp_path, [host])
    made.payload("garbage", GARBAGE)
    return made


@pytest.mark.lab
def test_result_is_whole_and_noise_is_apart(project: Project, host: LabHost) -> None:
    result = project.run("play", "garbage", "--on", "noisy-login/200", "--output", "json")
    outcome = result.outcome("noisy-login/200")
    assert outcome["status"] == "ok", outcome
    assert [record["n"] for record in outcome["records"]] == [1, 2, 3]
    assert len(outcome["records"][2]["big"]) == 500_000
    assert "Welcome to the cluster" in outcome["noise"]
    assert "background job" in outcome["noise"]
    assert outcome["stdout"].startswith("garbage")
    assert "stdout_b64" in outcome
    assert "daemon" in outcome["stderr"]
    assert outcome["survivors"] == 0
    wait_for(lambda: not host.guest(200).processes(), "the daemon to be gone")


@pytest.mark.lab
def test_noise_reaches_no_table(project: Project) -> None:
    result = project.run("play", "garbage", "--on", "noisy-login/200")
    assert result.status == 0, result
    assert b"Welcome" not in result.stdout
    assert b"background" not in result.stdout
