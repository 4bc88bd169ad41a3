"""What became of it: findings, records, outcomes and runs, and how a run is judged."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import field
from itertools import islice
from typing import TYPE_CHECKING, Final, Self, overload

from remoterun.model.limits import DEFAULT_LIMIT
from remoterun.model.words import RunStatus, Status
from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from remoterun.errors import TargetError
    from remoterun.model.words import Json, Phase, Severity
    from remoterun.model.work import PayloadRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Say what is wrong with a subject.

    `subject` is what the finding is about (a checkpoint's name, mostly); `evidence` holds the numbers that show it;
    `data` whatever more the payload said of it (tensor, file, byte range, counts).
    """

    rule: str
    severity: Severity
    subject: str
    message: str
    next_step: str = ""
    evidence: Json = None
    data: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitHit:
    """Name the limit that ended something, its value in seconds and the key that changes it.

    `set_by` says where it was set, empty where nobody knows.
    """

    name: str
    value_s: float
    key: str
    set_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """Tell the cause of an outcome that is neither ok nor findings; `code` is a key of `errors.CODES`."""

    code: str
    message: str
    hint: str
    limit: LimitHit | None = None

    @classmethod
    def of(cls, error: TargetError, set_by: Mapping[str, str] | None = None, *, run_id: str | None = None) -> Self:
        """Turn the exception of one target into a value.

        `set_by` says of limits where they were set, if anywhere; commands that hints tell to type name the run.
        """
        hit = None
        if error.limit:
            name, value_s, key = error.limit
            place = "" if set_by is None else set_by.get(name, DEFAULT_LIMIT)
            hit = LimitHit(name=name, value_s=value_s, key=key, set_by=place)
        hint = error.hint if run_id is None else error.hint.replace(" RUN`", f" {run_id}`")
        return cls(code=error.code, message=error.message, hint=hint, limit=hit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """Keep the head and tail of a captured byte stream; `total` bytes were seen."""

    head: bytes = b""
    tail: bytes = b""
    total: int = 0

    @property
    def truncated(self) -> bool:
        """Tell whether bytes in the middle were left out."""
        return self.total > len(self.head) + len(self.tail)

    @property
    def data(self) -> bytes:
        """Return what was kept, with a visible mark where bytes were left out."""
        left_out = self.total - len(self.head) - len(self.tail)
        mark = b"\n[... %d bytes left out ...]\n" % left_out if left_out > 0 else b""
        return self.head + mark + self.tail


class Records(Sequence["Mapping[str, Json]"]):
    """Be records that do not lie in memory: each is read when it is asked for, and forgotten again.

    Equal to any sequence of the same records; copies and pickles are tuples. Reading raises an OSError where they are
    no longer to be had.
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # as that of a tuple of dicts

    @abstractmethod
    def read(self, start: int) -> Iterator[Mapping[str, Json]]:
        """Read the records from one on, counted from 0."""

    def __iter__(self) -> Iterator[Mapping[str, Json]]:
        return self.read(0)

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Json]: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Mapping[str, Json], ...]: ...
    def __getitem__(self, index: int | slice) -> Mapping[str, Json] | tuple[Mapping[str, Json], ...]:
        found = range(len(self))[index]
        if isinstance(found, int):
            return next(self.read(found))
        if found.step != 1:
            return tuple(self[number] for number in found)
        return tuple(islice(self.read(found.start), len(found)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(one == another for one, another in zip(self, other, strict=True))

    def __reduce__(self) -> tuple[object, ...]:
        return tuple, (tuple(self),)

    def __repr__(self) -> str:
        return f"<{len(self)} records>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Tell what became of one target and step, whole enough to be judged without the machine.

    `timings_s` maps queued, connect, enter, upload, run, total to seconds; `exit_status` is the program's own,
    negative for a signal, None when unknown; `survivors` counts processes of the run that could not be killed, None
    when nobody could look; `noise` is what stood outside the frames; `connections` counts those that it took,
    `resumable` tells whether another could have been made, None where nothing was started. `records` is a tuple, or
    `Records` where they are too many for memory: go over them one by one.
    """

    target: str
    name: str | None
    step: int
    status: Status
    phase: Phase
    error: ErrorInfo | None = None
    payload: PayloadRef | None = None
    facts: Mapping[str, Json] = field(default_factory=dict)
    timings_s: Mapping[str, float] = field(default_factory=dict)
    connections: int = 0
    resumable: bool | None = None
    records: Sequence[Mapping[str, Json]] = ()
    findings: tuple[Finding, ...] = ()
    exit_status: int | None = None
    survivors: int | None = None
    stdout: Captured = Captured()
    stderr: Captured = Captured()
    noise: Captured = Captured()
    log: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Hold one execution of a playbook: every selected target and step has exactly one outcome, in the plan's order.

    `started_at` and `finished_at` are ISO 8601 in UTC with milliseconds and a Z.
    """

    run_id: str
    playbook: str
    playbook_sha256: str | None
    started_at: str
    finished_at: str
    status: RunStatus
    outcomes: tuple[Outcome, ...]


_INCOMPLETE: Final = frozenset(
    {Status.FAILED, Status.TIMEOUT, Status.UNREACHABLE, Status.LOST, Status.CANCELLED, Status.NOT_STARTED}
)


def judge(outcomes: tuple[Outcome, ...], *, ended_as: RunStatus | None = None) -> RunStatus:
    """Give a run its status: incomplete beats findings beats ok, an end from outside (`ended_as`) beats all.

    A person's own script or program that ended with a non-zero status is a finding: it ran, and said no.
    """
    seen = {Status.FINDINGS if _said_no(outcome) else outcome.status for outcome in outcomes}
    if ended_as is not None:
        return ended_as
    if seen & _INCOMPLETE or not outcomes:
        return RunStatus.INCOMPLETE
    if Status.RUNNING in seen:
        return RunStatus.DETACHED
    return RunStatus.FINDINGS if Status.FINDINGS in seen else RunStatus.OK


def _said_no(outcome: Outcome) -> bool:
    return outcome.status is Status.FAILED and outcome.payload is None and (outcome.exit_status or 0) > 0
