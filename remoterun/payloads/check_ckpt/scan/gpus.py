"""Which graphics processors nobody uses."""

from __future__ import annotations

import subprocess
import time
from typing import List

# Others' processes are not seen from inside a container, so what is used is all there is to go by: the memory that an
# idle processor has in use, and twice, since work comes in bursts.
_IDLE_MIB = 1024
_BETWEEN_S = 1.0
_ASK = ("nvidia-smi", "--query-gpu=uuid,memory.used,utilization.gpu", "--format=csv,noheader,nounits")


def idle_gpus() -> List[str]:
    """Return the UUIDs of the processors that were idle both times; none where there is no nvidia-smi."""
    first = _idle()
    if not first:
        return []
    time.sleep(_BETWEEN_S)
    return [uuid for uuid in _idle() if uuid in first]


def _idle() -> List[str]:
    try:
        done = subprocess.run(_ASK, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = [row.split(", ") for row in done.stdout.decode("ascii", "replace").splitlines()]
    # What can't be told stands as words in brackets, and is no number.
    known = [row for row in rows if len(row) == 3 and row[1].isdigit() and row[2].isdigit()]
    return [uuid for uuid, used, busy in known if int(used) < _IDLE_MIB and int(busy) == 0]
