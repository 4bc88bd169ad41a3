"""Readers that pause: who adds too much to what waits for them is held back, all others go on, nothing is lost."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

from remoterun.cli.backlog import MOST_BYTES, Backlog
from remoterun.console.outlet import Outlet
from remoterun.runner import Control


class Told(Control):
    """Keep who is held."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[str] = []
        self.all_go_on = asyncio.Event()

    def hold(self, target: str) -> None:
        self.held.append(target)

    def go_on(self) -> None:
        self.held.clear()
        self.all_go_on.set()


def with_pipe(work: Callable[[int, Outlet, Told], Coroutine[Any, Any, None]]) -> None:
    """Run work with the reading end of a pipe and an outlet at its other end."""
    reader, writer = os.pipe()
    try:
        with os.fdopen(writer, "w") as stream:
            asyncio.run(work(reader, Outlet(stream), Told()))
    finally:
        os.close(reader)


async def read_all(reader: int, count: int) -> int:
    """Read as much as is asked for, beside a loop that goes on."""
    loop = asyncio.get_running_loop()
    got = 0
    while got < count:
        got += len(await loop.run_in_executor(None, os.read, reader, 1 << 20))
    return got


def test_who_adds_much_is_held_and_who_adds_little_is_not() -> None:
    async def work(reader: int, outlet: Outlet, control: Told) -> None:
        backlog, sent = Backlog([outlet], control, 4), 0
        for _ in range(MOST_BYTES >> 20):
            if "loud" not in control.held:
                outlet.write(b"x" * (1 << 20))
                backlog.note("loud")
                sent += 1 << 20
            outlet.write(b"y" * 1000)
            backlog.note("quiet")
            sent += 1000
        assert control.held == ["loud"]
        assert MOST_BYTES // 4 < sent < MOST_BYTES // 2
        assert await read_all(reader, sent) == sent
        assert control.held == []
        assert outlet.waiting == 0
        backlog.close()

    with_pipe(work)


def test_many_targets_together_stay_within_the_bound() -> None:
    async def work(reader: int, outlet: Outlet, control: Told) -> None:
        names = [f"target-{number}" for number in range(64)]
        backlog, piece = Backlog([outlet], control, len(names)), 1 << 16
        while len(control.held) < len(names):
            for name in names:
                if name not in control.held:
                    outlet.write(b"x" * piece)
                    backlog.note(name)
        assert outlet.waiting <= MOST_BYTES + len(names) * piece
        backlog.close()

    with_pipe(work)


def test_who_was_held_goes_on_before_all_is_read() -> None:
    async def work(reader: int, outlet: Outlet, control: Told) -> None:
        backlog = Backlog([outlet], control, 1)
        while not control.held:
            outlet.write(b"x" * (1 << 20))
            backlog.note("loud")
        waiting = outlet.waiting
        await read_all(reader, waiting - MOST_BYTES // 8)
        await asyncio.wait_for(control.all_go_on.wait(), 60)
        assert outlet.waiting > 0
        backlog.close()

    with_pipe(work)


def test_a_reader_that_leaves_holds_nobody() -> None:
    reader, writer = os.pipe()
    broken: list[Exception] = []

    async def work(outlet: Outlet, control: Told) -> None:
        backlog = Backlog([outlet], control, 1)
        while not control.held:
            outlet.write(b"x" * (1 << 20))
            backlog.note("loud")
        os.close(reader)
        await asyncio.wait_for(control.all_go_on.wait(), 60)
        assert len(broken) == 1
        backlog.close()

    with os.fdopen(writer, "w") as stream:
        asyncio.run(work(Outlet(stream, on_broken=broken.append), Told()))
