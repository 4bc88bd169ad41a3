"""Connections lost while a target is being started: nothing runs twice, and what is not known is told as that."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from remoterun.model import Limits, Outcome, Plan
from remoterun.runner import execute
from tests.conformance.servers import Keys
from tests.support.here import job, nothing_left, payload
from tests.support.stalling import Place, abort, feed, make_keys

_LIMITS = Limits(connect=5.0, enter=20.0, upload=5.0, idle=5.0, run=None, lease=2.0)
# More than what is sent unasked.
_LARGE = f"# {os.urandom(60_000).hex()}\n"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    """Generate the keys of server and client."""
    return make_keys(tmp_path_factory.mktemp("keys"))


class _LosesTheFirst:
    """Lose the first connection before it is told that anything was started, and let the others take long.

    Its end comes instead of that word, or, where the code was asked for, instead of the code.
    """

    def __init__(self, place: Place, wait_s: float) -> None:
        self._place = place
        self._wait_s = wait_s
        self._first = True

    async def __call__(self, remote: asyncssh.SSHServerProcess[bytes]) -> None:
        self._place.serve()
        first, self._first = self._first, False
        if not first:
            await asyncio.sleep(self._wait_s)  # what a slow hop takes is what is tested
        local = await asyncio.create_subprocess_exec(
            *("/bin/bash", "-c", remote.command or ""), stdin=-1, stdout=-1, stderr=asyncio.subprocess.DEVNULL
        )
        assert local.stdin is not None
        assert local.stdout is not None
        asked = asyncio.Event()
        feeding = asyncio.create_task(self._feed_first(remote, local.stdin, asked))
        told = b""
        while data := await local.stdout.read(65536):
            if first and b'"hostname"' in told:
                abort(remote)
                break
            told += data
            remote.stdout.write(data)
            if first and b'"sha256"' in told:
                asked.set()
        await asyncio.gather(local.stdout.read(), feeding)
        remote.exit(await local.wait())

    async def _feed_first(
        self, remote: asyncssh.SSHServerProcess[bytes], stdin: asyncio.StreamWriter, asked: asyncio.Event
    ) -> None:
        with contextlib.suppress(OSError, asyncssh.Error):
            while data := await remote.stdin.read(65536):
                if asked.is_set():
                    abort(remote)
                    break
                stdin.write(data)
        stdin.close()


_ONCE = "open(ctx.params['file'], 'a').write('x')\nctx.emit({})"


@pytest.mark.parametrize(
    ("source", "wait_s", "status", "connections"),
    [(_ONCE, 0.0, "ok", 2), (_ONCE, 4.0, "lost", 2), (_LARGE + _ONCE, 0.0, "ok", 3)],
    ids=["found", "too late", "not started"],
)
def test_what_may_have_been_started_is_not_started_again(
    keys: Keys, tmp_path: Path, source: str, wait_s: float, status: str, connections: int
) -> None:
    """The lease of whatever was started there may be over when the next connection looks for it."""
    started = tmp_path / "started"

    async def work(run_id: str) -> Outcome:
        place = Place(keys, tmp_path)
        async with place.close:
            place.close.push_async_callback(place.served)
            host = await place.toy(process_factory=_LosesTheFirst(place, wait_s))
            planned = job(payload(source, file=str(started)), limits=_LIMITS)
            planned = replace(planned, target=replace(planned.target, host=host))
            plan = Plan(run_id=run_id, playbook="twice", playbook_sha256=None, jobs=(planned,))
            (outcome,) = (await execute(plan, lambda event: None)).outcomes
        return outcome

    with nothing_left() as run_id:
        outcome = asyncio.run(work(run_id))
    assert (outcome.status.value, outcome.connections) == (status, connections), outcome.error
    assert started.read_text() == "x"
    assert status == "ok" or (outcome.error is not None and outcome.error.code == "lease_expired")


def test_a_lease_that_is_over_is_told_as_that_though_somebody_answers(keys: Keys, tmp_path: Path) -> None:
    """The answer of a new connection is no sign of life of the run."""
    place, connections = Place(keys, tmp_path), 0

    async def serve(remote: asyncssh.SSHServerProcess[bytes]) -> None:
        nonlocal connections
        place.serve()
        connections += 1
        if connections > 1:
            await asyncio.sleep(4)  # longer than the lease
        local = await asyncio.create_subprocess_exec(
            *("/bin/bash", "-c", remote.command or ""), stdin=-1, stdout=-1, stderr=asyncio.subprocess.DEVNULL
        )
        assert local.stdin is not None
        assert local.stdout is not None
        feeding = asyncio.create_task(feed(remote, local.stdin, asyncio.Event(), ends=True))
        told = b""
        while data := await local.stdout.read(1):
            told += data
            remote.stdout.write(data)
            if connections == 1 and b'"first"' in told:
                abort(remote)
                break
            if connections > 1 and data == b"}":
                await asyncio.sleep(0.2)  # so that what follows is read by itself
        await asyncio.gather(local.stdout.read(), feeding)
        remote.exit(await local.wait())

    async def work(run_id: str) -> Outcome:
        async with place.close:
            place.close.push_async_callback(place.served)
            host = await place.toy(process_factory=serve)
            source = "import time\nctx.emit({'first': 1})\ntime.sleep(600)"
            planned = job(payload(source), limits=_LIMITS)
            planned = replace(planned, target=replace(planned.target, host=host))
            plan = Plan(run_id=run_id, playbook="late", playbook_sha256=None, jobs=(planned,))
            (outcome,) = (await execute(plan, lambda event: None)).outcomes
        return outcome

    with nothing_left() as run_id:
        outcome = asyncio.run(work(run_id))
    assert outcome.error is not None
    assert (outcome.status.value, outcome.error.code) == ("lost", "lease_expired"), outcome.error
