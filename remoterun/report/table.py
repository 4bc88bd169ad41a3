"""A run as people read it: results target by target, then what went wrong, equal causes folded, then the totals."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Final

from remoterun.errors import clean
from remoterun.model import (
    Captured,
    ErrorInfo,
    Finding,
    Outcome,
    Phase,
    Run,
    RunStatus,
    Status,
    format_duration,
)
from remoterun.model.limits import DEFAULT_LIMIT
from remoterun.model.times import seconds_between
from remoterun.records import dataclass
from remoterun.report import rows
from remoterun.report.found import finding_lines, shared_lines, take_shared
from remoterun.report.severities import severities_of
from remoterun.report.text import (
    STATUS_STYLE,
    Page,
    Span,
    Style,
    cells,
    human_bytes,
    human_seconds,
    last_lines,
    pad,
    plural,
    shown_target,
    width_of,
    without_place,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from remoterun.model import Json

_PHASES: Final = ("queued", "connect", "enter", "upload", "run", "total")
# Up to so many targets, those that are well are told as fully as others.
_MANY: Final = 20
_WITH_PAYLOAD: Final = frozenset({Phase.RUN, Phase.COLLECT})


def table(run: Run, *, width: int, color: bool, verbose: int = 0) -> str:
    """Write a run for people, in lines of at most `width` cells (40 at least), each ended by a newline.

    `verbose` 1 shows facts, timings, logs, evidence and records whole, 2 also output and noise of what went well.
    """
    page = Page(width, color=color)
    _fill(page, run, verbose)
    return page.text()


def write_table(run: Run, out: Callable[[str], object], *, width: int, color: bool, verbose: int = 0) -> None:
    """Write the same as it is made: of its records, never more than some are in memory."""
    page = Page(width, color=color, out=out)
    _fill(page, run, verbose)
    page.hand_on()


def _fill(page: Page, run: Run, verbose: int) -> None:
    heads = _Heads.of(run.outcomes, page.width)
    bare = [outcome for outcome in run.outcomes if outcome.error and not _has_body(outcome, verbose)]
    telling = [
        (outcome, rows.Survey(outcome.records))
        for outcome in run.outcomes
        if not outcome.error or _has_body(outcome, verbose)
    ]
    grid = rows.checkpoint_grid([survey for _, survey in telling])
    brief = _told_in_brief(telling) if not verbose else frozenset()
    alone = False
    for index, (outcome, survey) in enumerate(telling):
        stands_out = index not in brief and _has_body(outcome, verbose)
        if index and (stands_out or alone):
            page.gap()
        alone = stands_out
        if index in brief:
            _head(page, outcome, heads, survey)
            _summaries(page, outcome, survey, verbose=verbose)
        else:
            _section(page, outcome, survey, heads, grid, verbose=verbose)
    if brief:
        page.gap()
        targets = plural(len({telling[index][0].target for index in brief}), "target")
        said = f"the checkpoints of {targets} without findings are left out; -v shows them"
        page.line(Span(said, "dim"), hang=2)
    _errors(page, bare, heads)
    page.gap()
    page.line(*_totals(run), hang=2)


def short_summary(run: Run, *, width: int = 80, color: bool = False) -> str:
    """Write only what went wrong, and totals for several targets: for work whose output was shown as it came.

    Empty when a single target went well.
    """
    page = Page(width, color=color)
    _errors(page, [outcome for outcome in run.outcomes if outcome.error], _Heads.of(run.outcomes, page.width))
    if len(run.outcomes) > 1:
        page.gap()
        page.line(*_totals(run), hang=2)
    return page.text()


def outcome_line(outcome: Outcome, survey: rows.Survey | None = None) -> list[Span]:
    """Tell one outcome in one line, without its target: status, then the cause or the yield, then the time.

    `survey` is that of its records, where it is there already.
    """
    if outcome.error:
        return [_status(outcome), Span("  "), *_cause(outcome.error, outcome), Span(f": {_message(outcome)}")]
    total = outcome.timings_s.get("total")
    time = [human_seconds(total)] if total is not None else []
    harvest = _harvest(survey or rows.Survey(outcome.records))
    return [_status(outcome), Span(f"  {', '.join([*harvest, *severities_of([outcome]), *time])}", "dim")]


def _harvest(survey: rows.Survey) -> list[str]:
    counts = ((survey.checkpoints, "checkpoint"), (survey.others, "record"))
    return [plural(count, noun) for count, noun in counts if count]


def _status(outcome: Outcome) -> Span:
    return Span(outcome.status.value, STATUS_STYLE[outcome.status])


def _message(outcome: Outcome) -> str:
    """Return what happened, where the target stands already."""
    return without_place(outcome.error.message, outcome.target) if outcome.error else ""


def _cause(error: ErrorInfo, outcome: Outcome) -> list[Span]:
    return [Span(error.code, "bold"), Span(f" ({outcome.phase.value})")]


def _told_in_brief(telling: Sequence[tuple[Outcome, rows.Survey]]) -> frozenset[int]:
    """Choose the outcomes whose checkpoints are not told one by one: where there are many, those that are well."""
    if len({outcome.target for outcome, _ in telling}) <= _MANY:
        return frozenset()
    return frozenset(
        index
        for index, (outcome, survey) in enumerate(telling)
        if outcome.status is Status.OK and survey.checkpoints and not (outcome.findings or survey.others)
    )


# --- the head of a target -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heads:
    """Hold the widths that line up targets, names and steps over the whole page."""

    target: int
    name: int
    step: int
    several_steps: bool

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], width: int) -> _Heads:
        several = len({outcome.step for outcome in outcomes}) > 1
        return cls(
            target=min(_widest(_called(outcome)[0] for outcome in outcomes), width // 3),
            name=min(_widest(_called(outcome)[1] for outcome in outcomes), width // 4),
            step=min(_widest(_step_name(outcome) for outcome in outcomes), 24) if several else 0,
            several_steps=several,
        )

    def of_outcome(self, outcome: Outcome) -> list[Span]:
        """Begin an outcome's line: target, name, step of several."""
        target, name = _called(outcome)
        spans = [_column(target, self.target, "bold")]
        spans += [_column(name, self.name)] if self.name else []
        return [*spans, *([_column(_step_name(outcome), self.step, "dim")] if self.several_steps else [])]

    def of_group(self, text: str) -> list[Span]:
        """Begin the line of several targets, lined up with those of one."""
        return [_column(text, self.target + (self.name + 2 if self.name else 0), "bold")]


def _called(outcome: Outcome) -> tuple[str, str]:
    return shown_target(outcome.target, outcome.name)


def _column(text: str, width: int, style: Style = "plain") -> Span:
    text = clean(text)
    return Span(f"{pad(text, width)}  ", style)


def _widest(texts: Iterable[str]) -> int:
    return max((cells(clean(text)) for text in texts), default=0)


def _step_name(outcome: Outcome) -> str:
    payload = f" {outcome.payload.name}" if outcome.payload else ""
    return f"step {outcome.step + 1}{payload}"


# --- a target with something to show --------------------------------------------------------------


def _section(
    page: Page, outcome: Outcome, survey: rows.Survey, heads: _Heads, grid: rows.Grid, *, verbose: int
) -> None:
    _head(page, outcome, heads, survey)
    if verbose:
        _background(page, outcome)
    own = grid if grid.width <= page.width else rows.checkpoint_grid([survey])
    _records(page, outcome, survey, own, verbose=verbose)
    _streams(page, outcome, verbose=verbose)


def _head(page: Page, outcome: Outcome, heads: _Heads, survey: rows.Survey | None = None) -> None:
    """Add an outcome's first line and what to do about it."""
    whole = [*heads.of_outcome(outcome), *outcome_line(outcome, survey)]
    error = outcome.error
    if error is None:
        page.line(*whole, hang=4)
    elif width_of(whole) <= page.width and "\n" not in error.message:
        page.line(*whole)
    else:
        page.line(*heads.of_outcome(outcome), _status(outcome), Span("  "), *_cause(error, outcome), hang=4)
        _prose(page, _message(outcome))
    _remedy(page, outcome)


def _prose(page: Page, text: str) -> None:
    for line in text.splitlines():
        page.line(Span(line), indent=2, hang=2)


def _background(page: Page, outcome: Outcome) -> None:
    """Say what ran where, how long each phase took, and what the payload logged."""
    code = outcome.payload
    version = f"{code.name} {code.version or ''} sha256 {code.sha256[:12]}" if code else ""
    timings = [(phase, outcome.timings_s.get(phase, 0.0)) for phase in _PHASES]
    spent = ", ".join(f"{phase} {human_seconds(seconds)}" for phase, seconds in timings if seconds >= 0.005)
    for text in (version, spent, rows.pairs(outcome.facts)):
        page.line(Span(text, "dim"), indent=2, hang=2)
    for text in outcome.log:
        page.line(Span("log  ", "dim"), Span(text), indent=2, hang=5)


_UNSURE: Final = frozenset({Status.TIMEOUT, Status.LOST, Status.CANCELLED})


def _left_behind(outcome: Outcome) -> Span | None:
    """Say which processes were left behind, and when nobody could tell."""
    if outcome.survivors:
        return Span(f"{plural(outcome.survivors, 'process', 'processes')} of this run could not be killed", "bad")
    if outcome.survivors is None and outcome.status in _UNSURE and outcome.phase in _WITH_PAYLOAD:
        return Span("nobody could look whether processes of this run are left", "warn")
    return None


def _records(page: Page, outcome: Outcome, survey: rows.Survey, grid: rows.Grid, *, verbose: int) -> None:
    """Add the records, in as many passes over them as there are kinds to be told apart."""
    findings: dict[str, list[Finding]] = {}
    for finding in outcome.findings:
        findings.setdefault(finding.subject, []).append(finding)
    if outcome.error and outcome.records:
        page.line(Span(f"{' and '.join(_harvest(survey)) or 'a summary'} had arrived:", "dim"), indent=2)
    shared = {} if verbose or survey.checkpoints < 2 else take_shared(findings)
    if survey.checkpoints:
        _checkpoints(page, outcome, grid, findings, verbose=verbose)
    shared_lines(page, shared, of=survey.checkpoints, noun="checkpoint")
    apart = [rows.is_checkpoint, rows.is_summary, *([] if verbose else [rows.is_series])]
    others = survey.others + (survey.series if verbose else 0)
    shown = others if verbose else min(others, rows.MAX_RECORDS)
    for record in _first(shown, outcome, lambda record: not any(is_one(record) for is_one in apart)):
        rows.record_lines(page, record, verbose=verbose)
    _left_out(page, others - shown, "record")
    rest = [finding for group in findings.values() for finding in group]
    finding_lines(page, rest, with_subject=True, verbose=verbose)
    _summaries(page, outcome, survey, verbose=verbose)


def _summaries(page: Page, outcome: Outcome, survey: rows.Survey, *, verbose: int) -> None:
    rows.sums_lines(page, survey)
    for record in _first(survey.summaries, outcome, rows.is_summary):
        rows.summary_line(page, record, verbose=verbose)


def _first(count: int, outcome: Outcome, wanted: Callable[[Mapping[str, Json]], bool]) -> Iterator[Mapping[str, Json]]:
    """Read the records of one kind, so many of which there are at least."""
    return islice(filter(wanted, outcome.records if count else ()), count)


def _checkpoints(
    page: Page, outcome: Outcome, grid: rows.Grid, findings: dict[str, list[Finding]], *, verbose: int
) -> None:
    """Add the checkpoints' rows, each with its findings below, which are taken out of `findings`."""
    shown, hidden = 0, []
    for record in outcome.records:
        if not rows.is_checkpoint(record):
            continue
        verdict = record.get("verdict")
        if shown >= rows.MAX_ROWS and verdict in rows.QUIET_VERDICTS and not verbose:
            hidden.append(verdict)
            continue
        shown += 1
        rows.checkpoint_row(page, record, grid, verbose=verbose)
        name = record.get("name")
        own = findings.pop(name, []) if isinstance(name, str) else []
        finding_lines(page, own, with_subject=False, verbose=verbose)
    what = " or ".join(dict.fromkeys(map(str, hidden)))
    _left_out(page, len(hidden), f"checkpoint that is {what}", f"checkpoints that are {what}")


def _left_out(page: Page, count: int, noun: str, many: str | None = None) -> None:
    if count > 0:
        page.line(
            Span(f"... and {plural(count, f'more {noun}', many and f'more {many}')}; -v shows all", "dim"),
            indent=2,
            hang=2,
        )


# --- output that helps to understand an error -----------------------------------------------------

_TAIL: Final = (8, 40, 100_000)
"""Lines shown of a stream, by -v."""
# The message of these already holds the payload's or the host's own words.
_SELF_EXPLAINING: Final = frozenset({"nothing_to_check", "payload_failed", "cancelled", "earlier_step"})
_BEFORE_THE_PAYLOAD: Final = frozenset({"interpreter_broken", "enter_failed", "python_too_old"})


def _telling_streams(outcome: Outcome, verbose: int) -> list[tuple[str, Captured]]:
    """Choose the streams to show: of an error those that may hold its cause, of anything else all of them with -vv."""
    streams = [("stdout", outcome.stdout), ("stderr", outcome.stderr), ("noise", outcome.noise)]
    streams = [(name, stream) for name, stream in streams if stream.total]
    if verbose > 1 or not streams:
        return streams
    code = outcome.error.code if outcome.error else None
    if code is None or code in _SELF_EXPLAINING:
        return []
    if code in _BEFORE_THE_PAYLOAD:
        return streams
    if outcome.phase not in _WITH_PAYLOAD:
        return []
    own = [(name, stream) for name, stream in streams if name != "noise"]
    return own if verbose else own[-1:]


def _streams(page: Page, outcome: Outcome, *, verbose: int) -> None:
    for name, stream in _telling_streams(outcome, verbose):
        lines, before = last_lines(stream, _TAIL[min(verbose, 2)])
        if not lines:
            continue
        cut = (
            f", {human_bytes(stream.total - len(stream.head) - len(stream.tail))} left out" if stream.truncated else ""
        )
        part = f", last {len(lines)} of {before + len(lines)} lines" if before else ""
        page.line(Span(f"{name}{part}{cut}:", "dim"), indent=2)
        for line in lines:
            page.line(Span("| ", "dim"), Span(line), indent=2, hang=2)


# --- errors ---------------------------------------------------------------------------------------


def _has_body(outcome: Outcome, verbose: int) -> bool:
    """Tell whether an outcome has more to show than its head."""
    return bool(verbose or outcome.records or outcome.findings or _telling_streams(outcome, verbose))


def _remedy(page: Page, outcome: Outcome) -> None:
    error, left = outcome.error, _left_behind(outcome)
    if error and error.limit:
        value, place = format_duration(error.limit.value_s), error.limit.set_by
        origin = f"; {'set by ' if place != DEFAULT_LIMIT else ''}{place}" if place else ""
        told = f"{error.limit.name} {value} ({error.limit.key}{origin})"
        page.line(Span("limit: ", "hint"), Span(told), indent=2, hang=7)
    if error and error.hint:
        page.line(Span("fix: ", "hint"), *_with_commands(error.hint), indent=2, hang=5)
    if left:
        page.line(left, indent=2, hang=2)


def _with_commands(text: str) -> Iterator[Span]:
    """Tell the commands in a text, which stand between backticks, from the words around them."""
    for index, part in enumerate(re.split("(`[^`]*`)", text)):
        yield Span(part, command=bool(index % 2))


def _errors(page: Page, outcomes: Sequence[Outcome], heads: _Heads) -> None:
    """Add outcomes of which only an error is to be told, those with one cause and remedy together."""
    groups: dict[tuple[object, ...], list[Outcome]] = {}
    for outcome in outcomes:
        error = outcome.error
        if error:
            alike = (outcome.status, outcome.phase, error.code, error.hint, error.limit, _left_behind(outcome))
            groups.setdefault(alike, []).append(outcome)
    for group in groups.values():
        page.gap()
        _error_group(page, group, heads)


def _error_group(page: Page, group: Sequence[Outcome], heads: _Heads) -> None:
    first = group[0]
    if len(group) == 1 or first.error is None:
        _head(page, first, heads)
        return
    targets = plural(len({outcome.target for outcome in group}), "target")
    page.line(*heads.of_group(targets), _status(first), Span("  "), *_cause(first.error, first), hang=4)
    if len({outcome.error.message for outcome in group if outcome.error}) == 1:
        _prose(page, first.error.message)
        labels = [Span(_label(outcome, heads), "bold", solid=True) for outcome in group]
        page.line(*(part for label in labels for part in (label, Span("  "))), indent=2)
    else:
        for outcome in group:
            page.line(Span(_label(outcome, heads), "bold"), Span(f"  {_message(outcome)}"), indent=2, hang=2)
    _remedy(page, first)


def _label(outcome: Outcome, heads: _Heads) -> str:
    step = f" ({_step_name(outcome)})" if heads.several_steps else ""
    return f"{' '.join(filter(None, _called(outcome)))}{step}"


# --- totals ---------------------------------------------------------------------------------------

_SAID: Final = {Status.FINDINGS: "with findings", Status.TIMEOUT: "timed out", Status.NOT_STARTED: "not started"}


def counted(count: int, status: Status) -> str:
    """Write so many outcomes of a status: ``2 with findings``."""
    return f"{count} {_SAID.get(status, status.value)}"


def _totals(run: Run) -> list[Span]:
    targets = plural(len({outcome.target for outcome in run.outcomes}), "target")
    several = len({outcome.step for outcome in run.outcomes}) > 1
    spans = [Span(f"{targets}, {plural(len(run.outcomes), 'step')}: " if several else f"{targets}: ", "bold")]
    for status in Status:
        matching = [outcome for outcome in run.outcomes if outcome.status is status]
        if matching:
            separator = "" if len(spans) == 1 else ", "
            spans += [Span(separator), Span(counted(len(matching), status), STATUS_STYLE[status], solid=True)]
            severities = ", ".join(severities_of(matching))
            spans += (
                [Span(" "), Span(f"({severities})", solid=True)] if severities and status is Status.FINDINGS else []
            )
    seconds = seconds_between(run.started_at, run.finished_at)
    spans += [Span(" "), Span(f"in {human_seconds(seconds)}", solid=True)] if seconds is not None else []
    cut_short = run.status in {RunStatus.INTERRUPTED, RunStatus.TERMINATED}
    return [*spans, *([Span(f"; {run.status}", "bad")] if cut_short else [])]
