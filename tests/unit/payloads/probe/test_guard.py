"""Questions that may hang: each is answered or given up, and no child stays."""

from __future__ import annotations

import os
import resource
import signal
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import psutil
import pytest

from remoterun.payloads.probe.guard import Answer, Children

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def ask(questions: Mapping[str, Callable[[], bytes]], limit_s: float = 30.0) -> dict[str, Answer]:
    children = Children()
    for name, question in questions.items():
        children.ask(name, question, limit_s)
    return children.answers()


def own_files() -> list[str]:
    return sorted((path.name for path in Path("/proc/self/fd").iterdir()), key=int)


def hang(note: Path) -> bytes:
    note.write_text(str(os.getpid()))
    signal.pause()
    return b"never"


def become(*argv: str) -> NoReturn:
    os.execv(argv[0], argv)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_every_question_gets_its_answer() -> None:
    answers = ask({f"q{at}": partial(str.encode, f"answer {at}") for at in range(30)})
    assert answers == {f"q{at}": Answer(f"answer {at}".encode(), 0) for at in range(30)}


def test_no_questions_are_no_answers() -> None:
    assert ask({}) == {}


def test_one_that_hangs_is_given_up_and_killed_and_delays_no_other(tmp_path: Path) -> None:
    started = time.monotonic()
    answers = ask({"stuck": partial(hang, tmp_path / "pid"), "quick": lambda: b"here"}, 1.0)
    assert answers == {"stuck": Answer(b"", None), "quick": Answer(b"here", 0)}
    assert time.monotonic() - started >= 1.0
    pid = int((tmp_path / "pid").read_text())
    with suppress(ChildProcessError):
        # On a busy machine it may be longer in dying than anybody waits for it.
        assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    assert gone(pid)


def test_one_that_closes_its_output_and_hangs_is_given_up_too() -> None:
    answers = ask({"sly": lambda: become("/bin/sh", "-c", "echo part; exec >&- 2>&-; exec sleep 1000")}, 1.0)
    assert answers == {"sly": Answer(b"part\n", None)}


def test_a_program_answers_with_output_and_exit_status() -> None:
    script = 'echo out; echo err >&2; read line; echo "stdin: $line"; exit 3'
    assert ask({"program": lambda: become("/bin/sh", "-c", script)}) == {"program": Answer(b"out\nerr\nstdin: \n", 3)}


def test_a_signal_is_told() -> None:
    assert ask({"victim": lambda: become("/bin/sh", "-c", "kill -TERM $$")})["victim"].status == -signal.SIGTERM


def test_an_error_is_told_and_never_runs_the_parents_code() -> None:
    pid = os.getpid()
    answer = ask({"broken": lambda: become("/no/such/program")})["broken"]
    assert os.getpid() == pid, "the child came back"
    assert answer.status == 1
    assert b"FileNotFoundError" in answer.data


def test_a_flood_is_cut_and_does_not_block() -> None:
    answer = ask({"flood": lambda: b"x" * (3 << 20)})["flood"]
    assert (len(answer.data), answer.status) == (1 << 20, 0)


def test_a_child_holds_none_of_the_parents_files() -> None:
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    try:
        children = Children()
        children.ask("files", lambda: " ".join(own_files()).encode(), 30.0)
        os.close(write_end)
        (answer,) = children.answers().values()
    finally:
        os.close(read_end)
    # 0, 1 and 2; and the listing's own.
    assert answer.data == b"0 1 2 3"


def test_a_question_that_no_process_can_be_started_for_is_an_error() -> None:
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    children = Children()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        children.ask("late", lambda: b"", 30.0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))
    answer = children.answers()["late"]
    assert answer.status == 1
    assert b"Too many open files" in answer.data


@pytest.mark.parametrize("count", [1, 20])
def test_no_file_and_no_zombie_stays(count: int) -> None:
    before, children = own_files(), psutil.Process().children()
    ask({f"q{at}": lambda: b"" for at in range(count)})
    assert own_files() == before
    assert psutil.Process().children() == children
