"""Every phase stalled once, at a host and behind a jump host: each ends with its own limit, and all of them at once.

What is stalled elsewhere:

========================================  ==============================================================================
a payload in state D                      tests/faults/test_target_kills.py: a_payload_that_hangs_on_storage
a program that hangs before its start     tests/faults/test_target_kills.py: a_program_that_hangs_before_its_start
code that travels too slowly              tests/lab/test_states.py: upload_that_does_not_end
a frozen guest                            tests/lab/test_states.py: frozen_guest; test_connections.py: a_frozen_guest
packets dropped under a running payload   tests/lab/test_connections.py: a_network_that_does_not_come_back
resolving at one of several addresses     tests/conformance/test_transports_dial.py
========================================  ==============================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import asyncssh
import pytest

from remoterun.errors import CODES
from remoterun.model import Concurrency, Host, LimitHit, Limits, Outcome, Plan, RunStatus
from remoterun.runner import execute
from tests.conformance.servers import Keys, toy_server
from tests.support.here import job, nothing_left, payload
from tests.support.project import REMOTERUN

_LIMITS = Limits(connect=5.0, enter=5.0, upload=5.0, idle=5.0, stall=4.0, run=4.0, lease=3.0)
_CROWD = Concurrency(logins=64, enter=64)
# A killed payload has its grace; a machine with other work to do takes its time.
_SLACK_S = 12.0


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


async def _full_backlog(place: Place) -> Host:
    """Let the kernel drop every SYN: nobody accepts, and there is no room for more who wait."""
    listener = place.close.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
    for _ in range(4):
        waiting = place.close.enter_context(socket.socket())
        waiting.setblocking(False)
        waiting.connect_ex(listener.getsockname())
    return place.at(listener.getsockname()[1])


def _says(words: bytes) -> Make:
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


class _Undecided(asyncssh.SSHServer):
    async def begin_auth(self, username: str) -> bool:
        await asyncio.get_running_loop().create_future()
        return True


class _Deaf(asyncssh.SSHServer):
    def session_requested(self) -> Awaitable[asyncssh.SSHServerSession[bytes]]:
        return asyncio.get_running_loop().create_future()


def _serves(server: type[asyncssh.SSHServer]) -> Make:
    async def make(place: Place) -> Host:
        return await place.toy(server_factory=server, process_factory=None)

    return make


async def _cut_at_exec(place: Place) -> Host:
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


def _relays(until: bytes | None = None, *, ends: bool = True, lingers: bool = False) -> Make:
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
            feeding = asyncio.create_task(_feed(remote, local.stdin, stalled, ends=ends))
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


async def _feed(
    remote: asyncssh.SSHServerProcess[bytes], stdin: asyncio.StreamWriter, stalled: asyncio.Event, *, ends: bool
) -> None:
    """Pass on what comes; without `ends`, one that is stalled does not end either, as far as the program can tell."""
    with contextlib.suppress(OSError, asyncssh.Error):
        while data := await remote.stdin.read(65536):
            if not stalled.is_set():
                stdin.write(data)
        if ends or not stalled.is_set():
            stdin.close()


async def _mute(place: Place) -> Host:
    async def serve(remote: asyncssh.SSHServerProcess[bytes]) -> None:
        await remote.wait_closed()

    return await place.toy(process_factory=serve)


_LARGE = f"# {os.urandom(60_000).hex()}\nctx.emit({{}})"
_TALKS = """
import os, time
ctx.emit({'first': 1})
while not (ctx.params['ends'] and os.path.exists(ctx.params['mark'])):
    time.sleep(0.1)
    ctx.emit({})
"""
_SLEEPS = "import time\nctx.emit({})\ntime.sleep(600)"
_BUSY = "ctx.emit({})\nwhile True:\n    pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Say how something stalls and what must come of it; `limit` is also the beginning of the error's code."""

    make: Make
    source: str = "ctx.emit({})"
    limits: Limits = _LIMITS
    status: str
    phase: str
    limit: str | None


def _connect(make: Make) -> Stall:
    return Stall(make=make, status="unreachable", phase="connect", limit="connect")


def _enter(make: Make) -> Stall:
    return Stall(make=make, status="timeout", phase="enter", limit="enter")


_CONNECTING = {
    "tcp": _connect(_full_backlog),
    "banner": _connect(_says(b"")),
    "key exchange": _connect(_says(b"SSH-2.0-OpenSSH_9.2\r\n")),
    "authentication": _connect(_serves(_Undecided)),
}
_SILENT = {
    name: Stall(make=_relays(b'"first"', ends=False), source=_TALKS, status="lost", phase="run", limit="idle")
    for name in ("silence", "result")
}
_RUNNING = {
    "busy": Stall(make=_relays(), source=_BUSY, status="timeout", phase="collect", limit="run"),
    "asleep": Stall(
        make=_relays(),
        source=_SLEEPS,
        limits=replace(_LIMITS, run=None),
        status="timeout",
        phase="collect",
        limit="stall",
    ),
    "close": Stall(make=_relays(lingers=True), status="ok", phase="collect", limit=None),
}
_STALLS = {
    **_CONNECTING,
    "channel": _enter(_serves(_Deaf)),
    "exec": _enter(_cut_at_exec),
    "first byte": _enter(_mute),
    "upload": Stall(
        make=_relays(b'"sha256"'),
        source=_LARGE,
        status="timeout",
        phase="upload",
        limit="upload",
    ),
    **_SILENT,
    **_RUNNING,
}


class _Gate(asyncssh.SSHServer):
    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return True


class _ShutGate(asyncssh.SSHServer):
    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        # What asyncssh waits for may be awaited as well.
        return asyncio.get_running_loop().create_future()  # type: ignore[return-value]


_AT_THE_JUMP = {**_CONNECTING, "channel": _connect(_serves(_ShutGate))}
_WAYS = {
    **{(name, "at the host"): stall for name, stall in _STALLS.items()},
    **{(name, "behind a jump host"): stall for name, stall in _STALLS.items()},
    **{(name, "at the jump host"): stall for name, stall in _AT_THE_JUMP.items()},
}


async def _hosts(place: Place) -> dict[tuple[str, str], Host]:
    gate = replace(await place.toy(server_factory=_Gate), key="gate")
    beyond = await place.toy()
    found = {}
    for (name, way), stall in _WAYS.items():
        host = await stall.make(place.part(name, way))
        if way == "at the host":
            found[name, way] = host
        elif way == "behind a jump host":
            found[name, way] = replace(host, jump=(gate,))
        else:
            found[name, way] = replace(beyond, jump=(replace(host, key="gate"),))
    return found


@dataclass(frozen=True, slots=True)
class Ended:
    """Hold what became of all of them, and how long that took."""

    outcomes: dict[str, Outcome]
    status: RunStatus
    took_s: float


async def _stall_everything(keys: Keys, folder: Path, run_id: str) -> Ended:
    place = Place(keys, folder)
    async with place.close:
        place.close.push_async_callback(place.served)
        jobs = []
        for (name, way), host in (await _hosts(place)).items():
            stall = _WAYS[name, way]
            work = payload(stall.source, mark=str(place.part(name, way).mark), ends=name == "result")
            planned = job(work, limits=stall.limits)
            jobs.append(replace(planned, target=replace(planned.target, id=f"{name} {way}", host=host)))
        plan = Plan(run_id=run_id, playbook="stall", playbook_sha256=None, jobs=tuple(jobs))
        begun = time.monotonic()
        run = await execute(plan, lambda event: None)
        took = time.monotonic() - begun
    return Ended({outcome.target: outcome for outcome in run.outcomes}, run.status, took)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    """Generate the keys of server and client."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("client", "host_ed25519"):
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(folder / name)
        key.write_public_key(folder / f"{name}.pub")
    return Keys(folder=folder)


@pytest.fixture(scope="module")
def ended(keys: Keys, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Run into everything at once, and find nothing left behind."""
    home = tmp_path_factory.mktemp("stalls")
    (home / "run").mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as patch, nothing_left() as run_id:
        patch.setenv("HOME", str(home))
        patch.setenv("XDG_RUNTIME_DIR", str(home / "run"))
        return asyncio.run(_stall_everything(keys, home, run_id))


@pytest.mark.parametrize(("name", "way"), _WAYS)
def test_a_stall_ends_with_its_own_limit(ended: Ended, name: str, way: str) -> None:
    stall, outcome = _WAYS[name, way], ended.outcomes[f"{name} {way}"]
    assert (outcome.status.value, outcome.phase.value) == (stall.status, stall.phase), outcome.error
    if stall.limit is None:
        assert outcome.error is None
        assert outcome.timings_s["total"] < _SLACK_S
        return
    limit = getattr(stall.limits, stall.limit)
    assert outcome.error is not None
    assert outcome.error.code == f"{stall.limit}_timeout"
    assert outcome.error.limit == LimitHit(name=stall.limit, value_s=limit, key=f"limits.{stall.limit}")
    assert outcome.error.hint == CODES[outcome.error.code].hint != ""
    assert limit <= outcome.timings_s["total"] < limit + _SLACK_S
    assert way != "at the jump host" or "jump host" in outcome.error.message


def test_all_stalls_together_take_no_longer_than_one(ended: Ended) -> None:
    assert ended.status is RunStatus.INCOMPLETE
    assert ended.took_s < 5.0 + _SLACK_S


def test_a_few_that_hang_cost_the_others_nothing(keys: Keys, tmp_path: Path) -> None:
    """One in twenty does not answer, and waits for its limit while all others are done."""

    async def work(run_id: str) -> Ended:
        place = Place(keys, tmp_path)
        async with place.close:
            place.close.push_async_callback(place.served)
            well = await _relays()(place)
            hanging = [await stall.make(place) for stall in (_STALLS["banner"], _STALLS["channel"])]
            jobs = []
            for number in range(40):
                planned = job(payload("ctx.emit({})"), limits=_LIMITS)
                host = hanging[number // 20] if number % 20 == 7 else well
                jobs.append(replace(planned, target=replace(planned.target, id=f"{number}", host=host)))
            plan = Plan(run_id=run_id, playbook="hang", playbook_sha256=None, jobs=tuple(jobs), targets_at_once=8)
            begun = time.monotonic()
            run = await execute(plan, lambda event: None)
            return Ended({each.target: each for each in run.outcomes}, run.status, time.monotonic() - begun)

    with nothing_left() as run_id:
        ended = asyncio.run(work(run_id))
    troubled = {each.target: each.error.code for each in ended.outcomes.values() if each.error}
    assert troubled == {"7": "connect_timeout", "27": "enter_timeout"}
    assert ended.took_s < 5.0 + _SLACK_S


_QUIET = (
    "ip link add quiet0 type veth peer name quiet1",
    "ip addr add 10.9.9.1/24 dev quiet0",
    "ip link set quiet0 up",
    "ip link set quiet1 up",
    "ip neigh add 10.9.9.2 lladdr 02:00:0a:09:09:02 dev quiet0",
)
_FAR = "hosts: {far: {address: far.example, ssh_config: none, python: /usr/bin/python3}}\n"


@pytest.mark.lab
def test_a_name_server_that_says_nothing(tmp_path: Path) -> None:
    """Its answer is waited for in the C library, where nothing can be cancelled."""
    (tmp_path / "resolv.conf").write_text("nameserver 10.9.9.2\noptions timeout:30 attempts:1\n")
    (tmp_path / "nsswitch.conf").write_text("hosts: dns\n")
    (tmp_path / "inventory.yaml").write_text(_FAR)
    mounts = [f"mount --bind '{tmp_path}/{name}' /etc/{name}" for name in ("resolv.conf", "nsswitch.conf")]
    # A network of its own, in which the name server's packets go nowhere.
    inside = " && ".join([*_QUIET, *mounts, 'exec "$@"'])
    argv = [*REMOTERUN, "exec", "--project", str(tmp_path), "--on", "far", "--limit", "connect=2s", "--output", "json"]
    begun = time.monotonic()
    done = subprocess.run(
        ["unshare", "--mount", "--net", "/bin/sh", "-c", inside, "sh", *argv, "--", "true"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    took = time.monotonic() - begun
    assert done.returncode == 3, done
    (outcome,) = json.loads(done.stdout)["outcomes"]
    error = outcome["error"]
    assert (outcome["status"], outcome["phase"], error["code"]) == ("unreachable", "connect", "connect_timeout")
    assert "resolving far.example" in error["message"]
    assert error["limit"] == {"name": "connect", "value_s": 2.0, "key": "limits.connect"}
    assert took < 2 + _SLACK_S


class _LosesTheFirst:
    """Lose the first connection before it is told that anything was started, and let the others take long.

    Its end comes instead of that word, or, where the code was asked for, instead of the code.
    """

    def __init__(self, place: Place, wait_s: float) -> None:
        self._place = place
        self._wait_s = wait_s
        self._first = True

    async def __call__(self, remote: asyncssh.SSHServerProcess[bytes]) -> None:
        self._place.serve()
        first, self._first = self._first, False
        if not first:
            await asyncio.sleep(self._wait_s)  # what a slow hop takes is what is tested
        local = await asyncio.create_subprocess_exec(
            *("/bin/bash", "-c", remote.command or ""), stdin=-1, stdout=-1, stderr=asyncio.subprocess.DEVNULL
        )
        assert local.stdin is not None
        assert local.stdout is not None
        asked = asyncio.Event()
        feeding = asyncio.create_task(self._feed(remote, local.stdin, asked))
        told = b""
        while data := await local.stdout.read(65536):
            if first and b'"hostname"' in told:
                _abort(remote)
                break
            told += data
            remote.stdout.write(data)
            if first and b'"sha256"' in told:
                asked.set()
        await asyncio.gather(local.stdout.read(), feeding)
        remote.exit(await local.wait())

    async def _feed(
        self, remote: asyncssh.SSHServerProcess[bytes], stdin: asyncio.StreamWriter, asked: asyncio.Event
    ) -> None:
        with contextlib.suppress(OSError, asyncssh.Error):
            while data := await remote.stdin.read(65536):
                if asked.is_set():
                    _abort(remote)
                    break
                stdin.write(data)
        stdin.close()


def _abort(remote: asyncssh.SSHServerProcess[bytes]) -> None:
    remote.get_extra_info("connection").abort()


_ONCE = "open(ctx.params['file'], 'a').write('x')\nctx.emit({})"


@pytest.mark.parametrize(
    ("source", "wait_s", "status", "connections"),
    [(_ONCE, 0.0, "ok", 2), (_ONCE, 4.0, "lost", 2), (_LARGE + "\n" + _ONCE, 0.0, "ok", 3)],
    ids=["found", "too late", "not started"],
)
def test_what_may_have_been_started_is_not_started_again(
    keys: Keys, tmp_path: Path, source: str, wait_s: float, status: str, connections: int
) -> None:
    """The lease of whatever was started there may be over when the next connection looks for it."""
    started = tmp_path / "started"

    async def work(run_id: str) -> Outcome:
        place = Place(keys, tmp_path)
        async with place.close:
            place.close.push_async_callback(place.served)
            host = await place.toy(process_factory=_LosesTheFirst(place, wait_s))
            planned = job(payload(source, file=str(started)), limits=replace(_LIMITS, enter=20.0, lease=2.0))
            planned = replace(planned, target=replace(planned.target, host=host))
            plan = Plan(run_id=run_id, playbook="twice", playbook_sha256=None, jobs=(planned,))
            (outcome,) = (await execute(plan, lambda event: None)).outcomes
        return outcome

    with nothing_left() as run_id:
        outcome = asyncio.run(work(run_id))
    assert (outcome.status.value, outcome.connections) == (status, connections), outcome.error
    assert started.read_text() == "x"
    assert status == "ok" or (outcome.error is not None and outcome.error.code == "lease_expired")
