"""Fabric as its users have it, into real guests: from a fabfile, by `fab`, and as a host's transport."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fabric
import pytest

from remoterun import Status
from remoterun.fabric import run_payload
from tests.support.lab import Lab, LabHost, guest
from tests.support.project import Project, write_project

FABFILE = "from remoterun.fabric.tasks import check_ckpt, probe\n\n__all__ = ['check_ckpt', 'probe']\n"


@pytest.fixture(scope="module")
def host(lab: Lab) -> LabHost:
    """Return a host with a guest."""
    return lab.host("fabric", guests=[guest(200, venv="/root/venv")])


@pytest.fixture
def home(tmp_path: Path, host: LabHost, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home whose known_hosts and fabric.yaml fit the host."""
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(parents=True)
    (folder / ".ssh" / "known_hosts").write_text(host.known_hosts.read_text("utf-8"), "utf-8")
    settings = {"user": "root", "connect_kwargs": {"key_filename": [str(host.identity_file)]}}
    (folder / ".fabric.yaml").write_text(json.dumps(settings), "utf-8")
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return folder


def connection_to(host: LabHost) -> Any:
    """Make a connection as a fabfile would; fabric.yaml knows the rest."""
    return fabric.Connection(host.address, port=host.port)


@pytest.mark.lab
@pytest.mark.usefixtures("home")
def test_a_payload_runs_in_a_guest_of_a_fabric_connection(host: LabHost) -> None:
    with connection_to(host) as connection:
        outcome = run_payload(connection, "probe", guest=200, venv="/root/venv")
        missing = run_payload(connection, "probe", guest=299, venv="/root/venv")
    assert (outcome.status, outcome.target) == (Status.OK, f"{host.address}/200")
    assert outcome.facts["hostname"] == "ct200"
    assert missing.error is not None
    assert missing.error.code == "guest_not_found"


@pytest.mark.lab
def test_fab_has_the_tasks_ready(host: LabHost, home: Path) -> None:
    (home / "fabfile.py").write_text(FABFILE, "utf-8")
    where = f"{host.address}:{host.port}"

    def fab(*words: str) -> subprocess.CompletedProcess[bytes]:
        program = Path(sys.executable).parent / "fab"
        env = {**os.environ, "HOME": str(home)}
        return subprocess.run(
            [program, "-H", where, *words],
            cwd=home,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )

    found = fab("probe", "--guest", "200", "--venv", "/root/venv", "--json")
    assert (found.returncode, json.loads(found.stdout)["status"]) == (0, "ok"), found
    nothing = fab("check-ckpt", "--root", "/no/such/folder", "--guest", "200", "--venv", "/root/venv")
    assert nothing.returncode == 3
    assert b"nothing_to_check" in nothing.stdout


@pytest.mark.lab
@pytest.mark.usefixtures("home")
def test_a_host_of_the_inventory_is_reached_by_fabric(host: LabHost, tmp_path: Path) -> None:
    project = write_project(tmp_path, [host], fabric={"guests": {200: {"venv": "/root/venv"}}, "transport": "fabric"})
    result = project.run("play", "probe", "--on", "fabric/200", "--output", "json")
    assert result.status == 0, result.stderr
    assert result.outcome("fabric/200")["facts"]["hostname"] == "ct200"
    assert "by Fabric" in project.run("play", "probe", "--on", "fabric/200", "--dry-run").stdout.decode()


def test_what_fabric_cannot_do_is_refused_in_the_inventory(tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text(
        "hosts:\n  box: {transport: fabric, jump: other, host_key: SHA256:x}\n  other: {}\n", "utf-8"
    )
    result = Project(folder=tmp_path).run("inventory", "check")
    assert result.status == 2
    assert "jump: has no meaning with `transport: fabric`" in result.stderr
