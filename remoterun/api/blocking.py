"""Blocking calls: a run in a loop of its own, and Ctrl-C in the meantime.

The first Ctrl-C ends the run in an orderly way, the second leaves at once, and a third does not even wait for that.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from remoterun.api.running import Running
    from remoterun.model import Run

_LOOK_S: Final = 0.1
_HEEDED: Final = 2


def wait_for(running: Running) -> Run:
    """Block until a run has ended, wherever that is called."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _Here(running).run()
    # The loop of this thread cannot be entered again.
    return _Aside(running).run()


class _Here:
    """Carry a run out in this thread.

    A second Ctrl-C would have `asyncio.run` raise wherever the loop just is, which leaves half-ended tasks behind.
    """

    def __init__(self, running: Running) -> None:
        self._running = running
        self._task: asyncio.Task[Run] | None = None
        self._interrupts = 0

    def run(self) -> Run:
        """Block until the run has ended."""
        with self._handling():
            try:
                return asyncio.run(self._main())
            finally:
                if self._interrupts:
                    # Not before: the loop has cleared up.
                    raise KeyboardInterrupt from None

    async def _main(self) -> Run:
        self._task = asyncio.current_task()
        if self._interrupts:
            # It came while the loop was being made.
            raise asyncio.CancelledError
        return await self._running

    @contextmanager
    def _handling(self) -> Iterator[None]:
        """Take Ctrl-C where `asyncio.run` would: in the main thread, unless the program has a handler of its own."""
        main = threading.current_thread() is threading.main_thread()
        if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        self._interrupts += 1
        if self._interrupts > _HEEDED:
            raise KeyboardInterrupt
        if self._task is not None:
            with suppress(RuntimeError):  # the loop has just ended
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)


class _Aside:
    """Carry a run out in a thread of its own, while a task of this thread's loop blocks.

    Ctrl-C comes here as an exception; or as a cancellation of the task, which is what `asyncio.run` makes of the first
    one, and of which nobody is told who blocks.
    """

    def __init__(self, running: Running) -> None:
        self._running = running
        self._begun, self._over = threading.Event(), threading.Event()
        self._once = threading.Lock()
        self._cancel: Callable[[], object] | None = None
        self._runs: list[Run] = []
        self._errors: list[BaseException] = []
        self._task = asyncio.current_task()
        # A cancellation that the task has not heard of yet came while the run was planned, or before.
        self._seen = self._cancelling() - bool(getattr(self._task, "_must_cancel", False))

    def run(self) -> Run:
        """Block until the run has ended; nothing is started for a task that is already to end."""
        if self._cancelling() > self._seen:
            raise asyncio.CancelledError
        ended_by: BaseException | None = None
        wanted = given = 0
        while not self._over.is_set():
            try:
                if not self._begun.is_set():
                    self._start()
                while given < wanted:
                    given += 1
                    self._end()
                if self._was_cancelled():
                    ended_by = ended_by or asyncio.CancelledError()
                    wanted += 1
            except KeyboardInterrupt as error:
                ended_by = error
                wanted += 1
                if wanted > _HEEDED:
                    raise
        if ended_by is not None:
            raise ended_by
        if self._errors:
            raise self._errors[0]
        return self._runs[0]

    def _start(self) -> None:
        # A start that was interrupted may have started it: the second thread ends by itself.
        threading.Thread(target=self._work, name=f"remoterun {self._running.run_id}", daemon=True).start()
        self._begun.wait()

    def _work(self) -> None:
        if not self._once.acquire(blocking=False):
            return
        try:
            self._runs.append(asyncio.run(self._main()))
        except BaseException as error:
            self._errors.append(error)
        finally:
            self._begun.set()
            self._over.set()

    async def _main(self) -> Run:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        if task is not None:
            self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        self._begun.set()
        return await self._running

    def _end(self) -> None:
        if self._cancel is not None:
            with suppress(RuntimeError):  # the loop has just ended
                self._cancel()

    def _was_cancelled(self) -> bool:
        """Wait for the end of the run; not for long, where a task may be cancelled meanwhile."""
        self._over.wait(None if self._task is None else _LOOK_S)
        seen, self._seen = self._seen, self._cancelling()
        return self._seen > seen

    def _cancelling(self) -> int:
        return 0 if self._task is None else self._task.cancelling()
