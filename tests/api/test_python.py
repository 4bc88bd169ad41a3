"""remoterun as a library: awaited, iterated over, called from threads and inside loops, cancelled."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import remoterun
from remoterun.events import Event, OutcomeReady, RecordArrived, RunFinished, RunStarted
from tests.docs.generate import DOCS
from tests.docs.pages import ROOT
from tests.support.lab import wait_for
from tests.support.project import Project, strict_json
from tests.support.started import Started

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


def test_what_is_wrong_on_every_target_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text("hosts:\n  a: {transport: local}\n  b: {transport: local}\n", "utf-8")
    with pytest.raises(remoterun.ConfigError) as caught:
        remoterun.play("check-ckpt", params={"rooot": "/x"}, project=remoterun.Project.load(tmp_path))
    (problem,) = caught.value.problems
    assert problem.path == "params.rooot"


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
@pytest.mark.parametrize("how", ["play", "run_program", "run_script"])
def test_variables_of_the_environment_follow_the_rule_of_the_inventory(how: str) -> None:
    what: dict[str, object] = {"play": "hello", "run_program": ["true"], "run_script": b""}
    names = ["A-B", "1ST", "", "NAME=", "a b", "\u00e4"]
    env = {**dict.fromkeys(names, "x"), "ZERO": "a\0b", "LONG": "x" * 131_072, "_ok1": "\udce4"}
    secrets = {"S-1": remoterun.SecretSource(kind="env", words=("HOME",))}
    with pytest.raises(remoterun.ConfigError) as caught:
        getattr(remoterun, how)(what[how], on=["trainer"], env=env, secrets=secrets)
    told = {problem.path: problem.message for problem in caught.value.problems}
    assert {*told} == {*(f"env {name}" for name in (*names, "ZERO", "LONG")), "--secret S-1"}
    assert told["env A-B"] == (
        "'A-B' is not the name of an environment variable: use letters, digits and '_', no digit first"
    )
    assert "holds a NUL character" in told["env ZERO"]
    assert "the kernel's limit is 131071" in told["env LONG"]


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("options", "paths"),
    [
        (
            {"limits": {"nope": 1, "run": -1, "stall": float("nan"), "idle": True, "total": "soon", "enter": 1e15}},
            ["limits", "limits run", "limits stall", "limits idle", "limits total", "limits enter"],
        ),
        ({"limits": {1: "20m"}}, ["limits"]),
        ({"targets_at_once": 0}, ["targets_at_once"]),
        ({"on": []}, ["on"]),
        ({"only": iter(())}, ["only"]),
        ({"withuot": ["third"], "root": "/data"}, ["withuot", "root"]),
        ({"on": ["trainer", 200], "without": [201]}, ["on", "without"]),
        ({"env": {"OMP_NUM_THREADS": 4}}, ["env OMP_NUM_THREADS"]),
        ({"rules": {"ignore": ["CK001"]}, "overrides": {"venv": "/v"}}, ["rules", "overrides"]),
        ({"secrets": {"TOKEN": "env MY_TOKEN"}}, ["secrets TOKEN"]),
    ],
)
def test_options_that_can_not_be_are_told_and_start_nothing(options: Any, paths: list[str]) -> None:
    with pytest.raises(remoterun.ConfigError) as caught:
        remoterun.play("hello", **{"on": ["trainer"], **options})
    assert [problem.path for problem in caught.value.problems] == paths


@pytest.mark.usefixtures("project")
def test_a_text_is_one_pattern_and_no_list_of_words() -> None:
    run = remoterun.play("hello", on="trainer", without="third")
    assert [outcome.target for outcome in run.outcomes] == ["trainer"]
    run = remoterun.play("hello", on=(name for name in ["trainer"]), without=())  # type: ignore[arg-type]
    assert [outcome.target for outcome in run.outcomes] == ["trainer"]
    for argv in ("whoami", b"whoami"):
        with pytest.raises(remoterun.ConfigError, match=r"argv: b?'whoami' is one text: give a list of words"):
            remoterun.run_program(argv, on="trainer")  # type: ignore[arg-type]
    with pytest.raises(remoterun.ConfigError, match="args: '--deep' is one text"):
        remoterun.run_script(b"", "--deep", on="trainer")


@pytest.mark.usefixtures("project")
def test_a_program_may_be_named_in_bytes_and_has_to_be_named() -> None:
    run = remoterun.run_program([b"printf", "x"], on=["trainer"], limits={"run": 5, "stall": None})
    assert (run.playbook, run.outcomes[0].stdout.data) == ("printf", b"x")
    for nameless in ([], ["", "x"]):
        with pytest.raises(remoterun.ConfigError, match="there is no program to run"):
            remoterun.run_program(nameless, on=["trainer"])


@pytest.mark.usefixtures("project")
def test_bytes_of_any_encoding_may_be_the_value_of_a_variable() -> None:
    run = remoterun.run_program(["printenv", "_ok1"], on=["trainer"], env={"_ok1": "\udce4"})
    assert run.outcomes[0].stdout.data == b"\xe4\n"


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


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------

# It goes on when it is asked to end, and says that it was.
STUBBORN = """\
import signal, time

def run(ctx):
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    for n in range(10000):
        ctx.emit({"n": 1 + len(asked)})
        time.sleep(0.05)
"""
# Each way to wait for a run; a notebook leaves Ctrl-C to Python, asyncio.run makes a cancellation of the first one.
WAYS = {
    "alone": "play()",
    "asyncio.run": "asyncio.run(inside())",
    "notebook": "asyncio.new_event_loop().run_until_complete(inside())",
    "awaited": "asyncio.run(awaited())",
}
CALLER = """\
import asyncio, signal, sys, threading, time, remoterun
from remoterun.events import OutcomeReady, RecordArrived

def listen(event):
    if isinstance(event, RecordArrived):
        print("record", event.record["n"], flush=True)
    elif isinstance(event, OutcomeReady):
        print(event.outcome.status, event.outcome.survivors)

def play():
    remoterun.play(sys.argv[1], on=["trainer"], on_event=listen)

async def inside():
    play()

async def awaited():
    await remoterun.aplay(sys.argv[1], on=["trainer"], on_event=listen)

try:
    %s
except KeyboardInterrupt:
    print("interrupted")
"""
every_way = pytest.mark.parametrize("way", WAYS)


def interrupted(project: Project, program: str, payload: str, *after: bytes) -> list[bytes]:
    """Press Ctrl-C after each of these lines of a program, and return the lines that are no records."""
    with Started([sys.executable, "-c", program, payload], cwd=project.folder) as command:
        for line in after:
            command.says(b"^%s$" % line)
            command.send(signal.SIGINT)
        result = command.result()
    assert (result.status, result.stderr) == (0, ""), result
    return [line for line in result.stdout.splitlines() if not line.startswith(b"record")]


@every_way
def test_one_ctrl_c_ends_a_run_in_an_orderly_way(project: Project, way: str) -> None:
    said = interrupted(project, CALLER % WAYS[way], "slow", b"record 1")
    assert said == [b"cancelled 0", b"interrupted"]


def test_a_task_that_is_to_end_starts_nothing(project: Project) -> None:
    """Ctrl-C may come while the run is planned: a task that has not waited for anything since knows nothing of it."""
    early = "async def inside():\n    print('early', flush=True)\n    sys.stdin.read()\n    play()\n"
    program = CALLER.replace("async def inside():\n    play()\n", early) % WAYS["asyncio.run"]
    argv = [sys.executable, "-c", program, "slow"]
    with Started(argv, cwd=project.folder, stdin=subprocess.PIPE) as command:
        command.says(b"^early$")
        command.send(signal.SIGINT)
        pending = Path(f"/proc/{command.pid}/status")
        wait_for(lambda: "\nShdPnd:\t0000000000000000\n" in pending.read_text("ascii"), "the signal to be taken")
        assert command.process.stdin
        command.process.stdin.close()
        result = command.result()
    assert (result.stdout, result.stderr) == (b"early\ninterrupted\n", "")


def test_ctrl_c_while_the_loop_is_being_made_starts_nothing(project: Project) -> None:
    policy = """\
class Policy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self):
        signal.raise_signal(signal.SIGINT)
        return super().new_event_loop()

asyncio.set_event_loop_policy(Policy())
"""
    program = CALLER.replace("def play():", f"{policy}\ndef play():") % "play()"
    assert interrupted(project, program, "slow") == [b"interrupted"]


# In a loop of the caller's own, asyncio raises the second one wherever that loop just is, and may print what it broke.
@pytest.mark.parametrize("way", [way for way in WAYS if way != "awaited"])
def test_a_second_ctrl_c_leaves_at_once_and_without_a_word(project: Project, way: str) -> None:
    project.payload("stubborn", STUBBORN)
    said = interrupted(project, CALLER % WAYS[way], "stubborn", b"record 1", b"record 2")
    assert said == [b"cancelled None", b"interrupted"]


@every_way
def test_ctrl_c_gets_out_of_a_callback_that_hangs(project: Project, way: str) -> None:
    hangs = """\
def listen(event):
    if isinstance(event, RecordArrived):
        for _ in range(3):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            time.sleep(0.5)  # signals that come at once count as one
        time.sleep(60)
"""
    program = CALLER.replace("def play():", f"{hangs}\ndef play():") % WAYS[way]
    assert interrupted(project, program, "slow") == [b"interrupted"]


def test_a_handler_of_the_caller_s_own_is_left_alone(project: Project) -> None:
    # Not by print, in which it may come.
    own = "import os\nsignal.signal(signal.SIGINT, lambda *_: os.write(1, b'pressed\\n'))\n"
    program = CALLER.replace("\ndef listen", f"\n{own}\ndef listen", 1) % "play()"
    go = project.folder / "go"
    waits = f"import os, time\ndef run(ctx):\n    ctx.emit({{'n': 1}})\n    while not os.path.exists({str(go)!r}):"
    project.payload("waits", f"{waits} time.sleep(0.01)\n")
    with Started([sys.executable, "-c", program, "waits"], cwd=project.folder) as command:
        command.says(b"^record 1$")
        command.send(signal.SIGINT)
        command.says(b"^pressed$")
        go.touch()
        result = command.result()
    assert (result.status, result.stdout, result.stderr) == (0, b"record 1\npressed\nok 0\n", "")


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
def test_the_examples_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    # With them come records of every kind: checkpoints, series and a summary.
    checkpoints = Path("checkpoints")
    shutil.copytree(ROOT / "remoterun/lab/data/201", checkpoints / "checkpoints")
    page = (DOCS / "python.md").read_text("utf-8").replace("/workspace", str(checkpoints.absolute()))
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 7
    exec(compile("\n".join(blocks), "python.md", "exec"), {"__name__": "page"})
    said = capsys.readouterr().out
    assert f"trainer {checkpoints.absolute()}/checkpoints/step_1000/checkpoint.pt ok\n" in said
    assert strict_json(Path("run.json").read_bytes())["playbook"] == {"name": "nightly", "sha256": None}
