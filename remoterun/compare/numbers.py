"""The numbers of records, each with how far it may move before that is worth telling."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from remoterun.model import Json

_OF_CHECKPOINTS: Final = (
    *("step", "epoch", "params", "tensors", "bytes"),
    *("nan_weights", "inf_weights", "nan_optimizer", "inf_optimizer"),
)
_SIZES: Final = 0.01
"""Sizes of memories and disks differ a little from one kernel to the next."""
_FREE_POINTS: Final = 10.0
_ANY: Final = 0.1
"""How far a number of unknown meaning may move, as a share of the larger value."""
_TIMES: Final = frozenset({"s", "ms", "ns", "seconds", "time", "at", "elapsed", "duration", "mtime", "pid", "uptime"})
"""Words in names of numbers that are never twice the same."""


class Number(NamedTuple):
    """Hold a number and its tolerance: a share of the larger value, or so much, whichever allows more.

    There are thousands of them, and tuples are made fast.
    """

    value: float
    share: float = 0.0
    much: float = 0.0

    def moved_to(self, after: Number) -> bool:
        """Tell whether another value lies beyond the tolerance."""
        larger = max(abs(self.value), abs(after.value))
        return abs(after.value - self.value) > max(self.much, self.share * larger)


Named: TypeAlias = "tuple[tuple[str, str], Number]"
"""A number under what it is of, and its own name."""


def checkpoint_numbers(record: Mapping[str, Json], name: str) -> Iterator[Named]:
    """Yield what is exact of a checkpoint: as long as nobody writes to it, nothing of it changes."""
    path = record.get("path")
    subject = path if isinstance(path, str) else name
    for key in _OF_CHECKPOINTS:
        value = finite(record.get(key))
        if value is not None:
            yield (subject, key), Number(value=value)


def probe_numbers(record: Mapping[str, Json]) -> Iterator[Named]:
    """Yield sizes of the machine, and how full its disks are."""
    for key, value in (
        ("memory total", _inside(record, "memory", "total")),
        ("cores", _inside(record, "cpu", "affinity")),
        ("limited to cores", _inside(record, "cpu", "quota")),
    ):
        if value is not None:
            yield ("machine", key), Number(value=value, share=_SIZES)
    mounts = record.get("mounts")
    for mount in mounts if isinstance(mounts, list) else ():
        point = mount.get("point") if isinstance(mount, dict) else None
        if not isinstance(mount, dict) or not isinstance(point, str):
            continue
        for key, share, much in (
            ("total", _SIZES, 0.0),
            ("free_pct", 0.0, _FREE_POINTS),
            ("inodes_free_pct", 0.0, _FREE_POINTS),
        ):
            value = finite(mount.get(key))
            if value is not None:
                yield (f"disk {point}", key), Number(value=value, share=share, much=much)


def record_numbers(record: Mapping[str, Json], place: int) -> Iterator[Named]:
    """Yield the numbers of a record of any payload, but for those that measure time."""
    kind, name = record.get("kind"), record.get("name")
    label = name if isinstance(name, str) else f"record {place + 1}"
    subject = f"{kind} {label}" if isinstance(kind, str) else label
    for key, given in record.items():
        value = finite(given)
        if value is not None and not _TIMES.intersection(key.lower().split("_")):
            yield (subject, key), Number(value=value, share=_ANY)


def finite(value: Json) -> float | None:
    """Return a number that arithmetic survives; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    # Twice as much has to be a number as well.
    return number if math.isfinite(number) and abs(number) < 1e300 else None


def _inside(record: Mapping[str, Json], part: str, key: str) -> float | None:
    value = record.get(part)
    return finite(value.get(key)) if isinstance(value, dict) else None
