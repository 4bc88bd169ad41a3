"""A fleet audited again and again: what is told of it is one story, wherever it is read, and each thing in it once."""

from __future__ import annotations

import io
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from jsonschema import Draft202012Validator

from remoterun.audit.document import audit_schema
from remoterun.history import History, HistoryError
from tests.support.lab import Guest, Lab, guest, wait_for
from tests.support.project import Result, strict_json, write_project
from tests.support.receiver import Receiver, receiving
from tests.support.reports import failures, metric, page_data
from tests.support.started import Started

HOSTS = ("audit1", "audit2", "audit3", "audit4", "audit5")
GUESTS = (200, 201, 202, 203)
ROOT = "/workspace/checkpoints"
# A frozen guest hangs for as long as a test wants it to, and twenty guests at once may be slow.
LIMITS = {"connect": "2m", "enter": "5m", "upload": "5m", "idle": "5m"}


def checkpoint(step: int, value: float = 1.0) -> bytes:
    """Make a small checkpoint as torch saves it."""
    data = io.BytesIO()
    torch.save({"model": {"w": torch.full((4, 4), value)}, "global_step": step}, data)
    return data.getvalue()


def save(target: Guest, step: int, value: float = 1.0) -> Path:
    """Save a checkpoint inside a guest, long ago."""
    path = target.write(f"{ROOT}/step_{step}.pt", checkpoint(step, value))
    os.utime(path, (time.time() - 3600,) * 2)
    return path


class Fleet:
    """Guests of some hosts, audited as cron does it."""

    def __init__(self, lab: Lab, folder: Path, receiver: Receiver, names: Sequence[str]) -> None:
        self.hosts = lab.hosts_at_once({name: [guest(number) for number in GUESTS] for name in names})
        self.project = write_project(folder / "fleet", self.hosts)
        self.receiver = receiver
        self.out = folder / "out"
        self.folder = self.project.folder
        (self.folder / "chat.url").write_text(receiver.url)
        (self.folder / "playbooks").mkdir()
        (self.folder / "playbooks" / "checkpoints.yaml").write_text(
            yaml.safe_dump({"limits": LIMITS, "steps": [{"payload": "check-ckpt", "params": {"root": ROOT}}]})
        )
        reports = {kind: str(self.out / f"audit.{kind}") for kind in ("json", "html", "metrics", "junit")}
        self.says = {"playbooks": ["checkpoints"], "reports": reports, "alerts": {"to": {"chat": {"file": "chat.url"}}}}
        (self.folder / "audit.yaml").write_text(yaml.safe_dump(self.says))
        self.environment = {
            "PATH": "/usr/bin:/bin",
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CACHE_HOME": str(folder / "cache"),
        }

    def start(self) -> Started:
        return Started(self.project.argv("audit"), env=self.environment, cwd="/")

    def audit(self) -> Result:
        with self.start() as process:
            return process.result(240)

    def outcomes(self) -> int:
        """Count the outcomes that the newest run has by now."""
        with suppress(HistoryError), History.open(Path(self.environment["XDG_STATE_HOME"]) / "remoterun") as history:
            return sum(sum(run.counts.values()) for run in history.runs(1))
        return 0


@contextmanager
def fleet_of(lab: Lab, folder: Path, names: Sequence[str]) -> Iterator[Fleet]:
    """Make a fleet with one good checkpoint everywhere, and somebody who is told of it."""
    with receiving() as receiver:
        made = Fleet(lab, folder, receiver, names)
        for host in made.hosts:
            for target in host.guests.values():
                save(target, 1)
        yield made


@pytest.fixture
def fleet(lab: Lab, tmp_path: Path) -> Iterator[Fleet]:
    """Return a fleet of twenty guests."""
    with fleet_of(lab, tmp_path, HOSTS) as made:
        yield made


@pytest.fixture
def host(lab: Lab, tmp_path: Path) -> Iterator[Fleet]:
    """Return a fleet of four."""
    with fleet_of(lab, tmp_path, HOSTS[:1]) as made:
        yield made


def text(result: Result) -> str:
    return " ".join(result.stdout.decode().split())


def the_document(fleet: Fleet) -> dict[str, Any]:
    document = strict_json((fleet.out / "audit.json").read_bytes())
    Draft202012Validator(audit_schema()).validate(document)
    assert isinstance(document, dict)
    return document


class Story:
    """What the report files of the last audit tell of findings."""

    def __init__(self, fleet: Fleet) -> None:
        document = the_document(fleet)
        (difference,) = document["differences"]
        told = [change for change in difference["changes"] if not change["routine"]]
        self.new = [change for change in told if change["kind"] == "finding_new"]
        self.gone = [change for change in told if change["kind"] == "finding_gone"]
        self.began = document["runs"][0]["started_at"]
        self.counts = document["runs"][0]["counts"]
        metrics = fleet.out / "audit.metrics"
        self.measured = metric(metrics, "remoterun_findings", rule="CK001", severity="bad")
        self.up = metric(metrics, "remoterun_target_up")
        self.failed = failures(fleet.out / "audit.junit")
        index, *earlier, run = page_data(fleet.out / "audit.html")
        assert index["differences"] == document["differences"]
        self.earlier = len(earlier)
        self.on_page = [
            (outcome["target"], finding["rule"], finding["subject"])
            for outcome in run["outcomes"]
            for finding in outcome["findings"]
            if finding["severity"] == "bad"
        ]


@pytest.mark.lab
def test_three_audits_tell_one_story(fleet: Fleet) -> None:
    """All is well; a NaN appears; that checkpoint is removed."""
    clean = fleet.audit()
    assert clean == Result(status=0, stdout=b"", stderr=""), clean.stdout.decode()
    story = Story(fleet)
    assert (story.counts["ok"], story.up, story.measured) == (20, 20, 0)
    assert (story.new, story.gone, story.failed, story.on_page) == ([], [], {}, [])
    assert fleet.receiver.messages == []

    hurt = save(fleet.hosts[2].guest(201), 2, float("nan"))
    found = fleet.audit()
    assert (found.status, found.stderr) == (1, "")
    story = Story(fleet)
    (new,) = story.new
    subject, began = new["subject"], story.began
    assert hurt.stem in subject
    assert (new["target"], new["rule"], new["severity"]) == ("audit3/201", "CK001", "bad")
    assert "checkpoints on 20 targets: findings: 1 new finding, 1 new checkpoint." in text(found)
    assert f"New: audit3/201: {subject}: CK001 bad: " in text(found)
    assert text(found).count(subject) == 1
    assert fleet.receiver.bodies == [f"new: audit3/201: {subject}: CK001 bad: {new['message']}"]
    assert fleet.receiver.messages[0]["title"] == "remoterun fleet: 1 new"
    assert (story.gone, story.measured, story.up) == ([], 1, 20)
    assert list(story.failed) == ["audit3/201"]
    assert story.on_page == [("audit3/201", "CK001", subject)]

    hurt.unlink()
    cleared = fleet.audit()
    assert (cleared.status, cleared.stderr) == (0, "")
    story = Story(fleet)
    (gone,) = story.gone
    assert (gone["target"], gone["rule"], gone["vanished"]) == ("audit3/201", "CK001", True)
    assert gone["since"]["started_at"] == began
    assert "checkpoints on 20 targets: ok: 1 cleared finding, 1 vanished checkpoint." in text(cleared)
    assert f"Cleared: audit3/201: {subject}: CK001 bad, there since" in text(cleared)
    assert text(cleared).count(subject) == 1
    assert fleet.receiver.bodies[1:] == [f"cleared: audit3/201: {subject}: CK001 bad, since {began}"]
    assert (story.new, story.measured, story.failed, story.on_page, story.earlier) == ([], 0, {}, [], 2)
    assert len(fleet.receiver.messages) == 2


@pytest.mark.lab
def test_one_at_a_time_and_a_killed_one_is_told_of(host: Fleet) -> None:
    hanging = host.hosts[0].guest(203)
    hanging.freeze()
    try:
        first = host.start()
        wait_for(lambda: host.outcomes() == 3, "all but one target to be done", limit_s=240)
        second = host.audit()
        assert first.process.poll() is None
        assert (second.status, second.stdout) == (75, b"")
        assert f"is going on: process {first.pid} on {os.uname().nodename}, since 20" in second.stderr
        first.end(signal.SIGKILL)
    finally:
        hanging.thaw()
    after = host.audit()
    assert (after.status, after.stderr) == (0, "")
    assert f"The former audit (process {first.pid} on {os.uname().nodename}, since 20" in text(after)
    assert "when 3 of 4 outcomes were there." in text(after)
    assert len(host.receiver.bodies) == 1
    assert host.receiver.bodies[0].startswith("the audit itself failed: the former audit (process ")
    assert host.audit() == Result(status=0, stdout=b"", stderr="")
    assert len(host.receiver.bodies) == 1
