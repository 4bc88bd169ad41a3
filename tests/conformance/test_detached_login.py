"""A run that goes on without us is not lost to whoever can't log in for a while."""

from __future__ import annotations

import getpass
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from tests.conformance.servers import StartSshd
from tests.support.homes import keep_state_in
from tests.support.lab import wait_for
from tests.support.project import Project, remoterun


@pytest.mark.parametrize("refused", ["auth_failed", "host_key_unknown"])
def test_what_can_not_be_logged_in_at_is_still_at_work(
    refused: str, sshd: StartSshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_state_in(tmp_path / "state", monkeypatch)
    server = sshd()
    go, key, known = tmp_path / "go", tmp_path / "key", tmp_path / "known_hosts"
    shutil.copy(server.keys["client"], key)
    known.write_text(f"[127.0.0.1]:{server.port} {server.keys.public('host_ed25519')}\n")
    host = {"address": "127.0.0.1", "port": server.port, "user": getpass.getuser(), "identity_file": str(key)}
    host |= {"known_hosts": str(known), "ssh_config": "none", "python": sys.executable}
    (tmp_path / "inventory.yaml").write_text(yaml.safe_dump({"hosts": {"box": host}}))
    project = Project(folder=tmp_path)
    script = f"until [ -e {go} ]; do sleep 0.02; done; echo done"
    begun = project.run("exec", "--on", "box", "--detach", "--output", "json", "--", "/bin/sh", "-c", script)
    run_id = begun.document["run_id"]
    changed, lack = (key, server.keys["other"]) if refused == "auth_failed" else (known, "/dev/null")
    kept = changed.read_bytes()
    changed.write_bytes(Path(lack).read_bytes())
    for command in ("collect", "attach", "cancel"):
        result = project.run(command, run_id, "--output", "json")
        outcome = result.outcome("box")
        assert (outcome["status"], outcome["error"]["code"]) == ("running", refused), command
        assert result.status == 3, command
    changed.write_bytes(kept)
    go.touch()
    wait_for(lambda: project.run("collect", run_id, "--output", "json").status == 0, "the run to be done", limit_s=60)
    assert remoterun("show", run_id, "--output", "json").outcome("box")["stdout"] == "done\n"
