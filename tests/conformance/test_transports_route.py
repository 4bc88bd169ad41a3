"""The way to a host: jump hosts, ssh_config and ProxyCommand; a hop that fails is named."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import psutil

from remoterun.model import Host
from remoterun.transports import Pool
from tests.conformance.logins import greet, log_in, nowhere, refused, serve
from tests.conformance.servers import LIMIT_S, Keys, Sshd, StartSshd, free_port, until

# --- jump hosts -------------------------------------------------------------------------------------------------------


def test_a_chain_of_jump_hosts(sshd: StartSshd) -> None:
    first, second, last = sshd(), sshd(), sshd()
    log_in(last.host(jump=(first.host(key="first"), second.host(key="second"))))
    for server in (second, last):
        assert "Accepted publickey" in server.log


def test_a_jump_host_is_logged_in_at_once_for_all_behind_it(sshd: StartSshd) -> None:
    jump, one, two = sshd(), sshd(), sshd()

    async def main() -> None:
        async with Pool() as pool:
            way = (jump.host(key="jump"),)
            hosts = [one.host(key="one", jump=way), two.host(key="two", jump=way), jump.host(key="itself")] * 3
            assert await asyncio.gather(*(greet(pool, host) for host in hosts)) == [b"in\n"] * 9

    asyncio.run(main())
    assert [server.log.count("Accepted publickey") for server in (jump, one, two)] == [1, 1, 1]


def by_way_of(server: Sshd, jump: Host) -> Host:
    """Describe a host behind another."""
    return server.host(jump=(jump,))


def test_an_unknown_or_changed_jump_host_is_refused_and_named(sshd: StartSshd, keys: Keys) -> None:
    jump, last = sshd(), sshd()
    error = refused(by_way_of(last, jump.host(key="gate", known_hosts=())), "host_key_unknown")
    assert "jump host gate" in error.message
    assert keys.fingerprint("host_ed25519") in error.message
    error = refused(by_way_of(last, jump.host(key="gate", host_key=(keys.fingerprint("other"),))), "host_key_changed")
    assert "jump host gate" in error.message
    refused(last.host(known_hosts=(), jump=(jump.host(key="gate"),)), "host_key_unknown")
    assert "Accepted publickey" not in last.log


def test_a_jump_host_that_refuses_the_login(sshd: StartSshd, keys: Keys) -> None:
    error = refused(by_way_of(sshd(), sshd().host(key="gate", identity_files=(keys["other"],))), "auth_failed")
    assert "jump host gate" in error.message


def test_a_jump_host_that_is_down() -> None:
    error = refused(nowhere(jump=(nowhere(free_port(), key="gate"),)), "connect_refused")
    assert "jump host gate" in error.message


def test_a_jump_host_that_says_nothing_ends_with_the_limit() -> None:
    error, _, _ = serve(lambda port: nowhere(jump=(nowhere(port, key="gate"),)), "connect_timeout")
    assert "jump host gate" in error.message
    assert error.limit == ("connect", 0.5, "limits.connect")


def test_a_host_that_is_down_behind_a_jump_host(sshd: StartSshd) -> None:
    port = free_port()
    error = refused(nowhere(port, jump=(sshd().host(key="gate"),)), "connect_refused")
    assert str(port) in error.message


def test_a_jump_host_that_forbids_forwarding(sshd: StartSshd) -> None:
    error = refused(by_way_of(sshd(), sshd("AllowTcpForwarding no").host(key="gate")), "connect_failed")
    assert "AllowTcpForwarding" in error.hint


def test_a_silent_host_behind_a_jump_host_ends_with_the_limit(sshd: StartSshd) -> None:
    gate = sshd().host(key="gate")
    error, took, _ = serve(lambda port: nowhere(port, jump=(gate,)), "connect_timeout", limit_s=3)
    assert took < LIMIT_S / 3
    assert "banner" in error.message


# --- ssh_config -------------------------------------------------------------------------------------------------------


def test_ssh_config_says_where_and_how(sshd: StartSshd, keys: Keys, tmp_path: Path) -> None:
    server, config = sshd(), tmp_path / "config"
    config.write_text(
        f"Host nick\n HostName 127.0.0.1\n Port {server.port}\n User {server.host().user}\n"
        f" IdentityFile {keys['client']}\n IdentityFile /no/such/key\n CertificateFile /no/such/cert\n"
        f" UserKnownHostsFile /no/such/file {server.known_hosts()}\n"
    )
    host = Host(key="nick", address="nick", ssh_config=str(config))
    log_in(host)
    assert "nick" in refused(Host(key="nick", address="nick.invalid", ssh_config=str(config)), "dns_failed").message


def test_match_final_of_ssh_config_counts(sshd: StartSshd, keys: Keys, tmp_path: Path) -> None:
    server, config = sshd(), tmp_path / "config"
    config.write_text(
        f"Host nick\n HostName 127.0.0.1\nMatch final host 127.0.0.1\n Port {server.port}\n User {server.host().user}\n"
        f" IdentityFile {keys['client']}\n UserKnownHostsFile {server.known_hosts()}\n"
        "Match final host nick\n Port 1\n ProxyJump nowhere.invalid\n"
    )
    log_in(Host(key="nick", address="nick", ssh_config=str(config)))


def test_the_homes_ssh_config_is_read_unless_it_is_switched_off(sshd: StartSshd) -> None:
    server = sshd()
    folder = Path("~/.ssh").expanduser()
    folder.mkdir()
    (folder / "config").write_text(f"Host nick.invalid\n HostName 127.0.0.1\n HostKeyAlias [127.0.0.1]:{server.port}\n")
    log_in(server.host(address="nick.invalid", ssh_config=None, jump=None))
    refused(server.host(address="nick.invalid"), "dns_failed")


def test_proxyjump_of_ssh_config_checks_the_jump_hosts_key(sshd: StartSshd, keys: Keys, tmp_path: Path) -> None:
    """asyncssh's `known_hosts=` does not reach the hops of its own ProxyJump."""
    gate, middle, last, config = sshd(), sshd(), sshd(), tmp_path / "config"

    def write(known: str) -> None:
        config.write_text(
            f"Host gate\n HostName 127.0.0.1\n Port {gate.port}\n UserKnownHostsFile {known}\n"
            f"Host last\n HostName 127.0.0.1\n Port {last.port}\n UserKnownHostsFile {last.known_hosts()}\n"
            f" ProxyJump gate,{last.host().user}@middle:{middle.port}\n"
            f"Host middle\n HostName 127.0.0.1\n UserKnownHostsFile {middle.known_hosts()}\n"
            f"Host *\n IdentityFile {keys['client']}\n"
        )

    host = Host(key="last", address="last", ssh_config=str(config))
    write(gate.known_hosts())
    log_in(host)
    assert all("Accepted publickey" in server.log for server in (gate, middle, last))
    write(gate.known_hosts(f"[127.0.0.1]:{gate.port} {keys.public('other')}"))
    assert "jump host gate" in refused(host, "host_key_changed").message
    log_in(last.host(ssh_config=str(config), jump=()))  # the inventory's word beats ssh_config's


def test_jump_hosts_that_lead_in_a_circle(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host a\n ProxyJump b\nHost b\n ProxyJump a\n")
    assert "circle" in refused(Host(key="a", address="a", ssh_config=str(config)), "connect_failed").message


def test_a_broken_ssh_config_is_named_with_its_line(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host *\n Port many\n")
    error = refused(Host(key="box", address="box", ssh_config=str(config)), "connect_failed")
    assert str(config) in error.message
    assert "line 2" in error.message


def test_what_openssh_takes_is_no_obstacle(sshd: StartSshd, keys: Keys, tmp_path: Path) -> None:
    server, config = sshd(), tmp_path / "config"
    config.write_text(
        f"Host nick # mine\n HostName LocalHost\n Port {server.port} # here\n User {server.host().user}\n"
        f" IdentityFile {keys['client']}\n UserKnownHostsFile {tmp_path}/known.%h\n ConnectTimeout 10s\n"
        " PubkeyAuthentication unbound\n HostKeyAlgorithms ssh-ed25519,ssh-dss\n Ciphers aes256-ctr,no-cipher\n"
    )
    (tmp_path / "known.localhost").write_text(f"[LocalHost]:{server.port} {keys.public('host_ed25519')}\n")
    log_in(Host(key="nick", address="nick", ssh_config=str(config)))


def test_what_is_not_known_here_is_named(sshd: StartSshd, keys: Keys, tmp_path: Path) -> None:
    server, config = sshd(), tmp_path / "config"
    config.write_text("ProxyUseFdpass yes\nProxyCommand nc -F %h %p\n")
    assert "ProxyUseFdpass" in refused(Host(key="box", address="box", ssh_config=str(config)), "connect_failed").message
    config.write_text(
        f"UserKnownHostsFile {os.devnull}\nStrictHostKeyChecking no\nKnownHostsCommand /bin/echo\nPort {server.port}\n"
    )
    hint = refused(Host(key="box", address="127.0.0.1", ssh_config=str(config)), "host_key_unknown").hint
    assert "hostkeys accept" not in hint, "it would keep it nowhere"
    for words in ("KnownHostsCommand", "StrictHostKeyChecking no", f"`host_key: {keys.fingerprint('host_ed25519')}"):
        assert words in hint


def test_a_new_key_is_kept_by_the_name_that_openssh_looks_for(sshd: StartSshd, keys: Keys, tmp_path: Path) -> None:
    server, known = sshd(), tmp_path / "known"
    config = tmp_path / "config"
    config.write_text("HostKeyAlias six\n")
    log_in(server.host(known_hosts=(str(known),), accept_new=True, ssh_config=str(config)))
    assert known.read_text() == f"six {keys.public('host_ed25519')}\n"


def test_algorithms_that_are_not_common_are_told_by_what_the_server_has(sshd: StartSshd) -> None:
    error = refused(sshd("KexAlgorithms diffie-hellman-group1-sha1").host(), "connect_failed")
    assert "it offers diffie-hellman-group1-sha1" in error.message


RELAY = """
import os, socket, sys, threading
open(sys.argv[2], "w").write(f"{os.getsid(0)}")
sys.stderr.write("a word on stderr\\n"); sys.stderr.flush()
far = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def up():
    while data := os.read(0, 65536): far.sendall(data)
threading.Thread(target=up, daemon=True).start()
while data := far.recv(65536): os.write(1, data)
"""


def test_a_proxycommand_runs_in_a_session_of_its_own_and_may_talk_on_stderr(sshd: StartSshd, tmp_path: Path) -> None:
    server, config, relay, told = sshd(), tmp_path / "config", tmp_path / "relay.py", tmp_path / "told"
    relay.write_text(RELAY)
    config.write_text(f"Host box\n ProxyCommand {sys.executable} {relay} %p {told}\n HostKeyAlias 127.0.0.1\n")
    known = server.known_hosts(f"127.0.0.1 {server.keys.public('host_ed25519')}")
    host = server.host(address="box", ssh_config=str(config), jump=None, known_hosts=(known,))
    log_in(host)
    session = int(told.read_text())
    assert session != os.getsid(0)

    def gone() -> bool:
        try:
            os.kill(session, 0)
        except ProcessLookupError:
            return True
        return False

    asyncio.run(until(gone))


# It takes its time to end when asked to, and what it has started does not end when asked to.
STUBBORN = """
import signal, subprocess, time
left = subprocess.Popen(["sh", "-c", "trap '' TERM; echo up; sleep 600 & wait; sleep 600"], stdout=subprocess.PIPE)
left.stdout.readline()
def clear_up(*_):
    time.sleep(0.2)
    open(sys.argv[2] + ".cleared", "w").write(str(left.pid))
    os._exit(0)
signal.signal(signal.SIGTERM, clear_up)
"""


def test_a_proxycommand_may_clear_up_and_what_it_leaves_is_killed(sshd: StartSshd, tmp_path: Path) -> None:
    server, config, relay, told = sshd(), tmp_path / "config", tmp_path / "relay.py", tmp_path / "told"
    first, *rest = RELAY.strip().split("\n")
    relay.write_text("\n".join((first, STUBBORN, *rest, "signal.pause()")))
    config.write_text(f"Host box\n ProxyCommand {sys.executable} {relay} %p {told}\n HostKeyAlias 127.0.0.1\n")
    known = server.known_hosts(f"127.0.0.1 {server.keys.public('host_ed25519')}")
    log_in(server.host(address="box", ssh_config=str(config), jump=None, known_hosts=(known,)))
    assert int(Path(f"{told}.cleared").read_text())
    group = int(told.read_text())
    asyncio.run(until(lambda: not any(_runs_in(group, process) for process in psutil.process_iter())))


def _runs_in(group: int, process: psutil.Process) -> bool:
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False


def test_a_proxycommand_that_ends_without_a_word_is_not_the_servers_fault(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("ProxyCommand true %h\n")
    error = refused(Host(key="box", address="box", ssh_config=str(config)), "connect_failed")
    assert "its ProxyCommand ended" in error.message
    assert "`true box </dev/null`" in error.hint


def test_a_proxycommand_that_fails_is_quoted(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host box\n ProxyCommand sh -c 'echo the tunnel is closed >&2; exit 3'\n")
    error = refused(Host(key="box", address="box", ssh_config=str(config)), "connect_failed")
    assert "the tunnel is closed" in error.message
