"""What a link to one host does where the connections that it has are not enough."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any, cast

import pytest

from remoterun.errors import TargetError
from remoterun.transports.link import Budget, Link, Stage


class Connection:
    """Stand for a connection that lasts."""

    closed = False

    async def close(self) -> None:
        """End it."""
        self.closed = True


@pytest.mark.parametrize(
    "refusal", [OSError(errno.ENETDOWN, "the network is down"), TargetError("auth_failed", "no"), TimeoutError()]
)
def test_a_further_login_that_fails_is_not_tried_again(refusal: Exception) -> None:
    logins = 0

    async def log_in(stage: Stage, begin: Callable[[], None]) -> Any:
        nonlocal logins
        logins += 1
        begin()
        if logins > 1:
            raise refusal
        return Connection()

    async def main() -> None:
        link = Link(1, lambda connection: None)
        await link.up(log_in, Budget(None), lambda phase, waiting: None)
        taken = link.take()
        assert taken is not None
        assert link.take() is None
        long_ago = asyncio.get_running_loop().time() - 3600
        for _ in range(3):
            waiting = asyncio.create_task(link.slot_freed(long_ago, None))
            for _ in range(10):
                await asyncio.sleep(0)
            link.give(taken)
            await asyncio.wait_for(waiting, 30)
            taken = link.take()
            assert taken is not None
        await link.close()
        assert cast("Connection", taken.connection).closed

    asyncio.run(main())
    assert logins == 2
