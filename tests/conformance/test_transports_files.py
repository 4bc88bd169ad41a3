"""A process that may open few files: whoever needs one waits for it; where there is none at all, that is told."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from remoterun.errors import TargetError
from remoterun.events import Event
from remoterun.model import ExecWork, Host, Job, Plan, Run, RunStatus, Target
from remoterun.runner import execute
from remoterun.transports import Pool
from remoterun.transports.openfiles import LOGIN_FILES, OpenFiles, ran_out, room_here
from tests.conformance.servers import LIMIT_S, Sshd, StartSshd
from tests.conformance.test_transports_limits import one

HOSTS = 10


@contextlib.contextmanager
def room_for(files: int) -> Iterator[None]:
    """Let this process open so many more files for connections and programs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    have = room_here()
    assert have is not None
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - have + files, hard))
    try:
        assert room_here() == files
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def many_hosts(server: Sshd) -> list[Host]:
    """Describe one server as many hosts, each with a connection of its own."""
    known = server.known_hosts()
    files = [shutil.copy(known, f"{known}-{number}") for number in range(HOSTS)]
    return [server.host(key=f"box{number}", known_hosts=(file,)) for number, file in enumerate(files)]


async def all_of(hosts: list[Host]) -> None:
    async with asyncio.timeout(2 * LIMIT_S), Pool() as pool:
        got = await asyncio.gather(*(one(pool, host, number) for number, host in enumerate(hosts)))
        assert got == list(range(len(hosts)))


@pytest.mark.parametrize("files", [-10, LOGIN_FILES, 3 * LOGIN_FILES])
def test_hosts_wait_for_their_turn(sshd: StartSshd, files: int) -> None:
    hosts = many_hosts(sshd())
    with room_for(files):
        asyncio.run(all_of(hosts))


@pytest.mark.parametrize("files", [-10, LOGIN_FILES])
def test_jump_hosts_are_there_for_as_long_as_somebody_is_behind_them(sshd: StartSshd, files: int) -> None:
    gates, server = many_hosts(sshd()), sshd()
    with room_for(files):
        asyncio.run(all_of([server.host(key=f"in{gate.key}", jump=(gate,)) for gate in gates]))


def test_each_connection_is_counted_until_it_is_closed(sshd: StartSshd) -> None:
    hosts = many_hosts(sshd())

    async def work() -> None:
        async with asyncio.timeout(2 * LIMIT_S), Pool() as pool:
            # The second time round, all that was lost or closed meanwhile has been given back.
            for _ in range(3):
                assert [await one(pool, host, 7) for host in hosts] == [7] * HOSTS

    with room_for(2 * LOGIN_FILES):
        asyncio.run(work())


def test_who_finds_nothing_open_is_let_in_and_others_wait_for_what_is_closed() -> None:
    told: list[str] = []

    async def work() -> None:
        files = OpenFiles(4, lambda: told.append("make room"))

        async def take(number: int) -> None:
            async with files.lent(number):
                told.append(f"has {number}")
                await asyncio.sleep(0)
            told.append(f"gave {number}")

        await asyncio.gather(take(9), take(2), take(2), take(3))

    asyncio.run(work())
    assert [word for word in told if word != "make room"] == [
        *("has 9", "gave 9", "has 2", "has 2", "gave 2"),
        *("gave 2", "has 3", "gave 3"),
    ]
    assert "make room" in told


def test_an_error_that_is_its_own_cause_is_told_apart() -> None:
    inner, outer = TargetError("connection_lost", "one"), TargetError("cancelled", "two")
    inner.__cause__, outer.__cause__ = outer, inner
    assert ran_out(inner) is None
    outer.__cause__ = OSError(errno.EMFILE, "Too many open files")
    told = ran_out(inner)
    assert told is not None
    assert (told.code, told.message) == ("too_many_files", "one")


# --- runs -------------------------------------------------------------------------------------------------------------


def local_plan(count: int) -> Plan:
    here = Host(key="here", address="", transport="local")
    targets = [
        Target(id=f"here{number}", host=replace(here, key=f"here{number}"), interpreter=sys.executable)
        for number in range(count)
    ]
    jobs = tuple(Job(target=target, step=0, work=ExecWork(argv=(b"true",))) for target in targets)
    return Plan(run_id="few-files", playbook="true", playbook_sha256=None, jobs=jobs)


def test_programs_on_this_machine_wait_for_their_turn() -> None:
    with room_for(10):
        run = asyncio.run(execute(local_plan(12), lambda _event: None))
    assert run.status is RunStatus.OK


@pytest.mark.parametrize("transport", ["local", "ssh"])
def test_where_there_is_no_file_at_all_that_is_told(transport: str, sshd: StartSshd, tmp_path: Path) -> None:
    plan = local_plan(2)
    if transport == "ssh":
        hosts = many_hosts(sshd())[:2]
        jobs = [replace(job, target=replace(job.target, host=host)) for job, host in zip(plan.jobs, hosts, strict=True)]
        plan = replace(plan, jobs=tuple(jobs))
        # What is imported once is not what this is about.
        asyncio.run(all_of(hosts))
    asyncio.run(execute(plan, lambda _event: None))
    with contextlib.ExitStack() as taken, room_for(-20):

        def take_all(event: Event) -> None:
            if type(event).__name__ == "RunStarted":
                with contextlib.suppress(OSError):
                    while True:
                        taken.enter_context((tmp_path / "file").open("w"))

        run: Run = asyncio.run(execute(plan, take_all))
    assert [(outcome.error and outcome.error.code, outcome.status) for outcome in run.outcomes] == [
        ("too_many_files", "unreachable")
    ] * 2
    assert all("ulimit -n" in outcome.error.hint for outcome in run.outcomes if outcome.error)
