"""The lab's machine: what it starts, and that its words are the ones that hops understand."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoterun import hops
from remoterun.lab import Guest
from remoterun.lab.pct import Program, Reply, answer
from remoterun.model import Host, Target

GUESTS = {"200": Guest(id=200, name="up"), "202": Guest(id=202, name="down", running=False)}
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


def target(guest: str | None) -> Target:
    host = Host(key="pve1", address="127.0.0.1")
    return Target(
        id=f"pve1/{guest}" if guest else "pve1", host=host, guest=guest, hop="pct" if guest else "none", venv=None
    )


def enter(guest: str | None) -> Program | Reply:
    return answer(shlex.join(hops.enter_argv(target(guest))), GUESTS, node="pve1")


@given(st.lists(WORDS, min_size=1))
def test_a_guests_program_gets_exactly_its_words(words: list[str]) -> None:
    line = shlex.join(("/usr/sbin/pct", "exec", "200", "--", *words))
    assert answer(line, GUESTS, node="pve1") == Program(argv=tuple(words), guest="200")


def test_entering_a_guest_and_the_host() -> None:
    inside = enter("200")
    assert isinstance(inside, Program)
    assert (inside.guest, inside.argv[:2]) == ("200", ("/bin/sh", "-c"))
    assert inside.environment == {"PATH": "/sbin:/bin:/usr/sbin:/usr/bin", "container": "lxc"}
    outside = enter(None)
    assert isinstance(outside, Program)
    assert outside.guest is None
    assert outside.argv == inside.argv
    assert "container" not in outside.environment


@pytest.mark.parametrize(
    ("guest", "status", "code"),
    [("202", 255, "guest_stopped"), ("299", 2, "guest_not_found")],
)
def test_what_it_says_of_a_guest_is_understood(guest: str, status: int, code: str) -> None:
    reply = enter(guest)
    assert isinstance(reply, Reply)
    assert reply.status == status
    told = hops.diagnose(target(guest), exit_status=status, signal=None, stderr=reply.stderr, noise=reply.stdout)
    assert told.code == code


@pytest.mark.parametrize(
    ("error", "status"),
    [(FileNotFoundError(2, "No such file or directory"), 127), (PermissionError(13, "Denied"), 126)],
)
def test_a_program_that_cannot_be_started(error: OSError, status: int) -> None:
    reply = Program(argv=("/bin/sh",), guest="200").failed(error)
    assert reply.status == status
    told = hops.diagnose(target("200"), exit_status=status, signal=None, stderr=reply.stderr, noise="")
    assert told.code == "shell_missing"
    assert Program(argv=("/bin/sh",)).failed(error).status == status


@pytest.mark.parametrize(
    ("line", "status", "text"),
    [
        ("pct exec 200 ls", None, ""),
        ("pct exec 200 ls -l", 255, "Unknown option: l\n400 unable to parse option"),
        ("pct exec 200 --", 255, "missing command at"),
        ("pct exec 200", 255, "missing command at"),
        ("pct exec", 255, "400 not enough arguments"),
        ("pct exec 099 -- ls", 255, "400 Parameter verification failed."),
        ("pct exec abc -- ls", 255, "does not look like a valid VM ID"),
        ("pct list", 255, "ERROR: unknown command 'pct list'"),
        ("pct", 255, "ERROR: no command specified"),
        ("ls /", 127, "ls: command not found"),
        ("sudo -n /usr/sbin/pct exec 200 -- ls", 127, "sudo: command not found"),
        ("echo 'open", 2, "No closing quotation"),
        ("", 1, "It understands"),
        ("lxc-info -n 200", 1, "It understands"),
        ("lxc-info -n 299 -sH", 1, "299 doesn't exist"),
    ],
)
def test_other_command_lines(line: str, status: int | None, text: str) -> None:
    said = answer(line, GUESTS, node="pve1")
    if status is None:
        assert isinstance(said, Program)
    else:
        assert isinstance(said, Reply)
        assert said.status == status
        assert text in said.stderr


def test_an_interactive_shell_is_told_what_there_is() -> None:
    said = answer(None, GUESTS, node="pve1")
    assert isinstance(said, Reply)
    assert "pct exec" in said.stderr


@pytest.mark.parametrize(("guest", "state"), [("200", "RUNNING\n"), ("202", "STOPPED\n")])
def test_the_state_of_a_guest(guest: str, state: str) -> None:
    argv = hops.state_argv(target(guest))
    assert argv is not None
    assert answer(shlex.join(argv), GUESTS, node="pve1") == Reply(status=0, stdout=state)
