"""Limits on sessions, logins and entering: of servers, learned by being refused, and our own, kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace

import asyncssh
import pytest

from remoterun.errors import TargetError
from remoterun.model import Concurrency, Host, Phase
from remoterun.transports import Exit, Pool
from tests.conformance.servers import LIMIT_S, Keys, StartSshd, toy_server, until


class Told:
    """Remember what a session's opening told."""

    def __init__(self) -> None:
        self.phases: list[tuple[Phase, bool]] = []

    def __call__(self, phase: Phase, /, waiting: bool) -> None:
        """Take note."""
        self.phases.append((phase, waiting))


def run(work: Awaitable[None]) -> None:
    """Run within the limit."""

    async def main() -> None:
        async with asyncio.timeout(2 * LIMIT_S):
            await work

    asyncio.run(main())


async def one(pool: Pool, host: Host, number: int, together: asyncio.Barrier | None = None) -> int:
    """Run a session that echoes a number; with a barrier, only when all are open."""
    argv = ["head", "-c", str(len(str(number)))]
    async with pool.session(host, argv, connect_s=LIMIT_S, enter_s=LIMIT_S, on_phase=Told()) as session:
        session.entered()
        if together is not None:
            await together.wait()
        await session.write(b"%d" % number)
        got = b""
        while part := await session.read():
            got += part
        assert await session.exit() == Exit(status=0)
        return int(got)


@pytest.mark.parametrize("most", [1, 2, 10])
def test_fifteen_sessions_come_through_whatever_the_server_allows(sshd: StartSshd, most: int) -> None:
    server = sshd(f"MaxSessions {most}")

    async def work() -> None:
        async with Pool() as pool:
            host = server.host(concurrency=Concurrency(enter=15))
            assert await asyncio.gather(*(one(pool, host, n) for n in range(15))) == list(range(15))

    run(work())


@pytest.mark.parametrize("most", [1, 2, 10])
def test_fifteen_sessions_are_open_at_once_whatever_the_server_allows(sshd: StartSshd, most: int) -> None:
    server = sshd(f"MaxSessions {most}")

    async def work() -> None:
        together = asyncio.Barrier(15)
        async with Pool() as pool:
            host = server.host()
            assert await asyncio.gather(*(one(pool, host, n, together) for n in range(15))) == list(range(15))

    run(work())
    assert server.log.count("Accepted publickey") >= {1: 15, 2: 8, 10: 2}[most]


def test_short_sessions_need_no_second_connection(sshd: StartSshd) -> None:
    server = sshd()

    async def work() -> None:
        async with Pool() as pool:
            for start in range(0, 24, 8):
                await asyncio.gather(*(one(pool, server.host(), n) for n in range(start, start + 8)))

    run(work())
    assert server.log.count("Accepted publickey") == 1


def test_a_server_that_opens_no_session_at_all(sshd: StartSshd) -> None:
    server = sshd("MaxSessions 0")

    async def work() -> None:
        async with Pool() as pool:
            results = await asyncio.gather(*(one(pool, server.host(), n) for n in range(4)), return_exceptions=True)
            assert {getattr(result, "code", None) for result in results} == {"session_refused"}

    run(work())


def test_a_server_that_runs_no_commands(keys: Keys) -> None:
    class NoCommands(asyncssh.SSHServer):
        def session_requested(self) -> asyncssh.SSHServerSession[bytes]:
            return asyncssh.SSHServerSession()

    async def work() -> None:
        async with toy_server(keys, server_factory=NoCommands, process_factory=None) as toy, Pool() as pool:
            with pytest.raises(TargetError) as caught:
                await one(pool, toy.host(), 1)
            assert caught.value.code == "session_refused"

    run(work())


def test_a_session_that_lingers_at_the_server_does_not_shut_the_door(sshd: StartSshd) -> None:
    """With MaxSessions 1, a closed session whose program goes on still counts at the server."""
    server = sshd("MaxSessions 1")

    async def work() -> None:
        async with Pool() as pool:
            argv = ["/bin/sh", "-c", "trap '' HUP PIPE; echo up; sleep 3"]
            async with pool.session(
                server.host(), argv, connect_s=LIMIT_S, enter_s=LIMIT_S, on_phase=Told()
            ) as session:
                await session.read()
            assert await one(pool, server.host(), 5) == 5

    run(work())


def places(host: Host, count: int) -> list[Host]:
    """Give one server several names that do not share a connection."""
    return [replace(host, known_hosts=(*host.known_hosts, f"/no/such/file{n}")) for n in range(count)]


@pytest.mark.parametrize(("most", "logins"), [("2", 12), ("4:30:8", 60), ("10:30:100", 60)])
def test_a_server_that_drops_logins_at_random_lets_all_in(sshd: StartSshd, most: str, logins: int) -> None:
    server = sshd(f"MaxStartups {most}")

    async def work() -> None:
        async with Pool() as pool:
            hosts = places(server.host(), logins)
            assert await asyncio.gather(*(one(pool, host, n) for n, host in enumerate(hosts))) == list(range(logins))

    run(work())
    assert server.log.count("Accepted publickey") == logins


class Slow(asyncssh.SSHServer):
    """Count the logins under way, and take some time for each."""

    def __init__(self, counts: list[int]) -> None:
        self._counts = counts

    async def begin_auth(self, username: str) -> bool:
        self._counts.append(self._counts[-1] + 1)
        await asyncio.sleep(0.4)
        self._counts.append(self._counts[-1] - 1)
        return True


def test_logins_at_one_server_are_bounded_and_waiting_for_them_burns_no_limit(keys: Keys) -> None:
    counts = [0]

    async def work() -> None:
        async with toy_server(keys, server_factory=lambda: Slow(counts)) as toy, Pool() as pool:
            told = [Told() for _ in range(5)]

            # All of them together take longer than the limit of each.
            async def log_in(host: Host, note: Told) -> None:
                async with pool.session(host, ["/bin/true"], connect_s=1.8, enter_s=LIMIT_S, on_phase=note):
                    pass

            base = toy.host(concurrency=Concurrency(logins=1))
            hosts = [replace(base, host_key=(*base.host_key, f"SHA256:{n}")) for n in range(5)]
            await asyncio.gather(*(log_in(host, note) for host, note in zip(hosts, told, strict=True)))
            assert max(counts) == 1
            assert [note.phases[0] for note in told] == [(Phase.CONNECT, True)] * 5
            assert all(note.phases[1:] == [(Phase.CONNECT, False), (Phase.ENTER, False)] for note in told)

    run(work())


def test_logins_through_a_jump_host_are_bounded_by_it(keys: Keys) -> None:
    counts = [0]

    class Gate(asyncssh.SSHServer):
        def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
            return True

    async def work() -> None:
        async with (
            toy_server(keys, server_factory=Gate) as gate,
            toy_server(keys, server_factory=lambda: Slow(counts)) as one_toy,
            toy_server(keys, server_factory=lambda: Slow(counts)) as other_toy,
            Pool() as pool,
        ):
            jump = gate.host(key="gate", concurrency=Concurrency(logins=1))
            hosts = [toy.host(jump=(jump,)) for toy in (one_toy, other_toy)]
            assert await asyncio.gather(*(one(pool, host, n) for n, host in enumerate(hosts))) == [0, 1]
            assert max(counts) == 1

    run(work())


def test_entering_is_bounded_and_waiting_for_it_burns_no_limit(keys: Keys) -> None:
    most = inside = 0

    async def enter(remote: asyncssh.SSHServerProcess[bytes]) -> None:
        nonlocal most, inside
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.5)
        inside -= 1
        remote.stdout.write(b"hello")
        await remote.stdin.read(1)
        remote.exit(0)

    async def work() -> None:
        async with toy_server(keys) as toy, Pool() as pool:
            toy.handler = enter
            told = [Told() for _ in range(8)]

            async def go(note: Told) -> None:
                # All of them together take longer than the limit of each.
                host = toy.host(concurrency=Concurrency(enter=2))
                async with pool.session(host, ["x"], connect_s=LIMIT_S, enter_s=1.8, on_phase=note) as session:
                    await session.read()
                    session.entered()
                    session.entered()
                    await session.write(b"x")
                    await session.exit()

            await asyncio.gather(*(go(note) for note in told))
            assert most == 2
            assert sum((Phase.ENTER, True) in note.phases for note in told) == 6
            assert all(note.phases[-1] == (Phase.ENTER, False) for note in told)

    run(work())


def test_a_hop_on_this_machine_is_bounded_too() -> None:
    host = Host(key="here", address="localhost", transport="local", concurrency=Concurrency(enter=1))

    async def work() -> None:
        async with Pool() as pool:
            told = Told()

            async def second() -> None:
                async with pool.session(host, ["/bin/true"], connect_s=None, enter_s=None, on_phase=told) as session:
                    await session.exit()

            async with pool.session(host, ["/bin/cat"], connect_s=None, enter_s=None, on_phase=Told()) as first:
                waiting = asyncio.create_task(second())
                await until(lambda: bool(told.phases))
                assert told.phases == [(Phase.ENTER, True)]
                first.entered()
                await waiting
                assert told.phases == [(Phase.ENTER, True), (Phase.ENTER, False)]

    run(work())


def test_a_lost_connection_is_replaced_for_the_next_session(keys: Keys) -> None:
    async def work() -> None:
        async with toy_server(keys) as toy, Pool() as pool:
            assert await one(pool, toy.host(), 1) == 1
            for connection in toy.connections:
                connection.abort()
            assert await one(pool, toy.host(), 2) == 2
            assert len(toy.connections) == 2

    run(work())
