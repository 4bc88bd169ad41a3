"""What is said about one checkpoint: its findings, its verdict and its record."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Dict, List, Sequence

from .model import EMA, MASTER, MODEL, OPTIMIZER, VOCABULARY, Checkpoint, Found, clean_text, count_of
from .records import Record
from .rules.catalogue import OK, Changes, Settled, check, settle, severity, verdict
from .rules.facts import Facts
from .rules.rule import BAD, INFO, SUSPECT
from .scan.scanner import Scanned
from .scan.spans import Claims

if TYPE_CHECKING:
    from .find.unit import Unit

# The verdict of a checkpoint of which the headers alone were looked at, and nothing is wrong with them.
UNCHECKED = "unchecked"
# Files and unchecked tensors that a record names one by one.
_MOST_FILES = 100
_MOST_UNCHECKED = 50
_MOST_NAMED = 20
_VOCABULARY = "it is a model's vocabulary, as llama.cpp's tests need it: it has no tensor by design, and is no model"


class Outcome(Record):
    """Hold what the files of a checkpoint tell by themselves, and their record but for its verdict.

    `waiting` tells that it is not finished, `failed` that it could not be read, `weights` and `optimizer` that it has
    any.
    """

    found: List[Found]
    record: Dict[str, object]
    weights: bool = False
    optimizer: bool = False
    waiting: bool = False
    failed: bool = False


def judge(unit: Unit, outcome: Outcome, of_others: Sequence[Found], changes: Changes) -> Settled:
    """Settle the findings of a checkpoint and its verdict; `of_others` is what others of its series tell of it."""
    found = list(outcome.found)
    if outcome.waiting:
        left_over = [each for each in unit.found if each.rule == "CK067"]
        # What somebody left behind is not waited for.
        found = [each._replace(next_step="") for each in found] + left_over if left_over else found
    else:
        # What is damaged may well be small.
        small = BAD not in map(severity, found)
        found += [*of_others, *(each for each in unit.found if each.rule != "CK068" or small)]
    if unit.companion:
        # A scheduler's state or a set of arguments needs no tensor.
        found = [each for each in found if each.rule != "CK009"]
    unread = outcome.record["params"] is None
    settled = settle(found, changes, in_progress=outcome.waiting, failed=outcome.failed, unread=unread)
    # Nothing unchecked is called ok.
    unchecked = settled.verdict == OK and not outcome.record["bytes_checked"]
    return settled._replace(verdict=UNCHECKED) if unchecked else settled


def worsened(level: str, found: Sequence[Found]) -> str:
    """Return the verdict of a checkpoint after more was found."""
    worst = verdict(found, in_progress=False, unsupported=False)
    return worst if worst == BAD or (worst == SUSPECT and level in (OK, UNCHECKED)) else level


class Report:
    """Gather what is to be said about one checkpoint while it is read."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.checkpoint = Checkpoint("unknown", unit.size)
        self.claims = Claims({}, 0, 0)
        self.scanned = Scanned({}, {}, {}, [])
        self.whole = False
        self.shallow = False
        self._waiting = ""
        self._failed = False
        self._told: List[Found] = []

    def wait(self, reason: str) -> None:
        """Note that it is not finished, so that nothing found in it counts; an empty reason says nothing."""
        self._waiting = self._waiting or reason

    def fail(self, found: Found) -> None:
        """Note why the checkpoint could not be read."""
        self._failed = True
        self.checkpoint.found.append(found)

    def ask(self) -> None:
        """Ask what the rules say of what was read."""
        if not self._waiting:
            self._told = check(self._facts())

    def outcome(self) -> Outcome:
        """Return what was found."""
        if self._waiting:
            found = [Found("CK026", "not finished: %s" % self._waiting)]
        else:
            found = [*self.checkpoint.found, *self._told]
            if self.checkpoint.format == VOCABULARY:
                found = [each._replace(message=_VOCABULARY) if each.rule == "CK009" else each for each in found]
        if self.shallow and not self._waiting:
            found.append(Found("CK126", "no value was checked: only headers were (deep=false)", None, INFO, ""))
        tensors = self.checkpoint.tensors
        # Formats without NaN and infinities have nothing that engines look at.
        skimmed = [index for index in sorted(self.scanned.skimmed) if tensors[index].dtype.kind != "clean"]
        if skimmed and not self._waiting:
            found.append(self._tell_skimmed([tensors[index].name for index in skimmed]))
        weights, optimizer = self.claims.params > 0, OPTIMIZER in self.checkpoint.parts
        return Outcome(found, self._record(self._facts()), weights, optimizer, bool(self._waiting), self._failed)

    def _tell_skimmed(self, names: List[str]) -> Found:
        """Say where rules were silent because there was less to go by."""
        message = "in %s, only NaN, infinities and pages of zeros were looked for" % count_of(len(names), "tensor")
        next_step = "Where numpy can be imported, sizes, zeros and moments are looked at, too."
        return Found("CK126", message, {"tensors": list(map(clean_text, names[:_MOST_NAMED]))}, INFO, next_step)

    def _facts(self) -> Facts:
        unit = self.unit
        paths = [clean_text("%s/%s" % (unit.folder, name) if unit.family else unit.path, 1000) for name in unit.files]
        return Facts(self.checkpoint, self.claims, self.scanned, paths, unit.relative or unit.name)

    def _record(self, facts: Facts) -> Dict[str, object]:
        unit, checkpoint, claims = self.unit, self.checkpoint, self.claims
        decoded = checkpoint.decoded and not self._waiting
        known = decoded and self.whole
        sized = decoded and (self.whole or self.shallow) and not checkpoint.truncated
        weights, optimizer = facts.counts((MODEL, EMA)), facts.counts((OPTIMIZER, MASTER))
        record: Dict[str, object] = {
            "kind": "checkpoint",
            "name": clean_text(unit.name),
            "path": clean_text(unit.path, 4000),
            "format": checkpoint.format,
            "step": checkpoint.step,
            "epoch": checkpoint.epoch,
            "params": claims.params + checkpoint.blocks - checkpoint.copied if sized else None,
            "nan_weights": weights.nan if known else None,
            "inf_weights": weights.inf if known else None,
            "nan_optimizer": optimizer.nan if known else None,
            "inf_optimizer": optimizer.inf if known else None,
            "verdict": "",
            "findings": [],
            "bytes": unit.size,
            "bytes_checked": self._bytes_checked(),
            "unchecked": self._unchecked(),
            "tensors": len(checkpoint.tensors),
            "crc_checked": sum(region.crc is not None for region in checkpoint.regions) if self.whole else 0,
            "files": [clean_text(name) for name in list(unit.files)[:_MOST_FILES]],
            "mtime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unit.mtime_ns // 10**9)),
        }
        if record["params"] not in (None, claims.listed + checkpoint.blocks):
            record["params_listed"] = claims.listed + checkpoint.blocks
        if len(unit.files) > _MOST_FILES:
            record["files_count"] = len(unit.files)
        if len(checkpoint.unchecked) > _MOST_UNCHECKED:
            record["unchecked_count"] = len(checkpoint.unchecked)
        named = unit.step if checkpoint.step is None else None
        if named is not None:
            record.update(step=named, step_from="name")
        return record

    def _bytes_checked(self) -> int:
        checkpoint = self.checkpoint
        if not self.whole or not checkpoint.decoded or self._waiting:
            return 0
        if checkpoint.truncated:
            return min(checkpoint.size, sum(region.size for region in checkpoint.regions))
        places = {each.place or each.name: each.size for each in checkpoint.unchecked}
        return max(0, checkpoint.size - sum(places.values()))

    def _unchecked(self) -> List[Dict[str, object]]:
        return [
            {"tensor": each.name, "dtype": each.dtype, "bytes": each.size, "reason": each.reason}
            for each in self.checkpoint.unchecked[:_MOST_UNCHECKED]
        ]
