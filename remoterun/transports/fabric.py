"""Sessions over Fabric's connections: for people whose fabfiles and fabric.yaml know how their hosts are reached.

Paramiko blocks, so each session has threads of its own, which hand what they read to the event loop. Two things are
beyond it: it does not tell which signal ended a program, and only a packet that the network fails to deliver tells it
of a dead connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import shlex
import socket
import threading
from typing import TYPE_CHECKING, Any, Final

from remoterun.errors import ConfigError, TargetError
from remoterun.transports.dial import in_daemon
from remoterun.transports.session import ConnectionLost, Duplex, Exit, SessionRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from remoterun.model import Host
    from remoterun.transports.link import Stage

    # Neither fabric nor paramiko is typed, and both are there only where somebody has installed them.
    Fabric: TypeAlias = Any
    Channel: TypeAlias = Any

_READ_BYTES: Final = 32768
# What waits for the far side before writers wait, and when they go on.
_HIGH_BYTES: Final = 1 << 18
_LOW_BYTES: Final = 1 << 16
_CLOSE_S: Final = 0.5
_KEEPALIVE_S: Final = 10
# After so long without an answer of the network the kernel gives the connection up: three keepalives.
_GIVE_UP_MS: Final = 30_000


def connection_of(host: Host) -> Fabric:
    """Make a connection as Fabric would: fabric.yaml and ssh_config count where the inventory says nothing.

    Raises:
        ConfigError: Fabric is not installed.
    """
    fabric = _import_fabric()
    settings: dict[str, object] = {"load_ssh_configs": False} if host.ssh_config == "none" else {}
    file = host.ssh_config if host.ssh_config != "none" else None
    connection = fabric.Connection(
        host.address,
        user=host.user,
        port=host.port,
        config=fabric.Config(overrides=settings, runtime_ssh_path=file),
        gateway=_gateway(host),
        connect_kwargs={"key_filename": list(host.identity_files), "look_for_keys": False, "allow_agent": False}
        if host.identity_files
        else None,
    )
    return strict(connection, host.known_hosts)


def strict(connection: Fabric, known_hosts: Sequence[str] = ()) -> Fabric:
    """Let a connection trust only hosts that known_hosts knows, its gateways as well; by itself Fabric trusts any.

    `known_hosts` names the files to read instead of ~/.ssh/known_hosts.
    """
    paramiko = _import_paramiko()
    connection.client.set_missing_host_key_policy(paramiko.RejectPolicy())
    for name in known_hosts:
        with contextlib.suppress(FileNotFoundError):
            connection.client.load_host_keys(name)
    if not known_hosts:
        connection.client.load_system_host_keys()
    if isinstance(connection.gateway, type(connection)):
        strict(connection.gateway, known_hosts)
    return connection


def _gateway(host: Host) -> Fabric:
    """Return the connection to the last jump host; False where there is to be none, None where Fabric decides."""
    if host.jump is None:
        return None
    # Each host of the chain has those before it as its own.
    return connection_of(host.jump[-1]) if host.jump else False


async def login(host: Host, given: Fabric | None, stage: Stage) -> FabricConnection:
    """Open a connection, the person's own if one is `given`.

    Raises:
        TargetError: it failed.
    """
    stage.text = "connecting through fabric"
    try:
        connection: Fabric = given if given is not None else await in_daemon(lambda: connection_of(host))
        await _opened(connection, keeps=given is not None)
    except ConfigError as error:
        raise TargetError("connect_failed", str(error)) from error
    except Exception as error:
        raise _refused(host, error) from error
    _look_after(connection.transport)
    return FabricConnection(connection, keeps=given is not None)


async def _opened(connection: Fabric, *, keeps: bool) -> None:
    """Open a connection; when cancelled meanwhile, close it as soon as it is open."""
    opening = asyncio.ensure_future(in_daemon(connection.open))
    try:
        await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(
            lambda done: done.cancelled() or done.exception() or keeps or _start(connection.close)
        )
        raise


def _look_after(transport: Channel) -> None:
    """Notice a dead connection, as far as that can be had."""
    transport.set_keepalive(_KEEPALIVE_S)
    # Through a gateway it is a channel; and macOS has no such option.
    if isinstance(transport.sock, socket.socket) and hasattr(socket, "TCP_USER_TIMEOUT"):
        with contextlib.suppress(OSError):
            transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _GIVE_UP_MS)


def _refused(host: Host, error: Exception) -> TargetError:
    """Say in our words why a login failed."""
    paramiko = _import_paramiko()
    said = str(error) or type(error).__name__
    text = f"{host.address}, through fabric: {said}"
    if isinstance(error, paramiko.BadHostKeyException):
        return TargetError("host_key_changed", text)
    if isinstance(error, paramiko.AuthenticationException) or "No authentication methods" in said:
        return TargetError("auth_failed", text)
    if "not found in known_hosts" in said:
        return TargetError("host_key_unknown", text)
    if isinstance(error, socket.gaierror):
        return TargetError("dns_failed", text)
    causes = getattr(error, "errors", None)
    if isinstance(causes, dict) and all(isinstance(cause, ConnectionRefusedError) for cause in causes.values()):
        return TargetError("connect_refused", text)
    return TargetError("connect_failed", text)


class FabricConnection:
    """Hold one open connection; one that is a person's own stays open at the end."""

    def __init__(self, connection: Fabric, *, keeps: bool) -> None:
        self._connection = connection
        self._keeps = keeps

    @property
    def closed(self) -> bool:
        """Tell whether the connection is gone."""
        return not self._connection.is_connected

    async def close(self) -> None:
        """Disconnect, within half a second, what was opened here."""
        if not self._keeps:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(in_daemon(self._connection.close), _CLOSE_S)

    async def open_session(self, argv: Sequence[str], entered: Callable[[], None]) -> FabricSession:
        """Start a program. Cancelling leaves no channel behind.

        Raises:
            SessionRefused: the server opens no further session, or is gone; certainly nothing was started.
            ConnectionLost: the connection died.
            TargetError: the server opens sessions but runs no commands in them.
        """
        transport = self._connection.transport
        # The one place where a command line is quoted.
        opening = asyncio.ensure_future(in_daemon(lambda: _open(transport, shlex.join(argv).encode())))
        try:
            channel = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_abandon)
            raise
        session = FabricSession(entered, channel)
        session.start()
        return session


def _open(transport: Channel, command: bytes) -> Channel:
    paramiko = _import_paramiko()
    try:
        channel = transport.open_session()
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise SessionRefused(str(error) or type(error).__name__) from error
    try:
        channel.exec_command(command)
    except (paramiko.SSHException, EOFError, OSError) as error:
        _close(channel)
        if transport.is_active():
            raise TargetError("session_refused", "the SSH server runs no commands for this login") from error
        raise ConnectionLost(str(error) or "the SSH connection was closed") from error
    return channel


def _abandon(opening: asyncio.Future[Channel]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        _start(lambda: _close(opening.result()))


def _close(channel: Channel) -> None:
    with contextlib.suppress(_import_paramiko().SSHException, EOFError, OSError):
        channel.close()


class FabricSession(Duplex):
    """Carry bytes to and from a program at the other end of a channel."""

    def __init__(self, entered: Callable[[], None], channel: Channel) -> None:
        super().__init__()
        self.entered = entered
        self._channel: Channel | None = channel
        self._threads = _Threads(channel, self)

    def start(self) -> None:
        """Begin to read."""
        self.connected(self._threads)
        self._threads.start()

    async def close(self) -> None:
        """Close the channel: what was written still goes out if the far side takes it within half a second."""
        channel, self._channel = self._channel, None
        if channel is None:
            return
        self.gone("the session was closed")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(in_daemon(self._threads.end), _CLOSE_S)
        _start(lambda: _close(channel))


class _Threads:
    """Make the blocking calls of one channel, and tell the session in the event loop's thread."""

    def __init__(self, channel: Channel, session: FabricSession) -> None:
        self._channel, self._session = channel, session
        self._loop = asyncio.get_running_loop()
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock, self._waiting = threading.Lock(), 0
        self._errors = threading.Lock()
        self._may_read = threading.Event()
        self._may_read.set()
        self._writer: threading.Thread | None = None

    def start(self) -> None:
        """Start them all."""
        reader = _start(self._read)
        _start(self._read_errors)
        self._writer = _start(self._write)
        _start(lambda: self._wait(reader))

    def end(self) -> None:
        """Wait until all that was written has gone out."""
        self._may_read.set()
        self._outgoing.put(None)
        if self._writer is not None:
            self._writer.join()

    # --- what the session asks, in the loop's thread ---

    def write(self, data: bytes) -> None:
        """Take bytes for the program's stdin."""
        with self._lock:
            self._waiting += len(data)
            if self._waiting > _HIGH_BYTES:
                self._session.hold()
        self._outgoing.put(data)

    def pause_reading(self) -> None:
        """Stop delivering output."""
        self._may_read.clear()

    def resume_reading(self) -> None:
        """Deliver output again."""
        self._may_read.set()

    # --- the threads ---

    def _tell(self, what: Callable[..., None], *said: object, **named: object) -> None:
        # The loop may have ended while this thread still waited for a far side that says nothing.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: what(*said, **named))

    def _read(self) -> None:
        while True:
            self._may_read.wait()
            data = self._received(self._channel.recv)
            if not data:
                break
            self._tell(self._session.feed, data)
        if self._channel.eof_received:
            self._take_errors()
            self._tell(self._session.feed_eof)

    def _read_errors(self) -> None:
        come = threading.Event()
        self._channel.in_stderr_buffer.set_event(come)
        while not (self._channel.closed or self._channel.eof_received):
            come.wait()
            self._take_errors()
        self._take_errors()

    def _take_errors(self) -> None:
        """Tell what has come on stderr, before anything that came after it."""
        with self._errors:
            while self._channel.recv_stderr_ready():
                self._tell(self._session.feed_error, self._received(self._channel.recv_stderr))

    def _received(self, receive: Callable[[int], bytes]) -> bytes:
        try:
            return receive(_READ_BYTES)
        except OSError:
            return b""

    def _write(self) -> None:
        while (data := self._outgoing.get()) is not None:
            try:
                self._channel.sendall(data)
            except (OSError, EOFError):
                self._tell(self._session.input_ended)
                return
            with self._lock:
                self._waiting -= len(data)
                goes_on = self._waiting < _LOW_BYTES
            if goes_on:
                self._tell(self._session.release)

    def _wait(self, reader: threading.Thread) -> None:
        status = self._channel.recv_exit_status()
        self._take_errors()
        if status >= 0:
            self._tell(self._session.ended, Exit(status=status))
        reader.join()
        died = not self._channel.transport.is_active()
        said = "the SSH connection died" if died else "the SSH channel closed without saying how the program ended"
        self._tell(self._session.gone, said, died=died)
        self._outgoing.put(None)


def _start(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, name="remoterun-fabric", daemon=True)
    thread.start()
    return thread


def _import_fabric() -> Fabric:
    try:
        import fabric
    except ImportError as error:
        raise ConfigError("transport: fabric needs Fabric: pip install 'remoterun[fabric]'") from error
    return fabric


def _import_paramiko() -> Any:
    import paramiko

    return paramiko
