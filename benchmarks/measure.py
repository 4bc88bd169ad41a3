"""Measure whole processes turn by turn, so that a noisy machine disturbs all alike.

They may keep compiled code, as they do for everybody who has not forbidden it: otherwise each start compiles anew what
was edited since it was last allowed.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Hold what one process cost: seconds of wall time and CPU (its children included), peak resident MiB."""

    wall_s: float
    cpu_s: float
    rss_mib: float


def run_once(argv: Sequence[str], *, env: Mapping[str, str] | None = None, statuses: Sequence[int] = (0,)) -> Sample:
    """Run a program to its end.

    Raises:
        RuntimeError: when its exit status is not one of `statuses`.
    """
    variables = {name: value for name, value in (env or os.environ).items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=variables)
    assert process.stderr is not None
    trouble = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in statuses:
        raise RuntimeError(f"{argv[0]} ended with {process.returncode}: {trouble.decode(errors='replace')[-2000:]}")
    return Sample(wall_s=wall, cpu_s=usage.ru_utime + usage.ru_stime, rss_mib=usage.ru_maxrss / 1024)


def run_pairs(
    first: Sequence[str], second: Sequence[str], *, times: int, env: Mapping[str, str] | None = None
) -> tuple[list[Sample], list[Sample]]:
    """Run two programs turn by turn, each once beforehand to warm the caches."""
    samples = run_turns([first, second], times=times, env=env)
    return samples[0], samples[1]


def run_turns(
    programs: Sequence[Sequence[str]], *, times: int, env: Mapping[str, str] | None = None
) -> list[list[Sample]]:
    """Run any number of programs so, and return the samples of each."""
    turns = [[run_once(argv, env=env) for argv in programs] for _ in range(times + 1)]
    return [list(samples) for samples in zip(*turns[1:], strict=True)]


def median(samples: Sequence[Sample]) -> Sample:
    """Return the median of each figure."""
    return Sample(
        wall_s=statistics.median(item.wall_s for item in samples),
        cpu_s=statistics.median(item.cpu_s for item in samples),
        rss_mib=statistics.median(item.rss_mib for item in samples),
    )


def line(name: str, sample: Sample) -> str:
    """Write one sample as a line of text."""
    return f"  {name:<24} {sample.wall_s:7.3f} s wall  {sample.cpu_s:7.3f} s CPU  {sample.rss_mib:7.1f} MiB"
