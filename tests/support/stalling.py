"""Servers that stall, for the length of a test: somewhere on the way to a target, or in the middle of a run."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import asyncssh

from remoterun.model import Concurrency, Host
from tests.conformance.servers import Keys, toy_server

_CROWD = Concurrency(logins=64, enter=64)


@dataclass(slots=True)
class Place:
    """Hold what a stalling server needs to know, and what is to be closed at the end."""

    keys: Keys
    folder: Path
    close: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    serving: set[asyncio.Task[None]] = field(default_factory=set)

    def serve(self) -> None:
        """Have the end wait for whatever is still being served."""
        task = asyncio.current_task()
        assert task is not None
        self.serving.add(task)
        task.add_done_callback(self.serving.discard)

    async def served(self) -> None:
        """Wait until everything has been served: the target has to end by itself."""
        if self.serving:
            _, left = await asyncio.wait(self.serving, timeout=60)
            assert not left

    async def toy(self, **options: object) -> Host:
        """Start an SSH server inside this process."""
        return (await self.close.enter_async_context(toy_server(self.keys, **options))).host(concurrency=_CROWD)

    def at(self, port: int) -> Host:
        """Describe what listens on a port as if it were such a server."""
        pin = self.keys.fingerprint("host_ed25519")
        return Host(key="stalled", address="127.0.0.1", port=port, user="toy", host_key=(pin,), ssh_config="none")

    def part(self, *names: str) -> Place:
        """Return the same with a folder of its own."""
        folder = self.folder.joinpath(*names)
        folder.mkdir(parents=True, exist_ok=True)
        return replace(self, folder=folder)

    @property
    def mark(self) -> Path:
        """Name a file by which a payload is told that nothing is passed on any more."""
        return self.folder / "mark"


Make = Callable[[Place], Awaitable[Host]]


# --- before anybody is let in ---


async def full_backlog(place: Place) -> Host:
    """Let the kernel drop every SYN: nobody accepts, and there is no room for more who wait."""
    listener = place.close.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
    for _ in range(4):
        waiting = place.close.enter_context(socket.socket())
        waiting.setblocking(False)
        waiting.connect_ex(listener.getsockname())
    return place.at(listener.getsockname()[1])


def says(words: bytes) -> Make:
    async def make(place: Place) -> Host:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            place.serve()
            writer.write(words)
            await reader.read(-1)
            writer.close()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        place.close.callback(server.close)
        return place.at(server.sockets[0].getsockname()[1])

    return make


class Undecided(asyncssh.SSHServer):
    async def begin_auth(self, username: str) -> bool:
        await asyncio.get_running_loop().create_future()
        return True


class Deaf(asyncssh.SSHServer):
    def session_requested(self) -> Awaitable[asyncssh.SSHServerSession[bytes]]:
        return asyncio.get_running_loop().create_future()


def serves(server: type[asyncssh.SSHServer]) -> Make:
    async def make(place: Place) -> Host:
        return await place.toy(server_factory=server, process_factory=None)

    return make


async def cut_at_exec(place: Place) -> Host:
    """Swallow everything from the moment at which the program is asked for."""
    cut = asyncio.Event()

    class Cutting(asyncssh.SSHServerSession[bytes]):
        def exec_requested(self, command: str) -> bool:
            cut.set()
            return True

    class Server(asyncssh.SSHServer):
        def session_requested(self) -> asyncssh.SSHServerSession[bytes]:
            return Cutting()

    host = await place.toy(server_factory=Server, process_factory=None)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if not cut.is_set() and not writer.is_closing():
                    writer.write(data)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        place.serve()
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", host.port)
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    place.close.callback(server.close)
    return replace(host, port=server.sockets[0].getsockname()[1])


# --- once a program is asked for ---


def relays(until: bytes | None = None, *, ends: bool = True, lingers: bool = False) -> Make:
    """Run commands; once the target has said a certain thing, pass nothing more on, neither way.

    `ends`: the end of the connection is passed on still. `lingers`: the command's end is not told.
    """

    async def make(place: Place) -> Host:
        async def serve(remote: asyncssh.SSHServerProcess[bytes]) -> None:
            place.serve()
            local = await asyncio.create_subprocess_exec(
                *("/bin/bash", "-c", remote.command or ""), stdin=-1, stdout=-1, stderr=asyncio.subprocess.DEVNULL
            )
            assert local.stdin is not None
            assert local.stdout is not None
            stalled = asyncio.Event()
            feeding = asyncio.create_task(feed(remote, local.stdin, stalled, ends=ends))
            said = b""
            while data := await local.stdout.read(65536):
                said += data
                if not stalled.is_set():
                    remote.stdout.write(data)
                if until is not None and until in said:
                    stalled.set()
                    place.mark.touch()
            status = await local.wait()
            if lingers or stalled.is_set():
                await remote.wait_closed()
            feeding.cancel()
            remote.exit(status)

        return await place.toy(process_factory=serve)

    return make


async def feed(
    remote: asyncssh.SSHServerProcess[bytes], stdin: asyncio.StreamWriter, stalled: asyncio.Event, *, ends: bool
) -> None:
    """Pass on what comes; without `ends`, one that is stalled does not end either, as far as the program can tell."""
    with contextlib.suppress(OSError, asyncssh.Error):
        while data := await remote.stdin.read(65536):
            if not stalled.is_set():
                stdin.write(data)
        if ends or not stalled.is_set():
            stdin.close()


async def mute(place: Place) -> Host:
    async def serve(remote: asyncssh.SSHServerProcess[bytes]) -> None:
        await remote.wait_closed()

    return await place.toy(process_factory=serve)


def abort(remote: asyncssh.SSHServerProcess[bytes]) -> None:
    remote.get_extra_info("connection").abort()


def make_keys(folder: Path) -> Keys:
    """Generate the keys of server and client."""
    for name in ("client", "host_ed25519"):
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(folder / name)
        key.write_public_key(folder / f"{name}.pub")
    return Keys(folder=folder)
