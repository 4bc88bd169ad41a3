"""A command line that is watched while it runs: what it has said so far, and how it ended."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tests.support.started import Started


class Watched(Started):
    """Start `remoterun ... --output jsonl`."""

    def __init__(self, argv: Sequence[str]) -> None:
        super().__init__([*argv, "--output", "jsonl"])

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """Return what was said so far, of one type."""
        return [said for said in self.events() if said["type"] == kind]

    def records(self, target: str) -> list[dict[str, Any]]:
        """Return the records of a target that were shown."""
        return [said["record"] for said in self.lines("record") if said["target"] == target]

    def until_records(self, target: str, count: int) -> None:
        """Wait until a target has emitted so many."""
        self.says(rb'"type": "record", .*"target": "%s"' % re.escape(target.encode()), count)

    def finish(self, limit_s: float = 60.0, *, statuses: Sequence[int] = (0, 3)) -> list[dict[str, Any]]:
        """Wait for the end, and return the outcomes."""
        try:
            result = self.result(limit_s)
        finally:
            self.kill()
        assert result.status in statuses, result
        return self.lines("outcome")
