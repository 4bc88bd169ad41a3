"""Where secrets come from: every problem at once, never a value in a message, nothing fetched that nobody needs."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from remoterun.errors import BugError, ConfigError, Problem, TargetError
from remoterun.model import (
    Captured,
    ErrorInfo,
    ExecWork,
    Host,
    Job,
    Outcome,
    Pack,
    PayloadRef,
    PayloadWork,
    Phase,
    Plan,
    SecretSource,
    Status,
    Target,
)
from remoterun.secrets import NO_SECRETS, Vault, open_vault, vault
from tests.support.lab import wait_for

VALUE = "correct-horse"
PACK = Pack(ref=PayloadRef(name="p", version="1.0.0", sha256="0" * 64), data=b"")
JOB = Job(
    target=Target(id="a", host=Host(key="a", address="a")), step=0, work=PayloadWork(pack=PACK, params={"depth": 1})
)


def plan_of(*jobs: Job, **secrets: SecretSource) -> Plan:
    return Plan(run_id="r", playbook="p", playbook_sha256=None, jobs=jobs, secrets=secrets)


def fetch(**secrets: SecretSource) -> Vault:
    names = {name.upper(): name for name in secrets}
    return open_vault(plan_of(replace(JOB, secret_env=names), **secrets))


def problems(**secrets: SecretSource) -> dict[str | None, str]:
    with pytest.raises(ConfigError) as caught:
        fetch(**secrets)
    return {problem.path: problem.message for problem in caught.value.problems}


def env(name: str) -> SecretSource:
    return SecretSource(kind="env", words=(name,))


def file(path: Path) -> SecretSource:
    return SecretSource(kind="file", words=(str(path),))


def command(*words: str, folder: Path | None = None) -> SecretSource:
    return SecretSource(kind="command", words=words, folder=None if folder is None else str(folder))


def python(code: str) -> SecretSource:
    return command(sys.executable, "-c", code)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("MY_TOKEN", VALUE)
    path = tmp_path / "token"
    path.write_text(f"{VALUE}-2\r\n", "utf-8")
    return path


def test_the_three_places(said: Path) -> None:
    opened = fetch(e=env("MY_TOKEN"), f=file(said), c=command("cat", "token", folder=said.parent))
    assert opened.opened(replace(JOB, secret_env={"E": "e", "F": "f", "C": "c"}, env={"A": "b"})).env == {
        "A": "b",
        "E": VALUE,
        "F": f"{VALUE}-2",
        "C": f"{VALUE}-2",
    }


def test_a_job_gets_what_it_names_and_no_more(said: Path) -> None:
    wants = replace(JOB, secret_params={"token": "e"})
    opened = open_vault(plan_of(wants, JOB, e=env("MY_TOKEN")))
    job = opened.opened(wants)
    assert isinstance(job.work, PayloadWork)
    assert (job.work.params, job.env) == ({"depth": 1, "token": VALUE}, {})
    assert opened.opened(JOB) is JOB
    assert VALUE not in repr(opened)
    assert VALUE not in repr(wants)


def test_only_what_is_needed_is_fetched(tmp_path: Path) -> None:
    mark = tmp_path / "was run"
    costs = python(f"open({str(mark)!r}, 'w').close(); print('12345678')")
    other = replace(JOB, step=1, secret_env={"A": "costs"})
    assert open_vault(plan_of(JOB, costs=costs)) is NO_SECRETS
    assert open_vault(plan_of(JOB, other, costs=costs), [("a", 1)]) is NO_SECRETS
    assert not mark.exists()
    open_vault(plan_of(JOB, other, costs=costs), [("a", 0)])
    assert mark.exists()


def test_every_problem_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHORT", "1234567")
    monkeypatch.setenv("EMPTY", "")
    for name, data in (("zero", b"12345678\0"), ("latin", b"12345678\xe9"), ("huge", b"x" * 70_000)):
        (tmp_path / name).write_bytes(data)
    told = problems(
        unset=env("NOT_SET"),
        short=env("SHORT"),
        empty=env("EMPTY"),
        gone=file(tmp_path / "gone"),
        folder=file(tmp_path),
        zero=file(tmp_path / "zero"),
        latin=file(tmp_path / "latin"),
        huge=file(tmp_path / "huge"),
        missing=command("/nonexistent/program"),
        nul=command("a\0b"),
        fails=python("import sys; print('12345678'); sys.exit('the store is locked\\x1b[31m')"),
        killed=python("import os; os.kill(os.getpid(), 9)"),
    )
    assert told == {
        "secrets.unset": "the environment variable NOT_SET is not set",
        "secrets.short": "is shorter than 8 bytes: it could not be kept out of the output",
        "secrets.empty": "is empty: it could not be kept out of the output",
        "secrets.gone": f"{tmp_path / 'gone'} cannot be read: No such file or directory",
        "secrets.folder": f"{tmp_path} cannot be read: Is a directory",
        "secrets.zero": "holds a zero byte, which no program can be given",
        "secrets.latin": "is no UTF-8 text: encode it (base64)",
        "secrets.huge": "is longer than 64 KiB, the most that a secret may have",
        "secrets.missing": "the command '/nonexistent/program' cannot be started: No such file or directory",
        "secrets.nul": "embedded null byte",
        "secrets.fails": f"the command {sys.executable!r} ended with exit status 1 and said: the store is locked",
        "secrets.killed": f"the command {sys.executable!r} ended with signal 9",
    }
    assert not any("12345678" in message for message in told.values())


def test_a_command_cannot_ask() -> None:
    tries = python(
        "import sys\n"
        "try: open('/dev/tty')\n"
        "except OSError: sys.exit(f'no terminal, and stdin holds {sys.stdin.read()!r}')\n"
    )
    assert problems(c=tries)["secrets.c"].endswith("said: no terminal, and stdin holds ''")


def test_a_command_that_hangs_is_ended_with_all_it_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(vault, "COMMAND_S", 0.5)
    mark = tmp_path / "pid"
    since = time.monotonic()
    told = problems(c=command("/bin/sh", "-c", 'sleep 600 & echo $! > "$0"; wait', str(mark)))
    assert told["secrets.c"] == "the command '/bin/sh' was not done after 0.5s, and cannot ask for anything"
    assert time.monotonic() - since < 20
    pid = int(mark.read_text("utf-8"))
    state = Path(f"/proc/{pid}/stat")
    wait_for(lambda: not state.exists() or ") Z " in state.read_text("utf-8"), "the end of what it started")


# Becomes a daemon that keeps what it inherited, as agents of password managers do, and says so in a file.
AGENT = "import os, sys; os.setsid(); open(sys.argv[1], 'w').write('-'); os.execvp('sleep', ['sleep', '600'])"
WITH_AGENT = """\
"$1" -c "$2" "$0.begun" & echo $! > "$0"
until [ -s "$0.begun" ]; do sleep 0.01; done
"""


@contextmanager
def agent(tmp_path: Path, then: str) -> Iterator[SecretSource]:
    """Hand out a command that starts an agent, and then does this."""
    mark = tmp_path / "pid"
    try:
        yield command("/bin/sh", "-c", WITH_AGENT + then, str(mark), sys.executable, AGENT)
    finally:
        os.kill(int(mark.read_text("utf-8")), signal.SIGKILL)


def test_a_command_may_leave_an_agent_behind_that_holds_its_output(tmp_path: Path) -> None:
    with agent(tmp_path, f"echo {VALUE}") as store:
        assert fetch(c=store).opened(replace(JOB, secret_env={"C": "c"})).env == {"C": VALUE}


def test_an_agent_of_a_command_that_hangs_holds_nothing_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(vault, "COMMAND_S", 2.0)
    since = time.monotonic()
    with agent(tmp_path, "exec sleep 600") as store:
        told = problems(c=store)
    assert told["secrets.c"] == "the command '/bin/sh' was not done after 2s, and cannot ask for anything"
    assert time.monotonic() - since < 60


def test_an_outcome_without_what_was_said_around_it() -> None:
    outcome = Outcome(
        target="a",
        name=None,
        step=0,
        status=Status.FAILED,
        phase=Phase.ENTER,
        error=ErrorInfo.of(TargetError("enter_failed", f"the shell said: {VALUE}: not found")),
        noise=Captured(head=f"motd {VALUE}\n".encode(), tail=b"ct-horse\n", total=100),
        log=(f"Traceback {VALUE}",),
    )
    clean = Vault({"v": VALUE}).cleaned(outcome)
    assert VALUE not in repr(clean)
    assert clean.error is not None
    assert clean.error.message == "the shell said: [secret v]: not found"
    assert clean.noise == Captured(head=b"motd [secret v]\n", tail=b"[secret v]\n", total=99)
    assert clean.log == ("Traceback [secret v]",)
    assert NO_SECRETS.cleaned(outcome) is outcome


def test_a_bug_that_holds_a_secret_is_told_without_it() -> None:
    opened = Vault({"v": VALUE})
    try:
        raise KeyError(VALUE)
    except KeyError as error:
        bug = opened.bug(error)
    assert isinstance(bug, BugError)
    assert str(bug) == "KeyError: '[secret v]'"
    assert "test_a_bug_that_holds_a_secret" in bug.traceback
    assert VALUE not in bug.traceback
    plain = ValueError("something else")
    assert opened.bug(plain) is plain


def test_a_program_of_a_person_gets_them_in_its_environment(said: Path) -> None:
    job = Job(target=JOB.target, step=0, work=ExecWork(argv=(b"env",)), secret_env={"MY_TOKEN": "MY_TOKEN"})
    assert open_vault(plan_of(job, MY_TOKEN=env("MY_TOKEN"))).opened(job).env == {"MY_TOKEN": VALUE}


def test_problems_have_a_place() -> None:
    with pytest.raises(ConfigError) as caught:
        fetch(hf_token=env("NOT_SET_ANYWHERE"))
    assert caught.value.problems == (
        Problem(path="secrets.hf_token", message="the environment variable NOT_SET_ANYWHERE is not set"),
    )


def test_where_nothing_is_started_what_is_missing_holds_nothing_up(said: Path) -> None:
    job = replace(JOB, secret_env={"A": "have", "B": "lack"})
    missing: list[Problem] = []
    plan = plan_of(job, have=env("MY_TOKEN"), lack=env("NOT_SET_ANYWHERE"))
    opened = open_vault(plan, on_missing=missing.append)
    assert [problem.path for problem in missing] == ["secrets.lack"]
    assert opened.redactor.text(f"<{VALUE}>") == "<[secret have]>"
