"""The words of a comparison as frozen records: what a finding is called in every run, and what can change."""

from __future__ import annotations

import json
from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from remoterun.model import Severity, Status
from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remoterun.compare.seen import Seen
    from remoterun.model import Finding


_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))


class Kind(StrEnum):
    """Name what has changed between two runs."""

    FINDING_NEW = "finding_new"
    FINDING_GONE = "finding_gone"
    TARGET_UNREACHABLE = "target_unreachable"
    """It could not be entered, so nothing is known of it."""
    TARGET_FAILED = "target_failed"
    """It was entered, but some step gave no result: it failed, timed out or was lost."""
    TARGET_BACK = "target_back"
    """It gives results again."""
    TARGET_NEW = "target_new"
    """No earlier run of the playbook had it."""
    TARGET_LEFT = "target_left"
    """The earlier run had it, this one was not asked for it."""
    CHECKPOINT_NEW = "checkpoint_new"
    CHECKPOINT_VANISHED = "checkpoint_vanished"
    FACT_CHANGED = "fact_changed"
    NUMBER_MOVED = "number_moved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Name a run and when it began, as ISO 8601 in UTC."""

    run_id: str
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Name a finding so that it is the same in every run that has it; its wording and numbers may change.

    `payload` is the name of the payload that found it, `path` the file on the target that it is about, `tensor` the
    tensor in it, or else the record of an archive; the last two are empty when the payload said none.
    """

    target: str
    payload: str
    rule: str
    subject: str
    path: str = ""
    tensor: str = ""

    @property
    def key(self) -> str:
        """Write the identity as one line of ASCII, the same for equal ones and different for others."""
        parts = (self.target, self.payload, self.rule, self.subject, self.path, self.tensor)
        return _ENCODER.encode(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Tell of a finding that is there, and since when without a gap.

    Runs that did not look make no gap: after them it is not `known` whether it is still there. A run that looked and
    did not find it ends it. `checked` is the share of its checkpoint's bytes that was looked at when it was found, None
    when it is of no checkpoint.
    """

    identity: Identity
    finding: Finding
    since: Moment
    known: bool = True
    checked: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Tell of a target of which some step gave no result: for how many runs in a row, and since when.

    `kind` is by how the last of these runs ended there; `step`, `status`, `code` and `message` are those of the first
    step that gave none.
    """

    target: str
    name: str | None
    kind: Literal[Kind.TARGET_UNREACHABLE, Kind.TARGET_FAILED]
    step: int
    status: Status
    code: str
    message: str
    runs: int
    since: Moment


# --- changes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingChange:
    """Tell of a finding that is new, or gone: looked for again, and not found.

    `finding` is as the run that has it says; `since` is when it was first there. `vanished` tells that it is gone
    because its checkpoint is gone.
    """

    kind: Literal[Kind.FINDING_NEW, Kind.FINDING_GONE]
    identity: Identity
    finding: Finding
    since: Moment
    vanished: bool = False

    @property
    def target(self) -> str:
        """Return where it is."""
        return self.identity.target

    @property
    def routine(self) -> bool:
        """Tell whether it goes on anyway: findings of severity info."""
        return self.finding.severity is Severity.INFO


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetChange:
    """Tell of a target that gives no results any more, gives some again, is new, or was not asked for.

    `status`, `code` and `message` are those of this run, None and empty where it has none. `runs` and `since` tell of
    a target that is back for how many runs it had been silent.
    """

    kind: Literal[Kind.TARGET_UNREACHABLE, Kind.TARGET_FAILED, Kind.TARGET_BACK, Kind.TARGET_NEW, Kind.TARGET_LEFT]
    target: str
    name: str | None
    status: Status | None = None
    code: str = ""
    message: str = ""
    runs: int = 0
    since: Moment | None = None

    @property
    def routine(self) -> bool:
        """Tell whether it only follows from what was asked for."""
        return self.kind in {Kind.TARGET_NEW, Kind.TARGET_LEFT}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointChange:
    """Tell of a checkpoint that was not there before, or is not there any more; `verdict` is the last it had."""

    kind: Literal[Kind.CHECKPOINT_NEW, Kind.CHECKPOINT_VANISHED]
    target: str
    name: str
    path: str
    step: int | None
    verdict: str

    @property
    def routine(self) -> bool:
        """Tell whether it goes on anyway: a training saves, and removes what is old."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class FactChange:
    """Tell of a fact that is another now: payload check-ckpt, python, interpreter, kernel, torch, gpu driver, ..."""

    target: str
    fact: str
    before: str
    after: str
    kind: Literal[Kind.FACT_CHANGED] = Kind.FACT_CHANGED

    @property
    def routine(self) -> bool:
        """Tell whether it goes on anyway: never."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberChange:
    """Tell of a number that moved beyond its tolerance; `subject` is the checkpoint, disk or record that has it.

    It is `routine` that a training which always saves to the same file is at a later step.
    """

    target: str
    subject: str
    number: str
    before: float
    after: float
    routine: bool = False
    kind: Literal[Kind.NUMBER_MOVED] = Kind.NUMBER_MOVED


Change: TypeAlias = FindingChange | TargetChange | CheckpointChange | FactChange | NumberChange


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Hold equal changes of several targets: `change` is the first one's, `targets` are all that share it."""

    change: Change
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Tell what is different in a run from the one before it; `before` is None where there is none.

    `changes` are findings first, then targets, checkpoints, facts and numbers, each in the run's order of targets.
    `persisting` are the findings that were there before and still are. `silent` are all targets without a result, newly
    or for long: their findings are neither gone nor new but `unknown`, as are those whose checkpoint was not looked at.
    """

    playbook: str
    before: Moment | None
    after: Moment
    changes: tuple[Change, ...]
    persisting: tuple[Standing, ...]
    unknown: tuple[Standing, ...]
    silent: tuple[Silence, ...]

    @property
    def changed(self) -> bool:
        """Tell whether anything is different."""
        return bool(self.changes)

    @property
    def notable(self) -> bool:
        """Tell whether anything is different that does not go on anyway, as new checkpoints and findings of info do."""
        return any(not change.routine for change in self.changes)


# --- what runs leave behind -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """Hold what is known of a target after some runs.

    `seen` is what the last results of each payload say, by its name.
    """

    name: str | None = None
    standing: tuple[Standing, ...] = ()
    silence: Silence | None = None
    seen: Mapping[str, Seen] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Hold what is known after some runs of a playbook: the last of them, its targets, and all targets there were."""

    last: Moment | None = None
    asked: frozenset[str] = frozenset()
    targets: Mapping[str, TargetState] = field(default_factory=dict)
