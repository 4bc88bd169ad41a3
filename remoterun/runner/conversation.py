"""Talk with one target over one session, from the opening bytes to the result, with a limit on every wait."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from remoterun import hops
from remoterun.errors import TargetError
from remoterun.events import Event, TargetMoved
from remoterun.model import CacheWork, Captured, Job, Manner, Phase, format_duration
from remoterun.remote import wire
from remoterun.remote.stage0 import FOUND
from remoterun.runner.request import beat_s

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from remoterun.runner.dialogue import Dialogue
    from remoterun.runner.request import Request
    from remoterun.transports import Session

_KEEP_NOISE: Final = 64 * 1024
_MAX_MESSAGE: Final = 17 << 20
# How long a target may take to confirm that everything is dead: TERM, grace, KILL, sweep, and the way back.
CONFIRM_S: Final = 15.0
# What it had to say before comes first and puts that off: as much as a target keeps, for a minute over a slow link.
_CONFIRM_AT_MOST_S: Final = 60.0
_BACKLOG: Final = 20 << 20
_BACKLOG_ALONE: Final = 112 << 20
_SIGNS_OF_LIFE: Final = frozenset({wire.HEARTBEAT, wire.HELLO, wire.NEED})
# What the target neither numbers nor keeps.
_TRANSIENT: Final = frozenset({wire.HEARTBEAT, wire.PROGRESS})
# So much may arrive before it is acknowledged; what is left is with the next sign of life.
_ACKNOWLEDGE_BYTES: Final = 256 * 1024
# What each message counts beside its body: where it is kept, many that are tiny take a lot of room.
_MESSAGE_BYTES: Final = 128
_GOODBYE_S: Final = 0.5
# What a target may say before the payload's process is there; a result that is simply claimed is none.
_EXPECTED: Final = MappingProxyType(
    {
        Phase.ENTER: frozenset({wire.HELLO, wire.PROBLEM}),
        Phase.UPLOAD: frozenset({wire.NEED, wire.PROBLEM, wire.STARTED, wire.ATTACHED, wire.HEARTBEAT}),
    }
)
# The target enforces `run` and `stall` itself; if it does not, this much later the controller does.
_BACKSTOP_S: Final = 30.0


class Conversation:
    """Drive one session of a dialogue, which holds what has arrived, also after a failure.

    `left` tells that it ended because the run is to go on without us.
    """

    def __init__(
        self,
        request: Request,
        session: Session,
        tell: Callable[[Event], None],
        deadline: float | None,
        dialogue: Dialogue,
    ) -> None:
        self._request = request
        self._session = session
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._decoder = wire.Decoder(request.nonce, keep=_KEEP_NOISE)
        self._assembler = wire.Assembler(_MAX_MESSAGE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._writes = asyncio.Lock()
        self._timer: asyncio.Timeout | None = None
        self._entered_at = self._loop.time()
        self._deadline = deadline
        self._moved_at = self._loop.time()
        self._overruled: TargetError | None = None
        self._confirm_by = 0.0
        self._backlog = _BACKLOG if dialogue.manner is Manner.FOLLOW else _BACKLOG_ALONE
        self._flows = asyncio.Event()
        self._flows.set()
        self._held_s = 0.0
        self._waiting_for = "enter"
        self._code_sent = False
        self.dialogue = dialogue
        self._unacknowledged = 0
        self._collect_to = 0
        self.left = False
        # How the Python there ended, over a connection that held, before it had started anything.
        self.died = ""
        self.target = dialogue.job.target.id
        self.phase = Phase.ENTER
        self.marks: dict[str, float] = {"enter": self._entered_at}

    @property
    def _job(self) -> Job:
        """Return what is done there; of what somebody else has planned, the target tells its limits."""
        return self.dialogue.job

    @property
    def noise(self) -> Captured:
        """Return what stood outside the frames, without stage 0's own mark."""
        mark = f"{FOUND}\n".encode()
        kept = bytes(self._decoder.noise)
        own = len(mark) if mark in kept else 0
        return Captured(head=kept.replace(mark, b"", 1), total=self._decoder.noise_total - own)

    async def run(self) -> None:
        """Talk until the result is there.

        Raises:
            TargetError: for every way in which it does not come.
        """
        from remoterun.transports import ConnectionLost

        # At once: what keeps it from being made is no silence of the target.
        opening = self._request.opening()
        self._do(self._write(lambda: opening))
        try:
            await self._listen_within("enter", self._job.limits.enter)
            await self._say_goodbye()
        except ConnectionLost as error:
            raise self._broken(str(error)) from error
        except TargetError as error:
            await self._say_goodbye(lost=error.code in {"connection_lost", "taken_over"})
            if self._overruled is not None and self._overruled is not error:
                raise self._overruled from error
            raise
        except BaseException:  # it goes on; but nobody will come back to the target
            await self._say_goodbye()
            raise
        finally:
            await self._stop_tasks()
        if self._overruled is not None and not self._came_too_late():
            raise self._overruled

    def _came_too_late(self) -> bool:
        """Tell whether what was to be cancelled had ended by itself before it was asked for."""
        result = self.dialogue.collector.result
        return self.dialogue.manner is Manner.CANCEL and result is not None and result.get("cause") is None

    @property
    def leaves_alone(self) -> bool:
        """Tell whether an end of this conversation is none of what it is about."""
        return self.dialogue.manner is Manner.COLLECT

    @property
    def _is_a_stranger(self) -> bool:
        """Tell whether the run has nothing to do with our end: it is looked at, or was to be followed only now."""
        return self.leaves_alone or (self.dialogue.manner is Manner.ATTACH and not self.dialogue.started)

    async def _say_goodbye(self, *, lost: bool = False) -> None:
        """Say that everything has arrived, or that nobody will come back: the target need not wait for its lease.

        `lost`: there is nobody to say it to, or somebody else's run to end.
        """
        from remoterun.transports import SessionEnded

        if self.dialogue.collector.result is not None:
            last = self._acknowledgement
        elif lost or self.left or self._overruled is not None or self.phase is Phase.ENTER or self._is_a_stranger:
            return
        else:
            last = partial(self._request.frame, wire.CANCEL)
        with suppress(TimeoutError, SessionEnded):
            async with asyncio.timeout(_GOODBYE_S), self._writes:
                await self._session.write(last())

    def cancel(self, error: TargetError) -> None:
        """End the run on the target and wait for its confirmation; `error` becomes the outcome's, whatever arrives."""
        if self._overruled is None:
            self._overruled = error
            self._confirm_by = self._loop.time() + _CONFIRM_AT_MOST_S
            self.go_on()
            self._do(self._write(lambda: self._request.frame(wire.CANCEL)))
            self._wait_for("confirm", CONFIRM_S)

    def hold(self) -> None:
        """Read nothing more of a running payload until `go_on`: it waits then, when all between is full.

        That is no silence of the target, so that only the limit `total` goes on; and the target is still pinged.
        """
        if self.phase is Phase.RUN and self._overruled is None:
            self._flows.clear()

    def go_on(self) -> None:
        """Read again."""
        self._flows.set()

    # --- listening ---

    async def _listen_within(self, limit: str, seconds: float | None) -> None:
        """Listen under a limit; one that ends a running payload has it killed, and waits until that is confirmed."""
        try:
            async with asyncio.timeout_at(None) as self._timer:
                self._wait_for(limit, seconds)
                await self._listen()
        except TimeoutError:
            error = self._timed_out()
            if self.phase is not Phase.RUN or error.code == "idle_timeout" or self._overruled is not None:
                raise error from None
            self.cancel(error)
            await self._listen_within("confirm", CONFIRM_S)
        finally:
            self._timer = None  # whoever cancels from here on comes too late

    async def _listen(self) -> None:
        while self.dialogue.collector.result is None and not self.left:
            if not self._flows.is_set():
                await self._held()
            data = await self._session.read()
            if not data:
                self._decoder.close()
                raise await self._ended()
            frames = self._decoder.feed(data)
            for frame in frames:
                self._take(frame)
            if frames:
                # Noise is no sign of life: a job in the background may print for ever.
                self.dialogue.heard = self._loop.time()
                self._restart_wait(said=sum(len(frame.raw) for frame in frames if _is_kept(frame)))

    async def _held(self) -> None:
        begun = self._loop.time()
        self._wait_for("held", None)
        await self._flows.wait()
        self._moved_at = self._loop.time()
        self._held_s += self._moved_at - begun
        self._restart_wait()

    def _take(self, frame: wire.Frame) -> None:
        body = self._message(frame)
        if body is None:
            return
        numbered = _is_kept(frame)
        if numbered:
            # Also what cannot be used: the target need not keep it.
            self.dialogue.number += 1
        try:
            event = self.dialogue.collector.handle(frame.kind, body)
        except TargetError as error:
            self._refuse(error)
            if numbered:
                # Else the target would keep it, and wait with its result until there is room for it.
                self._passed_on(len(body))
            return
        if event is not None:
            self._tell(event)
        if frame.kind not in _SIGNS_OF_LIFE:
            self._moved_at = self._loop.time()
        if numbered:
            self._passed_on(len(body))
        self._advance(frame.kind, body)

    def _refuse(self, error: TargetError) -> None:
        """End a payload that says too much, and hear it out; any other error ends the conversation."""
        if error.code == "start_failed":
            self.phase = Phase.RUN
        if self.phase is not Phase.RUN or error.code not in {"output_limit", "payload_failed"}:
            raise error
        if self.leaves_alone and self.dialogue.collector.short_of_room:
            raise error  # it has said nothing wrong, and somebody with more room may still fetch it
        self.cancel(error)

    def _passed_on(self, size: int) -> None:
        """Acknowledge, before long, what was passed on."""
        self._unacknowledged += size + _MESSAGE_BYTES
        if self._unacknowledged >= _ACKNOWLEDGE_BYTES and not self.leaves_alone:
            self._unacknowledged = 0
            self._do(self._write(self._acknowledgement))

    def _acknowledgement(self) -> bytes:
        return self._request.acknowledgement(self.dialogue.number)

    def _message(self, frame: wire.Frame) -> bytes | None:
        """Return the message that a frame completes, None while there is more to come."""
        if frame.stream not in (wire.LEG_STREAM, wire.SUPERVISOR_STREAM):
            # Each stream may hold the beginning of a message.
            raise TargetError("result_damaged", f"a frame came on the stream {frame.stream}, which nobody has")
        if frame.kind not in _EXPECTED.get(self.phase, {frame.kind}) and not self._is_cache_result(frame):
            raise TargetError("result_damaged", f"a message of the kind {frame.kind} came before anything was started")
        try:
            return self._assembler.add(frame)
        except wire.WireError as error:
            raise TargetError("result_damaged", str(error)) from error

    def _is_cache_result(self, frame: wire.Frame) -> bool:
        """Tell whether this is the result of emptying the cache, for which nothing is started."""
        return frame.kind == wire.RESULT and self.phase is Phase.UPLOAD and isinstance(self._job.work, CacheWork)

    def _advance(self, kind: int, body: bytes) -> None:
        if kind == wire.HELLO and self.phase is Phase.ENTER:
            self._session.entered()
            self._move(Phase.UPLOAD, "upload", self._job.limits.upload)
        elif kind == wire.NEED and self.phase is Phase.UPLOAD and not self._code_sent:
            self._code_sent = True
            self._do(self._write(partial(self._request.code, body)))
        elif kind in (wire.STARTED, wire.ATTACHED) and self.phase is Phase.UPLOAD:
            self._begin(body)
        elif kind == wire.RESULT:
            self.marks["collect"] = self._loop.time()
        if self.leaves_alone and self.phase is Phase.RUN:
            self.left = self.dialogue.number >= self._collect_to

    def _begin(self, body: bytes) -> None:
        """Follow what has begun, or do whatever else there is to do with it."""
        dialogue = self.dialogue
        self._collect_to, about = dialogue.collector.announced(body)
        try:
            dialogue.learn(about)
        except ValueError as error:
            raise TargetError("result_damaged", f"what the target knows of the run makes no sense: {error}") from error
        dialogue.tick(first=True)
        if not dialogue.started:
            dialogue.started, dialogue.begun = True, self._loop.time()
        self._move(Phase.RUN, "idle", self._job.limits.idle)
        self._do(self._ping())
        if dialogue.manner is Manner.LEAVE:
            self.left = True
        elif dialogue.manner is Manner.CANCEL:
            self.cancel(TargetError("cancelled", "the run was cancelled"))

    def _move(self, phase: Phase, limit: str, seconds: float | None) -> None:
        self.phase = phase
        self.marks[phase.value] = self._loop.time()
        self._tell(TargetMoved(target=self._job.target.id, step=self._job.step, phase=phase))
        if self._overruled is None:
            self._wait_for(limit, seconds)

    # --- limits ---

    def _wait_for(self, limit: str, seconds: float | None) -> None:
        """Set the clock: this limit, the run's backstop or the total, whichever ends first."""
        now = self._loop.time()
        due = [(now + seconds, limit)] if seconds is not None else []
        if limit == "confirm":
            due.append((self._confirm_by, limit))
        else:
            if self._deadline is not None:
                due.append((self._deadline, "total"))
            if limit == "idle" and self._job.limits.run is not None:
                due.append((self.dialogue.begun + self._held_s + self._job.limits.run + _BACKSTOP_S, "run"))
            if limit == "idle" and self._job.limits.stall is not None:
                due.append((self._moved_at + self._job.limits.stall + _BACKSTOP_S, "stall"))
        when, self._waiting_for = min(due) if due else (None, limit)
        if self._timer is not None and not self._timer.expired():
            self._timer.reschedule(when)

    def _restart_wait(self, *, said: int = 0) -> None:
        """Set the clock anew after a sign of life; `said` are the bytes of it that the target had kept."""
        if self._overruled is None:
            if self.phase is Phase.RUN:
                self._wait_for("idle", self._job.limits.idle)
        elif 0 < said <= self._backlog:
            self._backlog -= said
            self._wait_for("confirm", CONFIRM_S)

    def _timed_out(self) -> TargetError:
        if self._overruled is not None:
            # Asked to end it, and no confirmation came: the outcome keeps its cause, survivors stay unknown.
            return self._overruled
        name = self._waiting_for
        seconds = getattr(self._job.limits, name)
        told = {
            "enter": "no answer from the target after",
            "upload": "the payload's code was not taken after",
            "idle": "nothing came from the target for",
            "run": "the target did not end the payload by itself, though its limit passed long ago:",
            "stall": "the target did not end the payload by itself, though there was no progress for",
            "total": "the target was not done after",
        }[name]
        hint = None
        if name == "enter" and FOUND.encode() in self._decoder.noise:
            told = f"{self._job.target.interpreter} was started there, and has not answered after"
            hint = "It hangs at its start, or is a script that keeps its standard input: try it by hand on the target."
        return TargetError(
            f"{name}_timeout", f"{told} {format_duration(seconds)}", hint=hint, limit=(name, seconds, f"limits.{name}")
        )

    # --- ends ---

    async def _ended(self) -> TargetError:
        """Say why the stream ended before the result."""
        end = await self._session.exit()
        if self.phase is Phase.ENTER:
            stderr = self._session.stderr.data.decode("utf-8", "replace")
            if end.lost:
                return TargetError("connection_lost", "the SSH connection ended while the target was being entered")
            noise = bytes(self._decoder.noise).decode("utf-8", "replace")
            return hops.diagnose(
                self._job.target, exit_status=end.status, signal=end.signal, stderr=stderr, noise=noise
            )
        if self._overruled is not None:
            return self._overruled
        if self.phase is Phase.UPLOAD and not end.lost:
            stderr = self._session.stderr.data.decode("utf-8", "replace")
            self.died = hops.how_it_ended(end.status, end.signal, stderr)
            return self._broken(f"{self._job.target.interpreter} {self.died}")
        return self._broken("the session ended" if not end.lost else "the connection ended")

    def _broken(self, how: str) -> TargetError:
        doing = (
            "while the payload's code was being sent"
            if self.phase is Phase.UPLOAD
            else "before the result was complete"
        )
        return self._overruled or TargetError("connection_lost", f"{how} {doing}")

    # --- writing ---

    def _do(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, make: Callable[[], bytes]) -> None:
        """Write frames, which are numbered as they are made: one message after the other."""
        from remoterun.transports import SessionEnded

        # A far end that takes no more is heard of by the reader, which knows more about why.
        with suppress(SessionEnded):
            async with self._writes:
                await self._session.write(make())

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(beat_s(self._job))
            self.dialogue.tick()
            if self._unacknowledged and not self.leaves_alone:
                self._unacknowledged = 0
                await self._write(self._acknowledgement)
            else:
                await self._write(lambda: self._request.frame(wire.PING))

    async def _stop_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _is_kept(frame: wire.Frame) -> bool:
    """Tell whether a frame is of a message that the target numbers and keeps."""
    return frame.stream == wire.SUPERVISOR_STREAM and frame.kind not in _TRANSIENT
