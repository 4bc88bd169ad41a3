"""remoterun as a library: awaited, iterated over, called from threads and inside loops, cancelled."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import remoterun
from remoterun.events import Event, OutcomeReady, RecordArrived, RunFinished, RunStarted
from tests.docs.generate import DOCS
from tests.support.project import Project, strict_json

INVENTORY = f"""\
defaults: {{python: {sys.executable}}}
hosts:
  trainer: {{transport: local}}
  second: {{transport: local}}
  third: {{transport: local}}
"""
HELLO = "def run(ctx):\n    ctx.emit({'hello': ctx.params})\n"
SLOW = """\
import time

def run(ctx):
    for n in range(10000):
        ctx.emit({"n": n})
        time.sleep(0.05)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Return a project whose targets are all this machine, with the working directory in it."""
    (tmp_path / "inventory.yaml").write_text(INVENTORY, "utf-8")
    made = Project(folder=tmp_path)
    made.payload("hello", HELLO)
    made.payload("slow", SLOW)
    monkeypatch.chdir(tmp_path)
    return made


@pytest.mark.usefixtures("project")
def test_play_returns_the_run() -> None:
    run = remoterun.play("hello", on=["trainer", "second"], limits={"run": "1m"})
    assert [outcome.target for outcome in run.outcomes] == ["trainer", "second"]
    assert run.status is remoterun.RunStatus.OK
    assert [list(outcome.records) for outcome in run.outcomes] == [[{"hello": {}}]] * 2
    assert strict_json(remoterun.to_json(run))["run_id"] == run.run_id


def test_the_project_is_a_folder_or_what_was_loaded(project: Project, tmp_path: Path) -> None:
    loaded = remoterun.Project.load(project.folder)
    for said in (project.folder, str(project.folder), loaded):
        assert remoterun.play("hello", on=["trainer"], project=said).status is remoterun.RunStatus.OK
    with pytest.raises(remoterun.ConfigError, match="hello"):
        remoterun.play("hello", on=["trainer"], project=tmp_path.parent)


@pytest.mark.usefixtures("project")
def test_parameters_are_values() -> None:
    root = str(Path("nothing-here").absolute())
    run = remoterun.play("check-ckpt", on=["trainer"], params={"root": root, "deep": False})
    assert run.outcomes[0].error is not None
    assert run.outcomes[0].error.code == "nothing_to_check"
    with pytest.raises(remoterun.ConfigError, match="rooot"):
        remoterun.play("check-ckpt", on=["trainer"], params={"rooot": root})
    with pytest.raises(remoterun.ConfigError, match="deep"):
        remoterun.play("check-ckpt", on=["trainer"], params={"root": root, "deep": "perhaps"})


@pytest.mark.usefixtures("project")
def test_a_playbook_can_be_put_together() -> None:
    step = remoterun.Step(payload="hello")
    run = remoterun.play(remoterun.Playbook(name="twice", steps=(step, step), targets=("second",)))
    assert run.playbook == "twice"
    assert [(outcome.target, outcome.step) for outcome in run.outcomes] == [("second", 0), ("second", 1)]


@pytest.mark.usefixtures("project")
def test_scripts_and_programs() -> None:
    words = ["it's", '"', "", "$HOME", "a\nb", "ü"]
    run = remoterun.run_script(b"import sys; print(sys.argv[1:])", words, on=["trainer"])
    assert run.outcomes[0].stdout.data == f"{words}\n".encode()
    Path("mine.py").write_text("print(__name__)")
    assert remoterun.run_script(Path("mine.py"), on=["trainer"]).outcomes[0].stdout.data == b"__main__\n"
    assert remoterun.run_program(["printf", "%s|", *words], on=["trainer"]).outcomes[0].stdout.data == (
        "".join(f"{word}|" for word in words).encode()
    )


@pytest.mark.usefixtures("project")
def test_outcomes_come_one_by_one_and_then_the_run() -> None:
    async def play() -> tuple[list[str], remoterun.Run]:
        async with remoterun.aplay("hello", on=["*"]) as running:
            with pytest.raises(RuntimeError, match="not ended"):
                _ = running.run
            seen = [outcome.target async for outcome in running]
            assert [outcome.target async for outcome in running] == []
        return seen, running.run

    seen, run = asyncio.run(play())
    assert sorted(seen) == ["second", "third", "trainer"]
    assert [outcome.target for outcome in run.outcomes] == ["trainer", "second", "third"]


@pytest.mark.usefixtures("project")
def test_leaving_early_ends_what_runs_and_waits_for_it() -> None:
    async def play() -> remoterun.Run:
        started = asyncio.Event()

        def listen(event: Event) -> None:
            if isinstance(event, RecordArrived):
                started.set()

        async with remoterun.aplay("slow", on=["trainer"], on_event=listen) as running:
            await started.wait()
        return running.run

    run = asyncio.run(play())
    assert run.status is remoterun.RunStatus.INTERRUPTED
    assert run.outcomes[0].status is remoterun.Status.CANCELLED
    assert run.outcomes[0].survivors == 0
    assert run.outcomes[0].records[0] == {"n": 0}


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("how", ["await", "context"])
def test_cancelling_the_task_ends_what_runs_and_waits_for_it(how: str) -> None:
    survivors: list[int | None] = []

    async def play() -> None:
        started = asyncio.Event()

        def listen(event: Event) -> None:
            if isinstance(event, RecordArrived):
                started.set()
            elif isinstance(event, OutcomeReady):
                survivors.append(event.outcome.survivors)

        async def work() -> None:
            running = remoterun.aplay("slow", on=["trainer"], on_event=listen)
            if how == "await":
                await running
            else:
                async with running:
                    async for _ in running:
                        pass

        task = asyncio.create_task(work())
        waiting = asyncio.create_task(started.wait())
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        assert not task.done(), task.exception()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(play())
    assert survivors == [0]


@pytest.mark.usefixtures("project")
def test_a_timeout_around_a_run_is_a_timeout() -> None:
    async def play() -> None:
        async with asyncio.timeout(1):
            await remoterun.aplay("slow", on=["trainer"])

    with pytest.raises(TimeoutError):
        asyncio.run(play())


@pytest.mark.usefixtures("project")
def test_a_listener_that_raises_ends_the_run_and_is_told() -> None:
    heard: list[Event] = []

    def listen(event: Event) -> None:
        heard.append(event)
        if isinstance(event, RecordArrived):
            raise LookupError("not for me")

    with pytest.raises(LookupError, match="not for me"):
        remoterun.play("slow", on=["trainer"], on_event=listen)
    assert isinstance(heard[0], RunStarted)
    assert isinstance(heard[-1], RecordArrived)


@pytest.mark.usefixtures("project")
def test_it_is_callable_inside_a_running_loop() -> None:
    async def cell() -> remoterun.Run:
        return remoterun.play("hello", on=["trainer"])

    assert asyncio.run(cell()).status is remoterun.RunStatus.OK

    async def wrong() -> remoterun.Run:
        return remoterun.play("no-such-payload", on=["trainer"])

    with pytest.raises(remoterun.ConfigError):
        asyncio.run(wrong())


@pytest.mark.usefixtures("project")
def test_threads_do_not_meet() -> None:
    runs: dict[str, remoterun.Run] = {}

    def work(target: str) -> None:
        runs[target] = remoterun.play("hello", on=[target])

    threads = [threading.Thread(target=work, args=(target,)) for target in ("trainer", "second", "third")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {target: run.outcomes[0].target for target, run in runs.items()} == {name: name for name in runs}
    assert len({run.run_id for run in runs.values()}) == 3


@pytest.mark.usefixtures("project")
def test_iterating_without_the_context_is_refused() -> None:
    async def play() -> None:
        async for _ in remoterun.aplay("hello", on=["trainer"]):
            pass

    with pytest.raises(RuntimeError, match="async with"):
        asyncio.run(play())


def test_nothing_is_printed_and_no_handler_is_left(project: Project) -> None:
    program = (
        "import signal, remoterun\n"
        "before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)]\n"
        "run = remoterun.play('hello', on=['trainer'])\n"
        "after = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)]\n"
        "assert before == after\n"
        "raise SystemExit(run.status.exit_code)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=project.folder, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_ctrl_c_ends_a_blocking_call_in_an_orderly_way(project: Project) -> None:
    program = (
        "import os, signal, remoterun\n"
        "from remoterun.events import OutcomeReady, RecordArrived\n"
        "def listen(event):\n"
        "    if isinstance(event, RecordArrived) and event.record['n'] == 1:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    elif isinstance(event, OutcomeReady):\n"
        "        print(event.outcome.status, event.outcome.survivors)\n"
        "try:\n"
        "    remoterun.play('slow', on=['trainer'], on_event=listen)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=project.folder, capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b"cancelled 0\ninterrupted\n", b"")


# It goes on when it is asked to end, and says that it was.
STUBBORN = """\
import signal, time

def run(ctx):
    signal.signal(signal.SIGTERM, lambda *_: ctx.emit({"n": 2}))
    for n in range(10000):
        ctx.emit({"n": 1})
        time.sleep(0.05)
"""


@pytest.mark.parametrize(
    ("payload", "times", "said"),
    [("slow", 1, b"cancelled 0\ninterrupted\n"), ("stubborn", 2, b"cancelled None\ninterrupted\n")],
)
def test_ctrl_c_ends_a_call_inside_a_loop_as_it_ends_a_task(
    project: Project, payload: str, times: int, said: bytes
) -> None:
    """A notebook leaves Ctrl-C to Python; a second one leaves at once."""
    project.payload("stubborn", STUBBORN)
    program = (
        "import asyncio, signal, threading, remoterun\n"
        "from remoterun.events import OutcomeReady, RecordArrived\n"
        f"left = list(range(1, {times} + 1))\n"
        "def listen(event):\n"
        "    if isinstance(event, RecordArrived) and left and event.record['n'] == left[0]:\n"
        "        del left[0]\n"
        "        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)\n"
        "    elif isinstance(event, OutcomeReady):\n"
        "        print(event.outcome.status, event.outcome.survivors)\n"
        "async def cell():\n"
        f"    remoterun.play('{payload}', on=['trainer'], on_event=listen)\n"
        "try:\n"
        "    asyncio.new_event_loop().run_until_complete(cell())\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=project.folder, capture_output=True, check=False)
    assert done.stdout == said, done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.usefixtures("project")
def test_a_run_is_kept_when_asked_for() -> None:
    from remoterun.history import History, default_folder

    run = remoterun.play("hello", on=["trainer"], history=True)
    with History.open(default_folder()) as history:
        assert history.run(history.find(run.run_id)).outcomes == run.outcomes


@pytest.mark.usefixtures("project")
def test_events_open_and_close_the_run() -> None:
    heard: list[Event] = []
    run = remoterun.play("hello", on=["trainer"], on_event=heard.append)
    assert isinstance(heard[0], RunStarted)
    assert heard[-1] == RunFinished(run=run)


def test_every_public_name_is_there() -> None:
    assert sorted(remoterun.__all__) == sorted(remoterun._HOMES)
    for name in remoterun.__all__:
        assert getattr(remoterun, name).__doc__, name
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = remoterun.nothing_such


@pytest.mark.usefixtures("project")
def test_the_examples_of_the_page_run() -> None:
    checkpoints = Path("checkpoints")
    checkpoints.mkdir()
    page = (DOCS / "python.md").read_text("utf-8").replace("/workspace", str(checkpoints.absolute()))
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 7
    exec(compile("\n".join(blocks), "python.md", "exec"), {"__name__": "page"})
    assert strict_json(Path("run.json").read_bytes())["playbook"] == {"name": "nightly", "sha256": None}
