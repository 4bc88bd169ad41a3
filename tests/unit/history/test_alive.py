"""Locks of runs: what killed processes leave is cleared away, and nothing else is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from remoterun.history import History, HistoryError, Journal
from remoterun.history.alive import Alive, is_running, sweep
from tests.support import audits as samples
from tests.support.campaign import turns

HOLDER = """\
import sys
from pathlib import Path
from remoterun.history.alive import Alive
alive = Alive.begin(Path(sys.argv[1]), sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(folder: Path, run_id: str) -> Iterator[subprocess.Popen[bytes]]:
    """Let a process hold the lock of a run, until it is killed."""
    argv = [sys.executable, "-c", HOLDER, str(folder), run_id]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == b"held\n"
            yield process
        finally:
            process.kill()


def _left(folder: Path) -> set[str]:
    return {path.name for path in (folder / "running").iterdir()}


def _killed(folder: Path, run_id: str) -> None:
    with holder(folder, run_id):
        pass


def test_the_next_run_clears_away_what_a_killed_one_left(tmp_path: Path) -> None:
    _killed(tmp_path, "cut")
    with holder(tmp_path, "alive"):
        assert _left(tmp_path) == {"alive"}
        journal = Journal(tmp_path, pytest.fail)
        run = samples.run(1, samples.audited("kpro6/200", [1]))
        journal(samples.events(run)[0])
        assert _left(tmp_path) == {"alive", run.run_id}
        journal.close()
        assert is_running(tmp_path, "alive")
    assert not is_running(tmp_path, "alive")


def test_whoever_looks_at_the_history_clears_it_away(tmp_path: Path) -> None:
    samples.keep(tmp_path, samples.run(1, samples.audited("kpro6/200", [1])))
    with holder(tmp_path, "alive"):
        _killed(tmp_path, "cut")
        assert _left(tmp_path) == {"alive", "cut"}
        with History.open(tmp_path):
            assert _left(tmp_path) == {"alive"}


def test_a_run_whose_process_was_killed_is_taken_up_again(tmp_path: Path) -> None:
    _killed(tmp_path, "cut")
    alive = Alive.begin(tmp_path, "cut")
    assert is_running(tmp_path, "cut")
    with holder(tmp_path, "other"), pytest.raises(BlockingIOError):
        Alive.begin(tmp_path, "other")
    alive.end()
    assert _left(tmp_path) == {"other"}


def test_what_is_no_lock_is_left_alone(tmp_path: Path) -> None:
    sweep(tmp_path)
    (tmp_path / "running" / "folder").mkdir(parents=True)
    (tmp_path / "running" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text("")
    sweep(tmp_path)
    assert _left(tmp_path) == {"folder", "link"}
    with pytest.raises(HistoryError):
        History.open(tmp_path)


def test_nobody_who_clears_away_gets_in_anybody_s_way(tmp_path: Path) -> None:
    """One takes and returns the lock of a run; meanwhile locks of its name are left, cleared away and looked at."""
    over, path = Event(), tmp_path / "running" / "run"
    path.parent.mkdir()

    def until_over(work: object) -> Thread:
        def loop() -> None:
            while not over.is_set():
                work()  # type: ignore[operator]

        return Thread(target=loop)

    others = [until_over(work) for work in (path.touch, lambda: sweep(tmp_path), lambda: is_running(tmp_path, "run"))]
    for thread in others:
        thread.start()
    try:
        for _ in turns(300, 20_000):
            alive = Alive.begin(tmp_path, "run")
            assert is_running(tmp_path, "run")
            alive.end()
    finally:
        over.set()
        for thread in others:
            thread.join()
