"""`remoterun` as a process that is forked where the command line is imported already: that is most of a short command.

A server has imported it and done nothing else, and forks for each command: a process with an id, a folder, an
environment, streams and an end of its own. There is a server for each environment in which commands are started often,
but for the variables that are read late; for any other, and as another user, a command is started in full.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

REMOTERUN: Final = (sys.executable, "-m", "remoterun")

_ROOT: Final = Path(__file__).parents[2]
# What a command imports when it comes to need it; and what of ours no command line is.
_USED: Final = ("apprise", "asyncssh", "jinja2", "sqlite3", "yaml")
_ELSEWHERE: Final = frozenset({"__main__", "fabric", "lab", "payloads", "remote"})
_LARGEST: Final = 1 << 17
_LARGEST_STDIN: Final = 1 << 12
_NUMBER: Final = struct.Struct("<i")
_OFTEN: Final = 3
_MOST_SERVERS: Final = 4
# What is read when it is needed; Python itself, or an import, may have read any other.
_READ_LATE: Final = frozenset({"COLUMNS", "HERE_RUN", "HOME", "NO_COLOR", "PATH", "PYTEST_CURRENT_TEST", "TMPDIR"})
_READ_LATE_FAMILIES: Final = ("REMOTERUN_", "SSH_", "TORCHINDUCTOR_", "XDG_")


_Environment = frozenset[tuple[str, str]]


class Ended(NamedTuple):
    """Hold how a command has ended; a signal is a negative status, as in subprocess."""

    returncode: int
    stdout: bytes
    stderr: bytes


class _Command(NamedTuple):
    """Hold what the server is asked for."""

    words: list[str]
    folder: str
    environment: dict[str, str]


def run(
    *words: str,
    stdin: bytes | None = None,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
) -> Ended:
    """Run `remoterun WORDS` to its end, and keep what it says; `stdin` is a pipe, or the null device without it."""
    environment = dict(os.environ if env is None else env)
    server = _servers.of(environment) if len(stdin or b"") <= _LARGEST_STDIN else None
    if server is None:
        given: Any = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
        done = subprocess.run(
            [*REMOTERUN, *words], capture_output=True, timeout=timeout, check=False, cwd=cwd, env=environment, **given
        )
        return Ended(done.returncode, done.stdout, done.stderr)
    command = _Command(list(words), os.fspath(cwd or Path.cwd()), environment)
    with ExitStack() as stack:
        streams = [_stdin(stdin)]
        told = []
        for _ in range(3):
            ours, theirs = os.pipe()
            stack.callback(os.close, ours)
            told.append(ours)
            streams.append(theirs)
        try:
            socket.send_fds(server, [json.dumps(command).encode()], streams)
        finally:
            for stream in streams:
                os.close(stream)
        stdout, stderr, numbers = _read(told, time.monotonic() + timeout)
    status = _NUMBER.unpack_from(numbers, _NUMBER.size)[0]
    return Ended(status, bytes(stdout), bytes(stderr))


class _Servers:
    """Start servers, which end with the process of the tests, and know which environments are asked for often."""

    def __init__(self) -> None:
        self._asked: Counter[_Environment] = Counter()
        self._started: dict[_Environment, socket.socket] = {}

    def of(self, environment: Mapping[str, str]) -> socket.socket | None:
        """Return the server of an environment; None where a command is to be started in full."""
        early = frozenset(
            (name, value)
            for name, value in environment.items()
            if name not in _READ_LATE and not name.startswith(_READ_LATE_FAMILIES)
        )
        self._asked[early] += 1
        if os.geteuid() != os.getuid() or self._asked[early] < _OFTEN:
            return None
        if early not in self._started and len(self._started) < _MOST_SERVERS:
            self._started[early] = _start(dict(early))
        return self._started.get(early)


_servers: Final = _Servers()


def _stdin(given: bytes | None) -> int:
    if given is None:
        return os.open(os.devnull, os.O_RDONLY)
    reader, writer = os.pipe()
    os.write(writer, given)
    os.close(writer)
    return reader


def _read(streams: list[int], end: float) -> list[bytearray]:
    """Read until nobody holds a stream any more; the last of them tells the process id, and then the status."""
    said = {stream: bytearray() for stream in streams}
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            left = end - time.monotonic()
            if left <= 0:
                told = said[streams[-1]]
                if len(told) == _NUMBER.size:
                    os.kill(_NUMBER.unpack(told)[0], signal.SIGKILL)
                raise subprocess.TimeoutExpired("remoterun", left)
            for key, _ in selector.select(left):
                piece = os.read(key.fd, 1 << 16)
                said[key.fd] += piece
                if not piece:
                    selector.unregister(key.fd)
    return list(said.values())


def _start(environment: Mapping[str, str]) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        argv = [sys.executable, "-m", "tests.support.commands", str(theirs.fileno())]
        options: Any = dict.fromkeys(("stdin", "stdout"), subprocess.DEVNULL)
        server = subprocess.Popen(argv, cwd=_ROOT, env=environment, pass_fds=[theirs.fileno()], **options)

    @atexit.register
    def end() -> None:
        ours.close()
        server.wait()

    return ours


def _serve(number: int) -> _Command:
    """Fork for each command that is asked for; return in the process that is to be it."""
    for name in (*_modules(), *_USED):
        # A test may have hidden something: a command that needs it is to say so.
        with suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=number) as asked:
        while True:
            data, streams, _, _ = socket.recv_fds(asked, _LARGEST, 4)
            if not data:
                os._exit(0)
            if os.fork() == 0:
                break
            for stream in streams:
                os.close(stream)
            _reap()
    command = os.fork()
    if command:
        _wait(command, streams)
    for place, stream in enumerate(streams[:3]):
        os.dup2(stream, place)
    for stream in streams:
        os.close(stream)
    return _Command(*json.loads(data))


def _modules() -> list[str]:
    """Return the modules of the command line, in whatever folder the package lies."""
    import remoterun

    (root,) = map(Path, remoterun.__path__)
    files = [file.relative_to(root.parent).with_suffix("") for file in root.rglob("*.py")]
    return sorted(".".join(file.parts) for file in files if file.parts[1] not in _ELSEWHERE and file.name != "__init__")


def _reap() -> None:
    """Let go of those that have waited for a command to its end."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _wait(command: int, streams: list[int]) -> NoReturn:
    for stream in streams[:3]:
        os.close(stream)
    # Whoever asked may be gone.
    with suppress(BrokenPipeError):
        os.write(streams[3], _NUMBER.pack(command))
        status = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
        os.write(streams[3], _NUMBER.pack(status))
    os._exit(0)


def _become(command: _Command) -> None:
    os.chdir(command.folder)
    os.environ.clear()
    os.environ.update(command.environment)
    # As `python -m remoterun` in that folder has it.
    sys.path[0] = command.folder
    sys.argv = ["remoterun", *command.words]
    runpy.run_module("remoterun", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _become(_serve(int(sys.argv[1])))
