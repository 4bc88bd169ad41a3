"""Which findings stand after a run, and which targets are silent: what is kept from one run to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remoterun.compare.model import Silence, Standing
from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from remoterun.compare.model import Identity, Moment
    from remoterun.compare.seen import Seen
    from remoterun.compare.views import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """Tell of a finding that was looked for and not found; `vanished` when its checkpoint is gone."""

    standing: Standing
    vanished: bool


def advance(
    before: Iterable[Standing], view: View, seen: Mapping[str, Seen], now: Moment
) -> tuple[tuple[Standing, ...], tuple[Gone, ...]]:
    """Return which findings of a target stand after a run, and which are gone.

    Args:
        before: those that stood before it.
        view: what the run has of the target.
        seen: what its results say, by payload.
        now: the run.
    """
    standing: list[Standing] = []
    kept: list[Standing] = []
    gone: list[Gone] = []
    known = {each.identity.key: each for each in before}
    for key, (identity, finding) in view.found.items():
        earlier = known.get(key)
        checked = _checked(identity, seen)
        standing.append(
            Standing(identity=identity, finding=finding, since=earlier.since if earlier else now, checked=checked)
        )
    summed = {(identity.rule, identity.subject) for identity, finding in view.found.values() if "more" in finding.data}
    for key, earlier in known.items():
        if key in view.found:
            continue
        fate = _fate(earlier, seen.get(earlier.identity.payload), summed)
        if fate is None:
            kept.append(
                Standing(
                    identity=earlier.identity,
                    finding=earlier.finding,
                    since=earlier.since,
                    known=False,
                    checked=earlier.checked,
                )
            )
        else:
            gone.append(fate)
    return (
        tuple(sorted((*standing, *sorted(kept, key=_order)), key=_gravity)),
        tuple(sorted(gone, key=lambda each: _order(each.standing))),
    )


def _gravity(standing: Standing) -> int:
    """Put the worst first; those alike stay in the order in which their run tells them."""
    return -standing.finding.severity.rank


def _order(standing: Standing) -> tuple[int, str, str]:
    """Put what earlier runs have told in an order that is always the same: a history does not keep how they told it."""
    return _gravity(standing), standing.identity.subject, standing.identity.key


def _checked(identity: Identity, seen: Mapping[str, Seen]) -> float | None:
    own = seen.get(identity.payload)
    checkpoint = own.checkpoint_of(identity.subject, identity.path) if own else None
    return None if checkpoint is None else checkpoint.checked


def _fate(earlier: Standing, seen: Seen | None, summed: set[tuple[str, str]]) -> Gone | None:
    """Tell whether a finding that did not come again is gone; None when nobody looked.

    `summed` are rule and subject of findings of which only the first were told one by one.
    """
    identity = earlier.identity
    if seen is None or identity.rule in seen.ignored or (identity.rule, identity.subject) in summed:
        return None
    if identity.path and not seen.looked_below(identity.path):
        return None
    checkpoint = seen.checkpoint_of(identity.subject, identity.path)
    if checkpoint is not None:
        looked = checkpoint.sure and checkpoint.checked >= (earlier.checked or 0.0)
        return Gone(standing=earlier, vanished=False) if looked else None
    if earlier.checked is None:
        return Gone(standing=earlier, vanished=False)
    return Gone(standing=earlier, vanished=True) if seen.chosen else None


def silence(before: Silence | None, view: View, now: Moment) -> Silence | None:
    """Return the silence of a target after a run; a run that did not get to it changes nothing."""
    outcome = view.silent
    if outcome is None:
        return None if view.told else before
    return Silence(
        target=view.target,
        name=view.name,
        kind=view.kind,
        step=outcome.step,
        status=outcome.status,
        code=outcome.error.code if outcome.error else "",
        message=outcome.error.message if outcome.error else "",
        runs=before.runs + 1 if before else 1,
        since=before.since if before else now,
    )
