"""The numbers of records, each with how far it may move before that is worth telling."""

from __future__ import annotations

import math
import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from remoterun.report.documents import finite

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from remoterun.model import Json

_OF_CHECKPOINTS: Final = (
    *("step", "epoch", "params", "tensors", "bytes"),
    *("nan_weights", "inf_weights", "nan_optimizer", "inf_optimizer"),
)
_NORM: Final = "weight_norm"
_NORMS: Final = 0.0001
"""A sum of rounded squares depends a little on the order in which they are added up."""
_SIZES: Final = 0.01
"""Sizes of memories and disks differ a little from one kernel to the next."""
_FREE_POINTS: Final = 10.0
_ALL_PERCENT: Final = 100.0
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


class Tolerance(NamedTuple):
    """Say how far numbers may move whose name, alone or after their subject and a dot, is like `pattern`.

    Without a pattern, all may that are not exact.
    """

    pattern: str | None
    share: float = 0.0
    much: float = 0.0


_TOLERANCE: Final = re.compile(r"(?:(.*)=)?([0-9]+(?:\.[0-9]+)?)(%?)", re.DOTALL)


def parse_tolerance(text: str) -> Tolerance:
    """Read ``5%``, ``0.5``, or either for some numbers only: ``NAME=5%``.

    Raises:
        ValueError: it is none of these.
    """
    match = _TOLERANCE.fullmatch(text)
    value = float(match[2]) if match else math.inf
    if match is None or match[1] == "" or not math.isfinite(value):
        raise ValueError("is neither a share like 5%, a number like 0.5, nor NAME=5% for some numbers only")
    if match[3] and value > _ALL_PERCENT:
        raise ValueError("is more than 100%, which no number moves by: the larger value is what it is a share of")
    return Tolerance(match[1], share=value / _ALL_PERCENT) if match[3] else Tolerance(match[1], much=value)


def with_tolerance(number: Number, subject: str, name: str, wanted: Sequence[Tolerance]) -> Number:
    """Return a number with the last tolerance that is meant for it, or with its own."""
    for each in reversed(wanted):
        exact = not number.share and not number.much
        if each.pattern is None:
            meant = not exact
        else:
            meant = fnmatchcase(name, each.pattern) or fnmatchcase(f"{subject}.{name}", each.pattern)
        if meant:
            return number._replace(share=each.share, much=each.much)
    return number


Named: TypeAlias = "tuple[tuple[str, str], Number]"
"""A number under what it is of, and its own name."""


def checkpoint_numbers(record: Mapping[str, Json], name: str) -> Iterator[Named]:
    """Yield the numbers of a checkpoint: as long as nobody writes to it, they stay what they are."""
    path = record.get("path")
    subject = path if isinstance(path, str) else name
    for key in _OF_CHECKPOINTS:
        value = countable(record.get(key))
        if value is not None:
            yield (subject, key), Number(value=value)
    norm = countable(record.get(_NORM))
    if norm is not None:
        yield (subject, _NORM), Number(value=norm, share=_NORMS)


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
            value = countable(mount.get(key))
            if value is not None:
                yield (f"disk {point}", key), Number(value=value, share=share, much=much)


def record_numbers(record: Mapping[str, Json], place: int) -> Iterator[Named]:
    """Yield the numbers of a record of any payload, but for those that measure time."""
    kind, name = record.get("kind"), record.get("name")
    label = name if isinstance(name, str) else f"record {place + 1}"
    subject = f"{kind} {label}" if isinstance(kind, str) else label
    for key, given in record.items():
        value = countable(given)
        if value is not None and not _TIMES.intersection(key.lower().split("_")):
            yield (subject, key), Number(value=value, share=_ANY)


def countable(value: Json) -> float | None:
    """Return a number that arithmetic survives; None for anything else."""
    number = finite(value)
    # Twice as much has to be a number as well.
    return number if number is not None and abs(number) < 1e300 else None


def _inside(record: Mapping[str, Json], part: str, key: str) -> float | None:
    value = record.get(part)
    return countable(value.get(key)) if isinstance(value, dict) else None
