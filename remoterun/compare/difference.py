"""Compare a run with what was known before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from remoterun.compare.model import (
    CheckpointChange,
    Difference,
    FactChange,
    FindingChange,
    Kind,
    Moment,
    NumberChange,
    Silence,
    Standing,
    State,
    TargetChange,
    TargetState,
)
from remoterun.compare.numbers import with_tolerance
from remoterun.compare.seen import see
from remoterun.compare.standing import advance, silence
from remoterun.compare.views import views

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Literal

    from remoterun.compare.numbers import Tolerance
    from remoterun.compare.seen import Checkpoint, Seen
    from remoterun.compare.views import View
    from remoterun.model import Run


_STEP: Final = "step"


def difference(state: State, run: Run, latest: State, tolerances: Sequence[Tolerance] = ()) -> Difference:
    """Tell what is different in a run from what was known after some earlier one.

    Args:
        state: what was known after the earlier run.
        run: the run.
        latest: what was known right before the run, since others may lie between the two: since when findings are
            there and targets silent is told by all of them.
        tolerances: how far numbers may move, instead of what is their own.
    """
    now = Moment(run_id=run.run_id, at=run.started_at)
    comparison = _Comparison(state, latest, now, tolerances)
    seen_by = views(run)
    for view in seen_by.values():
        comparison.add(view)
    comparison.leave(seen_by)
    return comparison.result(run.playbook)


class _Comparison:
    """Gather what is different, target by target."""

    def __init__(self, state: State, latest: State, now: Moment, tolerances: Sequence[Tolerance]) -> None:
        self._state = state
        self._tolerances = tolerances
        self._latest = latest
        self._now = now
        self._findings: list[FindingChange] = []
        self._targets: list[TargetChange] = []
        self._checkpoints: list[CheckpointChange] = []
        self._facts: list[FactChange] = []
        self._numbers: list[NumberChange] = []
        self._persisting: list[Standing] = []
        self._unknown: list[Standing] = []
        self._silent: list[Silence] = []

    def add(self, view: View) -> None:
        before = self._state.targets.get(view.target)
        known = before or TargetState()
        latest = self._latest.targets.get(view.target, TargetState())
        seen = {payload: see(outcomes) for payload, outcomes in view.told.items()}
        self._add_findings(known, latest, view, seen)
        self._add_target(before, latest, view)
        facts: dict[str, FactChange] = {}
        for payload, now in seen.items():
            then = known.seen.get(payload)
            if then is not None:
                self._checkpoints += _checkpoint_changes(view.target, then, now)
                facts.update((change.fact, change) for change in _fact_changes(view.target, then, now))
                self._numbers += _number_changes(view.target, then, now, self._tolerances)
        # Every payload tells the kernel of its target.
        self._facts += facts.values()

    def leave(self, seen_by: Mapping[str, View]) -> None:
        """Note the targets that this run was not asked for."""
        for target in sorted(self._state.asked.difference(seen_by)):
            name = self._state.targets.get(target, TargetState()).name
            self._targets.append(TargetChange(kind=Kind.TARGET_LEFT, target=target, name=name))

    def result(self, playbook: str) -> Difference:
        return Difference(
            playbook=playbook,
            before=self._state.last,
            after=self._now,
            changes=(*self._findings, *self._targets, *self._checkpoints, *self._facts, *self._numbers),
            persisting=tuple(self._persisting),
            unknown=tuple(self._unknown),
            silent=tuple(self._silent),
        )

    def _add_findings(self, before: TargetState, latest: TargetState, view: View, seen: Mapping[str, Seen]) -> None:
        standing, gone = advance(before.standing, view, seen, self._now)
        told_by, _ = advance(latest.standing, view, seen, self._now)
        since = {each.identity.key: each.since for each in told_by}
        known = {each.identity.key for each in before.standing}
        for each in standing:
            told = Standing(
                identity=each.identity,
                finding=each.finding,
                since=since.get(each.identity.key, each.since),
                known=each.known,
                checked=each.checked,
            )
            if not each.known:
                self._unknown.append(told)
            elif each.identity.key in known:
                self._persisting.append(told)
            else:
                self._findings.append(
                    FindingChange(kind=Kind.FINDING_NEW, identity=each.identity, finding=each.finding, since=told.since)
                )
        self._findings += [
            FindingChange(
                kind=Kind.FINDING_GONE,
                identity=each.standing.identity,
                finding=each.standing.finding,
                since=each.standing.since,
                vanished=each.vanished,
            )
            for each in gone
        ]

    def _add_target(self, before: TargetState | None, latest: TargetState, view: View) -> None:
        was = before.silence if before is not None else None
        now = silence(latest.silence, view, self._now)
        if now is not None:
            self._silent.append(now)
        if before is None and self._state.last is not None:
            self._targets.append(TargetChange(kind=Kind.TARGET_NEW, target=view.target, name=view.name))
        if now is not None and view.silent is not None and (was is None or was.kind is not now.kind):
            self._targets.append(
                TargetChange(
                    kind=now.kind,
                    target=view.target,
                    name=view.name,
                    status=now.status,
                    code=now.code,
                    message=now.message,
                    runs=now.runs,
                    since=now.since,
                )
            )
        elif was is not None and now is None:
            told = latest.silence or was
            self._targets.append(
                TargetChange(
                    kind=Kind.TARGET_BACK, target=view.target, name=view.name, runs=told.runs, since=told.since
                )
            )


def _checkpoint_change(
    kind: Literal[Kind.CHECKPOINT_NEW, Kind.CHECKPOINT_VANISHED], target: str, checkpoint: Checkpoint
) -> CheckpointChange:
    return CheckpointChange(
        kind=kind,
        target=target,
        name=checkpoint.name,
        path=checkpoint.path,
        step=checkpoint.step,
        verdict=checkpoint.verdict,
    )


def _checkpoint_changes(target: str, then: Seen, now: Seen) -> Iterator[CheckpointChange]:
    """Yield checkpoints that are new, and those that are not there any more where all there are were looked at."""
    for path, checkpoint in now.checkpoints.items():
        if path not in then.checkpoints and then.chosen and then.looked_below(path):
            yield _checkpoint_change(Kind.CHECKPOINT_NEW, target, checkpoint)
    for path, checkpoint in then.checkpoints.items():
        if path not in now.checkpoints and now.chosen and now.looked_below(path):
            yield _checkpoint_change(Kind.CHECKPOINT_VANISHED, target, checkpoint)


def _fact_changes(target: str, then: Seen, now: Seen) -> Iterator[FactChange]:
    for fact, value in now.facts.items():
        before = then.facts.get(fact)
        if before is not None and before != value:
            yield FactChange(target=target, fact=fact, before=before, after=value)


def _number_changes(target: str, then: Seen, now: Seen, tolerances: Sequence[Tolerance]) -> Iterator[NumberChange]:
    for (subject, name), number in now.numbers.items():
        before = then.numbers.get((subject, name))
        if before is None or not with_tolerance(before, subject, name, tolerances).moved_to(number):
            continue
        anew = _saved_anew(subject, then, now)
        # Of a checkpoint that was saved in the place of an earlier one, all else is of another checkpoint.
        if not anew or name == _STEP:
            yield NumberChange(
                target=target, subject=subject, number=name, before=before.value, after=number.value, routine=anew
            )


def _saved_anew(subject: str, then: Seen, now: Seen) -> bool:
    """Tell whether a training went on, and saved to the same file again: ``last.pt`` is always the newest."""
    if subject not in now.checkpoints:
        return False
    before, after = (seen.numbers.get((subject, _STEP)) for seen in (then, now))
    return before is not None and after is not None and after.value > before.value
