"""Logging in: every way in which it fails has its own code, says how far it came, and stays within the limit."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import asyncssh
import pytest

from remoterun.errors import TargetError
from remoterun.model import Host
from remoterun.transports import Pool
from tests.conformance.logins import greet, log_in, nowhere, refused, serve
from tests.conformance.servers import LIMIT_S, Keys, StartSshd, free_port, toy_server, until

# --- may I come in ----------------------------------------------------------------------------------------------------


def test_a_refused_key_says_who_tried_with_what(sshd: StartSshd, keys: Keys) -> None:
    host = sshd().host(identity_files=(keys["other"],))
    error = refused(host, "auth_failed")
    assert str(host.user) in error.message
    assert keys["other"] in error.message


def test_having_no_key_at_all_is_said(sshd: StartSshd) -> None:
    assert "no key to offer" in refused(sshd().host(identity_files=()), "auth_failed").message


def test_an_identity_file_that_is_not_there_is_named(sshd: StartSshd) -> None:
    assert "/no/such/key" in refused(sshd().host(identity_files=("/no/such/key",)), "auth_failed").message


def lock(keys: Keys, folder: Path) -> Path:
    """Copy the client's key under a passphrase."""
    path = Path(shutil.copy(keys["client"], folder / "locked"))
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", path], check=True, stdout=subprocess.DEVNULL)
    return path


def test_an_encrypted_key_is_never_asked_about(sshd: StartSshd, keys: Keys, tmp_path: Path) -> None:
    locked = lock(keys, tmp_path)
    error = refused(sshd().host(identity_files=(str(locked),)), "auth_failed")
    assert f"{locked} (encrypted" in error.message


def test_the_default_key_of_the_home_is_used(sshd: StartSshd, keys: Keys) -> None:
    folder = Path("~/.ssh").expanduser()
    folder.mkdir()
    shutil.copy(keys["client"], folder / "id_ed25519")
    log_in(sshd().host(identity_files=()))


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """Run an ssh-agent; returns what adds a key to it."""
    where = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", where], stdout=subprocess.DEVNULL)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(where))

    def add(path: str) -> None:
        subprocess.run(["ssh-add", "-q", path], check=True, timeout=LIMIT_S)

    try:
        asyncio.run(until(where.exists))
        yield add
    finally:
        process.terminate()
        process.wait(LIMIT_S)


def test_the_agents_key_is_used(sshd: StartSshd, keys: Keys, agent: Callable[[str], None]) -> None:
    agent(keys["client"])
    log_in(sshd().host(identity_files=()))


def test_an_encrypted_identity_file_is_used_through_the_agent(
    sshd: StartSshd, keys: Keys, agent: Callable[[str], None], tmp_path: Path
) -> None:
    locked = lock(keys, tmp_path)
    shutil.copy(keys["client.pub"], tmp_path / "locked.pub")
    agent(keys["client"])
    log_in(sshd().host(identity_files=(str(locked),)))


def test_a_full_agent_does_not_use_up_the_servers_patience(
    sshd: StartSshd, keys: Keys, agent: Callable[[str], None], tmp_path: Path
) -> None:
    for number in range(8):
        path = tmp_path / f"key{number}"
        asyncssh.generate_private_key("ssh-ed25519").write_private_key(path)
        path.chmod(0o600)
        agent(str(path))
    server = sshd("MaxAuthTries 4")
    log_in(server.host())
    refused(server.host(identity_files=()), "auth_failed")


def test_a_dead_agent_is_no_obstacle(sshd: StartSshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "gone"))
    log_in(sshd().host())


def test_a_user_certificate_is_used(sshd: StartSshd, keys: Keys, tmp_path: Path) -> None:
    identity = shutil.copy(keys["other"], tmp_path / "identity")
    shutil.copy(keys["other.pub"], tmp_path / "identity.pub")
    server = sshd(f"TrustedUserCAKeys {keys['ca.pub']}")
    host = server.host(identity_files=(str(identity),))
    refused(host, "auth_failed")
    subprocess.run(
        ["ssh-keygen", "-q", "-s", keys["ca"], "-I", "me", "-n", str(host.user), tmp_path / "identity.pub"], check=True
    )
    log_in(host)


def test_a_password_is_never_asked_for(sshd: StartSshd) -> None:
    server = sshd("AuthenticationMethods any", "PasswordAuthentication yes", "KbdInteractiveAuthentication yes")
    refused(server.host(identity_files=()), "auth_failed")


class _WithCode(asyncssh.SSHServer):
    """Ask for a second factor, as a PAM module would."""

    def public_key_auth_supported(self) -> bool:
        return False

    def kbdint_auth_supported(self) -> bool:
        return True

    def get_kbdint_challenge(
        self, username: str, lang: str, submethods: str
    ) -> tuple[str, str, str, list[tuple[str, bool]]]:
        return ("", "", "", [("Verification code: ", False)])


def test_a_question_for_more_than_a_password_is_quoted(keys: Keys) -> None:
    async def ask(question: str) -> str:
        return "secret"

    async def main() -> TargetError:
        options: dict[str, object] = {"server_factory": _WithCode, "authorized_client_keys": None}
        async with asyncio.timeout(2 * LIMIT_S), toy_server(keys, **options) as toy, Pool(ask=ask) as pool:
            with pytest.raises(TargetError) as caught:
                await greet(pool, toy.host())
            return caught.value

    error = asyncio.run(main())
    assert error.code == "auth_failed"
    assert "`Verification code:`" in error.hint


# --- is anybody there -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nowhere.invalid", "nowhere..invalid", f"{'a' * 64}.invalid"])
def test_a_name_that_does_not_exist(name: str) -> None:
    assert f"{name} could not be resolved" in refused(nowhere(address=name), "dns_failed").message


def test_a_port_that_nothing_listens_on() -> None:
    port = free_port()
    assert f"127.0.0.1 port {port}" in refused(nowhere(port), "connect_refused").message


def test_a_listener_that_says_nothing() -> None:
    error, took, _ = serve(nowhere, "connect_timeout")
    assert error.limit == ("connect", 0.5, "limits.connect")
    assert "banner" in error.message
    assert took < LIMIT_S / 3


def test_a_server_that_stops_after_its_banner() -> None:
    error, took, _ = serve(nowhere, "connect_timeout", say=b"SSH-2.0-OpenSSH_9.2\r\n", limit_s=2)
    assert "key exchange" in error.message
    assert took < LIMIT_S / 3


def test_a_server_that_hangs_up_is_given_a_few_more_chances() -> None:
    error, _, seen = serve(nowhere, "connect_failed", say=b"Exceeded MaxStartups\r\n", hang_up=True)
    assert "hung up" in error.message
    assert seen == 6


def test_a_host_without_a_route_is_told_in_the_systems_words() -> None:
    error = refused(Host(key="far", address="255.255.255.255", port=22), "connect_failed")
    assert "Network is unreachable" in error.message
    assert "Errno" not in error.message


def test_a_server_that_is_no_ssh_server() -> None:
    serve(nowhere, "connect_failed", say=b"SSH-1.5-old\r\n", hang_up=True)
    serve(nowhere, "connect_failed", say=b"x" * 20000, hang_up=True)


def test_a_server_that_never_decides_about_the_key(keys: Keys) -> None:
    class Undecided(asyncssh.SSHServer):
        async def begin_auth(self, username: str) -> bool:
            await asyncio.get_running_loop().create_future()
            return True

    async def main() -> None:
        async with toy_server(keys, server_factory=Undecided) as toy, Pool() as pool:
            with pytest.raises(TargetError) as caught:
                await greet(pool, toy.host(), connect_s=2)
            assert caught.value.code == "connect_timeout"
            assert "let toy in" in caught.value.message

    asyncio.run(main())


def test_a_server_without_a_common_cipher(sshd: StartSshd) -> None:
    server = sshd("Ciphers aes256-ctr", "MACs hmac-sha2-512")
    config = server.folder / "client"
    config.write_text("Ciphers aes128-ctr\n")
    error = refused(server.host(ssh_config=str(config)), "connect_failed")
    assert "aes128-ctr" in error.message


def test_all_who_wait_for_one_login_hear_of_its_failure(sshd: StartSshd, keys: Keys) -> None:
    server = sshd()

    async def main() -> None:
        async with Pool() as pool:
            host = server.host(identity_files=(keys["other"],))
            results = await asyncio.gather(*(greet(pool, host) for _ in range(10)), return_exceptions=True)
            assert {getattr(result, "code", None) for result in results} == {"auth_failed"}

    asyncio.run(main())
    assert server.log.count("Connection from") == 1


def test_the_shorter_limit_gives_up_alone(keys: Keys) -> None:
    class Slow(asyncssh.SSHServer):
        async def begin_auth(self, username: str) -> bool:
            await asyncio.sleep(1)
            return True

    async def main() -> None:
        async with toy_server(keys, server_factory=Slow) as toy, Pool() as pool:
            hasty, patient = await asyncio.gather(
                greet(pool, toy.host(), connect_s=0.4), greet(pool, toy.host()), return_exceptions=True
            )
            assert isinstance(hasty, TargetError)
            assert hasty.code == "connect_timeout"
            assert patient == b"in\n"
        async with toy_server(keys, server_factory=Slow) as toy, Pool() as pool:
            with pytest.raises(TargetError):
                await greet(pool, toy.host(), connect_s=0.4)
            assert await greet(pool, toy.host()) == b"in\n"

    asyncio.run(main())
