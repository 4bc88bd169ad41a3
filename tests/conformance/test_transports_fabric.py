"""What is Fabric's own: whose keys are trusted, whose connection it is, what its files and gateways say."""

from __future__ import annotations

import asyncio
import getpass
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import fabric
import pytest

from remoterun import ConfigError, Phase, Status
from remoterun.errors import TargetError
from remoterun.fabric import play, run_payload
from remoterun.model import Host
from remoterun.transports import ConnectionLost, Pool
from tests.conformance.servers import LIMIT_S, Keys, Sshd, StartSshd, free_port
from tests.support.here import SUPPORTED
from tests.support.lab.pythons import pythons

PYTHON = pythons()[SUPPORTED[-1]]
PAYLOAD = "def run(ctx):\n    ctx.emit({'it': \"isn't quoted\"})\n"
MANIFEST = '# /// payload\n# name = "say"\n# version = "1.0.0"\n# description = "Say."\n# ///\n'


def on_phase(phase: Phase, /, waiting: bool) -> None:
    """Take no note."""


async def start(host: Host, *argv: str, fabric_connection: Any = None) -> bytes:
    """Run a program to its end."""
    connections = {} if fabric_connection is None else {host.key: fabric_connection}
    async with (
        asyncio.timeout(2 * LIMIT_S),
        Pool(fabric=connections) as pool,
        pool.session(host, argv, connect_s=LIMIT_S, enter_s=LIMIT_S, on_phase=on_phase) as session,
    ):
        data = b""
        while part := await session.read():
            data += part
        return data


def refusal(host: Host) -> str:
    """Return the code of the error that a login ends with."""
    with pytest.raises(TargetError) as caught:
        asyncio.run(start(host, "true"))
    return caught.value.code


def connection_to(server: Sshd, keys: Keys, **more: Any) -> Any:
    """Make a connection as a fabfile would."""
    config = fabric.Config(overrides={"load_ssh_configs": False})
    kwargs = {"key_filename": keys["client"], "look_for_keys": False, "allow_agent": False}
    return fabric.Connection(
        "127.0.0.1", user=getpass.getuser(), port=server.port, config=config, connect_kwargs=kwargs, **more
    )


def know(server: Sshd) -> None:
    """Let ~/.ssh/known_hosts know a server."""
    folder = Path.home() / ".ssh"
    folder.mkdir(exist_ok=True)
    with (folder / "known_hosts").open("a") as file:
        file.write(Path(server.known_hosts()).read_text())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a project with one payload."""
    folder = tmp_path / "project"
    (folder / "payloads").mkdir(parents=True)
    (folder / "payloads" / "say.py").write_text(MANIFEST + PAYLOAD, "utf-8")
    return folder


# --- who is trusted ---------------------------------------------------------------------------------------------------


def test_a_host_that_nothing_is_known_of_is_refused(sshd: StartSshd, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    for known in ((str(empty),), (str(tmp_path / "missing"),), ()):
        assert refusal(sshd().host(transport="fabric", known_hosts=known)) == "host_key_unknown"


def test_a_host_with_another_key_is_refused(sshd: StartSshd, keys: Keys) -> None:
    server = sshd()
    wrong = server.known_hosts(f"[127.0.0.1]:{server.port} {keys.public('other')}")
    assert refusal(server.host(transport="fabric", known_hosts=(wrong,))) == "host_key_changed"


def test_the_key_that_the_host_does_not_take_is_told(sshd: StartSshd, keys: Keys) -> None:
    assert refusal(sshd().host(transport="fabric", identity_files=(keys["other"],))) == "auth_failed"


def test_nobody_there_is_told_by_its_cause(sshd: StartSshd) -> None:
    host = sshd().host(transport="fabric")
    assert refusal(replace(host, port=free_port())) == "connect_refused"
    assert refusal(replace(host, address="no-such-host.invalid")) == "dns_failed"


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_a_server_that_takes_one_session_at_a_time_serves_all(sshd: StartSshd) -> None:
    host = sshd("MaxSessions 1").host(transport="fabric")

    async def main() -> list[bytes]:
        async with asyncio.timeout(2 * LIMIT_S), Pool() as pool:

            async def one(number: int) -> bytes:
                argv = ["echo", str(number)]
                async with pool.session(host, argv, connect_s=LIMIT_S, enter_s=LIMIT_S, on_phase=on_phase) as session:
                    return await session.read()

            return list(await asyncio.gather(*(one(number) for number in range(5))))

    assert asyncio.run(main()) == [b"0\n", b"1\n", b"2\n", b"3\n", b"4\n"]


def test_a_connection_that_dies_is_a_loss(sshd: StartSshd) -> None:
    host = sshd().host(transport="fabric")

    async def main() -> None:
        async with (
            asyncio.timeout(2 * LIMIT_S),
            Pool() as pool,
            pool.session(
                host,
                ["sh", "-c", "echo $PPID; exec sleep 60"],
                connect_s=LIMIT_S,
                enter_s=LIMIT_S,
                on_phase=on_phase,
            ) as session,
        ):
            # The parent of the program, or of its shell, is the server's process for this connection.
            server = int(await session.read())
            os.kill(server, signal.SIGKILL)
            with pytest.raises(ConnectionLost):
                await session.read()

    asyncio.run(main())


# --- a person's own connection ----------------------------------------------------------------------------------------


def test_a_connection_of_a_fabfile_is_used_and_left_open(sshd: StartSshd, keys: Keys, project: Path) -> None:
    server = sshd()
    know(server)
    with connection_to(server, keys) as connection:
        first = run_payload(connection, "say", python=PYTHON, project=project)
        assert connection.is_connected
        second = run_payload(connection, "say", python=PYTHON, project=project)
        assert connection.run("echo still here", hide=True, in_stream=False).stdout == "still here\n"
    assert [(item.status, item.target, list(item.records)) for item in (first, second)] == [
        (Status.OK, "127.0.0.1", [{"it": "isn't quoted"}])
    ] * 2


def test_fabrics_trust_in_anybody_is_not_taken_over(sshd: StartSshd, keys: Keys, project: Path) -> None:
    server = sshd()
    outcome = run_payload(connection_to(server, keys), "say", python=PYTHON, project=project)
    assert outcome.error is not None
    assert outcome.error.code == "host_key_unknown"
    outcome = run_payload(connection_to(server, keys), "say", python=PYTHON, project=project, trusts_anyone=True)
    assert outcome.status is Status.OK


def test_gateways_are_gone_through_and_checked(sshd: StartSshd, keys: Keys, project: Path) -> None:
    inner, outer = sshd(), sshd()
    know(inner)

    def through() -> Any:
        return connection_to(inner, keys, gateway=connection_to(outer, keys))

    outcome = run_payload(through(), "say", python=PYTHON, project=project)
    assert outcome.error is not None
    assert outcome.error.code == "host_key_unknown"
    know(outer)
    connection = through()
    assert run_payload(connection, "say", python=PYTHON, project=project).status is Status.OK
    assert connection.gateway.is_connected
    connection.close()
    connection.gateway.close()


def test_what_fabric_yaml_says_counts(sshd: StartSshd, keys: Keys) -> None:
    server = sshd()
    (Path.home() / ".fabric.yaml").write_text(
        f"user: {getpass.getuser()}\nconnect_kwargs:\n  key_filename: [{keys['client']}]\n", "utf-8"
    )
    host = server.host(transport="fabric", user=None, identity_files=())
    assert asyncio.run(start(host, "echo", "it's me")) == b"it's me\n"


def test_a_target_that_cannot_be_reached_is_an_outcome(keys: Keys, project: Path) -> None:
    connection = fabric.Connection("127.0.0.1", port=free_port(), connect_kwargs={"key_filename": keys["client"]})
    outcome = run_payload(connection, "say", project=project)
    assert outcome.error is not None
    assert (outcome.status, outcome.error.code) == (Status.UNREACHABLE, "connect_refused")


def test_the_connection_says_where(project: Path) -> None:
    with pytest.raises(ConfigError, match="on: the connection says where"):
        play(fabric.Connection("127.0.0.1"), "say", project=project, on=["elsewhere"])
    with pytest.raises(ConfigError, match="no-such-payload"):
        run_payload(fabric.Connection("127.0.0.1"), "no-such-payload", project=project)
