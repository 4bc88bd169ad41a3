"""What became of an audit, and the exit status that belongs to it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from remoterun.audit.file import ExitOn
from remoterun.audit.notify import Delivery
from remoterun.model import RunStatus, Severity, Status
from remoterun.records import dataclass

if TYPE_CHECKING:
    from remoterun.audit.ledger import Event
    from remoterun.audit.lock import Holder
    from remoterun.compare import Difference
    from remoterun.model import Outcome, Run

_GRAVEST_FIRST: Final = (RunStatus.INCOMPLETE, RunStatus.FINDINGS, RunStatus.OK)
_MOST_CUT_TOLD: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Tell of a former audit that did not come to its end: what it had begun last, and how far that came.

    `run_id` is None when nothing had started; `ended` tells that this run itself had come to its end; `done` of its
    `jobs` targets and steps have an outcome.
    """

    holder: Holder
    run_id: str | None = None
    ended: bool = False
    done: int = 0
    jobs: int = 0

    @property
    def who(self) -> str:
        """Say which audit it was."""
        holder = self.holder
        known = holder.pid is not None
        return f"process {holder.pid} on {holder.host}, since {holder.started_at}" if known else "it has left no name"

    @property
    def how(self) -> str:
        """Say how far it came."""
        if self.run_id is None:
            return "before anything had started"
        if self.ended:
            return f"after run {self.run_id} had ended, before that was reported"
        return f"during run {self.run_id}, when {self.done} of {self.jobs} outcomes were there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Hold what became of an audit.

    `differences` are those of the runs, as far as they could be told; `cut` are the audits before it that did not come
    to their end, the newest last, and `cut_earlier` counts those before these; `problems` say what the audit itself
    could not do; `events` are what people are told; `ended_as` says that a signal ended it; `former` are folders that
    are gone, of which this project may be the new place.
    """

    project: str
    started_at: str
    finished_at: str = ""
    runs: tuple[Run, ...] = ()
    differences: tuple[Difference, ...] = ()
    cut: tuple[Cut, ...] = ()
    cut_earlier: int = 0
    problems: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    delivery: Delivery = Delivery()
    ended_as: RunStatus | None = None
    former: tuple[str, ...] = ()

    @property
    def status(self) -> RunStatus:
        """Return the gravest status of its runs; what it could not do itself makes it incomplete."""
        if self.ended_as is not None:
            return self.ended_as
        seen = {run.status for run in self.runs} | ({RunStatus.INCOMPLETE} if self.problems or not self.runs else set())
        return next((status for status in _GRAVEST_FIRST if status in seen), RunStatus.INCOMPLETE)

    @property
    def changed(self) -> bool:
        """Tell whether something is other than at the last audit, beyond what goes on anyway."""
        return any(difference.notable for difference in self.differences)

    @property
    def noteworthy(self) -> bool:
        """Tell whether somebody has to read of it: something changed, or not everything was looked at and done."""
        quiet = self.status in {RunStatus.OK, RunStatus.FINDINGS}
        return self.changed or not quiet or bool(self.cut or self.delivery.failed or self.former)


def cut_text(audit: Audit) -> str:
    """Say which former audits were cut, at least one, all in one."""
    newest = audit.cut[-1]
    count = audit.cut_earlier + len(audit.cut)
    if count == 1:
        return f"the former audit ({newest.who}) was cut {newest.how}"
    told = audit.cut[-_MOST_CUT_TOLD:]
    more = f"{count - len(told)} earlier ones; " if count > len(told) else ""
    each = "; ".join(f"{cut.how} ({cut.who})" for cut in told)
    return f"{count} former audits were cut: {more}{each}"


def exit_code(audit: Audit, exit_on: ExitOn) -> int:
    """Return the exit status; what ended the audit or kept it from its work shows in any case."""
    status = audit.status
    if audit.ended_as is not None or audit.problems:
        return status.exit_code
    if exit_on is ExitOn.CHANGED:
        return (status.exit_code or RunStatus.FINDINGS.exit_code) if audit.changed else 0
    if exit_on is ExitOn.FINDINGS:
        found = any(_has_findings(outcome) for run in audit.runs for outcome in run.outcomes)
        return RunStatus.FINDINGS.exit_code if found else 0
    return status.exit_code


def _has_findings(outcome: Outcome) -> bool:
    """Tell whether findings count against a target; what came before its time was up counts as well."""
    if outcome.status.has_result:
        return outcome.status is Status.FINDINGS
    return any(finding.severity is not Severity.INFO for finding in outcome.findings)
