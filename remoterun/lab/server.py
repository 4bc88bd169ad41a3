"""The lab's SSH server: on loopback, open to one key, every exec request answered by `pct.answer`."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

import asyncssh

from remoterun.lab.pct import Answer, Guest, Program, Reply, answer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ADDRESS: Final = "127.0.0.1"
KEY: Final = "id_ed25519"
KNOWN_HOSTS: Final = "known_hosts"

# A leg that loses its controller ends its run by itself: five seconds' grace for the payload, five for the killing.
_GRACE_S: Final = 12.0
_KILL_S: Final = 3.0
_STDERR: Final = 1  # SSH_EXTENDED_DATA_STDERR of RFC 4254


@dataclass(frozen=True, slots=True)
class _Machine:
    """Hold what all connections share."""

    node: str
    guests: Mapping[str, Guest]
    connections: set[asyncssh.SSHServerConnection] = field(default_factory=set)
    sessions: set[asyncio.Task[None]] = field(default_factory=set)

    def answer(self, command: str | None) -> Answer:
        """Say what a command line does here."""
        return answer(command, self.guests, node=self.node)


class Server:
    """Serve a host with these guests until closed. Belongs to the event loop that started it."""

    def __init__(self, node: str, guests: Mapping[str, Guest]) -> None:
        self._machine = _Machine(node, guests)
        self._acceptor: asyncssh.SSHAcceptor | None = None

    async def start(self, folder: Path) -> int:
        """Listen on a free port and return it.

        Writes a login key and the known_hosts file that vouches for the server into `folder`.
        """
        host_key = asyncssh.generate_private_key("ssh-ed25519")
        login_key = asyncssh.generate_private_key("ssh-ed25519", comment="remoterun lab")
        public = login_key.export_public_key().decode()
        self._acceptor = await asyncssh.listen(
            ADDRESS,
            0,
            config=None,
            server_factory=lambda: _Door(self._machine),
            server_host_keys=[host_key],
            authorized_client_keys=asyncssh.import_authorized_keys(public),
            password_auth=False,
            kbdint_auth=False,
            host_based_auth=False,
            gss_host=None,
            allow_pty=False,
            x11_forwarding=False,
            agent_forwarding=False,
            encoding=None,
        )
        port = self._acceptor.get_port()
        _write_private(folder / KEY, login_key.export_private_key())
        _write_private(folder / f"{KEY}.pub", public.encode())
        trusted = host_key.export_public_key().decode().strip()
        _write_private(folder / KNOWN_HOSTS, f"[{ADDRESS}]:{port} {trusted}\n".encode())
        return port

    async def close(self) -> None:
        """Stop listening, end every connection, and wait until every program that was started has ended."""
        if self._acceptor is not None:
            self._acceptor.close()
        for connection in tuple(self._machine.connections):
            connection.abort()
        if self._machine.sessions:
            await asyncio.wait(self._machine.sessions, timeout=_GRACE_S + _KILL_S)


def _write_private(path: Path, data: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(data)


class _Door(asyncssh.SSHServer):
    """Let a connection's sessions in."""

    def __init__(self, machine: _Machine) -> None:
        self._machine = machine
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._machine.connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connection is not None:
            self._machine.connections.discard(self._connection)

    def session_requested(self) -> asyncssh.SSHServerSession[bytes]:
        return _Session(self._machine)


class _Session(asyncssh.SSHServerSession[bytes]):
    """Carry out one exec request."""

    _channel: asyncssh.SSHServerChannel[bytes]

    def __init__(self, machine: _Machine) -> None:
        self._machine = machine
        self._answer = machine.answer(None)
        self._child: _Child | None = None
        self._early = bytearray()
        self._early_eof = False
        self._gone = False

    # --- what the channel says ---

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self._channel = chan

    def shell_requested(self) -> bool:
        return True

    def exec_requested(self, command: str) -> bool:
        self._answer = self._machine.answer(command)
        return True

    def session_started(self) -> None:
        task = asyncio.create_task(self._serve())
        self._machine.sessions.add(task)
        task.add_done_callback(self._machine.sessions.discard)

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if self._child is not None:
            self._child.write(data)
        else:
            self._early += data

    def eof_received(self) -> bool:
        if self._child is not None:
            self._child.write_eof()
        self._early_eof = True
        return True  # the channel stays open for the program's output

    def pause_writing(self) -> None:
        if self._child is not None:
            self._child.pause_reading()

    def resume_writing(self) -> None:
        if self._child is not None:
            self._child.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone = True
        if self._child is not None:
            self._child.hang_up()

    # --- what is done about it ---

    async def _serve(self) -> None:
        reply = self._answer
        if isinstance(reply, Program):
            reply = await self._run(reply)
        with suppress(OSError):  # the client has gone, and hears nothing
            self._channel.write(reply.stdout.encode())
            self._channel.write_stderr(reply.stderr.encode())
            self._channel.exit(reply.status)

    async def _run(self, program: Program) -> Reply:
        """Run a program to its end and return what the machine says of it."""
        try:
            self._child = await _Child.start(program, self._channel)
        except OSError as error:
            return program.failed(error)
        self._child.write(bytes(self._early))
        if self._early_eof:
            self._child.write_eof()
        if self._gone:
            self._child.hang_up()
        return Reply(status=await self._child.end())


class _Child(asyncio.SubprocessProtocol):
    """Join a program's pipes to a channel."""

    _process: asyncio.SubprocessTransport

    def __init__(self, channel: asyncssh.SSHServerChannel[bytes]) -> None:
        self._channel = channel
        self._over = asyncio.Event()
        self._takes_input = True
        self._deadline: asyncio.TimerHandle | None = None

    @classmethod
    async def start(cls, program: Program, channel: asyncssh.SSHServerChannel[bytes]) -> _Child:
        """Start a program in a session of its own.

        Raises:
            OSError: it cannot be started.
        """
        _, child = await asyncio.get_running_loop().subprocess_exec(
            lambda: cls(channel), *program.argv, env=program.environment, cwd="/", start_new_session=True
        )
        return child

    # --- what the program does ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._process = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        with suppress(OSError):  # the channel is closed: as with sshd, nobody hears the rest
            self._channel.write(data, None if fd == 1 else _STDERR)

    def pause_writing(self) -> None:
        self._channel.pause_reading()

    def resume_writing(self) -> None:
        self._channel.resume_reading()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 0:
            self._takes_input = False
            self._channel.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._over.set()

    # --- what is done to it ---

    def write(self, data: bytes) -> None:
        """Write to its stdin, if it still takes anything."""
        if self._takes_input:
            cast("asyncio.WriteTransport", self._pipe(0)).write(data)

    def write_eof(self) -> None:
        """End its stdin behind everything written."""
        cast("asyncio.WriteTransport", self._pipe(0)).write_eof()

    def pause_reading(self) -> None:
        """Let it wait with its output."""
        for fd in (1, 2):
            cast("asyncio.ReadTransport", self._pipe(fd)).pause_reading()

    def resume_reading(self) -> None:
        """Take its output again."""
        for fd in (1, 2):
            cast("asyncio.ReadTransport", self._pipe(fd)).resume_reading()

    def hang_up(self) -> None:
        """Close its pipes, and kill it if it has not noticed in good time; nothing once it is over."""
        if self._over.is_set():
            return
        for fd in (0, 1, 2):
            self._pipe(fd).close()
        self._deadline = asyncio.get_running_loop().call_later(_GRACE_S, self._kill)

    async def end(self) -> int:
        """Wait for its end, kill what it left in its session, and return its exit status as a shell counts it."""
        await self._over.wait()
        if self._deadline is not None:
            self._deadline.cancel()
        self._kill()
        self._process.close()
        status = self._process.get_returncode() or 0
        return status if status >= 0 else 128 - status

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):  # macOS says EPERM of a group of zombies
            os.killpg(self._process.get_pid(), signal.SIGKILL)

    def _pipe(self, fd: int) -> asyncio.BaseTransport:
        pipe = self._process.get_pipe_transport(fd)
        assert pipe is not None  # noqa: S101 - all three were asked for
        return pipe
