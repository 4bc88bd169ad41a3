"""What the results of one payload say of a target, boiled down to what a comparison needs."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from remoterun.compare.numbers import checkpoint_numbers, probe_numbers, record_numbers
from remoterun.compare.probe import probe_facts
from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from remoterun.compare.numbers import Number
    from remoterun.model import Json, Outcome

_UNSURE: Final = frozenset({"in_progress", "unchecked", "unsupported"})
"""Verdicts of checkpoints of which not everything was looked at."""
MOST_RECORDS: Final = 10_000
"""So many records of a payload are looked at on each target; of what comes after them, nothing is known."""
_LONGEST_PATH: Final = 4096
_FACTS: Final = ("hostname", "machine", "kernel", "boot_id", "python", "interpreter", "user")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Hold what a record says of a checkpoint; `checked` is the share of its bytes that was looked at."""

    name: str
    path: str
    step: int | None
    verdict: str
    checked: float

    @property
    def sure(self) -> bool:
        """Tell whether what is not found of it is not there."""
        return self.verdict not in _UNSURE


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Hold what results say: checkpoints by path and by name, facts by name, numbers by what they are of.

    `roots` are the folders that were looked through, `chosen` tells that all checkpoints there were looked at.
    `ignored` are the rules whose findings were left out.
    """

    checkpoints: Mapping[str, Checkpoint]
    named: Mapping[str, Checkpoint]
    roots: tuple[str, ...]
    chosen: bool
    ignored: frozenset[str]
    facts: Mapping[str, str]
    numbers: Mapping[tuple[str, str], Number]

    def looked_below(self, path: str) -> bool:
        """Tell whether a path lies where was looked; where nobody said where that was, it does."""
        return not self.roots or any(path == root or path.startswith(f"{root.rstrip('/')}/") for root in self.roots)

    def checkpoint_of(self, subject: str, path: str) -> Checkpoint | None:
        """Return the checkpoint that a finding is about: it, a file of it, or one of that name."""
        # No path on Linux is longer than what is looked at.
        while path and len(path) <= _LONGEST_PATH:
            if path in self.checkpoints:
                return self.checkpoints[path]
            path = path.rpartition("/")[0]
        return self.named.get(subject)


def see(outcomes: Sequence[Outcome], *, numbered: bool = True) -> Seen:
    """Read the outcomes of one payload on one target, each record once; numbers only where they are asked for."""
    checkpoints: dict[str, Checkpoint] = {}
    roots: list[str] = []
    chosen = True
    ignored: set[str] = set()
    facts: dict[str, str] = {}
    numbers: dict[tuple[str, str], Number] = {}
    for outcome in outcomes:
        facts.update(_facts(outcome))
        chosen = chosen and len(outcome.records) <= MOST_RECORDS
        for place, record in enumerate(islice(outcome.records, MOST_RECORDS)):
            kind = record.get("kind")
            left_out = record.get("ignored")
            ignored.update(left_out if isinstance(left_out, dict) else ())
            if kind == "checkpoint":
                checkpoint = _checkpoint(record)
                checkpoints[checkpoint.path or checkpoint.name] = checkpoint
                facts.update(_loader(record))
                numbers.update(checkpoint_numbers(record, checkpoint.name) if numbered else ())
            elif kind == "summary":
                roots += _texts([record.get("root")])
                chosen = chosen and _all_chosen(record)
            elif kind == "probe":
                facts.update(probe_facts(record))
                numbers.update(probe_numbers(record) if numbered else ())
            elif numbered and kind != "series":
                numbers.update(record_numbers(record, place))
    return Seen(
        checkpoints=checkpoints,
        named={each.name: each for each in checkpoints.values()},
        roots=tuple(roots),
        chosen=chosen,
        ignored=frozenset(ignored),
        facts=facts,
        numbers=numbers,
    )


def _checkpoint(record: Mapping[str, Json]) -> Checkpoint:
    name, path, step, verdict = (record.get(key) for key in ("name", "path", "step", "verdict"))
    return Checkpoint(
        name=name if isinstance(name, str) else "",
        path=path if isinstance(path, str) else "",
        step=step if isinstance(step, int) and not isinstance(step, bool) else None,
        verdict=verdict if isinstance(verdict, str) else "",
        checked=_share(record.get("bytes_checked"), record.get("bytes")),
    )


def _share(part: Json, whole: Json) -> float:
    if not isinstance(part, int) or not isinstance(whole, int) or whole <= 0:
        return 0.0
    # Numbers of a hostile target can be too large for a float.
    return float(min(max(part, 0), whole) * 10_000 // whole) / 10_000


def _all_chosen(record: Mapping[str, Json]) -> bool:
    """Tell whether every checkpoint that was found was looked at: others could not be missed."""
    found, looked_at, companions = (record.get(key) for key in ("found", "checkpoints", "companions"))
    if not isinstance(found, int) or not isinstance(looked_at, int):
        return False
    # Only so many companions are named: where there are more, it is not known.
    beside = len(companions) if isinstance(companions, list) else 0
    return looked_at + beside >= found


def _facts(outcome: Outcome) -> Iterable[tuple[str, str]]:
    for name in _FACTS:
        value = outcome.facts.get(name)
        if isinstance(value, str):
            yield name, value
    if outcome.payload is not None:
        version = outcome.payload.version or ""
        yield f"payload {outcome.payload.name}", f"{version} ({outcome.payload.sha256[:8]})".strip()


def _loader(record: Mapping[str, Json]) -> Iterable[tuple[str, str]]:
    load = record.get("load")
    version = load.get("torch") if isinstance(load, dict) else None
    if isinstance(version, str):
        yield "torch", version


def _texts(values: Iterable[Json]) -> list[str]:
    return [value for value in values if isinstance(value, str)]
