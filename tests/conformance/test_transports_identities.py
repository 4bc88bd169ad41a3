"""Which keys are offered, and in which order, is what OpenSSH would do with the same files and agent."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncssh
import pytest

from remoterun.model import Host
from tests.conformance.logins import log_in, refused
from tests.conformance.servers import LIMIT_S, Keys, Sshd, StartSshd, until

Agent = Callable[..., str]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    """Start agents: `agent("key", ...)` returns the socket of one that holds these."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*paths: str) -> str:
        where = tmp_path / f"agent{len(running)}"
        running.append(subprocess.Popen(["ssh-agent", "-D", "-a", where], stdout=subprocess.DEVNULL))
        env = {"SSH_AUTH_SOCK": str(where), "PATH": "/usr/bin:/bin"}
        ask = ("ssh-add", "-l")
        # It has a socket before it listens there.
        asyncio.run(until(lambda: subprocess.run(ask, env=env, check=False, capture_output=True).returncode != 2))
        for path in paths:
            subprocess.run(["ssh-add", "-q", path], env=env, check=True, timeout=LIMIT_S)
        return str(where)

    yield start
    for process in running:
        process.terminate()
        process.wait(LIMIT_S)


@pytest.fixture
def crowd(tmp_path: Path) -> list[str]:
    """Make more keys than a server has patience for."""
    paths = [str(tmp_path / f"stranger{number}") for number in range(8)]
    for path in paths:
        asyncssh.generate_private_key("ssh-ed25519").write_private_key(path)
        Path(path).chmod(0o600)
    return paths


def configured(server: Sshd, tmp_path: Path, *lines: str) -> Host:
    """Let ssh_config say all about a host."""
    config = tmp_path / "config"
    always = (f"Port {server.port}", f"User {server.host().user}", f"UserKnownHostsFile {server.known_hosts()}")
    config.write_text("".join(f"{line}\n" for line in (*lines, *always)))
    return Host(key="box", address="127.0.0.1", ssh_config=str(config))


def test_a_named_key_is_the_first_of_a_full_agent(
    sshd: StartSshd, keys: Keys, agent: Agent, crowd: list[str], tmp_path: Path
) -> None:
    asks = f"IdentityAgent {agent(*crowd, keys['client'])}"
    server = sshd("MaxAuthTries 3")
    log_in(configured(server, tmp_path, asks, f"IdentityFile {keys['client']}"))
    log_in(configured(server, tmp_path, asks, f"IdentityFile {keys['client.pub']}"))
    log_in(configured(server, tmp_path, asks, f"IdentityFile {keys['client.pub']}", "IdentitiesOnly yes"))
    refused(configured(server, tmp_path, asks), "auth_failed")


def test_with_identitiesonly_an_agents_other_keys_are_its_own_business(
    sshd: StartSshd, keys: Keys, agent: Agent, tmp_path: Path
) -> None:
    asks = f"IdentityAgent {agent(keys['client'])}"
    refused(configured(sshd(), tmp_path, asks, "IdentityFile /no/such/key", "IdentitiesOnly yes"), "auth_failed")
    log_in(configured(sshd(), tmp_path, asks, "IdentityFile /no/such/key"))


def test_a_public_half_names_a_key_that_only_the_agent_has(
    sshd: StartSshd, keys: Keys, agent: Agent, tmp_path: Path
) -> None:
    card = tmp_path / "class" / "card"
    card.parent.mkdir()
    shutil.copy(keys["client.pub"], f"{card}.pub")
    server, lines = sshd(), (f"IdentityFile {card}", "IdentitiesOnly yes")
    log_in(configured(server, tmp_path, f"IdentityAgent {agent(keys['other'], keys['client'])}", *lines))
    error = refused(configured(server, tmp_path, "IdentityAgent none", *lines), "auth_failed")
    assert f"{card} (a public key: its other half is in no agent)" in error.message


@pytest.mark.parametrize("content", ["no key\n", None, "sk-ssh-ed25519@openssh.com AAAA of a card\n"])
def test_a_file_that_cannot_be_used_hides_no_other(
    sshd: StartSshd, keys: Keys, tmp_path: Path, content: str | None
) -> None:
    odd = tmp_path / "odd.pub"
    odd.write_text(Path(keys["other.pub"]).read_text() if content is None else content)
    odd.chmod(0o600)
    server = sshd()
    log_in(configured(server, tmp_path, f"IdentityFile {odd}", f"IdentityFile {keys['client']}"))
    error = refused(configured(server, tmp_path, f"IdentityFile {odd}"), "auth_failed")
    assert ("its other half is in no agent" if content is None else "not usable") in error.message


def test_a_certificate_goes_with_a_key_that_only_the_agent_has(
    sshd: StartSshd, keys: Keys, agent: Agent, tmp_path: Path
) -> None:
    asks = f"IdentityAgent {agent(keys['other'])}"
    server = sshd(f"TrustedUserCAKeys {keys['ca.pub']}")
    public, user = shutil.copy(keys["other.pub"], tmp_path / "me.pub"), str(server.host().user)
    subprocess.run(["ssh-keygen", "-q", "-s", keys["ca"], "-I", "me", "-n", user, public], check=True)
    log_in(configured(server, tmp_path, asks, f"CertificateFile {tmp_path}/me-cert.pub"))
    lines = (f"CertificateFile {tmp_path}/me-cert.pub", f"IdentityFile {public}", "IdentitiesOnly yes")
    log_in(configured(server, tmp_path, asks, *lines))


def test_the_agent_is_the_one_that_ssh_config_names(
    sshd: StartSshd, keys: Keys, agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, right, wrong = sshd(), agent(keys["client"]), agent(keys["other"])
    monkeypatch.setenv("SSH_AUTH_SOCK", wrong)
    monkeypatch.setenv("RIGHT_AGENT", right)
    for words in (right, "$RIGHT_AGENT", "${RIGHT_AGENT}"):
        log_in(configured(server, tmp_path, f"IdentityAgent {words}"))
    monkeypatch.setenv("SSH_AUTH_SOCK", right)
    log_in(configured(server, tmp_path, "IdentityAgent SSH_AUTH_SOCK"))
    refused(configured(server, tmp_path, "IdentityAgent none"), "auth_failed")


def test_an_agent_that_never_answers_is_told_as_that(sshd: StartSshd, keys: Keys, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        host = configured(sshd(), tmp_path, f"IdentityAgent {tmp_path}/silent", f"IdentityFile {keys['client']}")
        error = refused(host, "connect_timeout", connect_s=0.5)
    assert "asking the SSH agent" in error.message
    assert "ssh-add -l" in error.hint
