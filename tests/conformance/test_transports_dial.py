"""TCP connections to names with several addresses, some of which refuse or swallow everything."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoterun.transports.dial import Address, dial, in_daemon, lookup
from tests.conformance.servers import LIMIT_S, free_port, until


def at(port: int) -> Address:
    """Name a port on loopback."""
    return socket.AF_INET, ("127.0.0.1", port)


@contextlib.contextmanager
def listening() -> Iterator[int]:
    """Listen."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@contextlib.contextmanager
def swallowing() -> Iterator[int]:
    """Listen with a full queue, so that the system drops whatever else comes."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port = server.getsockname()[1]
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                filler.connect(("127.0.0.1", port))
        yield port


def descriptors() -> int:
    """Count the open files of this process."""
    return len(list(Path("/dev/fd").iterdir()))


def reach(*addresses: Address) -> int:
    """Dial, and return the port that answered."""

    async def main() -> int:
        async with asyncio.timeout(LIMIT_S):
            with await dial(addresses) as sock:
                return int(sock.getpeername()[1])

    return asyncio.run(main())


def test_a_refusing_address_is_passed_over() -> None:
    with listening() as good:
        assert reach(at(free_port()), at(free_port()), at(good)) == good


def test_a_silent_address_is_not_waited_for() -> None:
    with swallowing() as silent, listening() as good:
        assert reach(at(silent), at(good)) == good


def test_the_last_refusal_is_told_when_none_answers() -> None:
    with pytest.raises(ConnectionRefusedError):
        reach(at(free_port()), at(free_port()))


def test_giving_up_leaves_no_socket() -> None:
    async def main() -> None:
        before = descriptors()
        with swallowing() as one, swallowing() as two:
            inside = descriptors()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.6):
                    await dial([at(one), at(two)])
            await until(lambda: descriptors() == inside)
        assert descriptors() == before

    asyncio.run(main())


def test_a_name_is_resolved_and_a_wrong_one_says_so() -> None:
    assert at(22) in asyncio.run(lookup("localhost", 22, family=socket.AF_INET))
    with pytest.raises(socket.gaierror):
        asyncio.run(lookup("nowhere.invalid", 22))


def test_blocking_work_that_nobody_waits_for_holds_up_nothing() -> None:
    """The resolver can block for half a minute; neither the loop nor its end may wait for that."""
    release = threading.Event()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await in_daemon(lambda: release.wait(LIMIT_S))

    asyncio.run(main())  # returns although the work goes on
    release.set()
