"""One suite over every transport: local, SSH to a server in this process, SSH and Fabric to OpenSSH's sshd."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remoterun.model import Host, Phase
from remoterun.transports import ConnectionLost, Exit, Pool, Session, SessionEnded
from tests.conformance.servers import LIMIT_S, Keys, StartSshd, toy_server, until

Place: TypeAlias = Callable[[], contextlib.AbstractAsyncContextManager[Host]]


def on_phase(phase: Phase, /, waiting: bool) -> None:
    """Take no note."""


@pytest.fixture(params=["local", "toy", "sshd", "fabric"])
def place(request: pytest.FixtureRequest, keys: Keys) -> Place:
    """Offer a host of each transport, as a context."""

    @contextlib.asynccontextmanager
    async def local() -> AsyncIterator[Host]:
        yield Host(key="here", address="localhost", transport="local")

    @contextlib.asynccontextmanager
    async def toy() -> AsyncIterator[Host]:
        async with toy_server(keys) as server:
            yield server.host()

    @contextlib.asynccontextmanager
    async def real() -> AsyncIterator[Host]:
        yield server.host()

    @contextlib.asynccontextmanager
    async def fabric() -> AsyncIterator[Host]:
        yield server.host(transport="fabric")

    if request.param in {"sshd", "fabric"}:
        start: StartSshd = request.getfixturevalue("sshd")
        server = start()
    places: dict[str, Place] = {"local": local, "toy": toy, "sshd": real, "fabric": fabric}
    return places[request.param]


def in_place(place: Place, work: Callable[[Pool, Host], Coroutine[Any, Any, None]]) -> None:
    """Run work with a pool at a place, within the limit."""

    async def main() -> None:
        async with asyncio.timeout(4 * LIMIT_S), place() as host, Pool() as pool:
            await work(pool, host)

    asyncio.run(main())


def start(pool: Pool, host: Host, *argv: str) -> contextlib.AbstractAsyncContextManager[Session]:
    """Open a session with the usual limits."""
    return pool.session(host, argv, connect_s=LIMIT_S, enter_s=LIMIT_S, on_phase=on_phase)


async def read_all(session: Session) -> bytes:
    """Read stdout to its end."""
    parts = []
    while part := await session.read():
        assert len(part) <= 65536
        parts.append(part)
    return b"".join(parts)


async def answer(pool: Pool, host: Host, *argv: str, stdin: bytes = b"") -> tuple[bytes, bytes, Exit]:
    """Run a program to its end."""
    async with start(pool, host, *argv) as session:
        with contextlib.suppress(SessionEnded):
            await session.write(stdin)
        stdout = await read_all(session)
        how = await session.exit()
        return stdout, session.stderr.data, how


def test_streams_are_apart_and_the_status_is_told(place: Place) -> None:
    async def work(pool: Pool, host: Host) -> None:
        out, err, how = await answer(pool, host, "/bin/sh", "-c", "echo out; echo err >&2; exit 7")
        assert (out, err, how) == (b"out\n", b"err\n", Exit(status=7))

    in_place(place, work)


def test_every_status_that_could_be_the_transports_own(place: Place) -> None:
    async def work(pool: Pool, host: Host) -> None:
        for status in (0, 1, 126, 127, 128, 254, 255):
            _, _, how = await answer(pool, host, "/bin/sh", "-c", f"exit {status}")
            assert how == Exit(status=status)

    in_place(place, work)


def test_a_signal_is_told_by_its_name(place: Place) -> None:
    async def work(pool: Pool, host: Host) -> None:
        for name in ("KILL", "TERM"):
            try:
                _, _, how = await answer(pool, host, "/bin/sh", "-c", f"exec kill -{name} $$")
            except ConnectionLost:
                # Paramiko keeps the signal to itself, and who says nothing of the end is never taken for a success.
                if host.transport != "fabric":
                    raise
                continue
            if host.transport == "fabric" and how.lost:
                continue
            # The login shell, if it has not become the program, tells of a signal in its own way.
            assert how in (Exit(signal=name), Exit(status={"KILL": 137, "TERM": 143}[name]))

    in_place(place, work)


def test_stdin_stays_open_after_stdout_has_ended(place: Place) -> None:
    async def work(pool: Pool, host: Host) -> None:
        async with start(pool, host, "/bin/sh", "-c", "exec >&- 2>&-; read line; [ $line = go ] && exit 5") as session:
            assert await session.read() == b""
            await session.write(b"go\n")
            assert await session.exit() == Exit(status=5)

    in_place(place, work)


ALL_BYTES = bytes(range(256)) * 300


def test_bytes_are_bytes_both_ways(place: Place) -> None:
    async def work(pool: Pool, host: Host) -> None:
        out, _, how = await answer(pool, host, "head", "-c", str(len(ALL_BYTES)), stdin=ALL_BYTES)
        assert (out, how) == (ALL_BYTES, Exit(status=0))

    in_place(place, work)


def test_twenty_megabytes_both_ways_at_once(place: Place) -> None:
    block = hashlib.sha512(b"block").digest() * 1024
    data = block * 320

    async def work(pool: Pool, host: Host) -> None:
        async with start(pool, host, "head", "-c", str(len(data))) as session:
            writing = asyncio.create_task(session.write(data))
            digest = hashlib.sha256(await read_all(session))
            await writing
            assert digest.digest() == hashlib.sha256(data).digest()
            assert await session.exit() == Exit(status=0)

    assert len(data) > 20_000_000
    in_place(place, work)


def test_stderr_of_any_length_is_drained_and_bounded(place: Place) -> None:
    script = "echo head >&2; head -c 5000000 /dev/zero >&2; echo tail >&2; echo done"

    async def work(pool: Pool, host: Host) -> None:
        async with start(pool, host, "/bin/sh", "-c", script) as session:
            assert await read_all(session) == b"done\n"
            assert await session.exit() == Exit(status=0)
            await until(lambda: session.stderr.total == 5_000_010)
            kept = session.stderr
        assert kept.truncated
        assert kept.head.startswith(b"head\n")
        assert kept.tail.endswith(b"tail\n")
        assert len(kept.head) + len(kept.tail) <= 65536

    in_place(place, work)


WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
HOSTILE = [
    "",
    " ",
    "'",
    '"',
    "\\",
    "$HOME",
    "`id`",
    "$(id)",
    "\n",
    "a\nb\n",
    "*",
    "?",
    "[a]",
    "{a,b}",
    "!",
    "~",
    "#",
    ";",
    "&",
    "|",
]
HOSTILE += [
    "-n",
    "--",
    "%s",
    "\t",
    "\r",
    "ü",
    "日本",
    "\x7f",
    "\x1b[31m",
    "'\"'\"'",
    "a" * 5000,
    "=cmd",
    "^",
    "!!",
    "\ufeff",
]
ECHO_ARGV = "import sys,os\nfor w in sys.argv[1:]: sys.stdout.buffer.write(os.fsencode(w)+b'\\0')"


def test_every_word_arrives_as_it_is(place: Place) -> None:
    async def work(pool: Pool, host: Host) -> None:
        loop = asyncio.get_running_loop()

        async def check(words: list[str]) -> None:
            out, err, how = await answer(pool, host, sys.executable, "-X", "utf8", "-c", ECHO_ARGV, *words)
            assert how == Exit(status=0), err
            assert out.decode("utf-8", "surrogateescape").split("\0")[:-1] == words

        @settings(max_examples=12, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(WORDS | st.sampled_from(HOSTILE), max_size=6))
        def every(words: list[str]) -> None:
            asyncio.run_coroutine_threadsafe(check(words), loop).result(LIMIT_S)

        await check(HOSTILE)
        await asyncio.to_thread(every)

    in_place(place, work)


def test_a_program_that_is_not_there_is_told_like_a_shell_would(place: Place) -> None:
    async def work(pool: Pool, host: Host) -> None:
        _, err, how = await answer(pool, host, "/no/such/program", "x", stdin=b"y" * 100_000)
        assert how == Exit(status=127)
        assert b"/no/such/program" in err
        assert b"ot found" in err or b"No such file" in err
        _, _, how = await answer(pool, host, "/etc/passwd")
        assert how == Exit(status=126)

    in_place(place, work)


def test_writing_to_a_program_that_has_ended_says_so(place: Place) -> None:
    async def work(pool: Pool, host: Host) -> None:
        async with start(pool, host, "/bin/sh", "-c", "exit 4") as session:
            assert await session.exit() == Exit(status=4)
            with pytest.raises(SessionEnded):
                await session.write(b"x" * 65536 * 1000)
            assert await session.read() == b""
            assert await session.exit() == Exit(status=4)

    in_place(place, work)


def test_closing_while_it_runs_is_quick_and_ends_its_stdin(place: Place, tmp_path: Any) -> None:
    mark = tmp_path / "saw-eof"

    async def work(pool: Pool, host: Host) -> None:
        async with start(pool, host, "/bin/sh", "-c", f"echo up; cat >/dev/null; echo x > {mark}; sleep 60") as session:
            assert await session.read() == b"up\n"
            began = asyncio.get_running_loop().time()
            await session.close()
            await session.close()
            assert asyncio.get_running_loop().time() - began < 10
            with pytest.raises(ConnectionLost):
                await session.read()
            with pytest.raises(SessionEnded):
                await session.write(b"x")
            assert (await session.exit()).lost
        await until(mark.exists)

    in_place(place, work)


def test_one_session_that_floods_and_is_not_read_leaves_its_neighbours_alone(place: Place) -> None:
    async def work(pool: Pool, host: Host) -> None:
        async with start(pool, host, "/bin/cat", "/dev/zero") as flood:
            await flood.read()
            for _ in range(3):
                out, _, how = await answer(pool, host, "/bin/echo", "fine")
                assert (out, how) == (b"fine\n", Exit(status=0))

    in_place(place, work)


def test_cancelling_at_any_moment_leaves_nothing_and_harms_nobody(place: Place) -> None:
    async def work(pool: Pool, host: Host) -> None:
        async with start(pool, host, "head", "-c", "10") as neighbour:
            for turn in range(25):
                task = asyncio.create_task(answer(pool, host, "/bin/sh", "-c", "sleep 30"))
                for _ in range(turn):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await neighbour.write(b"still here")
            assert await read_all(neighbour) == b"still here"

    in_place(place, work)


def test_many_sessions_on_one_host_all_come_through(place: Place) -> None:
    async def work(pool: Pool, host: Host) -> None:
        async def one(number: int) -> bytes:
            return (await answer(pool, host, "/bin/echo", str(number)))[0]

        assert await asyncio.gather(*(one(number) for number in range(15))) == [b"%d\n" % n for n in range(15)]

    in_place(place, work)
