"""A job whose connection is lost, over connections in memory and under a clock that jumps."""

from __future__ import annotations

import asyncio
import io
import marshal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

from remoterun.errors import TargetError
from remoterun.model import ExecWork, Job, Limits, Manner, Status
from remoterun.remote import wire
from remoterun.runner import Control
from remoterun.runner.jobrun import JobRun
from remoterun.runner.keep import Keep
from remoterun.runner.request import Packed
from remoterun.secrets import NO_SECRETS
from remoterun.transports import ConnectionLost, Pool
from tests.support.memory import TARGET, MemorySession, run

LEASE_S = 12 * 3600.0


class _LostForGood(MemorySession):
    """Start the program, and be lost."""

    async def write(self, data: bytes) -> None:
        if not self.written:
            opening = io.BytesIO(data)
            opening.readline()
            blobs = [opening.read(int(opening.readline())) for _ in range(4)]
            nonce = marshal.loads(blobs[-1])["nonce"]
            self.send(b"".join(wire.Encoder(nonce, wire.LEG_STREAM).frames(wire.HELLO, b"{}")))
            self.send(b"".join(wire.Encoder(nonce, wire.SUPERVISOR_STREAM).frames(wire.STARTED, b"{}")))
            self.send(ConnectionLost("the network is gone"))
        await super().write(data)


class _GoneNetwork:
    """Be the connections to a host that is reached once, and then no more."""

    def __init__(self) -> None:
        self.tries = 0

    @asynccontextmanager
    async def session(self, *_: Any, **__: Any) -> AsyncIterator[MemorySession]:
        self.tries += 1
        if self.tries > 1:
            raise TargetError("connect_failed", "the network is unreachable")
        yield _LostForGood()


class _HangingNetwork(_GoneNetwork):
    """Be the connections to a host that is reached once; then nothing comes of one for as long as it may take."""

    @asynccontextmanager
    async def session(self, *_: Any, connect_s: float, **__: Any) -> AsyncIterator[MemorySession]:
        self.tries += 1
        if self.tries > 1:
            await asyncio.sleep(connect_s)
            raise TargetError("connect_timeout", "no answer", limit=("connect", connect_s, "limits.connect"))
        yield _LostForGood()


class _AnyNetwork:
    """Be a connection over which nobody ever answers."""

    @asynccontextmanager
    async def session(self, *_: Any, **__: Any) -> AsyncIterator[MemorySession]:
        yield MemorySession()


def _tried(job: Job, events: list[object]) -> JobRun:
    return JobRun(
        *(job, "run/target/0", Packed(), events.append, Control(), Manner.FOLLOW, NO_SECRETS),
        use_cache=False,
        keep=Keep(),
    )


def test_a_request_that_cannot_be_made_is_no_silence_of_the_target() -> None:
    async def work() -> None:
        target = replace(TARGET, interpreter="two\nlines")
        job = Job(target=target, step=0, work=ExecWork(argv=(b"true",)))
        outcome = await _tried(job, []).outcome(cast("Pool", _AnyNetwork()))
        assert outcome.error is not None
        assert outcome.error.code == "internal"
        assert "cannot stand on one line" in outcome.error.message

    run(work())


def test_a_connection_is_tried_for_as_long_as_the_lease_is() -> None:
    async def work() -> None:
        network = _GoneNetwork()
        job = Job(target=TARGET, step=0, work=ExecWork(argv=(b"true",)), limits=Limits(lease=LEASE_S))
        began = asyncio.get_running_loop().time()
        outcome = await _tried(job, []).outcome(cast("Pool", network))
        assert outcome.error is not None
        assert outcome.status is Status.LOST, outcome.log
        assert outcome.error.message.endswith("within the lease of 12h: the network is unreachable")
        assert LEASE_S - 10 <= asyncio.get_running_loop().time() - began <= LEASE_S + 10
        assert network.tries > LEASE_S / 5

    run(work())


def test_a_run_that_cannot_be_taken_up_ends_by_the_limit_of_everything() -> None:
    async def work() -> None:
        limits = Limits(lease=LEASE_S, connect=20.0, total=70.0)
        job = Job(target=TARGET, step=0, work=ExecWork(argv=(b"true",)), limits=limits)
        began = asyncio.get_running_loop().time()
        outcome = await _tried(job, []).outcome(cast("Pool", _HangingNetwork()))
        assert outcome.error is not None
        assert outcome.error.code == "total_timeout"
        assert outcome.error.message.endswith("could not be taken up again within the 70s for everything: no answer")
        assert asyncio.get_running_loop().time() - began <= 70.1

    run(work())
