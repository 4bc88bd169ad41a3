"""The parameters of an audit."""

from __future__ import annotations

import os
from typing import Dict, Optional, Tuple

from .records import Record
from .rules.catalogue import Changes


class Settings(Record):
    """Hold the parameters; see payload.toml.

    `since` is in seconds since 1970, or minus the seconds before now. `load` holds the memory, in bytes, and the time,
    in seconds, that a load test of one checkpoint may take; None for no such test.
    """

    root: str
    depth: int
    newest: Optional[int]
    match: Optional[str]
    engine: str
    workers: int
    max_bytes_per_s: Optional[float]
    since: Optional[float] = None
    deep: bool = True
    cache: bool = True
    recheck_s: float = 7 * 86400.0
    changes: Changes = Changes(frozenset(), {})
    load: Optional[Tuple[int, float]] = None


def settings_of(params: Dict[str, object]) -> Settings:
    """Read the parameters, which were checked before they came here."""
    newest, match, workers, mbps, since = (
        params.get(name) for name in ("newest", "match", "workers", "max_mbps", "since")
    )
    return Settings(
        # No shell has seen it.
        root=os.path.expanduser(str(params["root"])),
        depth=int(str(params.get("depth", 6))),
        newest=None if newest is None else int(str(newest)),
        match=None if match is None else str(match),
        engine=str(params.get("engine", "auto")),
        workers=_workers() if workers is None else int(str(workers)),
        max_bytes_per_s=None if mbps is None else float(str(mbps)) * 1e6,
        since=None if since is None else float(str(since)),
        deep=bool(params.get("deep", True)),
        cache=bool(params.get("cache", True)),
        recheck_s=float(str(params.get("recheck", 7 * 86400.0))),
        changes=Changes.of(params),
        load=(int(str(params["load_memory"])), float(str(params["load_time"]))) if params.get("load") else None,
    )


def _workers() -> int:
    """Leave the training job at least half of the cores."""
    return max(1, min(4, len(os.sched_getaffinity(0)) // 2))
