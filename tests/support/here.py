"""This machine as a target: the real runner, leg, supervisor and payload, without SSH or a hop in between."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from remoterun.catalog.packing import Member, canonical_zip, code_size
from remoterun.events import Event, RecordArrived, TargetMoved
from remoterun.hops import enter_argv
from remoterun.model import (
    Host,
    Job,
    Json,
    Limits,
    Outcome,
    Pack,
    PayloadRef,
    PayloadWork,
    Phase,
    Plan,
    ScriptWork,
    Target,
    Work,
)
from remoterun.remote import wire
from remoterun.runner import Control, execute
from remoterun.runner.request import Packed, Request
from tests.support.lab.machine import pause
from tests.support.lab.pythons import pythons

SUPPORTED = tuple(version for version in pythons() if tuple(map(int, version.split("."))) >= (3, 8))
ENDS = tuple(dict.fromkeys((SUPPORTED[0], SUPPORTED[-1])))
"""The oldest and the newest Python of this machine that a target may have."""

_MARKER = "REMOTERUN_RUN"
_TOKEN = "HERE_RUN"
_LEFT_S = 60.0
_TRANSIENT = frozenset({wire.HEARTBEAT, wire.PROGRESS})


def payload(source: str, *, requires: tuple[str, ...] = (), **params: Json) -> PayloadWork:
    """Make a payload of the body of ``def run(ctx)``; modules at its top are for the body to import."""
    text = f"def run(ctx):\n{textwrap.indent(textwrap.dedent(source), '    ')}\n"
    return packed({"look/__init__.py": text.encode()}, requires=requires, **params)


def packed(files: Mapping[str, bytes], *, requires: tuple[str, ...] = (), **params: Json) -> PayloadWork:
    """Make a payload of files, entered at ``look:run``."""
    members = [Member(name=name, data=content) for name, content in files.items()]
    data = canonical_zip(members)
    pack = Pack(ref=_ref(data), data=data, code_size=code_size(members), entry="look:run", requires=requires)
    return PayloadWork(pack=pack, params=params)


def program(source: str, files: Mapping[str, bytes] | None = None, **params: Json) -> PayloadWork:
    """Make a payload that is a program, with files beside it."""
    members = [Member(name="look", data=textwrap.dedent(source).encode(), program=True)]
    members += [Member(name=name, data=content) for name, content in (files or {}).items()]
    data = canonical_zip(members)
    return PayloadWork(pack=Pack(ref=_ref(data), data=data, program="look"), params=params)


def script(source: str | bytes, *args: bytes) -> ScriptWork:
    """Make a person's script."""
    return ScriptWork(
        name="look.py", source=source if isinstance(source, bytes) else textwrap.dedent(source).encode(), args=args
    )


def _ref(data: bytes) -> PayloadRef:
    return PayloadRef(name="look", version="1.0.0", sha256=hashlib.sha256(data).hexdigest())


def job(
    work: Work, python: str | None = None, *, limits: Limits | None = None, env: Mapping[str, str] | None = None
) -> Job:
    """Plan work here; `python` is a version of `SUPPORTED` (the newest when left out) or an interpreter's path."""
    interpreter = pythons().get(python or SUPPORTED[-1]) or str(python)
    target = Target(id="here", host=Host(key="here", address="", transport="local"), interpreter=interpreter)
    return Job(target=target, step=0, work=work, limits=limits or Limits(), env=env or {})


def play(
    work: Work,
    python: str | None = None,
    *,
    limits: Limits | None = None,
    env: Mapping[str, str] | None = None,
    use_cache: bool = False,
    at_record: Callable[[Mapping[str, Json], Control], None] | None = None,
    at_run: Callable[[Control], None] | None = None,
) -> Outcome:
    """Run one job to its outcome, and assert that nothing of it is left.

    `at_run` is called when the target says that it has started, `at_record` at each record: where a test has to look or
    act before everything is over, it does so there.
    """
    control = Control()

    def tell(event: Event) -> None:
        if isinstance(event, RecordArrived) and at_record is not None:
            at_record(event.record, control)
        elif isinstance(event, TargetMoved) and event.phase is Phase.RUN and at_run is not None:
            at_run(control)

    with nothing_left() as run_id:
        plan = Plan(
            run_id=run_id,
            playbook="look",
            playbook_sha256=None,
            jobs=(job(work, python, limits=limits, env=env),),
            use_cache=use_cache,
        )
        (outcome,) = asyncio.run(execute(plan, tell, control)).outcomes
    return outcome


@contextmanager
def nothing_left() -> Iterator[str]:
    """Hand out a run id, and assert at the end that no process or folder of that run is left."""
    run_id = os.urandom(6).hex()
    os.environ[_TOKEN] = run_id
    try:
        yield run_id
        left = wait_until(lambda: not processes(run_id), _LEFT_S)
        found = [_describe(pid) for pid in processes(run_id)]
        assert left, f"left behind: {found}"
        folder = Path(os.environ["XDG_RUNTIME_DIR"])
        assert not list(folder.iterdir())
    finally:
        del os.environ[_TOKEN]
        for pid in processes(run_id):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Leg:
    """A leg started by hand, for what the runner never does: `opening` is what it would have sent at first."""

    def __init__(self, run_id: str, planned: Job, *, use_cache: bool = False) -> None:
        self.request = Request(planned, f"{run_id}/here/0", Packed(), use_cache=use_cache)
        self.opening = self.request.opening()
        self.kinds: list[int] = []
        self._decoder = wire.Decoder(self.request.nonce)
        self._assembler = wire.Assembler(17 << 20)
        self._shell = subprocess.Popen(
            enter_argv(planned.target), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        # The shell becomes the leg: stage 0 executes the interpreter.
        self.pid = self._shell.pid

    def write(self, data: bytes) -> None:
        """Write to the leg's stdin."""
        assert self._shell.stdin is not None
        self._shell.stdin.write(data)
        self._shell.stdin.flush()

    def write_eof(self) -> None:
        """End the leg's stdin."""
        assert self._shell.stdin is not None
        self._shell.stdin.close()

    def hang_up(self) -> None:
        """Stop to read the leg's stdout."""
        assert self._shell.stdout is not None
        self._shell.stdout.close()

    def read_until(self, kind: int) -> bytes:
        """Read until a message of this kind has come, and return its body."""
        while messages := self._read():
            for got, body in messages:
                if got == kind:
                    return body
        raise AssertionError(f"the leg has ended; it said {self.kinds}")

    def read_to_end(self) -> list[int]:
        """Read until the leg has ended, and return the kinds of all it said."""
        while self._read():
            pass
        self._shell.wait(30)
        return self.kinds

    def _read(self) -> list[tuple[int, bytes]]:
        """Read what has come; nothing only at the end."""
        assert self._shell.stdout is not None
        messages: list[tuple[int, bytes]] = []
        while not messages and (data := os.read(self._shell.stdout.fileno(), 65536)):
            for frame in self._decoder.feed(data):
                body = self._assembler.add(frame)
                if body is not None:
                    messages.append((frame.kind, body))
        self.kinds += [kind for kind, _ in messages]
        self._acknowledge()
        return messages

    def _acknowledge(self) -> None:
        """Say that what the supervisor said has arrived; what comes again and again is not numbered."""
        numbered = [kind for kind in self.kinds if kind >= wire.STARTED and kind not in _TRANSIENT]
        with suppress(BrokenPipeError, ValueError):
            self.write(self.request.acknowledgement(len(numbered)))

    def close(self) -> None:
        """End the leg, if it has not ended."""
        for pipe in (self._shell.stdin, self._shell.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._shell.wait(20)
        self._shell.kill()
        self._shell.wait()


@contextmanager
def leg(work: Work, python: str | None = None, *, lease: float | None = None, **options: Any) -> Iterator[Leg]:
    """Start a leg by hand, and assert that nothing of it is left. Without a lease its end is the end of the run."""
    with nothing_left() as run_id:
        started = Leg(run_id, job(work, python, limits=Limits(lease=lease)), **options)
        try:
            yield started
        finally:
            started.close()


def processes(run_id: str) -> list[int]:
    """Find the leg and the supervisor of a run, which have our environment, and all that carry its marker."""
    wanted = (f"{_TOKEN}={run_id}\0".encode(), f"{_MARKER}={run_id}/".encode())
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with suppress(OSError):
                environment = b"\0" + (folder / "environ").read_bytes()
                if any(b"\0" + word in environment for word in wanted):
                    found.append(int(folder.name))
    return found


def _describe(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return f"{pid} {words[0].decode()} {Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2][:20]}"
    except OSError:
        return f"{pid} gone"


def alive(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and waits for its parent does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def wait_until(condition: Callable[[], bool], limit_s: float = 30.0) -> bool:
    """Wait for a condition; tell whether it came true."""
    begin = time.monotonic()
    while not condition():
        waited = time.monotonic() - begin
        if waited > limit_s:
            return False
        time.sleep(pause(waited))
    return True
