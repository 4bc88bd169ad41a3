"""Host keys: only what is known or pinned is talked to, on every hop, and what was offered instead is told."""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from remoterun.errors import TargetError
from remoterun.transports import Pool
from tests.conformance.logins import greet, log_in, refused
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


@pytest.mark.parametrize(
    ("words", "told", "help_is"),
    [
        (("-n", "box.example"), "principal mismatch", "HostKeyAlias"),
        (("-n", "127.0.0.1", "-V", "20200101:20200102"), "expired", "anew"),
        (("-n", "127.0.0.1", "-V", "20400101:20400102"), "not yet valid", "anew"),
    ],
)
def test_a_certificate_that_does_not_count_is_told_as_that(
    sshd: StartSshd, keys: Keys, tmp_path: Path, words: tuple[str, ...], told: str, help_is: str
) -> None:
    public = shutil.copy(keys["host_ed25519.pub"], tmp_path / "cert.pub")
    subprocess.run(["ssh-keygen", "-q", "-s", keys["ca"], "-I", "box", "-h", *words, public], check=True)
    server = sshd(f"HostCertificate {tmp_path / 'cert-cert.pub'}")
    known = server.known_hosts(f"@cert-authority * {keys.public('ca')}")
    error = refused(server.host(known_hosts=(known,)), "host_key_unknown")
    assert told in error.message
    assert help_is in error.hint
    assert "hostkeys accept" not in error.hint
    log_in(server.host())  # its plain key is known


def test_a_certificate_of_a_revoked_authority_is_told_as_that(sshd: StartSshd, keys: Keys, tmp_path: Path) -> None:
    public = shutil.copy(keys["host_ed25519.pub"], tmp_path / "cert.pub")
    subprocess.run(["ssh-keygen", "-q", "-s", keys["ca"], "-I", "box", "-h", "-n", "127.0.0.1", public], check=True)
    server = sshd(f"HostCertificate {tmp_path / 'cert-cert.pub'}")
    lines = (f"@cert-authority * {keys.public('ca')}", f"@revoked * {keys.public('ca')}")
    error = refused(server.host(known_hosts=(server.known_hosts(*lines),)), "host_key_changed")
    assert "revoked" in error.message


# --- accept-new -------------------------------------------------------------------------------------------------------


def test_the_first_key_of_an_unknown_host_is_taken_and_kept(sshd: StartSshd, keys: Keys, tmp_path: Path) -> None:
    server = sshd(host_keys=("host_ed25519", "host_rsa"))
    file = tmp_path / "ssh" / "known_hosts"
    host = server.host(known_hosts=(str(file), "/no/such/file"), accept_new=True)
    log_in(host)
    assert file.read_text() == f"[127.0.0.1]:{server.port} {keys.public('host_ed25519')}\n"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    log_in(host)
    log_in(server.host(known_hosts=(str(file),)))
    assert file.read_text().count("\n") == 1
    found = subprocess.run(
        ["ssh-keygen", "-F", f"[127.0.0.1]:{server.port}", "-f", file], capture_output=True, text=True, check=True
    )
    assert keys.public("host_ed25519") in found.stdout


def test_a_changed_key_fails_with_accept_new_as_well(sshd: StartSshd, keys: Keys) -> None:
    server = sshd()
    for name in ("other", "host_rsa"):
        known = server.known_hosts(f"[127.0.0.1]:{server.port} {keys.public(name)}")
        before = Path(known).read_text()
        refused(server.host(known_hosts=(known,), accept_new=True), "host_key_changed")
        assert Path(known).read_text() == before
    line = f"[127.0.0.1]:{server.port} {keys.public('host_ed25519')}"
    refused(server.host(known_hosts=(server.known_hosts(f"@revoked {line}"),), accept_new=True), "host_key_changed")
    refused(server.host(host_key=(keys.fingerprint("other"),), accept_new=True), "host_key_changed")


def test_a_key_that_changes_within_a_run_fails(sshd: StartSshd, keys: Keys, tmp_path: Path) -> None:
    server = sshd()
    file = tmp_path / "known_hosts"
    host = server.host(known_hosts=(str(file),), accept_new=True)

    async def main() -> None:
        async with Pool() as pool:
            await greet(pool, host)
            # What this run has read is older than this.
            file.write_text(f"[127.0.0.1]:{server.port} {keys.public('other')}\n")
            with pytest.raises(TargetError) as caught:
                await greet(pool, dataclasses.replace(host, user="nobody"))
            assert caught.value.code == "host_key_changed"

    asyncio.run(main())


def test_a_hashed_file_stays_hashed_and_a_torn_line_is_ended(sshd: StartSshd, keys: Keys, tmp_path: Path) -> None:
    server = sshd()
    path = tmp_path / "known_hosts"
    path.write_text(f"other.example {keys.public('other')}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", path], check=True, capture_output=True)
    path.write_text(path.read_text().rstrip("\n"))
    link = tmp_path / "link"
    link.symlink_to(path)
    log_in(server.host(known_hosts=(str(link),), accept_new=True))
    lines = path.read_text().splitlines()
    assert [line[:3] for line in lines] == ["|1|", "|1|"]
    assert link.is_symlink()
    log_in(server.host(known_hosts=(str(path),)))
    found = subprocess.run(["ssh-keygen", "-F", f"[127.0.0.1]:{server.port}", "-f", path], check=False)
    assert found.returncode == 0


def test_a_new_key_that_cannot_be_kept_is_not_trusted(sshd: StartSshd, tmp_path: Path) -> None:
    server = sshd()
    (tmp_path / "file").write_text("")
    error = refused(server.host(known_hosts=(str(tmp_path / "file" / "known"),), accept_new=True), "host_key_unknown")
    assert "could not be written down" in error.message
    error = refused(server.host(known_hosts=("none",), accept_new=True), "host_key_unknown")
    assert "there is no known_hosts file to write to" in error.message
    assert not Path("none").exists()


def test_accept_new_takes_the_plain_key_behind_a_certificate(sshd: StartSshd, keys: Keys, tmp_path: Path) -> None:
    public = shutil.copy(keys["host_ed25519.pub"], tmp_path / "cert.pub")
    subprocess.run(["ssh-keygen", "-q", "-s", keys["ca"], "-I", "box", "-h", "-n", "127.0.0.1", public], check=True)
    server = sshd(f"HostCertificate {tmp_path / 'cert-cert.pub'}")
    file = tmp_path / "known"
    log_in(server.host(known_hosts=(str(file),), accept_new=True))
    assert keys.public("host_ed25519") in file.read_text()


def test_accept_new_goes_for_each_hop_by_itself(sshd: StartSshd, tmp_path: Path) -> None:
    gate, box = sshd(), sshd()
    file = (str(tmp_path / "known"),)
    strict = gate.host(key="gate", known_hosts=file)
    error = refused(box.host(known_hosts=file, accept_new=True, jump=(strict,)), "host_key_unknown")
    assert "jump host gate" in error.message
    log_in(box.host(known_hosts=file, accept_new=True, jump=(dataclasses.replace(strict, accept_new=True),)))
    assert len(Path(file[0]).read_text().splitlines()) == 2


def test_a_jump_host_of_ssh_config_is_treated_like_the_host(sshd: StartSshd, tmp_path: Path) -> None:
    gate, box = sshd(), sshd()
    file, config = tmp_path / "known", tmp_path / "config"
    config.write_text(
        f"Host gate\n  Hostname 127.0.0.1\n  Port {gate.port}\n"
        f"Host 127.0.0.1\n  ProxyJump gate\n"
        f"Host *\n  UserKnownHostsFile {file}\n  IdentityFile {gate.keys['client']}\n"
    )
    host = box.host(known_hosts=(), jump=None, ssh_config=str(config), identity_files=())
    refused(host, "host_key_unknown")
    log_in(dataclasses.replace(host, accept_new=True))
    assert len(file.read_text().splitlines()) == 2


def test_two_that_write_at_once_write_once(sshd: StartSshd, tmp_path: Path) -> None:
    server = sshd()
    file = tmp_path / "known"
    host = server.host(known_hosts=(str(file),), accept_new=True)

    async def main() -> None:
        async with Pool() as one, Pool() as two:
            await asyncio.gather(greet(one, host), greet(two, host))

    asyncio.run(main())
    assert len(file.read_text().splitlines()) == 1


def test_a_lock_that_is_held_for_ever_holds_up_nobody(sshd: StartSshd, tmp_path: Path) -> None:
    file = tmp_path / "known"
    file.touch()
    with file.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        log_in(sshd().host(known_hosts=(str(file),), accept_new=True))
    assert len(file.read_text().splitlines()) == 1
