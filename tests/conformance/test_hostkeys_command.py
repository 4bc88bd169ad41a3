"""`remoterun hostkeys`: what hosts offer is shown through jump hosts too, and nothing changed is ever accepted."""

from __future__ import annotations

import getpass
import os
import pty
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conformance.servers import Keys, Sshd, StartSshd
from tests.support.project import REMOTERUN, Project, Result, remoterun


class Fleet:
    """A project whose inventory is written as a test goes."""

    def __init__(self, folder: Path) -> None:
        self.known = folder / "known_hosts"
        self.project = Project(folder=folder)
        self.hosts: dict[str, dict[str, Any]] = {}

    def add(self, name: str, server: Sshd, /, **more: Any) -> None:
        """Add a host."""
        self.hosts[name] = {
            "address": "127.0.0.1",
            "port": server.port,
            "user": getpass.getuser(),
            "identity_file": server.keys["client"],
            "known_hosts": str(self.known),
            "ssh_config": "none",
            **more,
        }
        (self.project.folder / "inventory.yaml").write_text(yaml.safe_dump({"hosts": self.hosts}), "utf-8")

    def know(self, server: Sshd, key: str) -> None:
        """Add a line to known_hosts."""
        with self.known.open("a") as file:
            file.write(f"[127.0.0.1]:{server.port} {server.keys.public(key)}\n")

    def look(self, *words: str) -> tuple[int, dict[str, Any]]:
        """Run a command of `hostkeys` and return its exit status and what it said of each host."""
        result = self.project.run("hostkeys", *words, "--output", "json")
        assert result.document["schema"] == "remoterun/hostkeys/1", result.stderr
        assert result.document["exit_code"] == result.status
        return result.status, {item["host"]: item for item in result.document["hosts"]}


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """Return an empty project."""
    return Fleet(tmp_path)


def states(item: dict[str, Any]) -> dict[str, str]:
    return {key["type"]: key["state"] for key in item["keys"]}


def test_every_key_is_shown_with_what_is_known_of_it(sshd: StartSshd, keys: Keys, fleet: Fleet) -> None:
    all_three = ("host_ed25519", "host_ecdsa", "host_rsa")
    servers = {name: sshd(host_keys=all_three) for name in ("known", "new", "changed", "another", "revoked")}
    for name, server in servers.items():
        fleet.add(name, server)
    fleet.add("pinned", servers["new"], host_key=keys.fingerprint("host_rsa"))
    fleet.add("mispinned", servers["new"], host_key=keys.fingerprint("other"))
    one_type = sshd()
    fleet.add("other-type", one_type)
    fleet.know(servers["known"], "host_ecdsa")
    fleet.know(servers["changed"], "other")
    fleet.know(servers["changed"], "host_rsa")
    fleet.know(servers["another"], "host_ed25519")
    fleet.know(one_type, "host_rsa")
    with fleet.known.open("a") as file:
        file.write(f"@revoked [127.0.0.1]:{servers['revoked'].port} {keys.public('host_ed25519')}\n")
    before = fleet.known.read_text()
    status, found = fleet.look("show")
    assert status == 1
    assert {name: item["state"] for name, item in found.items()} == {
        "known": "known",
        "new": "new",
        "changed": "changed",
        "another": "known",
        "revoked": "changed",
        "other-type": "changed",
        "pinned": "pinned",
        "mispinned": "changed",
    }
    assert states(found["known"]) == {"ssh-ed25519": "new", "ecdsa-sha2-nistp256": "known", "ssh-rsa": "new"}
    assert states(found["changed"]) == {"ssh-ed25519": "changed", "ecdsa-sha2-nistp256": "new", "ssh-rsa": "known"}
    assert states(found["revoked"])["ssh-ed25519"] == "revoked"
    assert found["new"]["expected"] == []
    assert {key["fingerprint"] for key in found["new"]["keys"]} == {keys.fingerprint(name) for name in all_three}
    assert keys.fingerprint("other") in found["changed"]["expected"]
    assert fleet.known.read_text() == before
    assert not any("Accepted" in server.log for server in servers.values())


def test_pins_are_what_counts(sshd: StartSshd, keys: Keys, fleet: Fleet) -> None:
    server = sshd(host_keys=("host_ed25519", "host_rsa"))
    fleet.add("box", server, host_key=keys.fingerprint("host_rsa"))
    fleet.know(server, "other")
    status, found = fleet.look("show")
    assert (status, found["box"]["state"]) == (0, "pinned")
    fleet.add("box", server, host_key=keys.fingerprint("other"))
    status, found = fleet.look("show")
    assert (status, found["box"]["state"]) == (1, "changed")
    assert "host_key" in found["box"]["remedy"]
    status, found = fleet.look("accept", "--on", "box", "--yes")
    assert (status, found["box"]["state"], found["box"]["written_to"]) == (1, "changed", None)


def test_accepting_makes_a_host_known(sshd: StartSshd, keys: Keys, fleet: Fleet) -> None:
    server = sshd(host_keys=("host_ed25519", "host_rsa"))
    fleet.add("box", server)
    refused = fleet.project.run("exec", "--on", "box", "--output", "json", "--", "true").outcome("box")
    assert refused["error"]["code"] == "host_key_unknown"
    assert f"`remoterun hostkeys accept --on box --project {fleet.project.folder}`" in refused["error"]["hint"]
    status, found = fleet.look("accept", "--on", "box", "--yes")
    assert (status, found["box"]["state"]) == (0, "known")
    assert found["box"]["written_to"] == str(fleet.known)
    lines = [f"[127.0.0.1]:{server.port} {keys.public(name)}" for name in ("host_ed25519", "host_rsa")]
    assert fleet.known.read_text().splitlines() == lines
    assert fleet.look("accept", "--on", "box", "--yes")[1]["box"]["written_to"] is None
    assert fleet.known.read_text().splitlines() == lines
    assert fleet.look("show", "--on", "box")[0] == 0


def test_a_changed_key_is_not_accepted_and_the_remedy_works(sshd: StartSshd, keys: Keys, fleet: Fleet) -> None:
    server = sshd()
    fleet.known = fleet.known.with_name("what is known")
    fleet.add("box", server)
    fleet.know(server, "other")
    status, found = fleet.look("accept", "--on", "box", "--yes")
    assert (status, found["box"]["state"]) == (1, "changed")
    assert keys.public("host_ed25519") not in fleet.known.read_text()
    command = found["box"]["remedy"].partition("reinstalled: ")[2].partition(";")[0]
    subprocess.run(["/bin/sh", "-c", command], check=True, capture_output=True)
    status, found = fleet.look("accept", "--on", "box", "--yes")
    assert (status, found["box"]["state"]) == (0, "known")


def test_what_is_shown_as_new_is_accepted_by_the_command_that_is_shown_with_it(sshd: StartSshd, fleet: Fleet) -> None:
    fleet.add("box", sshd())
    shown = fleet.project.run("hostkeys", "show", "--on", "box", "--user", getpass.getuser())
    told = shlex.split(shown.stdout.decode().splitlines()[-1])
    assert (shown.status, told[:5]) == (1, ["remoterun", "hostkeys", "accept", "--on", "box"])
    # What it says names the project, too.
    assert remoterun(*told[1:], "--yes").status == 0
    after = fleet.project.run("hostkeys", "show", "--on", "box")
    assert (after.status, b"accept" in after.stdout) == (0, False)


def test_a_key_that_is_kept_nowhere_is_accepted_once_and_stays_new(sshd: StartSshd, fleet: Fleet) -> None:
    fleet.known = Path(os.devnull)
    fleet.add("box", sshd())
    status, found = fleet.look("accept", "--on", "box", "--yes")
    assert (status, found["box"]["state"], found["box"]["written_to"]) == (1, "new", os.devnull)


def test_hosts_are_read_from_standard_input(sshd: StartSshd, fleet: Fleet) -> None:
    fleet.add("one", sshd())
    fleet.add("two", sshd())
    result = fleet.project.run("hostkeys", "show", "--on", "-", "--output", "json", stdin=b"two\n")
    assert [item["host"] for item in result.document["hosts"]] == ["two"]


def test_jump_hosts_come_first(sshd: StartSshd, fleet: Fleet) -> None:
    gate, box = sshd(), sshd()
    fleet.add("gate", gate, self=False)
    fleet.add("box", box, jump="gate")
    status, found = fleet.look("show", "--on", "box")
    assert status == 3
    assert (found["gate"]["state"], found["box"]["state"]) == ("new", "failed")
    assert found["box"]["through"] == ["127.0.0.1"]
    assert found["box"]["error"]["code"] == "host_key_unknown"
    assert "jump host gate" in found["box"]["error"]["message"]
    status, found = fleet.look("accept", "--on", "box", "--yes")
    assert status == 0
    assert [item["written_to"] for item in found.values()] == [str(fleet.known)] * 2
    assert fleet.look("show", "--on", "box")[0] == 0


def test_what_cannot_be_reached_is_said(sshd: StartSshd, fleet: Fleet) -> None:
    server = sshd()
    fleet.add("box", server, port=1)
    status, found = fleet.look("show")
    assert (status, found["box"]["state"], found["box"]["error"]["code"]) == (3, "failed", "connect_refused")
    text = fleet.project.run("hostkeys", "show").stdout.decode()
    assert text.startswith("box ([127.0.0.1]:1): cannot be looked at\n")


def test_a_certificate_of_a_known_authority_is_known(sshd: StartSshd, keys: Keys, fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "cert.pub").write_text(Path(keys["host_ed25519.pub"]).read_text())
    words = ["ssh-keygen", "-q", "-s", keys["ca"], "-I", "box", "-h", "-n", "127.0.0.1", str(tmp_path / "cert.pub")]
    subprocess.run(words, check=True)
    server = sshd(f"HostCertificate {tmp_path / 'cert-cert.pub'}")
    fleet.add("box", server)
    fleet.known.write_text(f"@cert-authority * {keys.public('ca')}\n")
    status, found = fleet.look("show")
    assert (status, found["box"]["state"]) == (0, "known")
    assert states(found["box"]) == {"ssh-ed25519": "new", "authority": "known"}


def test_the_flag_accepts_new_keys_on_every_hop(sshd: StartSshd, fleet: Fleet) -> None:
    gate, box = sshd(), sshd()
    fleet.add("gate", gate, self=False)
    fleet.add("box", box, jump="gate", python="python3")
    words = ("exec", "--on", "box", "--output", "json")
    error = fleet.project.run(*words, "--", "true").outcome("box")["error"]
    assert error["code"] == "host_key_unknown"
    # The key is that of the jump host, and it is accepted with whatever is reached through it.
    assert "its jump host gate: the host's key is not known" in error["message"]
    assert "`remoterun hostkeys accept --on box --project " in error["hint"]
    result = fleet.project.run(*words, "--accept-new", "--", "true")
    assert result.outcome("box")["status"] == "ok", result.outcome("box")
    assert len(fleet.known.read_text().splitlines()) == 2
    assert fleet.project.run(*words, "--", "true").outcome("box")["status"] == "ok"


def test_the_command_of_a_hint_goes_the_way_of_the_run(
    sshd: StartSshd, keys: Keys, fleet: Fleet, tmp_path: Path
) -> None:
    """Another port, a jump host, or a host that no file names: what is said is pasted, and then the run succeeds."""
    gate, box = sshd(), sshd()
    fleet.add("gate", gate, self=False)
    fleet.add("box", box, port=1)
    me, known = getpass.getuser(), tmp_path / "known hosts"
    login = (
        "--identity",
        str(keys["client"]),
        "--known-hosts",
        str(known),
        "--ssh-config",
        "none",
        "--python",
        "python3",
    )
    for words in (
        ("--on", "box", "--port", str(box.port), "--known-hosts", str(known)),
        ("--on", f"{me}@127.0.0.1:{box.port}", *login),
        ("--on", f"{me}@127.0.0.1:{box.port}", "--jump", "gate", *login),
    ):
        known.unlink(missing_ok=True)
        run = ("exec", *words, "--output", "json", "--", "true")
        (refused,) = fleet.project.run(*run).document["outcomes"]
        assert refused["error"]["code"] == "host_key_unknown"
        (command,) = re.findall(r"`(remoterun hostkeys accept .*?)`", refused["error"]["hint"])
        pasted = [*REMOTERUN, *shlex.split(command)[1:], "--yes"]
        subprocess.run(pasted, check=True, capture_output=True, cwd="/")
        (done,) = fleet.project.run(*run).document["outcomes"]
        assert done["status"] == "ok", (command, done["error"])


# --- asking -----------------------------------------------------------------------------------------------------------


def ask(project: Project, answer: bytes, *words: str) -> Result:
    """Run a command on a terminal, and answer its question."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        project.argv(*words), stdin=theirs, stderr=theirs, stdout=subprocess.PIPE, start_new_session=True
    )
    os.close(theirs)
    said = b""
    while b"[y/N] " not in said:
        said += os.read(ours, 4096)
    os.write(ours, answer)
    stdout, _ = process.communicate(timeout=60)
    os.close(ours)
    return Result(status=process.returncode, stdout=stdout, stderr=said.decode())


def test_a_person_is_asked_with_the_fingerprint(sshd: StartSshd, keys: Keys, fleet: Fleet) -> None:
    fleet.add("box", sshd())
    for answer in (b"\n", b"n\n", b"\x04"):
        result = ask(fleet.project, answer, "hostkeys", "accept", "--on", "box")
        assert result.status == 1
        assert keys.fingerprint("host_ed25519") in result.stderr
        assert not fleet.known.exists()
    result = ask(fleet.project, b"yes\n", "hostkeys", "accept", "--on", "box")
    assert result.status == 0
    assert f"written to {fleet.known}" in result.stdout.decode()
    assert keys.public("host_ed25519") in fleet.known.read_text()


def test_this_machine_has_no_key_to_show(fleet: Fleet) -> None:
    (fleet.project.folder / "inventory.yaml").write_text("hosts: {here: {transport: local}}\n", "utf-8")
    result = fleet.project.run("hostkeys", "show")
    assert result.status == 2
    assert "none of these targets is reached by SSH" in result.stderr


def test_without_a_terminal_nobody_is_asked(sshd: StartSshd, fleet: Fleet) -> None:
    server = sshd()
    fleet.add("box", server)
    result = fleet.project.run("hostkeys", "accept", "--on", "box", stdin=b"yes\n")
    assert result.status == 2
    assert f"not known: box ([127.0.0.1]:{server.port}); there is no terminal" in result.stderr
    assert "give --yes" in result.stderr
    assert not fleet.known.exists()
    fleet.know(server, "host_ed25519")
    assert fleet.look("accept", "--on", "box")[0] == 0
    assert fleet.project.run("hostkeys", "accept", "--yes").status == 2
