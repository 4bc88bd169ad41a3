"""The traps of asyncssh, each closed in one place: what a naive use of it gets wrong, and servers that provoke it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import asyncssh
import pytest

from remoterun.errors import TargetError
from remoterun.model import Concurrency, Host, Phase
from remoterun.transports import ConnectionLost, Exit, Pool, Session
from tests.conformance.servers import LIMIT_S, Keys, StartSshd, Toy, toy_server, until

Handler = Callable[[asyncssh.SSHServerProcess[bytes]], Awaitable[None]]


def on_phase(phase: Phase, /, waiting: bool) -> None:
    """Take no note."""


def start(
    pool: Pool, host: Host, *argv: str, enter_s: float = LIMIT_S
) -> contextlib.AbstractAsyncContextManager[Session]:
    """Open a session with the usual limits."""
    return pool.session(host, argv, connect_s=LIMIT_S, enter_s=enter_s, on_phase=on_phase)


def with_toy(keys: Keys, work: Callable[[Pool, Toy], Awaitable[None]], **options: object) -> None:
    """Run work against a server in this process."""

    async def main() -> None:
        async with asyncio.timeout(2 * LIMIT_S), toy_server(keys, **options) as toy, Pool() as pool:
            await work(pool, toy)

    asyncio.run(main())


def test_a_connection_that_dies_is_a_loss_and_never_an_end(keys: Keys) -> None:
    async def work(pool: Pool, toy: Toy) -> None:
        async with start(pool, toy.host(), "/bin/sh", "-c", "echo so far; cat") as session:
            assert await session.read() == b"so far\n"
            toy.connections[0].abort()
            with pytest.raises(ConnectionLost):
                await session.read()
            assert await session.exit() == Exit(lost=True)
            with pytest.raises(ConnectionLost):
                await session.write(b"x")

    with_toy(keys, work)


def test_a_channel_that_closes_without_a_status_is_a_loss(keys: Keys) -> None:
    async def silent(remote: asyncssh.SSHServerProcess[bytes]) -> None:
        remote.stdout.write(b"looks complete\n")
        remote.close()

    async def work(pool: Pool, toy: Toy) -> None:
        toy.handler = silent
        async with start(pool, toy.host(), "x") as session:
            assert await session.read() == b"looks complete\n"
            assert await session.exit() == Exit(lost=True)
            with pytest.raises(ConnectionLost):
                await session.read()

    with_toy(keys, work)


def test_what_arrived_before_a_loss_can_still_be_read(keys: Keys) -> None:
    async def work(pool: Pool, toy: Toy) -> None:
        async with start(pool, toy.host(), "/bin/sh", "-c", "head -c 100000 /dev/zero; cat") as session:
            await asyncio.sleep(0)
            got = await session.read()
            while len(got) < 100_000:
                got += await session.read()
            toy.connections[0].abort()
            with pytest.raises(ConnectionLost):
                await session.read()

    with_toy(keys, work)


def test_a_byte_that_is_no_utf8_harms_neither_its_session_nor_the_neighbours(keys: Keys) -> None:
    async def work(pool: Pool, toy: Toy) -> None:
        async with start(pool, toy.host(), "/bin/cat") as neighbour:
            async with start(pool, toy.host(), "/bin/sh", "-c", r"printf '\377\376'; printf '\200' >&2") as odd:
                assert await odd.read() == b"\xff\xfe"
                assert await odd.exit() == Exit(status=0)
                await until(lambda: odd.stderr.data == b"\x80")
            await neighbour.write(b"\xff")
            assert await neighbour.read() == b"\xff"
        assert len(toy.connections) == 1

    with_toy(keys, work)


def test_a_login_banner_that_is_no_utf8_is_only_a_banner(sshd: StartSshd, tmp_path: Path) -> None:
    banner = tmp_path / "banner"
    banner.write_bytes(b"Gr\xfc\xdfe\n")
    server = sshd(f"Banner {banner}")

    async def main() -> None:
        async with Pool() as pool, start(pool, server.host(), "/bin/echo", "in") as session:
            assert await session.read() == b"in\n"

    asyncio.run(main())


def test_opening_a_session_is_under_a_limit_too(keys: Keys) -> None:
    """`timeout=` of asyncssh's `run` covers only the wait, not the opening."""

    class Deaf(asyncssh.SSHServer):
        def session_requested(self) -> Awaitable[asyncssh.SSHServerSession[bytes]]:
            return asyncio.get_running_loop().create_future()

    async def work(pool: Pool, toy: Toy) -> None:
        with pytest.raises(TargetError) as caught:
            async with start(pool, toy.host(), "x", enter_s=0.3):
                pytest.fail("a session was opened")
        assert caught.value.code == "enter_timeout"
        assert caught.value.limit == ("enter", 0.3, "limits.enter")

    with_toy(keys, work, server_factory=Deaf, process_factory=None)


def test_a_cancelled_session_leaves_no_channel_at_the_server(keys: Keys) -> None:
    async def hold(remote: asyncssh.SSHServerProcess[bytes]) -> None:
        await remote.stdin.read()

    async def work(pool: Pool, toy: Toy) -> None:
        toy.handler = hold

        async def one() -> None:
            async with start(pool, toy.host(), "x") as session:
                await session.exit()

        async with start(pool, toy.host(), "x"):
            for turns in range(40):
                task = asyncio.create_task(one())
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await until(lambda: toy.channels == 1)
        await until(lambda: toy.channels == 0)

    with_toy(keys, work)


def test_closing_ends_the_programs_stdin_whatever_signals_would_do(sshd: StartSshd, tmp_path: Path) -> None:
    """SSH signals do nothing for a root login (OpenSSH 9.2); the end of stdin always arrives."""
    server, mark = sshd(), tmp_path / "mark"

    async def main() -> None:
        async with Pool() as pool:
            async with start(pool, server.host(), "/bin/sh", "-c", f"echo up; cat; echo gone > {mark}") as session:
                await session.read()
            await until(mark.exists)

    asyncio.run(main())


def test_a_silent_network_is_found_out(keys: Keys) -> None:
    """Keepalive is off by default in asyncssh, and a dropped network tells nobody anything."""

    async def main() -> None:
        async with (
            asyncio.timeout(LIMIT_S),
            toy_server(keys) as toy,
            _wire(toy.port) as wire,
            Pool(keepalive_s=0.1) as pool,
            start(pool, toy.host(port=wire.port), "/bin/cat") as session,
        ):
            await session.write(b"hello")
            assert await session.read() == b"hello"
            wire.cut.set()
            with pytest.raises(ConnectionLost, match="keepalive"):
                await session.read()
            assert (await session.exit()).lost

    asyncio.run(main())


def test_a_session_that_nobody_reads_holds_little(keys: Keys) -> None:
    sent = 0

    async def serve(remote: asyncssh.SSHServerProcess[bytes]) -> None:
        nonlocal sent
        with contextlib.suppress(OSError, asyncssh.Error):
            while remote.command == "flood":
                remote.stdout.write(b"\0" * 32768)
                sent += 32768
                await remote.stdout.drain()
        remote.exit(0)

    async def work(pool: Pool, toy: Toy) -> None:
        toy.handler = serve
        async with start(pool, toy.host(), "flood") as session:
            before, quiet = -1, 0
            while quiet < 20:  # until the flow control has stopped it, by the measure of other sessions
                quiet = quiet + 1 if sent == before else 0
                before = sent
                async with start(pool, toy.host(), "other") as other:
                    assert await other.exit() == Exit(status=0)
            assert 100_000 < sent < 2_000_000
            for _ in range(100):
                await session.read()
            await until(lambda: sent > before)

    with_toy(keys, work)


def test_two_hundred_megabytes_pass_in_bounded_memory(sshd: StartSshd) -> None:
    server = sshd()
    program = f"""
        import asyncio, resource
        from remoterun.model import Host
        from remoterun.transports import Pool

        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

        async def main():
            host = {server.host()!r}
            argv = ["/bin/sh", "-c", "head -c 200000000 /dev/zero"]
            async with Pool() as pool:
                kwargs = dict(connect_s=30, enter_s=30, on_phase=lambda phase, waiting: None)
                async with pool.session(host, ["/bin/true"], **kwargs) as session:
                    await session.exit()
                before, total = peak(), 0
                async with pool.session(host, argv, **kwargs) as session:
                    while data := await session.read():
                        total += len(data)
            print(total, peak() - before)

        asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", "from remoterun.model import *\n" + textwrap.dedent(program)],
        capture_output=True,
        check=True,
        text=True,
        timeout=4 * LIMIT_S,
    )
    total, grown_mib = map(int, done.stdout.split())
    assert total == 200_000_000
    assert grown_mib < 16


def test_one_login_carries_all_sessions_of_a_host(keys: Keys) -> None:
    async def work(pool: Pool, toy: Toy) -> None:
        async def one() -> bytes:
            async with start(pool, toy.host(), "/bin/echo", "hi") as session:
                return await session.read()

        assert await asyncio.gather(*(one() for _ in range(8))) == [b"hi\n"] * 8
        assert len(toy.connections) == 1

    with_toy(keys, work)


def test_nothing_of_ours_goes_into_the_environment_and_no_terminal_is_asked_for(keys: Keys, tmp_path: Path) -> None:
    """What ssh_config says about SendEnv, SetEnv, RequestTTY and RemoteCommand is for people's sessions."""
    config = tmp_path / "config"
    config.write_text("SetEnv LEAK=1\nSendEnv *\nRequestTTY force\nRemoteCommand /bin/false\nForwardAgent yes\n")
    seen: list[tuple[object, object, object]] = []

    async def look(remote: asyncssh.SSHServerProcess[bytes]) -> None:
        seen.append((dict(remote.env), remote.term_type, remote.command))
        remote.exit(0)

    async def work(pool: Pool, toy: Toy) -> None:
        toy.handler = look
        async with start(pool, toy.host(ssh_config=str(config)), "/bin/true") as session:
            await session.exit()
        assert seen == [({}, None, "/bin/true")]

    with_toy(keys, work)


def test_the_import_costs_no_asyncssh() -> None:
    code = "import sys, remoterun.transports; sys.exit('asyncssh' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], check=False, env={**os.environ, "PYTHONPATH": "."}).returncode == 0
    )


def test_a_hanging_entry_holds_its_neighbours_up_for_seconds_only(keys: Keys) -> None:
    async def work(pool: Pool, toy: Toy) -> None:
        host = toy.host(concurrency=Concurrency(enter=1))
        waited: list[bool] = []

        def note(phase: Phase, /, waiting: bool) -> None:
            if phase is Phase.ENTER:
                waited.append(waiting)

        async with (
            start(pool, host, "/bin/cat"),  # never says that it has been entered
            pool.session(host, ["/bin/echo", "in"], connect_s=LIMIT_S, enter_s=LIMIT_S, on_phase=note) as second,
        ):
            second.entered()
            assert await second.read() == b"in\n"
            async with start(pool, host, "/bin/echo", "at once") as third:
                assert await third.read() == b"at once\n"
        assert waited == [True, False]

    with_toy(keys, work)


class _Wire:
    """Relay a port until it is cut, and then swallow everything without closing, like a network that drops packets."""

    def __init__(self) -> None:
        self.port = 0
        self.cut = asyncio.Event()


@contextlib.asynccontextmanager
async def _wire(port: int) -> AsyncIterator[_Wire]:
    wire = _Wire()
    tasks: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if not wire.cut.is_set():
                writer.write(data)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        for pair in ((reader, far_writer), (far_reader, writer)):
            tasks.add(asyncio.create_task(pump(*pair)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    wire.port = server.sockets[0].getsockname()[1]
    try:
        yield wire
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
