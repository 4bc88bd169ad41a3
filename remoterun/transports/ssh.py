"""SSH by asyncssh: logging in at one host, and one session on a connection. Its traps are closed here, in one place.

What asyncssh does by itself and must not: wait for ever (every login runs under the caller's limit, keepalive is on),
ask on a terminal, decode bytes, trust `UserKnownHostsFile none` or an address instead of a name, send the environment,
read a jump host from ssh_config and connect to it without our host key policy, take a dead connection for an end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import shlex
import socket
from typing import TYPE_CHECKING, Final, TypeAlias

import asyncssh
from asyncssh.constants import OPEN_ADMINISTRATIVELY_PROHIBITED, OPEN_REQUEST_SESSION_FAILED

from remoterun.errors import TargetError, clean
from remoterun.transports.dial import ProxyCommand, dial, lookup
from remoterun.transports.hostkeys import Judge
from remoterun.transports.identities import key_files, offered
from remoterun.transports.keyring import RefusedError, is_locked
from remoterun.transports.link import ASKING_AGENT
from remoterun.transports.options import options_for
from remoterun.transports.session import ConnectionLost, Duplex, Exit, SessionRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from remoterun.transports.hostkeys import Survey
    from remoterun.transports.keyring import Keyring
    from remoterun.transports.link import Stage
    from remoterun.transports.route import Route

_KEEPALIVE_COUNT: Final = 3
# The receive window bounds what a session that nobody reads can pile up here.
_WINDOW_BYTES: Final = 512 * 1024
_CLOSE_S: Final = 0.5
# A server at its MaxStartups drops at random; 0.2 s doubling to 3.2 s is patience for about six seconds.
_DROPS: Final = 6
_BACKOFF_S: Final = 0.2


_Opening: TypeAlias = "asyncio.Future[tuple[asyncssh.SSHClientChannel[bytes], asyncssh.SSHClientSession[bytes]]]"


class Connection:
    """Hold one authenticated connection and what it stands on."""

    def __init__(self, ssh: asyncssh.SSHClientConnection, proxy: ProxyCommand | None) -> None:
        self.ssh = ssh
        self._proxy = proxy
        self._abandoned: set[_Opening] = set()

    @property
    def closed(self) -> bool:
        """Tell whether the connection is gone."""
        return self.ssh.is_closed()

    def _abandon(self, opening: _Opening) -> None:
        """Close a channel as soon as it is open."""

        def close(done: _Opening) -> None:
            self._abandoned.discard(done)
            if not done.cancelled() and done.exception() is None:
                done.result()[0].abort()

        self._abandoned.add(opening)
        opening.add_done_callback(close)

    async def open_session(self, argv: Sequence[str], entered: Callable[[], None]) -> SshSession:
        """Start a program. Cancelling leaves no channel behind.

        Raises:
            SessionRefused: the server opens no further session, or is gone; certainly nothing was started.
            ConnectionLost: the connection died.
            TargetError: the server opens sessions but runs no commands in them.
        """
        session = SshSession(entered)
        # The one place where a command line is quoted. A cancelled opening must still be seen through, or the channel
        # would stay open at the server: asyncssh forgets a cancelled one.
        opening = asyncio.ensure_future(
            self.ssh.create_session(
                lambda: _Callbacks(session), shlex.join(argv), encoding=None, window=_WINDOW_BYTES, request_pty=False
            )
        )
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            self._abandon(opening)
            raise
        except asyncssh.ChannelOpenError as error:
            # Any other is the answer to the opening, so the program was not asked for yet.
            if error.code != OPEN_REQUEST_SESSION_FAILED:
                raise SessionRefused(str(error)) from error
            if not self.closed:
                raise TargetError("session_refused", "the SSH server runs no commands for this login") from error
            raise ConnectionLost("the SSH connection was closed") from error
        except (OSError, asyncssh.Error) as error:
            raise ConnectionLost(str(error) or type(error).__name__) from error
        return session

    async def close(self) -> None:
        """Disconnect, within half a second."""
        if not self.closed:
            self.ssh.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ssh.wait_closed(), _CLOSE_S)
        if self._proxy is not None:
            await self._proxy.close()


# --- logging in -------------------------------------------------------------------------------------------------------


class _Dropped(Exception):  # noqa: N818 - retried
    """Say that the server hung up before it had said who it is: what MaxStartups looks like."""


class _Client(asyncssh.SSHClient):
    """Follow one login, and put its host key before the judge."""

    def __init__(self, judge: Judge, stage: Stage, where: str, password: str | None = None) -> None:
        self._judge, self._stage, self._where = judge, stage, where
        self._password = password
        self.takes_password = False
        self.had_password = password is not None
        self.unanswered = ""
        self._connection: asyncssh.SSHClientConnection | None = None
        self.authenticating = False

    @property
    def greeted(self) -> bool:
        """Tell whether the server has sent its SSH banner."""
        return self._connection is not None and self._connection.get_extra_info("server_version") is not None

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self._connection = conn
        self._stage.text = f"waiting for the SSH banner or key exchange of {self._where}"

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        return self._judge.offer(key)

    def validate_host_ca_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        return self._judge.offer_authority(key)

    def begin_auth(self, username: str) -> None:
        self._judge.settle()
        self.authenticating = True
        self._stage.text = f"waiting for {self._where} to let {username} in"

    def password_auth_requested(self) -> str | None:
        self.takes_password = True
        password, self._password = self._password, None
        return password

    def kbdint_auth_requested(self) -> str | None:
        self.takes_password = True
        return None if self._password is None else ""

    def kbdint_challenge_received(
        self, name: str, instructions: str, lang: str, prompts: Sequence[tuple[str, bool]]
    ) -> list[str] | None:
        """Answer a question for the password, and no other: which is how many servers ask for it."""
        if not prompts:
            return []
        [(question, shown), *more] = prompts
        if more or shown or "assword" not in question or self._password is None:
            self.unanswered = " ".join(text.strip() for text, _ in prompts)
            return None
        password, self._password = self._password, None
        return [password]


async def login(
    route: Route,
    known: asyncssh.SSHKnownHosts,
    via: Connection | None,
    stage: Stage,
    keyring: Keyring,
    *,
    keepalive_s: float,
) -> Connection:
    """Log in at one host, through a connection to its jump host if it has one. Has no limit of its own.

    Raises:
        TargetError: with a code of the group connect.
    """
    judge = Judge(route.host, known, route.known_hosts, alias=route.key_alias, remark=route.remark)
    drops = 0
    while True:
        try:
            connection = await _attempt(route, judge, via, stage, keyring)
        except _Dropped as error:
            drops += 1
            if drops >= _DROPS:
                raise _never_greeted(route, drops, error) from error
            stage.text = f"waiting to try {route.where} again, which hung up before its SSH banner"
            await asyncio.sleep(_BACKOFF_S * 2 ** (drops - 1) * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
        else:
            connection.ssh.set_keepalive(keepalive_s, _KEEPALIVE_COUNT)
            return connection


def _never_greeted(route: Route, drops: int, error: _Dropped) -> TargetError:
    if route.proxy_command is not None and route.via is None:
        return TargetError(
            "connect_failed",
            f"its ProxyCommand ended {drops} times before the SSH banner of {route.where} came, and said nothing",
            hint=f"Try it by hand: `{route.proxy_command} </dev/null` shows the banner where it works.",
        )
    return TargetError(
        "connect_failed",
        f"{route.where} hung up {drops} times before its SSH banner: {error}",
        hint="Its MaxStartups may be full, or a firewall or fail2ban refuses this machine.",
    )


async def _attempt(route: Route, judge: Judge, via: Connection | None, stage: Stage, keyring: Keyring) -> Connection:
    """Try once, or as often as it takes to see every key that the host has."""
    while True:
        client = _Client(judge, stage, route.where, keyring.password(route))
        try:
            return await _connect(route, judge, via, client, stage, keyring.keys(route))
        except asyncssh.HostKeyNotVerifiable as error:
            if not judge.may_ask_again(str(error)):
                raise judge.verdict(str(error)) from error
        except (OSError, asyncssh.Error, ValueError) as error:
            # Without a host key algorithm in common, sshd hangs up during the key exchange.
            if not _hung_up(error) or client.authenticating:
                raise _explain(error, route, client, stage) from error
            if not client.greeted:
                raise _Dropped(str(error) or type(error).__name__) from error
            if judge.offered:
                raise judge.verdict(str(error)) from error
            if not judge.may_ask_again():
                raise _explain(error, route, client, stage) from error


async def look(route: Route, judge: Survey, via: Connection | None, stage: Stage) -> None:
    """See every key that a host has, one connection after the other. Has no limit of its own.

    Raises:
        TargetError: with a code of the group connect.
    """
    drops = 0
    while True:
        client = _Client(judge, stage, route.where)
        try:
            connection = await _connect(route, judge, via, client, stage)
        except asyncssh.HostKeyNotVerifiable:
            if not judge.may_ask_again():
                return
        except (OSError, asyncssh.Error, ValueError) as error:
            if _hung_up(error) and not client.greeted and drops < _DROPS:
                drops += 1
                await asyncio.sleep(_BACKOFF_S * 2 ** (drops - 1) * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
            elif client.greeted and judge.offered:
                return  # it has no further key: sshd hangs up during the key exchange
            elif not client.greeted or not judge.may_ask_again():
                raise _explain(error, route, client, stage) from error
        else:
            await connection.close()
            return


def _hung_up(error: Exception) -> bool:
    return isinstance(error, asyncssh.ConnectionLost | ConnectionResetError | BrokenPipeError)


async def _connect(
    route: Route,
    judge: Judge,
    via: Connection | None,
    client: _Client,
    stage: Stage,
    unlocked: Sequence[asyncssh.SSHKey] = (),
) -> Connection:
    proxy: ProxyCommand | None = None
    sock: socket.socket | None = None
    try:
        if via is not None:
            stage.text = f"connecting to {route.where} by way of its jump host"
        elif route.proxy_command is not None:
            stage.text = "starting the ProxyCommand"
            proxy, sock = await ProxyCommand.start(route.proxy_command)
        else:
            stage.text = f"resolving {route.address}"
            addresses = await lookup(route.address, route.port, family=route.family)
            stage.text = f"connecting to {route.where}"
            sock = await dial(addresses, bind=route.bind)
        tunnel = via.ssh if via is not None else None
        async with contextlib.AsyncExitStack() as stack:
            before, stage.text = stage.text, "reading keys" if route.agent is None else ASKING_AGENT
            # With those that a passphrase has unlocked, every other key has been refused in a login before.
            keys: Sequence[object] = unlocked or await stack.enter_async_context(offered(route))
            options = options_for(route, judge, keys)
            stage.text = before
            ssh = await asyncssh.connect(tunnel=tunnel, sock=sock, client_factory=lambda: client, **options)
    except BaseException as error:
        if sock is not None:
            sock.close()
        said = await proxy.close() if proxy is not None else ""
        if said and isinstance(error, Exception) and _hung_up(error):
            raise TargetError("connect_failed", f"its ProxyCommand ended and said: {said}") from error
        raise
    return Connection(ssh, proxy)


def _explain(error: Exception, route: Route, client: _Client, stage: Stage) -> TargetError:
    """Name what asyncssh or the system says in the words of the project."""
    # Of two lists of algorithms, the server's is the news, and the shorter one.
    text = (
        re.sub(r", sent (\S+) and received (\S+)", r"; it offers \2, asked for was \1", str(error))[:500]
        or type(error).__name__
    )
    if isinstance(error, TargetError):
        return error
    if isinstance(error, socket.gaierror):
        return TargetError("dns_failed", f"the address {route.address} could not be resolved: {error.strerror}")
    if isinstance(error, asyncssh.PermissionDenied) or (client.authenticating and "authentication failures" in text):
        message = f"{route.user} was not let in at {route.where}; {_tried(route)}"
        return RefusedError(message, hint=_what_would_do(route, client), takes_password=client.takes_password)
    if isinstance(error, asyncssh.ChannelOpenError):
        return _explain_tunnel(error, route)
    if isinstance(error, ConnectionRefusedError):
        return TargetError("connect_refused", f"{route.where} refused the connection")
    if isinstance(error, OSError) and error.errno:
        # asyncio puts words of its own in the place of the system's.
        text = f"{os.strerror(error.errno)} ({route.where})"
    return TargetError("connect_failed", f"the connection failed while {stage.text}: {text}")


def _explain_tunnel(error: asyncssh.ChannelOpenError, route: Route) -> TargetError:
    """Tell what the jump host answered when asked for a connection onwards (OpenSSH passes the system's words on)."""
    text = str(error)[:500]
    if error.code == OPEN_ADMINISTRATIVELY_PROHIBITED:
        return TargetError(
            "connect_failed",
            f"its jump host does not pass connections on to {route.where}: {text}",
            hint="Check AllowTcpForwarding and PermitOpen in the jump host's sshd_config.",
        )
    code = "connect_failed"
    if re.search("refused", text, re.IGNORECASE):
        code = "connect_refused"
    elif re.search("not known|resolve|resolution", text, re.IGNORECASE):
        code = "dns_failed"
    return TargetError(code, f"its jump host could not connect to {route.where}: {text}")


def _what_would_do(route: Route, client: _Client) -> str | None:
    """Say what to do where a passphrase or a password is missing; None for the usual hint."""
    locked = [path for path in key_files(route) if is_locked(path)]
    if locked:
        words = " ".join(map(shlex.quote, locked))
        return (
            f"Load the key into ssh-agent (`ssh-add {words}`), or run on a terminal, where its passphrase is asked for."
        )
    if client.unanswered and "assword" not in client.unanswered:
        return (
            f"The host also asks `{clean(client.unanswered)[:100]}`, which nobody is asked here: let a key alone be "
            "enough for this account (AuthenticationMethods in its sshd_config, or its PAM)."
        )
    if client.had_password:
        return "Check the password and `user` (`--user`), or set up a key (`ssh-copy-id`)."
    if client.takes_password:
        return "The host takes a password: run on a terminal, where it is asked for, or set up a key (`ssh-copy-id`)."
    return None


def _tried(route: Route) -> str:
    """Say which keys were there to offer."""
    words = ["the agent's keys"] if route.agent and not route.only_named else []
    for path in key_files(route):
        try:
            asyncssh.read_private_key(path)
        except (OSError, ValueError) as error:
            words.append(f"{path} ({_why_unused(path, str(error))})")
        else:
            words.append(path)
    return f"tried: {', '.join(words)}" if words else "there was no key to offer: no agent, and no file"


def _why_unused(path: str, said: str) -> str:
    if "assphrase" in said:
        return "encrypted, and not tried: load it with ssh-add"
    for public in (path, f"{path}.pub"):
        with contextlib.suppress(OSError, ValueError):
            asyncssh.read_public_key(public)
            return "a public key: its other half is in no agent"
    return "not usable"


# --- sessions ---------------------------------------------------------------------------------------------------------


class SshSession(Duplex):
    """Carry bytes to and from a program at the other end of a connection."""

    def __init__(self, entered: Callable[[], None]) -> None:
        super().__init__()
        self.entered = entered
        self.channel: asyncssh.SSHClientChannel[bytes] | None = None

    async def close(self) -> None:
        """Close the channel: what was written still goes out if the far side takes it within half a second."""
        channel, self.channel = self.channel, None
        if channel is None:
            return
        self.gone("the session was closed")
        channel.close()
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(channel.wait_closed(), _CLOSE_S)
        finally:
            channel.abort()


class _Callbacks(asyncssh.SSHClientSession[bytes]):
    """Hand a channel's events to its session."""

    def __init__(self, session: SshSession) -> None:
        self._session = session

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self._session.channel = chan
        self._session.connected(chan)

    def data_received(self, data: bytes, datatype: int | None) -> None:
        (self._session.feed if datatype is None else self._session.feed_error)(data)

    def eof_received(self) -> bool:
        self._session.feed_eof()
        return True  # stdin stays open: asyncssh would end it too

    def exit_status_received(self, status: int) -> None:
        self._session.ended(Exit(status=status))

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:  # noqa: FBT001
        self._session.ended(Exit(signal=signal))

    def connection_lost(self, exc: Exception | None) -> None:
        said = str(exc or "") or "the SSH channel closed without saying how the program ended"
        self._session.gone(said, died=exc is not None)

    def pause_writing(self) -> None:
        self._session.hold()

    def resume_writing(self) -> None:
        self._session.release()
