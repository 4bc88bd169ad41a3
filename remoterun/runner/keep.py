"""What the outcomes of one run may keep, shared out among its jobs. Pure, but for where records go beyond memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from remoterun.runner.spool import Spool, folders

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_RECORDS: Final = 100_000
"""Records and findings of one job."""
MAX_BYTES: Final = 64 << 20
"""Their bytes, as they were sent."""
MAX_CONTAINERS: Final = 1_000_000
"""Lists and objects in them."""
MAX_RUN_BYTES: Final = 16 << 30
"""Bytes of records and findings of all jobs of a run, in equal shares."""
RECORDS_IN_MEMORY: Final = 16 << 20
"""Memory for the records of a run; those beyond go to a file."""
FINDINGS_IN_MEMORY: Final = 32 << 20
"""Memory for the findings and log lines of a run, which stay in it."""
KEPT_OUTPUT: Final = 32 << 20
"""Bytes of output that the outcomes of a run keep together."""
# A list or an object takes a few bytes in a message, and some hundred in memory.
_CONTAINER_BYTES: Final = 200


class Room:
    """Share memory out: half of it in equal shares, the other half to whoever needs more first."""

    def __init__(self, size: int, jobs: int) -> None:
        self._share = size // 2 // jobs
        self._free = size - size // 2

    def take(self, had: int, more: int) -> bool:
        """Take more for a job that has had so much; tell whether there was room for it."""
        beyond = max(0, had + more - self._share) - max(0, had - self._share)
        if beyond > self._free:
            return False
        self._free -= beyond
        return True


class Keep:
    """Hold the shares of all jobs of a run.

    Args:
        jobs: how many there are.
        places: the folders that a file for records may be in; those of this machine when left out.
    """

    def __init__(self, jobs: int = 1, places: Sequence[str] | None = None) -> None:
        jobs = max(1, jobs)
        self.output = KEPT_OUTPUT // jobs
        self.bytes = min(MAX_BYTES, MAX_RUN_BYTES // jobs)
        self.records = Room(RECORDS_IN_MEMORY, jobs)
        self.findings = Room(FINDINGS_IN_MEMORY, jobs)
        self.spool = Spool(folders() if places is None else places)


def memory_for(size: int, containers: int) -> int:
    """Estimate the memory that a message takes once it is read."""
    return size + _CONTAINER_BYTES * containers
