"""Programs that are started, listened to and sent signals, for tests of what comes in between."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from threading import Thread
from typing import IO, Any, Literal, Self

from tests.support.project import Result

Name = Literal["stdout", "stderr"]


class Stream:
    """Keep all that a program says on one stream, and read it as it comes, in a thread of its own."""

    def __init__(self, pipe: IO[bytes] | None) -> None:
        self._pipe = pipe
        self._said = bytearray()
        self._reader: Thread | None = None

    def read(self) -> None:
        """Begin to read, where that has not begun and there is something to read."""
        if self._reader is None and self._pipe is not None:
            self._reader = Thread(target=self._read, args=(self._pipe,), daemon=True)
            self._reader.start()

    def _read(self, pipe: IO[bytes]) -> None:
        while piece := os.read(pipe.fileno(), 1 << 16):
            self._said += piece

    @property
    def said(self) -> bytes:
        """Return what was read so far."""
        return bytes(self._said)

    @property
    def lines(self) -> list[bytes]:
        """Return the whole lines of what was read so far, without their ends."""
        return self.said.split(b"\n")[:-1]

    def is_over(self, limit_s: float = 0) -> bool:
        """Tell whether the stream was read to its end, by the end of a limit."""
        if self._reader is not None:
            self._reader.join(limit_s)
        return self._reader is None or not self._reader.is_alive()

    def close(self) -> None:
        """Leave, unless a process that outlives the program still has it open."""
        if self._pipe is not None and self.is_over(limit_s=5):
            self._pipe.close()


class Started:
    """Be a program that was started, in a session of its own.

    Nothing that it says is lost, or waited with, however much that is; but for the streams in `unread`, whose pipes
    fill until `result` reads them. `options` are those of Popen. Who leaves the block kills it, if it has not ended.
    """

    def __init__(self, argv: Sequence[str], *, unread: Collection[Name] = (), **options: Any) -> None:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        options = {"stdin": subprocess.DEVNULL, **pipes, "start_new_session": True, **options}
        self.process = subprocess.Popen(argv, **options)
        self.stdout, self.stderr = Stream(self.process.stdout), Stream(self.process.stderr)
        for name, stream in (("stdout", self.stdout), ("stderr", self.stderr)):
            if name not in unread:
                stream.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.stdout.close()
        self.stderr.close()

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self.process.pid

    def says(self, pattern: bytes, times: int = 1, *, on: Name = "stdout", limit_s: float = 60) -> bytes:
        """Wait until a pattern was found in so many whole lines of a stream, and return the last of these."""
        stream: Stream = getattr(self, on)
        end = time.monotonic() + limit_s
        while True:
            over = stream.is_over()
            found = [line for line in stream.lines if re.search(pattern, line)]
            if len(found) >= times:
                return found[times - 1]
            assert not over, f"ended without {pattern!r}: {self._told()}"
            assert time.monotonic() < end, f"waited {limit_s:g} s in vain for {pattern!r}: {self._told()}"
            time.sleep(0.005)

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield what was said so far in lines of JSON."""
        yield from map(json.loads, self.stdout.lines)

    def send(self, number: int) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it, whatever it is at."""
        self.process.kill()
        self.process.wait()

    def result(self, limit_s: float = 60) -> Result:
        """Wait for the end, and return all that was said from the beginning."""
        self.stdout.read()
        self.stderr.read()
        end = time.monotonic() + limit_s
        try:
            status = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"goes on after {limit_s:g} s: {self._told()}") from None
        for stream in (self.stdout, self.stderr):
            assert stream.is_over(max(end - time.monotonic(), 5)), f"its output is still open: {self._told()}"
        return Result(status=status, stdout=self.stdout.said, stderr=self.stderr.said.decode("utf-8", "replace"))

    def end(self, number: int = signal.SIGINT, limit_s: float = 60) -> Result:
        """Send a signal, and return all that was said from the beginning to the end."""
        self.send(number)
        return self.result(limit_s)

    def _told(self) -> str:
        return f"status {self.process.poll()}, {self.stdout.said[-3000:]!r}, {self.stderr.said[-3000:]!r}"
