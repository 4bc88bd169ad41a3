"""Servers for the conformance tests: OpenSSH's sshd on loopback, and an SSH server inside the process."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import asyncssh

from remoterun.model import Host

LIMIT_S = 30.0
"""How long a test waits for something that should happen at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Name the files of key pairs: `client`, `other`, host keys of three types, and `ca`; public halves end in .pub."""

    folder: Path

    def __getitem__(self, name: str) -> str:
        return str(self.folder / name)

    def public(self, name: str) -> str:
        """Return type and key, as in known_hosts."""
        return " ".join((self.folder / f"{name}.pub").read_text().split()[:2])

    def fingerprint(self, name: str) -> str:
        """Return the fingerprint as ssh-keygen prints it."""
        return asyncssh.read_public_key(self[f"{name}.pub"]).get_fingerprint()


# --- OpenSSH ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sshd:
    """Tell where an sshd listens and what it is known by."""

    port: int
    keys: Keys
    folder: Path
    host_keys: tuple[str, ...]

    def known_hosts(self, *lines: str) -> str:
        """Write a known_hosts file; without lines, the right one."""
        path = self.folder / (f"known_hosts-{time.monotonic_ns()}" if lines else "known_hosts")
        right = [f"[127.0.0.1]:{self.port} {self.keys.public(name)}" for name in self.host_keys]
        path.write_text("\n".join(lines or right) + "\n")
        return str(path)

    def host(self, **changes: object) -> Host:
        """Describe it as the inventory would."""
        host = Host(
            key="box",
            address="127.0.0.1",
            port=self.port,
            user=getpass.getuser(),
            identity_files=(self.keys["client"],),
            known_hosts=(self.known_hosts(),),
            ssh_config="none",
            jump=(),
        )
        return replace(host, **changes)  # type: ignore[arg-type] # names and types are the caller's business

    @property
    def log(self) -> str:
        """Return what it has logged."""
        return (self.folder / "log").read_text()


StartSshd = Callable[..., Sshd]


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def running_sshd(program: str, server: Sshd, options: tuple[str, ...], listen: str) -> Iterator[None]:
    lines = [
        *options,  # sshd takes the first word on each
        f"Port {server.port}",
        f"ListenAddress {listen}",
        *(f"HostKey {server.keys[name]}" for name in server.host_keys),
        f"AuthorizedKeysFile {server.keys['client']}.pub",
        "AuthenticationMethods publickey",
        "StrictModes no",
        "UsePAM no",
        "PidFile none",
        "UseDNS no",
        "LogLevel VERBOSE",
        f"SetEnv HOME={server.folder}",
        "Subsystem sftp internal-sftp",
    ]
    (server.folder / "config").write_text("\n".join(lines) + "\n")
    with (server.folder / "log").open("w") as log:
        process = subprocess.Popen([program, "-D", "-e", "-f", server.folder / "config"], stderr=log)
    try:
        wait_until(lambda: process.poll() is not None or "Server listening" in server.log)
        assert process.poll() is None, server.log
        yield
    finally:
        process.terminate()
        process.wait(LIMIT_S)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that is about to become true."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "this did not happen in time"
        time.sleep(0.01)


async def until(condition: Callable[[], bool]) -> None:
    """Wait, without holding up the loop, for a condition that is about to become true."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - whatever is watched may be another process
            await asyncio.sleep(0.01)


# --- a server in this process -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Toy:
    """Be a server that runs commands by /bin/sh like sshd, counts what it sees, and can be told to misbehave."""

    keys: Keys
    port: int = 0
    connections: list[asyncssh.SSHServerConnection] = field(default_factory=list)
    channels: int = 0
    commands: list[str | None] = field(default_factory=list)
    handler: Callable[[asyncssh.SSHServerProcess[bytes]], object] | None = None

    def host(self, **changes: object) -> Host:
        """Describe it as the inventory would."""
        host = Host(
            key="toy",
            address="127.0.0.1",
            port=self.port,
            user="toy",
            identity_files=(self.keys["client"],),
            host_key=(self.keys.fingerprint("host_ed25519"),),
            ssh_config="none",
            jump=(),
        )
        return replace(host, **changes)  # type: ignore[arg-type] # names and types are the caller's business


class _ToyServer(asyncssh.SSHServer):
    def __init__(self, toy: Toy) -> None:
        self._toy = toy

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._toy.connections.append(conn)


@contextlib.asynccontextmanager
async def toy_server(keys: Keys, **options: object) -> AsyncIterator[Toy]:
    """Serve on loopback for the length of the context."""
    toy = Toy(keys)

    async def process(remote: asyncssh.SSHServerProcess[bytes]) -> None:
        toy.channels += 1
        toy.commands.append(remote.command)
        try:
            result = toy.handler(remote) if toy.handler is not None else _run_command(remote)
            if asyncio.iscoroutine(result):
                await result
        finally:
            toy.channels -= 1

    options = {
        "server_factory": lambda: _ToyServer(toy),
        "server_host_keys": [keys["host_ed25519"]],
        "authorized_client_keys": keys["client.pub"],
        "process_factory": process,
        "encoding": None,
        **options,
    }
    server = await asyncssh.listen("127.0.0.1", 0, **options)
    toy.port = server.get_port()
    try:
        yield toy
    finally:
        server.close()
        for connection in toy.connections:
            connection.abort()
        await server.wait_closed()


async def _run_command(remote: asyncssh.SSHServerProcess[bytes]) -> None:
    local = await asyncio.create_subprocess_exec(
        "/bin/bash", "-c", remote.command or "", stdin=-1, stdout=-1, stderr=-1, start_new_session=True
    )
    stdin, stdout, stderr = local.stdin, local.stdout, local.stderr
    assert stdin is not None
    assert stdout is not None
    assert stderr is not None

    async def feed() -> None:
        while data := await remote.stdin.read(65536):
            stdin.write(data)
            await stdin.drain()
        stdin.close()

    async def pour(source: asyncio.StreamReader, sink: asyncssh.SSHWriter[bytes]) -> None:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()

    feeding = asyncio.create_task(feed())
    pouring = [asyncio.create_task(pour(stdout, remote.stdout)), asyncio.create_task(pour(stderr, remote.stderr))]
    try:
        await asyncio.gather(*pouring)
        remote.stdout.write_eof()
        status = await local.wait()
        if status < 0:
            remote.exit_with_signal({9: "KILL", 15: "TERM"}[-status])
        else:
            remote.exit(status)
    except (OSError, asyncssh.Error):
        pass  # the client is gone
    finally:
        for task in (feeding, *pouring):
            task.cancel()
        await asyncio.gather(feeding, *pouring, return_exceptions=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(local.pid, signal.SIGKILL)
        await asyncio.gather(stdout.read(), stderr.read())
        await local.wait()
