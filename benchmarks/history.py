"""What a long history costs: `python -m benchmarks.history` fills one and asks it.

1,000 runs x 50 targets x 5 checkpoints: `history` and `diff` as whole processes, and the size of the database.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measure import line, median, run_once
from remoterun.history import Journal
from tests.support import audits

if TYPE_CHECKING:
    from remoterun.model import Finding, Json, Outcome, Run


def main() -> None:
    """Fill a history as audits would, and ask it as people do."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--targets", type=int, default=50)
    parser.add_argument("--checkpoints", type=int, default=5)
    given, _ = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "remoterun"
        chance = random.Random(1)
        start = time.perf_counter()
        for number in range(given.runs):
            _keep(folder, _run(chance, number, given.runs, given.targets, given.checkpoints))
        filled_s = time.perf_counter() - start
        size = (folder / "history.sqlite3").stat().st_size
        print(f"history, {given.runs} runs x {given.targets} targets x {given.checkpoints} checkpoints, medians")
        print(f"written in {filled_s:.0f} s, {size / 1e6:.0f} MB")
        _ask(Path(name), size)


def _ask(state: Path, size: int) -> None:
    os.environ["XDG_STATE_HOME"] = str(state)
    # In a project's folder, only the runs of that project are asked about.
    os.chdir(state)
    program = str(Path(sys.executable).parent / "remoterun")
    result: dict[str, float] = {"mb": round(size / 1e6, 1)}
    for words in (["diff"], ["history"], ["history", "--target", "host0/200"], ["runs"]):
        # Something is different, so `diff` ends with 1.
        samples = [run_once([program, *words, "--output", "json"], statuses=(0, 1)) for _ in range(8)]
        print(line(f"remoterun {' '.join(words)}", median(samples[1:])))
        result["_".join(words[:2]).replace("--", "")] = round(median(samples[1:]).wall_s, 3)
    print(json.dumps(result))


def _run(chance: random.Random, number: int, runs: int, targets: int, checkpoints: int) -> Run:
    """Make a run in which one target in twenty is silent, and one in five has a damaged checkpoint."""
    outcomes = [
        _outcome(chance, f"host{index // 10}/{200 + index % 10}", number, checkpoints) for index in range(targets)
    ]
    run = audits.run(0, *outcomes)
    # Within the time that a history keeps: of the last thirty days, one run every so many minutes.
    began = audits.START.timestamp() + number * 29 * 86400 / runs
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(began))
    return replace(run, run_id=f"{number:08x}", started_at=stamp, finished_at=stamp)


def _outcome(chance: random.Random, target: str, number: int, checkpoints: int) -> Outcome:
    if chance.random() < 0.05:
        return audits.silent(target)
    steps = [1000 * (number // 4 + at) for at in range(checkpoints, 0, -1)]
    damaged: list[Finding] = []
    if _number(target) % 5 == 0:
        damaged = [audits.nan(steps[0], f"layers.{layer}.mlp.down_proj.weight") for layer in range(3)]
    outcome = audits.audited(target, steps, *damaged)
    more: dict[str, Json] = {
        "tensors": 291,
        "crc_checked": 293,
        "files": ["checkpoint.pt"],
        "mtime": "2026-11-01T02:00:00Z",
    }
    return replace(
        outcome,
        records=tuple(
            {
                **record,
                **more,
                "bytes": 66_000_000_000 + chance.randrange(10**9),
                "seconds": round(chance.random() * 40, 3),
            }
            if record.get("kind") == "checkpoint"
            else record
            for record in outcome.records
        ),
    )


def _number(text: str) -> int:
    return sum(text.encode())


def _keep(folder: Path, run: Run) -> None:
    journal = Journal(folder, sys.exit)
    for event in audits.events(run):
        journal(event)
    journal.close()


if __name__ == "__main__":
    main()
