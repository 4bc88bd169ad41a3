"""A session in memory, whose far side is the test, under a clock that jumps instead of waiting."""

from __future__ import annotations

import asyncio
import hashlib
import json
import selectors
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from remoterun.errors import TargetError
from remoterun.events import Event
from remoterun.model import (
    Captured,
    Host,
    Job,
    Json,
    Limits,
    Manner,
    Pack,
    PayloadRef,
    PayloadWork,
    Target,
    Work,
)
from remoterun.remote import wire
from remoterun.runner.conversation import Conversation
from remoterun.runner.dialogue import Dialogue
from remoterun.runner.keep import RECORDS_IN_MEMORY, Keep
from remoterun.runner.request import INLINE_MAX, Packed, Request
from remoterun.secrets import NO_SECRETS
from remoterun.transports import Exit, SessionEnded

TARGET = Target(id="kpro6/200", host=Host(key="kpro6", address="10.1.2.6"), guest="200", hop="pct")
# Random bytes do not compress: too big to be sent along unasked.
BIG = b"".join(hashlib.sha256(bytes([n & 255, n >> 8])).digest() for n in range(INLINE_MAX // 16))


class _Jump(selectors.SelectSelector):
    """Let time pass at once instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if timeout is None and not ready:
            raise AssertionError("everything waits, and for nothing that could come")
        self.now += 0 if ready else timeout or 0
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine under the clock that jumps."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        runner.run(work)


class MemorySession:
    """Be a session whose far side is the test."""

    def __init__(self) -> None:
        self._incoming: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self.written = bytearray()
        self.accepts = asyncio.Event()
        self.accepts.set()
        self.broken: SessionEnded | None = None
        self.stderr = Captured()
        self.end = Exit(status=0)
        self.was_entered = False

    def send(self, data: bytes | Exception) -> None:
        self._incoming.put_nowait(data)

    async def write(self, data: bytes) -> None:
        await self.accepts.wait()
        if self.broken is not None:
            raise self.broken
        self.written += data

    async def read(self) -> bytes:
        data = await self._incoming.get()
        if isinstance(data, Exception):
            raise data
        return data

    async def exit(self) -> Exit:
        return self.end

    def entered(self) -> None:
        self.was_entered = True

    async def close(self) -> None:
        """Close nothing: there is only memory."""


@dataclass
class Scene:
    """One conversation and the target at its other end."""

    session: MemorySession
    request: Request
    talk: Conversation
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._leg = wire.Encoder(self.request.nonce, wire.LEG_STREAM)
        self._supervisor = wire.Encoder(self.request.nonce, wire.SUPERVISOR_STREAM)

    def say(self, kind: int, value: Mapping[str, Json] | None = None) -> None:
        encoder = self._leg if kind < wire.STARTED else self._supervisor
        self.session.send(b"".join(encoder.frames(kind, json.dumps(value or {}).encode())))

    def start(self) -> None:
        self.say(wire.HELLO, {"hostname": "guest"})
        self.say(wire.STARTED)

    def result(self, **changes: Json) -> None:
        value: dict[str, Json] = {"exit_status": 0, "cause": None, "done": True, "records": 0, "survivors": 0}
        self.say(wire.RESULT, value | {"hash": hashlib.sha256().hexdigest()} | changes)

    def heard(self) -> list[int]:
        """Return the kinds of the messages that were written after the opening, whole ones only."""
        decoder, assembler = wire.Decoder(self.request.nonce), wire.Assembler(64 << 20)
        messages = [(frame.kind, assembler.add(frame)) for frame in decoder.feed(bytes(self.session.written))]
        return [kind for kind, body in messages if body is not None and kind != wire.REQUEST]

    def acknowledged(self) -> int:
        """Return the number before which everything was acknowledged at last."""
        frames = wire.Decoder(self.request.nonce).feed(bytes(self.session.written))
        return max(int.from_bytes(frame.body, "big") for frame in frames if frame.kind == wire.ACK)

    async def refusal(self) -> TargetError:
        with pytest.raises(TargetError) as caught:
            await self.talk.run()
        return caught.value


def without_memory(*places: Path) -> Keep:
    """Leave memory for less than one record of each job: all others have to go to these places."""
    keep = Keep(50_000, [str(place) for place in places])
    assert keep.records.take(RECORDS_IN_MEMORY, RECORDS_IN_MEMORY // 2)
    return keep


def make_scene(
    limits: Limits | None = None,
    *,
    data: bytes = b"small",
    total_at: float | None = None,
    manner: Manner = Manner.FOLLOW,
    keep: Keep | None = None,
    work: Work | None = None,
) -> Scene:
    ref = PayloadRef(name="look", version="1.0.0", sha256=hashlib.sha256(data).hexdigest())
    work = work or PayloadWork(pack=Pack(ref=ref, data=data, entry="look:run"), params={})
    job = Job(target=TARGET, step=0, work=work, limits=limits or Limits())
    request = Request(job, "key", Packed(), use_cache=True)
    session = MemorySession()
    events: list[Event] = []
    dialogue = Dialogue(job, manner, NO_SECRETS.redactor, keep)
    talk = Conversation(request, session, events.append, total_at, dialogue)
    return Scene(session, request, talk, events)
