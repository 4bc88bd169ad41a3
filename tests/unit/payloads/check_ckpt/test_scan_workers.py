"""Work shared out to processes: everything done once, every failure told, nobody left behind."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
import torch

from remoterun.payloads.check_ckpt.readers.folder import ChangedError
from remoterun.payloads.check_ckpt.scan.workers import Job, WorkerError, share
from remoterun.payloads.check_ckpt.source import NotRegularError, ShrunkError
from tests.unit.payloads.check_ckpt.scan_support import scan
from tests.unit.payloads.check_ckpt.support import audit, save

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.torch

REPO = Path(__file__).resolve().parents[4]


class Work(Job):
    """Return the number of each piece and of the process, after something was done."""

    def __init__(self, pieces: int, do: Callable[[int], object] = lambda number: None) -> None:
        self.pieces = pieces
        self._do = do
        self.begun = self.ended = 0

    def begin(self, worker: int) -> None:
        self.begun += 1
        self.worker = worker

    def do(self, number: int) -> tuple[int, int]:
        self._do(number)
        return number, os.getpid()

    def end(self) -> None:
        self.ended += 1


@pytest.fixture(autouse=True)
def _nobody_is_left() -> Iterator[None]:
    """No test leaves a child, not even a dead one."""
    before = {child.pid for child in psutil.Process().children()}
    yield
    assert {child.pid for child in psutil.Process().children()} <= before


def results(work: Work, workers: int) -> list[tuple[int, int]]:
    taken: list[tuple[int, int]] = []
    share(work, workers, taken.append)
    return taken


@pytest.mark.parametrize("workers", [2, 5])
def test_every_piece_is_done_once_elsewhere(workers: int) -> None:
    taken = results(Work(40), workers)
    assert sorted(number for number, _ in taken) == list(range(40))
    assert os.getpid() not in {pid for _, pid in taken}


def test_one_worker_is_this_process() -> None:
    work = Work(3)
    assert results(work, 1) == [(number, os.getpid()) for number in range(3)]
    assert (work.begun, work.ended) == (1, 1)
    assert results(Work(0), 4) == []


def test_what_is_to_be_done_apart_is_never_done_here() -> None:
    work = Work(1)
    work.apart = True
    ((_, pid),) = results(work, 1)
    assert pid != os.getpid()


def test_workers_know_their_numbers() -> None:
    """On a busy machine, one of them may do all there is to do."""
    reading, writing = os.pipe()

    class Numbered(Work):
        def begin(self, worker: int) -> None:
            super().begin(worker)
            os.write(writing, bytes([worker]))

    with os.fdopen(reading, "rb") as said:
        assert len(results(Numbered(30), 3)) == 30
        os.close(writing)
        assert sorted(said.read()) == [0, 1, 2]


def test_results_of_any_size_arrive() -> None:
    class Large(Work):
        def do(self, number: int) -> tuple[int, int]:
            return number, len(bytes(3_000_000)) << 3_000_000

    assert {number: value.bit_length() for number, value in results(Large(6), 2)} == dict.fromkeys(range(6), 3_000_022)


@pytest.mark.parametrize(
    "error",
    [
        ShrunkError("c.pt ends at byte 5"),
        NotRegularError("c.pt"),
        ChangedError("c.pt", "was deleted"),
        OSError(errno.EIO, "Input/output error", "c.pt"),
        PermissionError(errno.EACCES, "Permission denied", "c.pt"),
    ],
)
@pytest.mark.parametrize("workers", [1, 3])
def test_what_a_worker_raises_is_raised_again(error: Exception, workers: int) -> None:
    def fail(number: int) -> None:
        if number == 7:
            raise error

    with pytest.raises(type(error)) as raised:
        results(Work(50, fail), workers)
    assert str(raised.value) == str(error)
    assert raised.value.__dict__ == error.__dict__


def test_a_fault_in_a_worker_is_told_with_its_place() -> None:
    with pytest.raises(WorkerError, match=r"(?s)Traceback.*in <lambda>.*ZeroDivisionError"):
        results(Work(9, lambda number: 1 // (number - 4)), 2)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "ended by signal 9: the machine may be short of memory"),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "ended by signal 15"),
        (lambda: os._exit(3), "ended early, with exit status 3"),
    ],
)
def test_the_death_of_a_worker_is_told(end: Callable[[], None], words: str) -> None:
    with pytest.raises(WorkerError, match=words):
        results(Work(50, lambda number: end() if number == 5 else None), 3)


def test_an_interruption_leaves_nobody() -> None:
    def interrupt(result: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        share(Work(1000, lambda number: time.sleep(0.001)), 2, interrupt)


def test_where_no_process_may_be_started_it_is_done_here(tmp_path: Path) -> None:
    """As a user who has as many processes as he may."""
    script = f"""
import os, resource, sys
sys.path.insert(0, {str(REPO / "remoterun" / "payloads")!r})
from check_ckpt.scan.workers import Job, share
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
if os.getuid() == 0:
    os.setgid(54321), os.setuid(54321)
class Work(Job):
    pieces = 5
    def do(self, number): return [number, os.getpid() == {os.getpid()} or os.getpid()]
taken = []
share(Work(), 4, taken.append)
assert taken == [[number, os.getpid()] for number in range(5)], taken
print("here")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd="/")
    assert (done.stdout, done.stderr) == ("here\n", "")


@pytest.fixture
def large(tmp_path: Path) -> Path:
    return save({"model": {"w": torch.ones(12_000_000)}}, tmp_path / "step_1" / "c.pt")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_file_that_changes_is_not_read_to_its_end(large: Path, workers: int) -> None:
    steps: list[int] = []

    def on_bytes(count: int) -> None:
        steps.append(count)
        if len(steps) == 1:
            large.unlink()

    with pytest.raises(ChangedError, match="was deleted"):
        scan(large, workers=workers, mbps=100, on_bytes=on_bytes)
    assert sum(steps) < 45_000_000


def test_a_file_that_shrinks_is_in_progress(large: Path) -> None:
    timer = threading.Timer(0.2, os.truncate, (large, 1_000_000))
    timer.start()
    heard = audit(large.parent, workers=2, max_mbps=60)
    timer.join()
    assert heard.record["verdict"] == "in_progress"
    assert heard.of("CK026")["message"].startswith("not finished: it ")


def test_all_workers_together_keep_the_pace(large: Path) -> None:
    started = time.monotonic()
    scan(large, workers=3, mbps=120)
    assert time.monotonic() - started > 0.3
