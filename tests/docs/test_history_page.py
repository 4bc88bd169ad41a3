"""The page of what was run shows what is printed: a difference and a history, made of the runs that it speaks of."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from remoterun.model import Outcome, Status
from tests.docs.generate import DOCS
from tests.docs.pages import blocks_of
from tests.support import runs
from tests.support.audits import audited, keep, nan, run, silent
from tests.support.project import remoterun

PAGE = DOCS / "history.md"
REFUSED = "kpro7: nothing listens on 10.1.2.7 port 22."


def _shown(beginning: str) -> str:
    (block,) = [block for block in blocks_of(PAGE) if block.text.startswith(beginning) and block.kind == "text"]
    return block.text


def _printed(*words: str) -> str:
    environment = {**os.environ, "COLUMNS": "120"}
    done = remoterun(*words, env=environment, cwd="/")
    assert done.status in (0, 1), done.stderr
    return done.stdout.decode()


def _masked(text: str) -> str:
    """Leave out when it was, and what `RUN` has of it."""
    text = re.sub(r"\d{8}T\d{6}Z-[0-9a-f]{8}", "RUN", text)
    return re.sub(r"\d{4}-\d\d-\d\d", "DAY", text).rstrip()


def _machine(target: str, *steps: int, kernel: str = "6.8.12-1-pve", boot: str = "1", **more: object) -> Outcome:
    facts = {"hostname": target.replace("/", "-"), "python": "3.11.7", "kernel": kernel, "boot_id": boot}
    return audited(target, steps, facts=facts, **more)


@pytest.fixture
def history(own_home: Path) -> Path:
    """Return the folder of this user's history."""
    return own_home / "state/remoterun"


def test_the_difference_is_what_is_printed(history: Path) -> None:
    guests = ("kpro6/200", "kpro6/201", "kpro6/202")
    before = [_machine(guest, 1000, 2000) for guest in guests]
    after = [_machine(guest, 1000, 2000, kernel="6.8.12-9-pve", boot="2") for guest in guests[1:]]
    damaged = audited("kpro6/200", (1000, 2000, 3000), nan(3000), facts={**after[0].facts, "hostname": "kpro6-200"})
    gone = replace(silent("kpro7/300"), error=runs.error("connect_refused", REFUSED))
    keep(history, run(0, *before, _machine("kpro7/300", 70)))
    keep(history, run(1, damaged, *after, gone))
    assert _masked(_printed("diff")) == _masked(_shown("check-ckpt\n"))


def test_the_history_is_what_is_printed(history: Path) -> None:
    for day in range(30):
        found = [nan(3000)] if day == 29 else []
        trainer = audited("kpro6/200", (3000,), *found, name="dflash-train")
        last = silent("kpro7/300") if day > 26 else audited("kpro7/300", (70,))
        keep(history, run(day, trainer, audited("kpro6/201", (500,), name="eval"), replace(last, name="aux")))
    printed = _printed("history")
    assert _masked(printed).startswith(_masked(_shown("check-ckpt  30 runs")))
    assert printed.count("\n\n") <= 1
    assert Status.UNREACHABLE in printed


def test_the_alerts_ask_for_metrics_that_are_there() -> None:
    named = set(re.findall(r"remoterun_\w+", _shown("time() - ")))
    assert named
    assert named <= set(re.findall(r"^\| `(remoterun_\w+)` \|", PAGE.read_text("utf-8"), re.MULTILINE))
