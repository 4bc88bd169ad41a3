"""A command line that is watched while it runs: what it has said so far, and how it ended."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.lab import wait_for


class Watched:
    """Start `remoterun ... --output jsonl`; nothing it says is ever waited with, however much that is."""

    def __init__(self, argv: Sequence[str], folder: Path) -> None:
        self._out = folder / "out"
        self._err = folder / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [*argv, "--output", "jsonl"], stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """Return what was said so far, of one type."""
        whole = [line for line in self._out.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
        return [said for said in map(json.loads, whole) if said["type"] == kind]

    def records(self, target: str) -> list[dict[str, Any]]:
        """Return the records of a target that were shown."""
        return [said["record"] for said in self.lines("record") if said["target"] == target]

    def until_records(self, target: str, count: int) -> None:
        """Wait until a target has emitted so many."""

        def there() -> bool:
            ended = self.process.poll()
            assert ended is None, (ended, self._err.read_text())
            return len(self.records(target)) >= count

        wait_for(there, f"{count} records of {target}", limit_s=60)

    def finish(self, limit_s: float = 60.0, *, statuses: Sequence[int] = (0, 3)) -> list[dict[str, Any]]:
        """Wait for the end, and return the outcomes."""
        try:
            status = self.process.wait(limit_s)
        finally:
            self.kill()
        assert status in statuses, (status, self._err.read_text())
        return self.lines("outcome")

    def kill(self) -> None:
        """End it, whatever it is at."""
        self.process.kill()
        self.process.wait()
