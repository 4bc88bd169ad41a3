"""Questions that may never be answered: each is asked by a child process, which is given up after a time limit.

A thread would not do: one that hangs in the kernel keeps its whole process from ending.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Callable, Dict, List, NamedTuple, NoReturn, Optional

_MOST_BYTES = 1 << 20
_GRACE_S = 0.2


class Answer(NamedTuple):
    """Hold what a child wrote, and its exit status: negative for a signal, None when it did not end in time."""

    data: bytes
    status: Optional[int]


class _Child(NamedTuple):
    name: str
    pid: int
    deadline: float
    data: bytearray


class Children:
    """Ask several questions at once."""

    def __init__(self) -> None:
        self._by_fd: Dict[int, _Child] = {}
        self._unasked: Dict[str, Answer] = {}

    def ask(self, name: str, question: Callable[[], bytes], limit_s: float) -> None:
        """Start a child that writes what `question` returns, or what the program writes that it becomes by `exec`."""
        try:
            read_end, write_end = os.pipe()
            pid = os.fork()
        except OSError as error:  # the machine has no more files or processes for us
            self._unasked[name] = Answer(str(error).encode("utf-8", "replace"), 1)
            return
        if pid == 0:
            _answer(question, write_end)
        os.close(write_end)
        self._by_fd[read_end] = _Child(name, pid, time.monotonic() + limit_s, bytearray())

    def answers(self) -> Dict[str, Answer]:
        """Wait for all children, each up to its limit, and kill those that did not answer."""
        answers = self._unasked
        while self._by_fd:
            for fd in self._ready():
                child = self._by_fd[fd]
                chunk = os.read(fd, 1 << 16)
                if chunk:
                    child.data.extend(chunk[: _MOST_BYTES - len(child.data)])
                else:
                    self._finish(answers, fd, _wait(child.pid, child.deadline))
            for fd, child in list(self._by_fd.items()):
                if time.monotonic() >= child.deadline:
                    self._finish(answers, fd, None)
        return answers

    def _ready(self) -> List[int]:
        poll = select.poll()
        for fd in self._by_fd:
            poll.register(fd, select.POLLIN)
        nearest = min(child.deadline for child in self._by_fd.values())
        return [fd for fd, _ in poll.poll(max(0.0, nearest - time.monotonic()) * 1000 + 1)]

    def _finish(self, answers: Dict[str, Answer], fd: int, status: Optional[int]) -> None:
        child = self._by_fd.pop(fd)
        os.close(fd)
        if status is None:
            os.kill(child.pid, signal.SIGKILL)
            # One that hangs in the kernel outlives even that; whoever started us counts it.
            _wait(child.pid, time.monotonic() + _GRACE_S)
        answers[child.name] = Answer(bytes(child.data), status)


def _wait(pid: int, deadline: float) -> Optional[int]:
    """Return the exit status of a child, None when it has not ended at the deadline."""
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.001)


def _answer(question: Callable[[], bytes], write_end: int) -> NoReturn:
    """Be the child: never return, and hold none of the parent's files, so that a hang keeps nobody else waiting."""
    status = 1
    try:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(write_end, 1)
        os.dup2(write_end, 2)
        for fd in _open_files():
            if fd > 2:
                _close(fd)
        _write(question())
        status = 0
    except BaseException as error:  # whatever it is, it must not run the parent's code a second time
        _write(repr(error).encode("utf-8", "replace"))
    finally:
        os._exit(status)


def _open_files() -> List[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return list(range(1024))


def _close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:
        return  # it was the listing's own


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]
