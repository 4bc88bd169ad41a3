"""One audit of a damaged checkpoint: it ends with a verdict, in little time and memory."""

from __future__ import annotations

import random
import shutil
import signal
import types
from collections.abc import Mapping
from pathlib import Path

from tests.fuzz.mutations import mutated
from tests.fuzz.seeds import ALONE, READERS, seed
from tests.unit.payloads.check_ckpt.support import audit, write

VERDICTS = frozenset(("ok", "bad", "suspect", "unsupported", "in_progress"))
# A file of a few kilobytes takes some milliseconds; this is a hang, even on a busy machine.
LIMIT_S = 30
LIMIT_MB = 200


class TooMuchError(Exception):
    """Say that an audit failed, hung or took too much memory."""


def case(reader: str, number: int) -> dict[str, bytes]:
    """Make the damaged checkpoint of a number: of the files of a sound one, one or two are changed."""
    chance = random.Random(f"{reader}:{number}")
    files = dict(seed(reader))
    names = sorted(files)
    others = [data for name in READERS for data in seed(name).values() if data]
    for name in chance.sample(names, min(len(names), chance.choice((1, 1, 2)))):
        if len(files) > 1 and chance.random() < 0.05:
            del files[name]
        else:
            files[name] = mutated(files[name], others, chance)
    return files


def attempt(files: Mapping[str, bytes], folder: Path, *, engine: str = "stdlib") -> str:
    """Audit files and return the verdicts.

    Raises:
        TooMuchError: when the audit did not do what it always has to.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in files.items():
        write(folder / name, data)
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak counts from here
    previous = signal.signal(signal.SIGALRM, _hang)
    signal.alarm(LIMIT_S)
    try:
        heard = audit(folder / ALONE if ALONE in files else folder, engine=engine)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    grown = _memory("VmHWM") - before
    if grown > LIMIT_MB:
        raise TooMuchError(f"it took {grown:.0f} MB")
    said = str(heard.findings)
    if "audit itself" in said or not {record["verdict"] for record in heard.records} <= VERDICTS:
        raise TooMuchError(said)
    return " ".join(sorted(record["verdict"] for record in heard.records))


def _hang(_: int, frame: types.FrameType | None) -> None:
    raise TooMuchError(f"it hangs, in {frame}")


def _memory(field: str) -> float:
    with Path("/proc/self/status").open(encoding="ascii") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(field))
