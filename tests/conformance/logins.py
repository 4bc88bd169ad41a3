"""Logging in, or failing to: what the login tests share."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from remoterun.errors import TargetError
from remoterun.model import Host, Phase
from remoterun.transports import Pool
from tests.conformance.servers import LIMIT_S


def on_phase(phase: Phase, /, waiting: bool) -> None:
    """Take no note."""


async def greet(pool: Pool, host: Host, connect_s: float = LIMIT_S) -> bytes:
    """Log in and say something."""
    async with pool.session(
        host, ["/bin/echo", "in"], connect_s=connect_s, enter_s=LIMIT_S, on_phase=on_phase
    ) as session:
        return await session.read()


def log_in(host: Host) -> None:
    """Log in, or raise why not."""

    async def main() -> None:
        async with asyncio.timeout(2 * LIMIT_S), Pool() as pool:
            assert await greet(pool, host) == b"in\n"

    asyncio.run(main())


def refused(host: Host, code: str, connect_s: float = LIMIT_S) -> TargetError:
    """Fail to log in, by this code."""

    async def main() -> TargetError:
        async with asyncio.timeout(2 * LIMIT_S), Pool() as pool:
            with pytest.raises(TargetError) as caught:
                await greet(pool, host, connect_s)
            return caught.value

    error = asyncio.run(main())
    assert error.code == code, error.message
    assert error.message.startswith(f"{host.key}: ")
    return error


def nowhere(port: int = 22, **changes: object) -> Host:
    """Describe a host that there is nothing behind."""
    fields: dict[str, object] = {"key": "box", "address": "127.0.0.1", "port": port, "ssh_config": "none", "jump": ()}
    return Host(**(fields | changes))  # type: ignore[arg-type] # names and types are the caller's business


def serve(
    host: Callable[[int], Host], code: str, *, say: bytes = b"", hang_up: bool = False, limit_s: float = 0.5
) -> tuple[TargetError, float, int]:
    """Fail to log in at a listener that is no SSH server; return the error, the seconds and the connections it took."""
    seen = 0

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        seen += 1
        writer.write(say)
        if not hang_up:
            with contextlib.suppress(ConnectionError):
                await reader.read(-1)
        writer.close()

    async def main() -> tuple[TargetError, float]:
        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        loop = asyncio.get_running_loop()
        async with Pool() as pool, server:
            target = host(server.sockets[0].getsockname()[1])
            began = loop.time()
            limit = LIMIT_S if hang_up else limit_s
            with pytest.raises(TargetError) as caught:
                await greet(pool, target, connect_s=limit)
            took = loop.time() - began
            tries = seen
            with pytest.raises(TargetError) as second:
                await greet(pool, target, connect_s=limit)
            assert seen == tries, "a failed login is not repeated"
            assert (second.value.code, second.value.message) == (caught.value.code, caught.value.message)
            return caught.value, took

    error, took = asyncio.run(main())
    assert error.code == code, error.message
    return error, took, seen
