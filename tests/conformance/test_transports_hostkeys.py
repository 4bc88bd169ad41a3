"""Host keys: only what is known or pinned is talked to, on every hop, and what was offered instead is told."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from tests.conformance.logins import log_in, refused
from tests.conformance.servers import Keys, StartSshd


def test_a_known_host_is_logged_in_at(sshd: StartSshd) -> None:
    log_in(sshd().host())


def test_a_pinned_host_is_logged_in_at(sshd: StartSshd, keys: Keys) -> None:
    log_in(sshd().host(known_hosts=(), host_key=(keys.fingerprint("host_ed25519"),)))


def test_a_pin_needs_no_preferred_key_type(sshd: StartSshd, keys: Keys) -> None:
    server = sshd(host_keys=("host_ed25519", "host_ecdsa", "host_rsa"))
    for name in ("host_rsa", "host_ecdsa"):
        log_in(server.host(known_hosts=(), host_key=(keys.fingerprint(name),)))


def test_known_hosts_needs_no_preferred_key_type(sshd: StartSshd, keys: Keys) -> None:
    server = sshd(host_keys=("host_ed25519", "host_ecdsa", "host_rsa"))
    for name in ("host_rsa", "host_ecdsa"):
        known = server.known_hosts(f"[127.0.0.1]:{server.port} {keys.public(name)}")
        log_in(server.host(known_hosts=(known,)))


def test_an_unknown_host_is_refused_with_the_line_that_pins_it(sshd: StartSshd, keys: Keys) -> None:
    server = sshd()
    known = server.known_hosts(f"other.example {keys.public('host_ed25519')}")
    error = refused(server.host(known_hosts=(known,)), "host_key_unknown")
    assert f"ssh-ed25519 {keys.fingerprint('host_ed25519')}" in error.message
    pin = re.search(r"`host_key: (\S+)`", error.hint)
    assert pin is not None
    log_in(server.host(known_hosts=(), host_key=(pin[1],)))


def test_no_known_hosts_file_at_all_is_unknown_too(sshd: StartSshd) -> None:
    refused(sshd().host(known_hosts=("/no/such/file",)), "host_key_unknown")
    refused(sshd().host(known_hosts=()), "host_key_unknown")


def test_known_hosts_none_of_ssh_config_does_not_switch_checking_off(sshd: StartSshd, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("UserKnownHostsFile none\nStrictHostKeyChecking no\n")
    refused(sshd().host(known_hosts=(), ssh_config=str(config)), "host_key_unknown")


def test_a_key_that_is_known_for_the_address_only_is_not_the_names(sshd: StartSshd, keys: Keys) -> None:
    server = sshd()
    known = server.known_hosts(f"[127.0.0.1]:{server.port} {keys.public('host_ed25519')}")
    refused(server.host(address="localhost", known_hosts=(known,)), "host_key_unknown")


def test_a_changed_key_is_refused_with_both_fingerprints(sshd: StartSshd, keys: Keys) -> None:
    server = sshd()
    known = server.known_hosts(f"[127.0.0.1]:{server.port} {keys.public('other')}")
    error = refused(server.host(known_hosts=(known,)), "host_key_changed")
    assert keys.fingerprint("host_ed25519") in error.message
    assert keys.fingerprint("other") in error.message


def test_a_key_of_another_type_than_known_is_a_change_and_named(sshd: StartSshd, keys: Keys) -> None:
    server = sshd()
    known = server.known_hosts(f"[127.0.0.1]:{server.port} {keys.public('host_rsa')}")
    error = refused(server.host(known_hosts=(known,)), "host_key_changed")
    assert keys.fingerprint("host_ed25519") in error.message
    assert keys.fingerprint("host_rsa") in error.message


def test_a_key_other_than_the_pinned_one_is_refused_though_known_hosts_has_it(sshd: StartSshd, keys: Keys) -> None:
    server = sshd(host_keys=("host_ed25519", "host_ecdsa"))
    error = refused(server.host(host_key=(keys.fingerprint("other"),)), "host_key_changed")
    assert keys.fingerprint("other") in error.message
    for name in server.host_keys:
        assert keys.fingerprint(name) in error.message


def test_a_revoked_key_is_refused(sshd: StartSshd, keys: Keys) -> None:
    server = sshd()
    line = f"[127.0.0.1]:{server.port} {keys.public('host_ed25519')}"
    error = refused(server.host(known_hosts=(server.known_hosts(line, f"@revoked {line}"),)), "host_key_changed")
    assert "revoked" in error.message


def test_a_broken_line_in_known_hosts_does_not_hide_the_others(sshd: StartSshd) -> None:
    server = sshd()
    broken = server.known_hosts("this is", "|1|not base64|x ssh-ed25519 AAAA", "@odd marker line x", "lonely")
    log_in(server.host(known_hosts=(broken, server.known_hosts())))


def test_a_hashed_entry_and_one_without_port_count(sshd: StartSshd, keys: Keys) -> None:
    server = sshd()
    path = Path(server.known_hosts())
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", path], check=True, capture_output=True)
    assert path.read_text().startswith("|1|")
    log_in(server.host(known_hosts=(str(path),)))
    log_in(server.host(known_hosts=(server.known_hosts(f"127.0.0.1 {keys.public('host_ed25519')}"),)))


def test_a_host_certificate_of_a_known_authority_counts_and_one_of_an_unknown_does_not(
    sshd: StartSshd, keys: Keys, tmp_path: Path
) -> None:
    public = shutil.copy(keys["host_ed25519.pub"], tmp_path / "cert.pub")
    subprocess.run(["ssh-keygen", "-q", "-s", keys["ca"], "-I", "box", "-h", "-n", "127.0.0.1", public], check=True)
    server = sshd(f"HostCertificate {tmp_path / 'cert-cert.pub'}")
    log_in(server.host(known_hosts=(server.known_hosts(f"@cert-authority * {keys.public('ca')}"),)))
    log_in(server.host())  # its plain key is known
    error = refused(server.host(known_hosts=()), "host_key_unknown")
    assert keys.fingerprint("host_ed25519") in error.message
    log_in(server.host(known_hosts=(), host_key=(keys.fingerprint("host_ed25519"),)))
