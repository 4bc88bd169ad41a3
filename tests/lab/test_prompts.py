"""Passphrases and passwords: asked for on a terminal only, one at a time, unseen, and never without need."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import termios
from pathlib import Path
from typing import Self

import pytest

from tests.support.lab import Lab, LabHost
from tests.support.project import Project, Result, write_project

PASSPHRASE, PASSWORD = "open sesame", "correct-horse-1"


@pytest.fixture(scope="module")
def host(lab: Lab) -> LabHost:
    """Return a host that takes a password beside a key."""
    host = lab.host(
        "prompts",
        guests=[200],
        sshd_config="PasswordAuthentication yes\nPermitRootLogin yes\nKbdInteractiveAuthentication no\n",
    )
    host.sh("chpasswd", stdin=f"root:{PASSWORD}\n".encode(), check=True)
    return host


@pytest.fixture
def locked(host: LabHost, tmp_path: Path) -> Path:
    """Return the lab's key under a passphrase, in the format of today's ssh-keygen."""
    path = tmp_path / "locked"
    path.write_bytes(host.identity_file.read_bytes())
    path.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", PASSPHRASE, "-f", path], check=True, capture_output=True)
    return path


class Person:
    """Sit at the terminal of a command line."""

    def __init__(self, project: Project, *words: str) -> None:
        self.ours, theirs = pty.openpty()
        self.said = b""
        self.process = subprocess.Popen(
            project.argv(*words), stdin=theirs, stderr=theirs, stdout=subprocess.PIPE, start_new_session=True
        )
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)

    def reads(self, text: str, times: int = 1) -> None:
        """Wait until the terminal has shown a text so many times."""
        while self.said.count(text.encode()) < times:
            self.said += os.read(self.ours, 4096)

    def types(self, text: str) -> None:
        """Type a line."""
        os.write(self.ours, text.encode() + b"\n")

    @property
    def echoes(self) -> bool:
        """Tell whether the terminal shows what is typed."""
        return bool(termios.tcgetattr(self.ours)[3] & termios.ECHO)

    def result(self) -> Result:
        """Wait for the end, and return all that was said."""
        stdout, _ = self.process.communicate(timeout=60)
        os.set_blocking(self.ours, False)
        try:
            while more := os.read(self.ours, 65536):
                self.said += more
        except OSError:  # all is read, and nobody writes any more
            pass
        return Result(status=self.process.returncode, stdout=stdout, stderr=self.said.decode())


def asks(host: LabHost, folder: Path, key: Path | str, *more: LabHost) -> Project:
    """Return a project whose hosts have this key only."""
    hosts = (host, *more)
    return write_project(folder / "project", hosts, **{each.name: {"identity_file": str(key)} for each in hosts})


EXEC = ("exec", "--output", "json", "--", "true")


def test_a_passphrase_is_asked_for_unseen(host: LabHost, locked: Path, tmp_path: Path) -> None:
    with Person(asks(host, tmp_path, locked), "exec", "--on", "prompts", *EXEC[1:]) as person:
        assert person.echoes
        person.reads(f"Passphrase of the key {locked}: ")
        assert not person.echoes
        person.types("wrong")
        person.reads("That was not it. ")
        person.types(PASSPHRASE)
        result = person.result()
        assert person.echoes
    assert result.outcome("prompts/200")["status"] == "ok", result.outcome("prompts/200")
    assert PASSPHRASE not in result.stderr
    assert "Password" not in result.stderr


def test_a_password_is_asked_for_when_no_key_will_do(host: LabHost, locked: Path, tmp_path: Path) -> None:
    with Person(asks(host, tmp_path, locked), "exec", "--on", "prompts", *EXEC[1:]) as person:
        person.reads("Passphrase of the key ")
        person.types("")
        person.reads(f"Password of root at {host.address} port 22: ")
        person.types("wrong")
        person.reads("That was not it. Password of ")
        person.types(PASSWORD)
        result = person.result()
    assert result.outcome("prompts/200")["status"] == "ok", result.outcome("prompts/200")
    assert PASSWORD not in result.stderr
    assert PASSWORD.encode() not in result.stdout


def test_whoever_has_no_answer_is_not_asked_again(host: LabHost, locked: Path, tmp_path: Path) -> None:
    with Person(asks(host, tmp_path, locked), "exec", "--on", "prompts", *EXEC[1:]) as person:
        person.reads("Passphrase of the key ")
        person.types("")
        person.reads("Password of ")
        os.write(person.ours, b"\x04")
        result = person.result()
    outcome = result.outcome("prompts/200")
    assert outcome["error"]["code"] == "auth_failed"
    assert "ssh-add" in outcome["error"]["hint"]
    assert result.stderr.count("Passphrase of ") == result.stderr.count("Password of ") == 1


def test_a_password_that_was_refused_is_not_asked_for_by_the_hint(host: LabHost, tmp_path: Path) -> None:
    with Person(asks(host, tmp_path, _strange_key(tmp_path)), "exec", "--on", "prompts", *EXEC[1:]) as person:
        person.reads("Password of ")
        person.types("wrong")
        person.reads("That was not it. Password of ")
        os.write(person.ours, b"\x04")
        result = person.result()
    assert result.outcome("prompts/200")["error"]["hint"].startswith("Check the password")


def test_one_question_for_all_hosts_and_targets(lab: Lab, host: LabHost, locked: Path, tmp_path: Path) -> None:
    other = lab.host("prompts-too", guests=[200, 201])
    project = asks(host, tmp_path, locked, other)
    words = ("exec", "--on", "all", "--on", "prompts-too", *EXEC[1:])
    with Person(project, *words) as person:
        person.reads("Passphrase of the key ")
        person.types(PASSPHRASE)
        result = person.result()
    assert [outcome["status"] for outcome in result.document["outcomes"]] == ["ok"] * 3, result.stdout
    assert result.stderr.count("Passphrase of ") == 1


def test_the_display_is_out_of_the_way(host: LabHost, locked: Path, tmp_path: Path) -> None:
    project = asks(host, tmp_path, locked)
    with Person(project, "play", "probe", "--on", "prompts") as person:
        person.reads("Passphrase of the key ")
        shown = len(person.said)
        # The display is drawn several times a second otherwise.
        with pytest.raises(BlockingIOError):
            _read_for(person, 1.5)
        assert len(person.said) == shown
        person.types(PASSPHRASE)
        assert person.result().status in {0, 1}


def _read_for(person: Person, seconds: float) -> None:
    """Take what the terminal shows within some time, and raise BlockingIOError if that is nothing."""
    import select

    ready, _, _ = select.select([person.ours], [], [], seconds)
    if not ready:
        raise BlockingIOError
    person.said += os.read(person.ours, 4096)


def test_no_limit_goes_on_while_somebody_thinks(host: LabHost, locked: Path, tmp_path: Path) -> None:
    words = ("exec", "--on", "prompts", "--limit", "connect=2s", *EXEC[1:])
    with Person(asks(host, tmp_path, locked), *words) as person:
        person.reads("Passphrase of the key ")
        with pytest.raises(BlockingIOError):
            _read_for(person, 3.0)
        person.types(PASSPHRASE)
        outcome = person.result().outcome("prompts/200")
    assert outcome["status"] == "ok", outcome


def test_an_interrupted_question_leaves_the_terminal_as_it_was(host: LabHost, locked: Path, tmp_path: Path) -> None:
    with Person(asks(host, tmp_path, locked), "exec", "--on", "prompts", *EXEC[1:]) as person:
        person.reads("Passphrase of the key ")
        assert not person.echoes
        person.process.send_signal(signal.SIGINT)
        result = person.result()
        assert person.echoes
    assert result.status == 130
    assert result.outcome("prompts/200")["status"] == "cancelled"


def test_without_a_terminal_nobody_is_asked(host: LabHost, locked: Path, tmp_path: Path) -> None:
    project = asks(host, tmp_path, locked)
    error = project.run("exec", "--on", "prompts", *EXEC[1:], stdin=PASSPHRASE.encode()).outcome("prompts/200")["error"]
    assert error["code"] == "auth_failed"
    assert f"{locked} (encrypted, and not tried" in error["message"]
    assert f"ssh-agent (`ssh-add {locked}`)" in error["hint"]
    project = asks(host, tmp_path, _strange_key(tmp_path))
    error = project.run("exec", "--on", "prompts", *EXEC[1:]).outcome("prompts/200")["error"]
    assert "takes a password" in error["hint"]


def _strange_key(folder: Path) -> Path:
    path = folder / "strange"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path


def test_a_key_that_will_do_spares_the_question(host: LabHost, locked: Path, tmp_path: Path) -> None:
    more = {host.name: {"identity_file": [str(locked), str(host.identity_file)]}}
    project = write_project(tmp_path / "project", [host], **more)
    with Person(project, "exec", "--on", "prompts", *EXEC[1:]) as person:
        result = person.result()
    assert result.outcome("prompts/200")["status"] == "ok"
    assert "Passphrase" not in result.stderr


def test_a_server_that_asks_interactively(lab: Lab, tmp_path: Path) -> None:
    host = lab.host(
        "prompts-pam",
        guests=[200],
        sshd_config="PasswordAuthentication no\nPermitRootLogin yes\nKbdInteractiveAuthentication yes\nUsePAM yes\n",
    )
    host.sh("chpasswd", stdin=f"root:{PASSWORD}\n".encode(), check=True)
    with Person(asks(host, tmp_path, _strange_key(tmp_path)), "exec", "--on", "prompts-pam", *EXEC[1:]) as person:
        person.reads("Password of root")
        person.types(PASSWORD)
        outcome = person.result().outcome("prompts-pam/200")
    assert outcome["status"] == "ok", outcome


def test_a_jump_host_that_is_looked_through_asks_too(lab: Lab, host: LabHost, locked: Path, tmp_path: Path) -> None:
    behind = lab.host("prompts-behind", behind=host)
    more = {"prompts-behind": {"jump": "prompts"}, "prompts": {"identity_file": str(locked)}}
    project = write_project(tmp_path / "project", [host, behind], **more)
    words = ("hostkeys", "show", "--on", "prompts-behind", "--output", "json")
    with Person(project, *words) as person:
        person.reads("Passphrase of the key ")
        person.types(PASSPHRASE)
        result = person.result()
    assert [item["state"] for item in result.document["hosts"]] == ["known", "known"]
    with Person(project, *words) as person:
        person.reads("Passphrase of the key ")
        assert not person.echoes
        person.process.send_signal(signal.SIGTERM)
        assert person.result().status == 143
        assert person.echoes
