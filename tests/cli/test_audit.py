"""`remoterun audit` as cron starts it: quiet, alone, told once, and honest about what it could not do."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from remoterun.audit.document import audit_schema
from remoterun.history import History, HistoryError
from tests.support.homes import Remembered
from tests.support.lab import wait_for
from tests.support.programs import lacking
from tests.support.project import REMOTERUN, Project, Result, remoterun, strict_json
from tests.support.receiver import Receiver, receiving
from tests.support.reports import failures, metric, page_data
from tests.support.started import Started

INVENTORY = f"""\
defaults: {{python: {sys.executable}}}
hosts:
  one: {{transport: local, vars: {{folder: FOLDER/one}}}}
  two: {{transport: local, vars: {{folder: FOLDER/two}}}}
"""
# Finds what lies in a folder, and waits where the folder says so.
LOOK = """\
import os, time

def run(ctx):
    folder = ctx.params["folder"]
    while os.path.exists(os.path.join(folder, "wait")):
        open(os.path.join(folder, "waiting"), "w").close()
        time.sleep(0.01)
    if not os.path.isdir(folder):
        ctx.nothing("there is no " + folder)
    for name in sorted(os.listdir(folder)):
        if name.startswith("step_"):
            with open(os.path.join(folder, name)) as file:
                said = file.read()
            ctx.emit({"kind": "checkpoint", "name": name, "path": os.path.join(folder, name), "verdict": "ok"})
            if said:
                ctx.finding("LK001", "bad", name, said)
"""
# Tells a number that a file holds.
MEASURE = """\
def run(ctx):
    with open(ctx.params["file"]) as file:
        ctx.emit({"kind": "loss", "name": "train", "value": float(file.read())})
"""
AUDIT = "playbooks: [look]\n"
ALERTS = "alerts: {to: {chat: {file: chat.url}}}\n"


class Fleet:
    """A project of two targets on this machine, audited in the bare environment that cron and systemd give."""

    def __init__(self, folder: Path, started: ExitStack) -> None:
        self.project = Project(folder=folder / "fleet")
        self.folder = self.project.folder
        self.folder.mkdir()
        (self.folder / "inventory.yaml").write_text(INVENTORY.replace("FOLDER", str(self.folder)))
        for name in ("one", "two"):
            (self.folder / name).mkdir()
            self.save(name, "step_1")
        params = {"folder": {"type": "path", "var": "folder", "help": "Where to look."}}
        self.project.payload("look", LOOK, params=params)
        self.state = folder / "state"
        # Without HOME: a service of the system has none.
        self.environment = {
            "PATH": "/usr/bin:/bin",
            "XDG_STATE_HOME": str(self.state),
            "XDG_CACHE_HOME": str(folder / "cache"),
        }
        self.prefix: list[str] = []
        self.started = started
        self.says(AUDIT)

    def says(self, text: str) -> None:
        (self.folder / "audit.yaml").write_text(text)

    def save(self, target: str, name: str, said: str = "") -> None:
        (self.folder / target / name).write_text(said)

    def argv(self, *words: str) -> list[str]:
        return self.project.argv("audit", *words)

    def start(self, *words: str) -> Started:
        argv = [*self.prefix, *self.argv(*words)]
        return self.started.enter_context(Started(argv, env=self.environment, cwd="/"))

    def audit(self, *words: str) -> Result:
        if self.prefix:
            return self.start(*words).result(120)
        return self._run(*self.argv(*words)[len(REMOTERUN) :])

    def moves(self, place: str) -> Path:
        """Move the project's folder to another place, and return where it was."""
        before = self.folder
        self.folder = before.parent / place
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        before.rename(self.folder)
        self.project = Project(folder=self.folder)
        return before

    def history(self, *words: str) -> Result:
        return self._run("history", *words, "--project", str(self.folder))

    def looks(self, *words: str) -> tuple[int, str]:
        """Look back at runs; return the exit status, and what is said beside the result."""
        result = self._run(*words)
        return result.status, result.stderr

    def _run(self, *words: str) -> Result:
        return remoterun(*words, env=self.environment, cwd="/", timeout=120)

    def hide(self, module: str) -> None:
        """Let a module be missing."""
        hidden = self.folder.parent / "hidden"
        hidden.mkdir()
        (hidden / "sitecustomize.py").write_text(f"import sys\nsys.modules[{module!r}] = None\n")
        self.environment["PYTHONPATH"] = str(hidden)

    def age(self, days: int) -> None:
        """Let all runs that are kept be so old."""
        moment = (datetime.now(UTC) - timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        with closing(sqlite3.connect(self.state / "remoterun" / "history.sqlite3")) as database, database:
            database.execute("UPDATE runs SET started_at = ?", (moment,))

    def runs(self) -> int:
        """Count the runs that are kept."""
        with History.open(self.state / "remoterun") as history:
            return len(history.runs())

    def outcomes(self) -> int:
        """Count the outcomes that the newest run has by now."""
        with suppress(HistoryError), History.open(self.state / "remoterun") as history:
            return sum(sum(run.counts.values()) for run in history.runs(1))
        return 0

    def start_waiting(self, *words: str) -> Started:
        """Start an audit, and return when one of its targets is done and the other waits."""
        (self.folder / "two" / "wait").touch()
        process = self.start(*words)
        wait_for((self.folder / "two" / "waiting").exists, "the payload to wait", limit_s=60)
        wait_for(lambda: self.outcomes() == 1, "the other target to be done", limit_s=60)
        return process

    def is_at_work(self, process: Started) -> bool:
        """Tell whether an audit has begun a run, and said so."""
        locks = [lock.read_text() for lock in self.state.glob("remoterun/audits/*/lock")]
        return any(f'{{"pid": {process.pid},' in words and "-" in words.partition("runs")[2] for words in locks)

    def go_on(self) -> None:
        (self.folder / "two" / "wait").unlink()
        (self.folder / "two" / "waiting").unlink()


def text(result: Result) -> str:
    return " ".join(result.stdout.decode().split())


@pytest.fixture
def fleet(tmp_path: Path, remembered: Remembered) -> Iterator[Fleet]:
    remembered.give(tmp_path / "state", tmp_path / "cache")
    with ExitStack() as started:
        yield Fleet(tmp_path, started)


@pytest.fixture
def chat(fleet: Fleet) -> Iterator[Receiver]:
    with receiving() as receiver:
        (fleet.folder / "chat.url").write_text(f"{receiver.url}\n")
        yield receiver


# --- quiet, and told once ---------------------------------------------------------------------------------------------


def test_a_finding_comes_and_goes(fleet: Fleet, chat: Receiver) -> None:
    fleet.says(AUDIT + ALERTS + "reports: {json: out/audit.json}\n")
    assert fleet.audit() == Result(status=0, stdout=b"", stderr="")

    fleet.save("two", "step_2", "3 NaN in w")
    new = fleet.audit()
    assert (new.status, new.stderr) == (1, "")
    assert "look on 2 targets: findings: 1 new finding, 1 new checkpoint." in text(new)
    assert "New: two: step_2: LK001 bad: 3 NaN in w." in text(new)

    assert fleet.audit() == Result(status=1, stdout=b"", stderr="")

    (fleet.folder / "two" / "step_2").unlink()
    cleared = fleet.audit()
    assert (cleared.status, cleared.stderr) == (0, "")
    assert "Cleared: two: step_2: LK001 bad, there since 20" in text(cleared)

    assert fleet.audit() == Result(status=0, stdout=b"", stderr="")
    first, second = chat.bodies
    assert first == "new: two: step_2: LK001 bad: 3 NaN in w"
    assert second.startswith("cleared: two: step_2: LK001 bad, since 20")
    assert [message["title"] for message in chat.messages] == ["remoterun fleet: 1 new", "remoterun fleet: 1 cleared"]
    document = strict_json((fleet.folder / "out" / "audit.json").read_bytes())
    Draft202012Validator(audit_schema()).validate(document)
    assert (document["status"], document["changed"], document["noteworthy"]) == ("ok", False, False)


def test_what_the_exit_status_tells_of(fleet: Fleet) -> None:
    fleet.save("two", "step_2", "3 NaN in w")
    assert fleet.audit("--exit-on", "changed").status == 1
    assert fleet.audit("--exit-on", "changed").status == 0
    assert fleet.audit("--exit-on", "findings").status == 1
    fleet.says(f"{AUDIT}exit_on: changed\n")
    assert fleet.audit().status == 0
    assert fleet.audit("--exit-on", "always").status == 1
    (fleet.folder / "two" / "step_2").unlink()
    assert fleet.audit().status == 1


def test_a_target_without_a_result_is_said_each_time_and_told_once(fleet: Fleet, chat: Receiver) -> None:
    fleet.says(AUDIT + ALERTS)
    (fleet.folder / "one").rename(fleet.folder / "elsewhere")
    results = [fleet.audit() for _ in range(3)]
    assert [result.status for result in results] == [3, 3, 3]
    assert "Failed: one:" in text(results[0])
    assert "Still no result: one (3 times in a row, since 20" in text(results[2])
    (fleet.folder / "elsewhere").rename(fleet.folder / "one")
    assert "Results again: one after 3 times without" in text(fleet.audit())
    first, second = chat.bodies
    assert first.startswith("no result: one: 2 times in a row, since 20")
    assert second == "back: one gives results again, after 3 times without"


def test_one_document(fleet: Fleet) -> None:
    fleet.save("two", "step_2", "3 NaN in w")
    document = fleet.audit("--output", "json").document
    Draft202012Validator(audit_schema()).validate(document)
    assert (document["status"], document["exit_code"], document["changed"]) == ("findings", 1, True)
    assert document["differences"][0]["changes"][0]["subject"] == "step_2"
    assert [item["target"] for item in document["runs"][0]["outcomes"]] == ["one", "two"]
    assert document["alerts"] == {"events": [], "told": [], "held": [], "not_told": []}


def test_every_report_tells_the_same(fleet: Fleet) -> None:
    fleet.says(AUDIT + "reports: {json: out/a.json, html: out/a.html, metrics: out/a.prom, junit: out/a.xml}\n")
    fleet.save("two", "step_2", "3 NaN in w")
    (fleet.folder / "one").rename(fleet.folder / "elsewhere")
    assert fleet.audit().status == 3
    out = fleet.folder / "out"
    assert sorted(path.name for path in out.iterdir()) == ["a.html", "a.json", "a.prom", "a.xml"]
    document = strict_json((out / "a.json").read_bytes())
    assert document["summary"].startswith(f"remoterun audit of {fleet.folder}")
    assert document["runs"][0]["counts"] == {**document["runs"][0]["counts"], "findings": 1, "failed": 1}
    index, *earlier, run = page_data(out / "a.html")
    assert (index["differences"], run["run_id"]) == (document["differences"], document["runs"][0]["run_id"])
    assert earlier == []
    assert metric(out / "a.prom", "remoterun_findings", rule="LK001", severity="bad") == 1
    assert metric(out / "a.prom", "remoterun_target_up") == 1
    assert set(failures(out / "a.xml")) == {"two"}
    # The page shows the runs before as well.
    assert fleet.audit().status == 3
    assert page_data(out / "a.html")[1]["run_id"] == run["run_id"]


def test_several_playbooks_are_one_audit(fleet: Fleet) -> None:
    (fleet.folder / "playbooks").mkdir()
    (fleet.folder / "playbooks" / "only-one.yaml").write_text("targets: one\nsteps: [{payload: look}]\n")
    fleet.says("playbooks: [look, only-one]\n")
    assert fleet.audit().stdout == b""
    fleet.save("one", "step_2", "3 NaN in w")
    both = text(fleet.audit())
    assert "look on 2 targets: findings: 1 new finding" in both
    assert "only-one on 1 target: findings: 1 new finding" in both
    assert fleet.audit("only-one").stdout == b""
    (fleet.folder / "one" / "step_2").unlink()
    assert "only-one on 1 target: ok: 1 cleared finding" in text(fleet.audit("only-one"))
    assert "look on 2 targets: ok: 1 cleared finding" in text(fleet.audit("look"))


def test_a_run_by_hand_changes_nothing(fleet: Fleet, chat: Receiver) -> None:
    fleet.says(AUDIT + ALERTS)
    fleet.audit()
    fleet.save("two", "step_2", "3 NaN in w")
    by_hand = ("play", "look", "--on", "two", "--project", str(fleet.folder))
    assert remoterun(*by_hand, env=fleet.environment).status == 1
    assert "1 new finding" in text(fleet.audit())
    assert chat.bodies == ["new: two: step_2: LK001 bad: 3 NaN in w"]


def test_how_far_numbers_may_move_is_the_same_everywhere(fleet: Fleet) -> None:
    fleet.project.payload(
        "measure", MEASURE, params={"file": {"type": "path", "default": "/", "help": "What to read."}}
    )
    (fleet.folder / "playbooks").mkdir()
    (fleet.folder / "playbooks" / "measure.yaml").write_text(
        f"targets: [one]\nsteps: [{{payload: measure, params: {{file: {fleet.folder}/loss}}}}]\n"
    )
    fleet.says("playbooks: [measure]\ntolerance: [50%, 'loss *.value=60%']\nreports: {json: audit.json}\n")
    for value in (100, 230):
        (fleet.folder / "loss").write_text(str(value))
        assert fleet.audit() == Result(status=0, stdout=b"", stderr="")
    assert fleet.looks("diff") == (0, "")
    fleet.says("playbooks: [measure]\n")
    assert fleet.looks("diff") == (1, "")
    fleet.says("playbooks: [measure]\ntolerance: much\n")
    assert fleet.looks("diff", "--tolerance", "60%") == (0, "")
    status, said = fleet.looks("diff")
    assert (status, "the tolerances of audit.yaml do not count" in said) == (1, True)
    fleet.says("playbooks: [measure]\n")
    (fleet.folder / "loss").write_text("500")
    assert "1 moved number. Moved: one: value of loss train is 500, was 230. More" in text(fleet.audit())


def test_old_runs_are_forgotten_and_nothing_is_told_again(fleet: Fleet, chat: Receiver) -> None:
    fleet.says(AUDIT + ALERTS + "keep: 1d\n")
    fleet.save("two", "step_2", "3 NaN in w")
    fleet.audit()
    for days in (2, 100):
        fleet.age(days)
        fleet.audit()
        # The one that was aged served to compare with, or was gone before.
        assert fleet.runs() == 1
    assert fleet.audit() == Result(status=1, stdout=b"", stderr="")
    assert chat.bodies == ["new: two: step_2: LK001 bad: 3 NaN in w"]


def test_a_project_that_has_moved_goes_on_with_what_people_know(fleet: Fleet, chat: Receiver) -> None:
    data = fleet.folder.parent / "data"
    (fleet.folder / "inventory.yaml").write_text(INVENTORY.replace("FOLDER", str(data)))
    for name in ("one", "two"):
        shutil.copytree(fleet.folder / name, data / name)
    (data / "two" / "step_2").write_text("3 NaN in w")
    fleet.says(AUDIT + ALERTS)
    fleet.audit()

    old = fleet.moves("elsewhere")
    unknown = fleet.audit()
    said = (
        f"{old} is gone, but has a history: if it was {fleet.folder}, go on with that by `remoterun history move {old}"
    )
    assert said in text(unknown)
    told = "new: two: step_2: LK001 bad: 3 NaN in w"
    assert chat.bodies == [told, told]

    assert fleet.history("move", str(old)).stdout.decode() == f"1 run is of {fleet.folder} now, which {old} had\n"
    assert fleet.audit() == Result(status=1, stdout=b"", stderr="")
    old = fleet.moves("yet/another/place")
    assert f"go on with that by `remoterun history move {old} --project {fleet.folder}`" in fleet.history().stderr
    assert fleet.history("move", str(old)).stdout.decode() == f"3 runs are of {fleet.folder} now, which {old} had\n"
    assert fleet.history("move", str(old)).status == 2
    assert fleet.audit() == Result(status=1, stdout=b"", stderr="")
    (data / "two" / "step_2").unlink()
    fleet.audit()
    assert len(chat.bodies) == 3
    assert chat.bodies[2].startswith("cleared: two")


# --- alone ------------------------------------------------------------------------------------------------------------


def test_a_second_one_says_who_is_at_work(fleet: Fleet) -> None:
    first = fleet.start_waiting()
    for words in ((), ("--splay", "10m")):
        start = time.monotonic()
        second = fleet.audit(*words)
        assert time.monotonic() - start < 60
        assert (second.status, second.stdout) == (75, b"")
        assert f"an audit of {fleet.folder} is going on: process {first.pid} on {os.uname().nodename}" in second.stderr
    document = fleet.audit("--output", "json").document
    Draft202012Validator(audit_schema()).validate(document)
    assert (document["status"], document["exit_code"], document["holder"]["pid"]) == ("busy", 75, first.pid)
    fleet.go_on()
    assert first.result() == Result(status=0, stdout=b"", stderr="")


def test_it_waits_before_it_begins(fleet: Fleet) -> None:
    document = fleet.audit("--splay", "1ms", "--output", "json").document
    assert document["status"] == "ok"
    waiting = fleet.start("--splay", "9d", "--verbose")
    waiting.says(rb"^remoterun: begins in ", on="stderr")
    (lock,) = fleet.state.glob("remoterun/audits/*/lock")
    # Who only waits keeps nobody out.
    assert fleet.audit().status == 0
    assert lock.read_bytes() == b""
    result = waiting.end(signal.SIGTERM)
    assert (result.status, result.stdout) == (143, b"")


def test_a_verbose_one_says_what_it_does_in_order(fleet: Fleet, chat: Receiver) -> None:
    fleet.says(AUDIT + ALERTS + "reports: {html: fleet.html, junit: two/step_1/fleet.xml}\n")
    fleet.audit()
    fleet.save("two", "step_2", "3 NaN in w")
    found = fleet.audit("--verbose")
    assert found.status == 3  # a report could not be written
    steps = [line.split("  ", 1) for line in found.stderr.splitlines() if re.match(r"\d\d:\d\d:\d\d  ", line)]
    assert [at for at, _ in steps] == sorted(at for at, _ in steps)
    order = (
        "to be played: look on 2 targets",
        "playing look: run 20",
        "  two  findings  2 checkpoints, 1 bad, ",
        "look ended: findings (1 ok, 1 with findings)",
        "look compared with run 20",
        "report html written: ",
        "the report junit was not written: ",
        "told chat",
        "done, with exit status 3",
    )
    told = [text for _, text in steps]
    places = [next((number for number, text in enumerate(told) if text.startswith(what)), -1) for what in order]
    assert -1 not in places, (places, told)
    assert places == sorted(places)
    lines = found.stdout.decode().splitlines()
    assert lines[0].startswith("remoterun audit of")
    assert "New: two: step_2: LK001 bad: 3 NaN in w." in lines
    # Where nothing is new, it says so all the same; and what it could not do, once.
    (fleet.folder / "chat.url").unlink()
    fleet.save("one", "step_2", "3 NaN in w")
    assert fleet.audit("-v").stderr.count("chat was not told") == 1
    quiet = fleet.audit("-v")
    assert "look on 2 targets: findings: 2 persisting findings." in quiet.stdout.decode()


def test_what_it_names_for_more_tells_the_same(fleet: Fleet) -> None:
    """A run by hand in between is not what an audit compares with."""
    fleet.audit()
    fleet.save("two", "step_2", "3 NaN in w")
    assert fleet._run("play", "look", "--project", str(fleet.folder), "--quiet").status == 1
    found = text(fleet.audit())
    assert "1 new finding" in found
    words = found.rpartition("More: `remoterun ")[2].removesuffix("`.").split()
    assert (words[0], len(words)) == ("diff", 3)
    told = fleet._run(*words)
    assert (told.status, "1 new finding" in told.stdout.decode()) == (1, True)


def test_a_killed_one_is_told_of(fleet: Fleet, chat: Receiver) -> None:
    fleet.says(AUDIT + ALERTS)
    fleet.audit()
    fleet.save("one", "step_2", "3 NaN in w")
    first = fleet.start_waiting()
    first.end(signal.SIGKILL)
    fleet.go_on()
    after = fleet.audit()
    assert after.status == 1
    assert f"The former audit (process {first.pid} on {os.uname().nodename}, since 20" in text(after)
    assert "was cut during run 20" in text(after)
    assert "when 1 of 2 outcomes were there." in text(after)
    # What it had seen and not reported is not lost.
    assert "New: one: step_2: LK001 bad: 3 NaN in w." in text(after)
    failed, new = chat.bodies[0].splitlines()
    assert failed.startswith(f"the audit itself failed: the former audit (process {first.pid} on ")
    assert new == "new: one: step_2: LK001 bad: 3 NaN in w"
    assert fleet.audit() == Result(status=1, stdout=b"", stderr="")
    assert len(chat.bodies) == 1


def test_several_that_were_cut_in_a_row_are_told_of_once(fleet: Fleet, chat: Receiver) -> None:
    fleet.says(AUDIT + ALERTS)
    pids = []
    (fleet.folder / "two" / "wait").touch()
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        process = fleet.start()
        pids.append(process.pid)
        wait_for(partial(fleet.is_at_work, process), "a run to begin", limit_s=60)
        assert b"were cut" not in process.end(number).stdout
    (fleet.folder / "two" / "wait").unlink()
    (fleet.folder / "playbooks").mkdir()
    (fleet.folder / "playbooks" / "look.yaml").write_text("steps: [{payload: none-of-that-name}]\n")
    # One that can't even begin tells nobody but those who have alerts, if they want them.
    fleet.says(AUDIT)
    assert (fleet.audit().status, chat.bodies) == (2, [])
    (fleet.folder / "playbooks" / "look.yaml").unlink()
    fleet.says(AUDIT + ALERTS)
    document = fleet.audit("--output", "json").document
    assert [cut["pid"] for cut in document["cut"]] == pids
    assert "3 former audits were cut: during run 20" in document["summary"]
    (body,) = chat.bodies
    assert body.startswith("the audit itself failed: 3 former audits were cut: during run 20")
    assert fleet.audit() == Result(status=0, stdout=b"", stderr="")
    assert len(chat.bodies) == 1


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_one_that_is_ended_ends_what_it_started(fleet: Fleet, number: int, status: int) -> None:
    first = fleet.start_waiting()
    ended = first.end(number)
    assert ended.status == status
    assert "nothing was compared, and nobody was told" in text(ended)
    fleet.go_on()
    after = fleet.audit()
    assert after.status == 0
    assert f"The former audit (process {first.pid} on" in text(after)
    assert "had ended, before that was reported" in text(after)


# --- what it can't do -------------------------------------------------------------------------------------------------


def test_nobody_to_tell_changes_nothing(fleet: Fleet, chat: Receiver) -> None:
    fleet.says(AUDIT + ALERTS)
    chat.status = 500
    fleet.save("two", "step_2", "3 NaN in w")
    first = fleet.audit()
    assert first.status == 1
    assert "chat was not told" in first.stderr
    assert "Chat was not told" in text(first)
    assert "token-of-the-chat" not in first.stderr + text(first)
    second = fleet.audit("--output", "json")
    assert second.status == 1
    assert second.document["alerts"]["not_told"][0].startswith("chat was not told")
    assert (second.document["changed"], second.document["noteworthy"]) == (False, True)
    chat.status = 200
    assert fleet.audit() == Result(status=1, stdout=b"", stderr="")
    assert chat.bodies == ["new: two: step_2: LK001 bad: 3 NaN in w"]


def test_a_report_that_can_not_be_written(fleet: Fleet, chat: Receiver) -> None:
    fleet.says(AUDIT + ALERTS + "reports: {json: out/audit.json}\n")
    (fleet.folder / "out").touch()
    first, second = fleet.audit(), fleet.audit()
    for result in (first, second):
        assert result.status == 3
        assert "the report json was not written" in result.stderr
        assert "The report json was not written" in text(result)
    (fleet.folder / "out").unlink()
    assert fleet.audit().status == 0
    failed, works = chat.bodies
    assert failed.startswith("the audit itself failed: the report json was not written")
    assert works.startswith("the audit itself works again: it had failed since 20")


def test_a_project_that_is_wrong(fleet: Fleet, chat: Receiver) -> None:
    fleet.says("playbooks: [look, lok]\n" + ALERTS)
    for _ in range(2):
        result = fleet.audit()
        assert (result.status, result.stdout) == (2, b"")
        assert "'lok' is neither a playbook" in result.stderr
    fleet.says(AUDIT + ALERTS)
    assert fleet.audit().status == 0
    assert [body.partition(": ")[0] for body in chat.bodies] == [
        "the audit itself failed",
        "the audit itself works again",
    ]


def test_a_history_that_can_not_be_written(fleet: Fleet) -> None:
    fleet.audit()
    database = fleet.state / "remoterun" / "history.sqlite3"
    database.write_bytes(b"no database at all")
    result = fleet.audit()
    assert result.status == 3
    assert "can't be written, so it lacks this run" in result.stderr
    assert "Nothing could be compared" in text(result)


def test_a_run_that_can_not_be_compared_keeps_no_other_from_it(fleet: Fleet, chat: Receiver) -> None:
    params = {"folder": {"type": "path", "var": "folder", "help": "Where to look."}}
    for name in ("first", "third"):
        fleet.project.payload(name, LOOK, params=params)
    fleet.says("playbooks: [first, look, third]\n" + ALERTS)
    assert fleet.audit().status == 0
    # Of look, it remembers another playbook's run.
    (file,) = (fleet.state / "remoterun" / "audits").glob("*/state.json")
    kept = json.loads(file.read_text())
    kept["reported"]["look"]["run"] = kept["reported"]["first"]["run"]
    file.write_text(json.dumps(kept))
    fleet.save("one", "step_2", "3 NaN in w")
    result = fleet.audit()
    assert result.status == 3
    said = text(result)
    assert re.findall(r"[^.]* could not be compared", said) == [" Look could not be compared"]
    for name in ("first", "third"):
        assert f"{name} on 2 targets: findings: 1 new finding" in said
    assert "look on 2 targets: findings. More: " in said
    # People hear of the others, and of what went wrong.
    told = "\n".join(chat.bodies)
    assert ("NaN" in told, "the audit itself failed: look could not be compared" in told) == (True, True)


def test_what_it_kept_is_damaged(fleet: Fleet) -> None:
    fleet.save("two", "step_2", "3 NaN in w")
    fleet.audit()
    (file,) = (fleet.state / "remoterun" / "audits").glob("*/state.json")
    file.write_text('{"schema": "remoterun/audit-state/1"}')
    result = fleet.audit()
    assert result.status == 3
    assert "so everything counts as new" in text(result)
    assert fleet.audit() == Result(status=1, stdout=b"", stderr="")


@pytest.mark.parametrize(
    ("audit", "words", "said"),
    [
        (None, (), "audit.yaml: is not there, and no playbook was named"),
        ("playbooks: [look]\nalert: {}\n", (), "did you mean alerts?"),
        (AUDIT, ("--splay", "soon"), "--splay: 'soon' is not a duration"),
        (AUDIT, ("--splay", "999999d"), "--splay: 999999d is too long"),
        (AUDIT + ALERTS, (), "chat.url cannot be read"),
    ],
)
def test_problems_are_said(fleet: Fleet, audit: str | None, words: Sequence[str], said: str) -> None:
    if audit is None:
        (fleet.folder / "audit.yaml").unlink()
    else:
        fleet.says(audit)
        fleet.save("two", "step_2", "3 NaN in w")
    result = fleet.audit(*words)
    assert said in result.stderr
    assert result.status == (1 if audit == AUDIT + ALERTS else 2)


def test_a_bug_takes_no_alert_away(fleet: Fleet, chat: Receiver) -> None:
    fleet.says(AUDIT + ALERTS + "reports: {html: out/a.html}\n")
    fleet.save("two", "step_2", "3 NaN in w")
    # What nobody expects to be missing: the page is made with it.
    fleet.hide("jinja2")
    # The traceback is kept there.
    traces = fleet.folder.parent / "traces"
    traces.mkdir()
    fleet.environment["TMPDIR"] = str(traces)
    result = fleet.audit()
    assert (result.status, result.stdout) == (4, b"")
    (trace,) = traces.iterdir()
    assert result.stderr.endswith(f"the traceback is in {trace}\n")
    failed, new = chat.bodies[0].splitlines()
    assert failed.startswith("the audit itself failed: ")
    assert "jinja2" in failed
    assert new == "new: two: step_2: LK001 bad: 3 NaN in w"
    assert fleet.audit().status == 4
    assert len(chat.bodies) == 1


def test_without_apprise(fleet: Fleet) -> None:
    fleet.says(AUDIT + ALERTS)
    fleet.hide("apprise")
    result = fleet.audit()
    assert result.status == 2
    assert "pip install 'remoterun[alerts]'" in result.stderr


def test_an_account_that_nobody_knows(fleet: Fleet) -> None:
    """Services and containers run as numbers without a name, and so without a home."""
    strange = ["unshare", "--user", "--map-user=54321", "--map-group=54321"]
    if shutil.which("unshare") is None or subprocess.run([*strange, "true"], check=False).returncode:
        lacking("no user namespaces here")
    fleet.prefix = strange
    document = fleet.audit("--output", "json").document
    assert (document["status"], document["runs"][0]["counts"]["ok"]) == ("ok", 2)
    del fleet.environment["XDG_STATE_HOME"]
    homeless = fleet.audit()
    assert (homeless.status, homeless.stdout) == (2, b"")
    assert "cannot be used: Not a directory; let XDG_STATE_HOME name another folder" in homeless.stderr


# --- notify -----------------------------------------------------------------------------------------------------------


def _notify(fleet: Fleet, *words: str) -> Result:
    return remoterun("notify", "test", *words, "--project", str(fleet.folder), env=fleet.environment)


def test_a_test_message(fleet: Fleet, chat: Receiver) -> None:
    fleet.says(AUDIT + "alerts: {to: {chat: {file: chat.url}, pager: {env: NO_SUCH_URL}}}\n")
    both = _notify(fleet)
    assert both.status == 3
    assert both.stdout.decode().splitlines() == [
        "chat: was told",
        "pager: was not told: its URL the environment variable NO_SUCH_URL is not set",
    ]
    assert _notify(fleet, "chat") == Result(status=0, stdout=b"chat: was told\n", stderr="")
    assert len(chat.bodies) == 2
    assert "alerts.to has no mail: there are chat, pager" in _notify(fleet, "mail").stderr
    fleet.says(AUDIT)
    assert "nobody is to be told: add `to`, such as `to: {chat: {file: chat.url}}`" in _notify(fleet).stderr
