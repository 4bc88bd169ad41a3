"""A signal ends an audit whenever it comes: before, while or after something runs."""

from __future__ import annotations

import asyncio

import pytest

from remoterun.audit.ending import Ending
from remoterun.model import RunStatus
from remoterun.runner import Control


@pytest.mark.parametrize("before", [True, False])
def test_a_run_that_begins_hears_of_it(before: bool) -> None:
    ending, control = Ending(), Control()

    async def run() -> RunStatus | None:
        with ending.reaching(control):
            if not before:
                ending.end(RunStatus.TERMINATED)
            await asyncio.sleep(0)
            return control.ended_as

    if before:
        ending.end(RunStatus.TERMINATED)
    assert asyncio.run(run()) is RunStatus.TERMINATED
    ending.end(RunStatus.INTERRUPTED)
    assert ending.status is RunStatus.TERMINATED
