"""The embedded lab as its users have it: real SSH into guests that are programs of this machine."""

from __future__ import annotations

import asyncio
import random
import shlex
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import asyncssh
import psutil
import pytest

from remoterun import Outcome, Project, Run, Status, play
from remoterun.api import Choice, carry_out
from remoterun.catalog import scaffold
from remoterun.events import OutputArrived
from remoterun.inventory import Overrides
from remoterun.lab import Guest, Lab
from remoterun.model import ExecWork, ScriptWork, Work
from tests.support.lab import wait_for

GUESTS = (
    Guest(id=200, name="up", vars={"place": "/somewhere"}, tags=("training",)),
    Guest(id=201, name="other"),
    Guest(id=202, name="down", running=False),
)
AT_ONCE_BYTES = 5_000_000


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab.start(tmp_path_factory.mktemp("lab"), GUESTS) as lab:
        yield lab


def do(lab: Lab, work: Work, choice: Choice) -> Run:
    return asyncio.run(carry_out(Project.load(lab.folder).plan_work("test", work, choice)))


def one(lab: Lab, work: Work, on: str = "up") -> Outcome:
    (outcome,) = do(lab, work, Choice(on=(on,))).outcomes
    return outcome


def ad_hoc(lab: Lab, guest: str, **settings: tuple[str, ...]) -> Outcome:
    keys = lab.folder / "keys"
    files = {"identity_file": (str(keys / "id_ed25519"),), "known_hosts": (str(keys / "known_hosts"),)}
    overrides = Overrides(ssh_config="none", **{**files, **settings})  # type: ignore[arg-type]
    choice = Choice(on=(f"root@127.0.0.1:{lab.port}/{guest}",), overrides=overrides)
    (outcome,) = do(lab, ExecWork(argv=(b"true",)), choice).outcomes
    return outcome


def code(outcome: Outcome) -> str | None:
    return outcome.error.code if outcome.error else None


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]


# --- the way in -------------------------------------------------------------------------------------------------------


def test_its_folder_is_a_project(served: Lab) -> None:
    targets = Project.load(served.folder).inventory.select(["lab"])
    assert [(target.id, target.name) for target in targets] == [
        ("lab/200", "up"),
        ("lab/201", "other"),
        ("lab/202", "down"),
    ]
    assert targets[0].interpreter == sys.executable
    assert targets[0].vars == {"place": "/somewhere"}
    assert targets[0].tags == {"training"}
    key = served.folder / "keys" / "id_ed25519"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700


def test_it_listens_on_loopback_only(served: Lab) -> None:
    listening = [item for item in psutil.Process().net_connections("tcp") if item.status == psutil.CONN_LISTEN]
    assert [item.laddr.ip for item in listening if item.laddr.port == served.port] == ["127.0.0.1"]


def test_another_key_is_not_let_in(served: Lab, tmp_path: Path) -> None:
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(tmp_path / "other")
    assert code(ad_hoc(served, "200")) is None
    assert code(ad_hoc(served, "200", identity_file=(str(tmp_path / "other"),))) == "auth_failed"


def test_another_labs_key_is_not_trusted(served: Lab, tmp_path: Path) -> None:
    with Lab.start(tmp_path / "other") as other:
        known = other.folder / "keys" / "known_hosts"
        known.write_text(known.read_text().replace(f":{other.port} ", f":{served.port} "))
        assert code(ad_hoc(served, "200", known_hosts=(str(known),))) == "host_key_changed"


def test_guests_that_cannot_be_entered(served: Lab) -> None:
    run = do(served, ExecWork(argv=(b"true",)), Choice(on=("lab",)))
    assert [(outcome.target, code(outcome)) for outcome in run.outcomes] == [
        ("lab/200", None),
        ("lab/201", None),
        ("lab/202", "guest_stopped"),
    ]
    assert code(ad_hoc(served, "299")) == "guest_not_found"


# --- what runs there --------------------------------------------------------------------------------------------------

HOSTILE: Sequence[bytes] = (
    b"",
    b" ",
    b"'",
    b'"',
    b"\\",
    b"$HOME `id` $(id) ${x}",
    b"!! * ? [a-z] {a,b} ~ # ; & | < >",
    b"-n",
    b"--",
    b"line\nline\r\n\ttab",
    "Grüße 你好 🙂 \u202e".encode(),
    b"\xff\xfe\x80",
    b"x" * 100_000,
)


def test_words_arrive_byte_for_byte(served: Lab, rng: random.Random) -> None:
    words = [*HOSTILE, *(bytes(rng.choices(range(1, 256), k=rng.randrange(200))) for _ in range(20))]
    source = b"import os, sys\nsys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))\n"
    by_script = one(served, ScriptWork(name="echo.py", source=source, args=tuple(words)))
    by_exec = one(served, ExecWork(argv=(sys.executable.encode(), b"-c", source, *words)))
    for outcome in (by_script, by_exec):
        assert outcome.status is Status.OK, outcome
        assert outcome.stdout.data.split(b"\0") == words


def test_much_output_arrives_whole(served: Lab) -> None:
    source = f"import sys\nfor i in range({AT_ONCE_BYTES} // 1000): sys.stdout.write('%999d\\n' % i)\n".encode()
    outcome = one(served, ScriptWork(name="much.py", source=source))
    assert outcome.status is Status.OK
    assert not outcome.stdout.truncated
    assert [int(line) for line in outcome.stdout.data.split()] == list(range(AT_ONCE_BYTES // 1000))


def test_a_status_and_both_streams_come_back(served: Lab) -> None:
    outcome = one(served, ExecWork(argv=(b"/bin/sh", b"-c", b"echo out; echo err >&2; exit 7")))
    assert (code(outcome), outcome.exit_status) == ("nonzero_exit", 7)
    assert (outcome.stdout.data, outcome.stderr.data) == (b"out\n", b"err\n")


def test_the_host_itself(served: Lab, tmp_path: Path) -> None:
    text = served.inventory.read_text().replace("    guests:\n", "    self: true\n    guests:\n")
    (tmp_path / "inventory.yaml").write_text(text.replace("keys/", f"{served.folder}/keys/"))
    plan = Project.load(tmp_path).plan_work("test", ExecWork(argv=(b"echo", b"here")), Choice(on=("lab",)))
    run = asyncio.run(carry_out(plan))
    assert [outcome.stdout.data for outcome in run.outcomes if outcome.target == "lab"] == [b"here\n"]


# --- beginning and end ------------------------------------------------------------------------------------------------


async def use_it(tmp_path: Path) -> None:
    async with Lab.start(tmp_path) as lab:
        plan = Project.load(lab.folder).plan_work("test", ExecWork(argv=(b"echo", b"hi")), Choice(on=("guest",)))
        run = await carry_out(plan)
    assert [outcome.stdout.data for outcome in run.outcomes] == [b"hi\n"]


def test_in_ones_own_event_loop(tmp_path: Path) -> None:
    asyncio.run(use_it(tmp_path))


@pytest.mark.parametrize("kind", ["package", "file", "program"])
def test_a_payload_of_ones_own(tmp_path: Path, kind: str) -> None:
    scaffold("disk-speed", tmp_path / "payloads", kind)  # type: ignore[arg-type]
    with Lab.start(tmp_path / "lab", payloads=tmp_path / "payloads") as lab:
        run = play("disk-speed", project=lab.folder, on=["guest"], params={"root": str(tmp_path)})
    (outcome,) = run.outcomes
    assert outcome.status is Status.OK, outcome
    assert outcome.records


def test_a_folder_with_an_inventory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text("hosts: {}\n")
    with pytest.raises(FileExistsError, match="a folder of its own"):
        Lab.start(tmp_path)
    assert (tmp_path / "inventory.yaml").read_text() == "hosts: {}\n"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("a file, not a folder")
    with pytest.raises(FileExistsError), Lab.start(tmp_path):
        pass


def test_leaving_it_ends_what_runs_there(tmp_path: Path) -> None:
    before = {child.pid for child in children()}
    program = (
        b"import os, subprocess, sys, time\n"
        b"subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        b"print(os.getpid(), flush=True)\n"
        b"time.sleep(600)\n"
    )

    async def leave_early() -> tuple[Run, set[int]]:
        said = asyncio.Event()
        async with Lab.start(tmp_path) as lab:
            plan = Project.load(lab.folder).plan_work(
                "test", ScriptWork(name="long.py", source=program), Choice(on=("lab",))
            )
            running = asyncio.create_task(
                carry_out(plan, lambda event: said.set() if isinstance(event, OutputArrived) else None)
            )
            await asyncio.wait_for(said.wait(), 60)
            inside = {child.pid for child in children()} - before
        return await asyncio.wait_for(running, 60), inside

    run, inside = asyncio.run(leave_early())
    assert [code(outcome) for outcome in run.outcomes] == ["connection_lost"]
    assert len(inside) >= 4, "leg, supervisor, script and its sleep"
    assert not [pid for pid in inside if psutil.pid_exists(pid)]


def test_a_program_left_behind_ends_with_its_session(served: Lab) -> None:
    outcome = one(served, ExecWork(argv=(b"/bin/sh", b"-c", b"sleep 600 >/dev/null 2>&1 & echo $!")))
    pid = int(outcome.stdout.data)
    wait_for(lambda: not psutil.pid_exists(pid), "the end of what a guest's program left running")


@pytest.mark.slow
def test_a_program_that_does_not_care_is_killed(tmp_path: Path) -> None:
    async def leave() -> int:
        async with Lab.start(tmp_path) as lab:
            keys = lab.folder / "keys"
            options = {"known_hosts": str(keys / "known_hosts"), "client_keys": [str(keys / "id_ed25519")]}
            connection = await asyncssh.connect("127.0.0.1", lab.port, username="root", config=None, **options)
            script = "trap '' HUP TERM PIPE; echo $$; while :; do sleep 1; done 2>/dev/null"
            process = await connection.create_process(shlex.join(["pct", "exec", "100", "--", "sh", "-c", script]))
            pid = int(await process.stdout.readline())
            assert psutil.pid_exists(pid)
        return pid

    assert not psutil.pid_exists(asyncio.run(leave()))
