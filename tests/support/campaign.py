"""How long a campaign of random trials is: short with every change, long under `make soak`."""

from __future__ import annotations

import os

_SOAK = os.environ.get("REMOTERUN_SOAK") == "1"


def turns(short: int, long: int) -> range:
    """Number the turns of a campaign."""
    return range(long if _SOAK else short)
