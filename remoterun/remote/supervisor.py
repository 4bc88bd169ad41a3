"""The supervisor: starts the payload, owns its pipes and its time, and leaves nothing alive behind.

A child of the leg in a session of its own, with no descriptor but the link to the leg. Single-threaded; it never
blocks on anything. As a subreaper it becomes the parent of every orphan below it, so "no child left" means that
nothing of the run is left.
"""

from __future__ import annotations

import errno
import os
import select
import time

from remoterun.remote.link import Link, RunsAlreadyError
from remoterun.remote.process import Payload, PayloadError
from remoterun.remote.system import (
    descendants,
    folder_name,
    is_full,
    kill_groups,
    kill_quietly,
    marked,
    own_children,
    sha256,
    signal,
    worst_state,
)
from remoterun.remote.wire import (
    CANCEL,
    DONE,
    ERROR,
    FINDING,
    HEARTBEAT,
    LOG,
    PROBLEM,
    PROGRESS,
    RECORD,
    RESULT,
    STARTED,
    Assembler,
    Decoder,
    Struct,
    WireError,
    to_json,
)

_LEFTOVER_GRACE_S = 1.0
_KILL_S = 5.0
_KILL_AGAIN_S = 0.05
_KILL_BURST = 100
_TOLD_S = 30.0
_MAX_RECORD = 16 << 20
_CHUNK = 65536
_LIMITS = {errno.EMFILE: "n", errno.EFBIG: "f", errno.EAGAIN: "u"}
_COUNTED = Struct(">BI")
_FORWARDED = (RECORD, FINDING, PROGRESS, LOG)


class Supervisor:
    """Run one payload to its end, whatever the end is."""

    def __init__(self, link: Link, key: str, request: dict[str, object], payload: Payload, reaper: bool) -> None:
        limits: dict[str, float] = request["limits"]  # type: ignore[assignment]
        self._link = link
        self._key = key
        self._payload = payload
        self._reaper = reaper
        self._limits = limits
        self._lines = bool(request.get("program"))
        self._line = bytearray()
        self._decoder = Decoder(payload.token)
        self._assembler = Assembler(_MAX_RECORD, strict=False)
        self._records = 0
        self._hash = sha256()
        self._done = False
        self._cause: str | None = None
        self._status: int | None = None
        self._children = True
        self._killing: int | None = None
        self._kill_due = self._give_up_at = 0.0
        self._survivors: list[int] = []
        now = time.monotonic()
        self._started = self._moved = now
        self._beat_due = now + self._limits["beat"]

    def run(self) -> None:
        """Supervise until everything of the run is dead and told."""
        self._link.say(STARTED, to_json({"resumable": self._link.resumable}).encode())
        while self._children or self._payload.open_pipes():
            self._wait()
            self._reap()
            self._watch(time.monotonic())
            if not self._children:
                self._payload.hurry()
        self._tell_result()
        self._settle()

    def _settle(self) -> None:
        """Wait until the result has arrived, for as long as somebody may come for it."""
        while not self._link.settled:
            now, end = time.monotonic(), self._link.heard + self._patience_s()
            if now >= end:
                return
            self._beat(now)
            poll = select.poll()
            self._link.register(poll)
            for fd, event in poll.poll(max(0.0, min(end, self._beat_due) - now) * 1000 + 1):
                self._link.ready(fd, event)

    # --- one turn ---

    def _wait(self) -> None:
        if self._link.lost and self._link.lease is None:
            self._end("link")
        poll = select.poll()
        self._link.register(poll)
        poll.register(self._payload.wake_fd, select.POLLIN)
        pipes = self._payload.open_pipes()
        if self._link.full:
            self._moved = time.monotonic()
        for fd in () if self._link.full else pipes:
            poll.register(fd, select.POLLIN)
        for fd, event in poll.poll(self._timeout_ms()):
            if fd == self._payload.wake_fd:
                os.read(fd, 512)
            elif fd in pipes:
                self._read(fd)
            elif CANCEL in self._link.ready(fd, event):
                self._end("cancel")

    def _timeout_ms(self) -> float:
        now = time.monotonic()
        due = [self._beat_due]
        if self._killing is not None:
            due.append(now + 0.02)
        due += [end for _, end in self._ends() if end > now]
        return max(0.0, min(due) - now) * 1000 + 1

    def _ends(self) -> list[tuple[str, float]]:
        """Return the limits that still count, with the time at which each is over."""
        ends = [("silence", self._link.heard + self._patience_s())]
        if self._cause is None and self._status is None:
            since = (("run", self._started), ("stall", self._moved))
            ends += [(name, start + self._limits[name]) for name, start in since if self._limits[name] is not None]
        return ends

    def _patience_s(self) -> float:
        return self._limits["silence"] if self._link.lease is None else self._link.lease

    def _read(self, fd: int) -> None:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._payload.close_pipe(fd)
            return
        self._moved = time.monotonic()
        if fd == self._payload.start_fd:
            self._payload.trouble += data.decode("utf-8", "replace")
        elif fd == self._payload.record_fd:
            self._take_messages(data)
        elif self._lines and fd == self._payload.stdout.fd:
            self._take_lines(data)
        else:
            capture = self._payload.stdout if fd == self._payload.stdout.fd else self._payload.stderr
            head = capture.take(data)
            if head:
                self._link.say(capture.kind, head)

    def _take_messages(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            try:
                body = self._assembler.add(frame)
            except WireError as error:
                self._link.say(ERROR, to_json({"kind": "limit", "type": "WireError", "message": str(error)}).encode())
                self._end("output")
                continue
            if body is not None:
                self._take(frame.kind, body)

    def _take(self, kind: int, body: bytes) -> None:
        if kind == DONE:
            self._done = True
        elif kind == ERROR:
            self._link.say(ERROR, body)
        elif kind in _FORWARDED:
            if kind in (RECORD, FINDING):
                self._records += 1
                self._hash.update(_COUNTED.pack(kind, len(body)) + body)
            self._link.say(kind, body)

    def _take_lines(self, data: bytes) -> None:
        """Read a program's records: one JSON object a line."""
        if self._cause == "output":
            return
        self._line += data
        *lines, rest = bytes(self._line).split(b"\n")
        self._line = bytearray(rest)
        for line in lines:
            if line.strip():
                self._take(RECORD, line)
        if len(rest) > _MAX_RECORD:
            self._line.clear()
            self._end("output")

    # --- ends ---

    def _reap(self) -> None:
        while self._children:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                # A subreaper has every orphan for a child; without one they are only found by their mark.
                self._children = not self._reaper and bool(marked(self._key))
                return
            if pid == 0:
                return
            if pid == self._payload.pid:
                self._status = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def _watch(self, now: float) -> None:
        """Look at the clock: limits, heartbeats, and how far the killing is."""
        for name, end in self._ends():
            if now >= end:
                self._end(name)
                if name == "silence":
                    self._link.give_up()
        if self._status is not None and self._killing is None and self._others():
            # The payload has ended; whatever it left running goes too.
            self._kill(signal.SIGTERM, _LEFTOVER_GRACE_S)
        if self._killing is not None and now >= self._kill_due:
            self._kill_harder()
        self._beat(now)

    def _beat(self, now: float) -> None:
        if now >= self._beat_due:
            self._beat_due = now + self._limits["beat"]
            state = worst_state(list(descendants(os.getpid()).values()))
            self._link.say(HEARTBEAT, to_json({"state": state}).encode())

    def _others(self) -> list[int]:
        """Return what of the run is alive, apart from the supervisor."""
        if not self._children and self._reaper:
            return []
        found = set(descendants(os.getpid()))
        if not self._reaper:
            found.update(marked(self._key))
        return sorted(found)

    def _end(self, cause: str) -> None:
        """End the run for a cause: ask first, then kill."""
        if self._cause is None and self._status is None:
            self._cause = cause
        if self._killing is None:
            self._kill(signal.SIGTERM, self._limits["grace"])

    def _kill(self, number: int, wait_s: float) -> None:
        self._killing = number
        self._kill_due = time.monotonic() + wait_s
        kill_quietly(self._others(), number)

    def _kill_harder(self) -> None:
        now = time.monotonic()
        if self._killing == signal.SIGTERM:
            self._give_up_at = now + _KILL_S
        others = self._others()
        if others and self._killing == signal.SIGKILL and now >= self._give_up_at:
            # SIGKILL has had its time: what is left hangs in the kernel. It is counted, not hidden.
            self._survivors = others
            self._children = False
        elif others:
            # Again and again: a process may have forked between the look and the signal.
            self._kill(signal.SIGKILL, _KILL_AGAIN_S)
            kill_groups(others)
            self._kill_orphans()

    def _kill_orphans(self) -> None:
        """Kill orphans as they come, faster than a process that forks away all the time can fork again."""
        for _ in range(_KILL_BURST):
            self._reap()
            pids = own_children() if self._children else []
            if not pids:
                return
            kill_quietly(pids, signal.SIGKILL)

    def _tell_result(self) -> None:
        payload = self._payload
        if payload.trouble:
            _tell_no_start(self._link, "start_failed", payload.trouble)
            return
        if self._status == 0 and self._cause is None and self._line.strip():
            # The last line needs no newline, unless the program was stopped in the middle of it.
            self._take(RECORD, bytes(self._line))
        for capture in (payload.stdout, payload.stderr):
            if capture.tail:
                self._link.say(capture.tail_kind, bytes(capture.tail))
        result = {
            "exit_status": self._status,
            "cause": self._cause,
            "done": self._done or (self._lines and self._status == 0),
            "records": self._records,
            "hash": self._hash.hexdigest(),
            "survivors": len(self._survivors),
            "stdout_total": payload.stdout.total,
            "stderr_total": payload.stderr.total,
        }
        self._link.say(RESULT, to_json(result).encode())


def _tell_no_start(link: Link, code: str, message: str) -> None:
    """Say why nothing was started: whoever hears of it asks again, and so it is sent once and not kept for anybody."""
    link.lease = None
    link.say(PROBLEM, to_json({"code": code, "message": message}).encode())
    link.say(RESULT, b"{}")
    give_up = time.monotonic() + _TOLD_S
    while not link.settled and time.monotonic() < give_up:
        poll = select.poll()
        link.register(poll)
        for fd, event in poll.poll(1000):
            link.ready(fd, event)


def supervise(fd: int, nonce: bytes, key: str, request: dict[str, object], code: bytes, reaper: bool) -> None:
    """Be the supervisor of one request until it is over."""
    link = Link(fd, nonce, request)
    payload = Payload(key, folder_name(key), request, code)
    try:
        link.listen(key)
        payload.start()
    except Exception as error:
        _tell_no_start(link, *_why_not(error))
    else:
        Supervisor(link, key, request, payload, reaper).run()
    finally:
        payload.clean()
        link.close()


def _why_not(error: Exception) -> tuple[str, str]:
    if isinstance(error, RunsAlreadyError):
        return "runs_already", str(error)
    if is_full(error):
        return "no_space", str(error)
    if not isinstance(error, (OSError, PayloadError)):
        return "start_failed", repr(error)
    limit = _LIMITS.get(getattr(error, "errno", 0))
    return "start_failed", "%s: see `ulimit -%s` there" % (error, limit) if limit else str(error)
