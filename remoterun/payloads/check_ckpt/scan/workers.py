"""Work shared out to forked processes, since threads wait for each other at every turn of the interpreter's lock."""

from __future__ import annotations

import marshal
import os
import select
from typing import Any, Callable, Dict, Tuple

from ..readers.folder import ChangedError
from ..source import NotRegularError, ShrunkError

_WORD = 8
_SIGKILL = 9


class WorkerError(Exception):
    """Say that a worker ended without a word, or failed in a way that is the program's own fault."""


class Job:
    """Be a piece of work in numbered pieces: `begin` and `end` are called once in each process that does some.

    One that is to be done `apart` leaves nothing behind in this process.
    """

    pieces = 0
    apart = False

    def begin(self, worker: int) -> None:
        """Make ready; workers are numbered from 0."""

    def do(self, number: int) -> Any:
        """Do one piece, and return what marshal can write."""

    def end(self) -> None:
        """Clean up."""


def share(job: Job, workers: int, take: Callable[[Any], None]) -> None:
    """Have workers do all pieces, about in order, and take each result as it comes.

    One worker, or a system that lets none be started, does it in this process, unless it is to be done apart.

    Raises:
        OSError, ShrunkError, NotRegularError, ChangedError: as they were raised in a worker.
        WorkerError: when a worker failed otherwise.
    """
    crew = _Crew(job)
    try:
        if (job.apart or (workers > 1 and job.pieces > 1)) and crew.start(min(workers, job.pieces)):
            crew.listen(take)
            return
    finally:
        crew.dismiss()
    if job.apart:
        raise WorkerError("no process can be started")
    job.begin(0)
    try:
        for number in range(job.pieces):
            take(job.do(number))
    finally:
        job.end()


class _Crew:
    """Start workers, hear them out, and leave none behind.

    The number of the next piece lies in a pipe; whoever has taken it out puts the one after it in.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._next = os.pipe()
        self._heard: Dict[int, bytearray] = {}
        self._pids: Dict[int, int] = {}
        os.write(self._next[1], bytes(_WORD))

    def start(self, workers: int) -> bool:
        """Start as many workers as the system allows, and tell whether there is any."""
        for worker in range(workers):
            reading, writing = os.pipe()
            try:
                pid = os.fork()
            except OSError:
                os.close(reading)
                os.close(writing)
                break
            if pid == 0:
                self._work(worker, writing)
            os.close(writing)
            self._heard[reading], self._pids[reading] = bytearray(), pid
        return bool(self._pids)

    def _work(self, worker: int, pipe: int) -> None:
        """Be a worker; this does not return."""
        try:
            try:
                self._job.begin(worker)
                try:
                    for number in iter(self._take_number, -1):
                        _send(pipe, ("done", self._job.do(number)))
                finally:
                    self._job.end()
                _send(pipe, ("end", None))
            except BaseException as error:  # raised again where all is brought together
                _send(pipe, ("failed", _pack(error)))
        finally:
            # Nothing of the process that this is a copy of is to be finished here: no buffers, no handlers.
            os._exit(0)

    def _take_number(self) -> int:
        number = int.from_bytes(os.read(self._next[0], _WORD), "little")
        os.write(self._next[1], min(number + 1, self._job.pieces).to_bytes(_WORD, "little"))
        return number if number < self._job.pieces else -1

    def listen(self, take: Callable[[Any], None]) -> None:
        """Take all results."""
        poll = select.poll()
        for pipe in self._heard:
            poll.register(pipe, select.POLLIN)
        while self._heard:
            for pipe, _ in poll.poll():
                data = os.read(pipe, 1 << 16)
                if not data:
                    raise WorkerError(self._tell_death(pipe))
                self._heard[pipe] += data
                for kind, value in _messages(self._heard[pipe]):
                    if kind == "done":
                        take(value)
                    elif kind == "failed":
                        raise _unpack(value)
                    else:
                        poll.unregister(pipe)
                        del self._heard[pipe]

    def _tell_death(self, pipe: int) -> str:
        _, status = os.waitpid(self._pids.pop(pipe), 0)
        os.close(pipe)
        if not os.WIFSIGNALED(status):
            return "a worker process ended early, with exit status %d" % os.WEXITSTATUS(status)
        number = os.WTERMSIG(status)
        hint = ": the machine may be short of memory" if number == _SIGKILL else ""
        return "a worker process was ended by signal %d%s" % (number, hint)

    def dismiss(self) -> None:
        """End all workers and give everything back."""
        for pipe, pid in self._pids.items():
            if pipe in self._heard:
                os.kill(pid, _SIGKILL)
            os.close(pipe)
            os.waitpid(pid, 0)
        self._pids.clear()
        for end in self._next:
            os.close(end)


def _send(pipe: int, message: Tuple[str, Any]) -> None:
    data = marshal.dumps(message)
    view = memoryview(len(data).to_bytes(_WORD, "little") + data)
    while view:
        view = view[os.write(pipe, view) :]


def _messages(heard: bytearray) -> Any:
    """Take the whole messages out of what was heard."""
    while len(heard) >= _WORD:
        stop = _WORD + int.from_bytes(heard[:_WORD], "little")
        if len(heard) < stop:
            return
        message = marshal.loads(bytes(heard[_WORD:stop]))
        del heard[:stop]
        yield message


def _pack(error: BaseException) -> Tuple[str, Tuple[Any, ...]]:
    if isinstance(error, ChangedError):
        return "changed", (error.path, error.what)
    if isinstance(error, (ShrunkError, NotRegularError)):
        return type(error).__name__, (str(error),)
    if isinstance(error, OSError) and error.errno is not None:
        return "os", (error.errno, error.strerror, error.filename)
    import traceback

    return "", ("".join(traceback.format_exception(type(error), error, error.__traceback__)),)


def _unpack(packed: Tuple[str, Tuple[Any, ...]]) -> Exception:
    kind, values = packed
    kinds: Dict[str, Callable[..., Exception]] = {
        "changed": ChangedError,
        "ShrunkError": ShrunkError,
        "NotRegularError": NotRegularError,
        "os": OSError,
    }
    return kinds.get(kind, WorkerError)(*values)
