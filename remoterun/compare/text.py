"""A difference as people read it: what is new first, equal changes folded over targets, outliers before crowds."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

from remoterun.compare.folding import fold
from remoterun.compare.model import CheckpointChange, FactChange, FindingChange, Kind, NumberChange, TargetChange
from remoterun.errors import clean
from remoterun.model import Severity
from remoterun.report.text import (
    SEVERITY_STYLE,
    STATUS_STYLE,
    Page,
    Span,
    Style,
    cells,
    human_bytes,
    pad,
    plural,
    without_place,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from remoterun.compare.model import Change, Difference, Fold, Identity, Moment, Silence, Standing
    from remoterun.model import Finding, Status

_T = TypeVar("_T")

MAX_ALIKE: Final = 3
"""Findings shown of one rule on one target without -v: a damaged checkpoint may have one for each tensor."""
MAX_NAMED: Final = 12
"""Checkpoints and targets named in one list without -v."""
_SAYS: Final[dict[Kind, tuple[str, Style]]] = {
    Kind.TARGET_BACK: ("back", "good"),
    Kind.TARGET_NEW: ("new", "hint"),
    Kind.TARGET_LEFT: ("not asked", "dim"),
}


def difference_text(difference: Difference, *, width: int, color: bool, verbose: int = 0) -> str:
    """Write a difference for people, in lines of at most `width` cells (40 at least), each ended by a newline.

    `verbose` also shows findings of severity info, what to do about each, and lists in full.
    """
    page = Page(width, color=color)
    _head(page, difference)
    folds = fold(difference.changes)
    writer = Writer(page, verbose, *_widths(difference, folds))
    for title, kind in (("new findings", Kind.FINDING_NEW), ("findings that are gone", Kind.FINDING_GONE)):
        writer.findings(title, [pair for pair in _of(FindingChange, folds) if pair[0].kind is kind])
    writer.targets(folds, difference.silent)
    writer.facts(folds)
    writer.numbers(folds)
    writer.checkpoints(difference.changes)
    writer.standing("findings that are still there", difference.persisting)
    writer.standing("unknown, since nobody looked", difference.unknown)
    page.gap()
    page.line(*_totals(difference, folds), hang=2)
    return page.text()


def moment_text(moment: Moment) -> str:
    """Write when a run began: ``2026-11-04 02:00``, in UTC."""
    return moment.at.replace("T", " ")[:16]


def silence_text(silence: Silence) -> str:
    """Write for how long a target gave no result: ``for 3 runs, since 2026-11-02 02:00``."""
    return f"for {plural(silence.runs, 'run')}, since {moment_text(silence.since)}"


def _head(page: Page, difference: Difference) -> None:
    page.line(Span(difference.playbook, "bold"))
    for label, moment in (("before", difference.before), ("after ", difference.after)):
        told = [Span(moment_text(moment)), Span(f"  {moment.run_id}", "dim")] if moment else [Span("nothing", "dim")]
        page.line(Span(f"{label}  ", "dim"), *told, indent=2, hang=8)


def _widths(difference: Difference, folds: Sequence[Fold]) -> tuple[int, int]:
    """Return the widths that line up rules and targets over the whole page."""
    findings = [change.identity for change in difference.changes if isinstance(change, FindingChange)]
    findings += [standing.identity for standing in (*difference.persisting, *difference.unknown)]
    targets = [each.target for each in (*difference.changes, *findings, *difference.silent)]
    targets += [f"{len(each.targets)} targets" for each in folds if len(each.targets) > 1]
    return widest([each.rule for each in findings], 16), widest(targets, 32)


def widest(texts: Iterable[str], most: int) -> int:
    """Return the cells of the widest text, but no more than `most`."""
    return min(max((cells(clean(text)) for text in texts), default=0), most)


class Writer:
    """Write sections of findings, targets and what else changes; `rule` and `target` are the widths of columns."""

    def __init__(self, page: Page, verbose: int, rule: int, target: int) -> None:
        self._page = page
        self._verbose = verbose
        self._rule = rule
        self._target = target

    def findings(self, title: str, changes: Sequence[tuple[FindingChange, tuple[str, ...]]]) -> None:
        """Add findings that are new or gone, each with the targets that share it."""
        shown, quiet = self._told(changes, lambda pair: pair[0].finding.severity)
        if changes:
            self._title(title)
        for group in _grouped(shown, lambda pair: (pair[0].identity.rule, pair[1])):
            for change, targets in self._some(group, MAX_ALIKE):
                more = " (its checkpoint is gone)" if change.vanished else ""
                self._finding(change.identity, change.finding, targets, more)
            self._left_out(len(group) - MAX_ALIKE, f"more of {group[0][0].identity.rule}")
        self._left_out(quiet, "of severity info", always=True)

    def standing(
        self, title: str, standing: Sequence[Standing], until: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Add findings with the time since when they are there; `until` says of some, by key, when they went."""
        shown, quiet = self._told(standing, lambda each: each.finding.severity)
        if not shown:
            # That the same information stands there as ever is no news.
            return
        self._title(title)
        told = [
            (each, targets, until.get(each.identity.key, ""))
            for equal in _grouped(shown, lambda each: until.get(each.identity.key))
            for each, targets in folded_standing(equal)
        ]
        told.sort(key=lambda item: (-item[0].finding.severity.rank, len(item[1])))
        for group in _grouped(told, lambda item: (item[0].identity.rule, item[1], item[0].since, item[2])):
            for each, targets, ended in self._some(group, MAX_ALIKE):
                self._finding(each.identity, each.finding, targets, f" (since {moment_text(each.since)}{ended})")
            self._left_out(len(group) - MAX_ALIKE, f"more of {group[0][0].identity.rule}")
        self._left_out(quiet, "of severity info", always=True)

    def targets(self, folds: Sequence[Fold], silent: Sequence[Silence]) -> None:
        """Add targets that came, went, or gave no result, and then those that gave none before either."""
        changed = _of(TargetChange, folds)
        newly = {target for change, targets in changed for target in targets if change.kind in _SILENT}
        still = _grouped(
            [each for each in silent if each.target not in newly], lambda each: (each.status, each.code, each.runs)
        )
        if changed or still:
            self._title("targets")
        for change, targets in changed:
            lasted = f"after {plural(change.runs, 'run')} without a result" if change.kind is Kind.TARGET_BACK else ""
            word = _SAYS.get(change.kind) or _status_word(change.status)
            self._target_line(targets, word, change.code, change.message, lasted)
        for group in still:
            first = group[0]
            lasted = silence_text(first)
            targets = tuple(each.target for each in group)
            self._target_line(targets, _status_word(first.status), first.code, first.message, lasted)

    def facts(self, folds: Sequence[Fold]) -> None:
        """Add facts that changed."""
        changed = _of(FactChange, folds)
        if changed:
            self._title("facts")
        for (change, targets), again in _in_order(changed):
            values = [Span("started anew")]
            if change.fact != "boot_id":
                values = [Span(change.before, "dim"), Span(" -> ", "dim"), Span(change.after)]
            fact = [] if change.fact == "boot_id" else [Span(f"{change.fact}  ", "bold")]
            self._line(targets, *fact, *values, again=again)

    def numbers(self, folds: Sequence[Fold]) -> None:
        """Add numbers that moved."""
        changed = _of(NumberChange, folds)
        if changed:
            self._title("numbers")
        for (change, targets), again in _in_order(changed):
            before, after = (_number(change.number, value) for value in (change.before, change.after))
            label = Span(f"{change.number}  ", "bold")
            value = Span(f"{before} -> {after}")
            self._line(targets, label, value, Span(f"  {change.subject}", "dim"), again=again)

    def checkpoints(self, changes: Sequence[Change]) -> None:
        """Add checkpoints that are new or gone, in one line for targets that have the same."""
        own: dict[tuple[Kind, str], list[CheckpointChange]] = {}
        for change in changes:
            if isinstance(change, CheckpointChange):
                own.setdefault((change.kind, change.target), []).append(change)
        lists: dict[tuple[Kind, tuple[str, ...]], list[str]] = {}
        for (kind, target), some in own.items():
            lists.setdefault((kind, tuple(map(_checkpoint, some))), []).append(target)
        if lists:
            self._title("checkpoints")
        for (kind, names), targets in sorted(lists.items(), key=lambda item: (item[0][0], len(item[1]))):
            gone = kind is Kind.CHECKPOINT_VANISHED
            shown = self._some(names, MAX_NAMED)
            more = f", and {len(names) - len(shown)} more" if len(shown) < len(names) else ""
            label = Span("gone  " if gone else "new   ", "dim" if gone else "hint")
            self._line(tuple(targets), label, Span(f"{', '.join(shown)}{more}", "dim" if gone else "plain"))

    # --- lines ---

    def _title(self, text: str) -> None:
        self._page.gap()
        self._page.line(Span(text, "bold"))

    def _finding(self, identity: Identity, finding: Finding, targets: tuple[str, ...], more: str) -> None:
        severity, rule = finding.severity, clean(identity.rule)
        head = [
            Span(pad(severity.value, 7), SEVERITY_STYLE[severity]),
            Span("  "),
            Span(pad(rule, self._rule), "dim"),
            Span("  "),
            self._who(targets),
            Span("  "),
        ]
        subject = [Span(f"{identity.subject}: ", "bold")] if identity.subject else []
        hang = 7 + self._rule + self._target + 6
        # Where hardly anything is left beside them, lines go on further left.
        hang = hang if hang < self._page.width // 2 else 4
        self._page.line(*head, *subject, Span(finding.message), Span(more, "dim"), indent=2, hang=hang)
        self._named(targets, 2 + hang)
        if self._verbose and finding.next_step:
            self._page.line(Span("next: ", "hint"), Span(finding.next_step), indent=2 + hang, hang=6)

    def _target_line(
        self, targets: tuple[str, ...], said_as: tuple[str, Style], code: str, message: str, lasted: str
    ) -> None:
        word, style = said_as
        spans = [Span(word, style), Span(f" {lasted}" if lasted else "", "dim")]
        spans += [Span("  "), Span(code, "bold")] if code else []
        # The message of several may name the first of them.
        said = without_place(message, targets[0]) if len(targets) == 1 else ""
        self._line(targets, *spans, Span(f": {said}" if said else ""))

    def _line(self, targets: tuple[str, ...], *spans: Span, again: bool = False) -> None:
        """Add what holds for some targets; `again` when the line above is of the same."""
        hang = self._target + 2
        who = Span(pad("the same", self._target), "dim") if again and len(targets) > 1 else self._who(targets)
        self._page.line(who, Span("  "), *spans, indent=2, hang=hang)
        if not again:
            self._named(targets, 2 + hang)

    def _who(self, targets: tuple[str, ...]) -> Span:
        text = clean(targets[0]) if len(targets) == 1 else f"{len(targets)} targets"
        return Span(pad(text, self._target), "bold")

    def _named(self, targets: tuple[str, ...], indent: int) -> None:
        if len(targets) > 1:
            shown = self._some(targets, MAX_NAMED)
            more = f"  and {len(targets) - len(shown)} more" if len(shown) < len(targets) else ""
            names = [part for name in shown for part in (Span(name, "dim", solid=True), Span("  "))]
            self._page.line(*names[:-1], Span(more, "dim"), indent=indent)

    def _told(self, items: Sequence[_T], severity: Callable[[_T], Severity]) -> tuple[list[_T], int]:
        """Return what is shown, and how many of severity info are not."""
        shown = [item for item in items if self._verbose or severity(item) is not Severity.INFO]
        return shown, len(items) - len(shown)

    def _some(self, items: Sequence[_T], most: int) -> Sequence[_T]:
        return items if self._verbose else items[:most]

    def _left_out(self, count: int, what: str, *, always: bool = False) -> None:
        if count > 0 and (always or not self._verbose):
            self._page.line(Span(f"... and {count} {what}; -v shows them", "dim"), indent=2)


def _status_word(status: Status | None) -> tuple[str, Style]:
    """Say how a target ended that gave no result, in the word that its run has for it."""
    return (status.value, STATUS_STYLE[status]) if status is not None else ("no result", "bad")


_SILENT: Final = frozenset({Kind.TARGET_UNREACHABLE, Kind.TARGET_FAILED})


def _of(kind: type[_T], folds: Iterable[Fold]) -> list[tuple[_T, tuple[str, ...]]]:
    return [(each.change, each.targets) for each in folds if isinstance(each.change, kind)]


def _in_order(changes: list[tuple[_T, tuple[str, ...]]]) -> Iterator[tuple[tuple[_T, tuple[str, ...]], bool]]:
    """Put what holds for the same targets together, few before many, and say of each if that above is of the same."""
    groups = sorted(_grouped(changes, lambda pair: pair[1]), key=lambda group: len(group[0][1]))
    for group in groups:
        yield from ((pair, index > 0) for index, pair in enumerate(group))


def folded_standing(standing: Iterable[Standing]) -> list[tuple[Standing, tuple[str, ...]]]:
    """Tell equal findings once, each with the targets that have it."""
    return [
        (equal[0], tuple(dict.fromkeys(each.identity.target for each in equal))) for equal in _grouped(standing, _alike)
    ]


def _alike(standing: Standing) -> tuple[object, ...]:
    identity = standing.identity
    return identity.rule, standing.finding.severity, identity.subject, identity.tensor, standing.since


def _grouped(items: Iterable[_T], key: Callable[[_T], object]) -> list[list[_T]]:
    groups: dict[object, list[_T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def _checkpoint(change: CheckpointChange) -> str:
    called = change.name or change.path
    return f"{called} ({change.verdict})" if change.verdict not in {"ok", ""} else called


def _number(name: str, value: float) -> str:
    if name in {"bytes", "total", "memory total"}:
        return human_bytes(value)
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.6g}"


def _totals(difference: Difference, folds: Sequence[Fold]) -> list[Span]:
    kinds = [change.kind for change in difference.changes]
    # What is of severity info is never counted with what may be wrong.
    calm = [change.kind for change in difference.changes if isinstance(change, FindingChange) and change.routine]
    folded = [each.change.kind for each in folds]
    counts: list[tuple[int, str, Style]] = [
        (kinds.count(Kind.FINDING_NEW) - calm.count(Kind.FINDING_NEW), "new finding{s}", "bad"),
        (kinds.count(Kind.FINDING_GONE) - calm.count(Kind.FINDING_GONE), "finding{s} gone", "good"),
        (sum(map(_counts, difference.persisting)), "still there", "warn"),
        (sum(map(_counts, difference.unknown)), "unknown", "odd"),
        (calm.count(Kind.FINDING_NEW), "new of severity info", "dim"),
        (calm.count(Kind.FINDING_GONE), "gone of severity info", "dim"),
        (len(difference.silent), "target{s} without a result", "odd"),
        (kinds.count(Kind.TARGET_BACK), "target{s} back", "good"),
        (kinds.count(Kind.TARGET_NEW), "new target{s}", "hint"),
        (kinds.count(Kind.TARGET_LEFT), "target{s} not asked", "dim"),
        (folded.count(Kind.FACT_CHANGED), "fact{s} changed", "hint"),
        (folded.count(Kind.NUMBER_MOVED), "number{s} moved", "hint"),
        (kinds.count(Kind.CHECKPOINT_NEW), "new checkpoint{s}", "plain"),
        (kinds.count(Kind.CHECKPOINT_VANISHED), "checkpoint{s} gone", "plain"),
    ]
    spans: list[Span] = [] if difference.changed else [Span("nothing is different", "good")]
    for count, what, style in counts:
        if count:
            spans += [Span(", ")] if spans else []
            spans.append(Span(f"{count} {what.format(s='' if count == 1 else 's')}", style, solid=True))
    return spans


def _counts(standing: Standing) -> bool:
    return standing.finding.severity is not Severity.INFO
