"""What happens during a run, as frozen records that one callable is handed. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from remoterun.records import dataclass

if TYPE_CHECKING:
    from remoterun.model import Outcome, Phase, Plan, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """Open the stream of events; `started_at` is ISO 8601 in UTC."""

    plan: Plan
    started_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetMoved:
    """Tell that a target's step reached a phase; `waiting` when it is queued for a slot of that phase."""

    target: str
    step: int
    phase: Phase
    waiting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """Tell how far a payload is; `total` is None when unknown. `done` and `total` count `unit`s ("bytes", mostly)."""

    target: str
    step: int
    done: float
    total: float | None
    unit: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordArrived:
    """Hand over one record as it arrives."""

    target: str
    step: int
    record: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputArrived:
    """Hand over bytes of a program's stdout or stderr as they arrive (only work that streams: scripts and exec)."""

    target: str
    step: int
    stream: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """Hand over one line that a payload logged."""

    target: str
    step: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeReady:
    """Hand over a finished outcome."""

    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """Close the stream of events."""

    run: Run


Event: TypeAlias = (
    RunStarted | TargetMoved | Progressed | RecordArrived | OutputArrived | Logged | OutcomeReady | RunFinished
)
OnEvent: TypeAlias = Callable[[Event], None]
