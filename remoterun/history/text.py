"""How targets fared over their runs, for people: a line for each target, a letter for each run, and what was found."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Final

from remoterun.compare.text import Writer, moment_text, widest
from remoterun.errors import clean
from remoterun.history.database import project_name
from remoterun.model import Severity, Status
from remoterun.report.rows import SEVERITY_STYLE
from remoterun.report.text import STATUS_STYLE, Page, Span, pad, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remoterun.compare import Moment
    from remoterun.history.trail import Trail

_LETTERS: Final = {
    Status.OK: ".",
    Status.FINDINGS: "!",
    Status.FAILED: "F",
    Status.TIMEOUT: "T",
    Status.UNREACHABLE: "U",
    Status.LOST: "L",
    Status.CANCELLED: "C",
    Status.NOT_STARTED: "-",
    Status.RUNNING: "r",
}


def former_text(project: str, former: Sequence[str]) -> str:
    """Say how a project goes on with the history of a folder that is gone, if it was the same one."""
    move = f"remoterun history move {quote(former[0])} --project {quote(project)}"
    return clean(f"{former[0]} is gone, but has a history: if it was {project}, go on with that by `{move}`")


def trails_text(trails: Sequence[Trail], *, width: int, color: bool, verbose: int = 0) -> str:
    """Write trails for people, in lines of at most `width` cells, each ended by a newline.

    They come by playbook and, where there are several, by project.
    `verbose` also shows findings of severity info, what to do about each, and lists in full.
    """
    page = Page(width, color=color)
    projects = {trail.project for trail in trails}
    for line in dict.fromkeys((trail.project, trail.playbook) for trail in trails):
        page.gap()
        project, playbook = line
        # Most people have one, and need not be told its name.
        place = f" of {clean(project_name(project) or 'no project')}" if len(projects) > 1 else ""
        own = [trail for trail in trails if (trail.project, trail.playbook) == line]
        _playbook(page, f"{clean(playbook)}{place}", own, verbose)
    return page.text()


def _playbook(page: Page, title: str, trails: Sequence[Trail], verbose: int) -> None:
    runs = _runs(trails)
    ids = widest((trail.target for trail in trails), 32)
    names = widest((trail.name or "" for trail in trails), 24)
    steps = widest((_newest(trail) for trail in trails), 20)
    # What stands right of the runs needs some room as well.
    states = widest(("".join(span.text for span in _now(trail)) for trail in trails), 60)
    room = page.width - ids - names - steps - states - 10
    shown = runs[-max(room, 8) :]
    span = f"{moment_text(shown[0])} to {moment_text(shown[-1])}" if len(shown) > 1 else moment_text(shown[-1])
    page.line(Span(title, "bold"), Span(f"  {plural(len(shown), 'run')}, {span}", "dim"), hang=2)
    for trail in trails:
        stops = {stop.run.run_id: stop.status for stop in trail.stops}
        strip = [stops.get(run.run_id) for run in shown]
        page.line(
            Span(pad(clean(trail.target), ids), "bold"),
            Span(f"  {pad(clean(trail.name or ''), names)}" if names else ""),
            Span("  "),
            *(Span(_LETTERS[each], STATUS_STYLE[each]) if each else Span(" ", solid=True) for each in strip),
            Span(f"  {pad(_newest(trail), steps)}" if steps else "", "dim"),
            Span("  "),
            *_now(trail),
            indent=2,
            hang=ids + 2,
        )
    page.line(*_legend(trails), indent=2, hang=2)
    _findings(page, trails, ids, verbose)


def _runs(trails: Sequence[Trail]) -> list[Moment]:
    """Return the runs that the targets were in, the oldest first."""
    runs = {stop.run.run_id: stop.run for trail in trails for stop in trail.stops}
    most = max(len(trail.stops) for trail in trails)
    return sorted(runs.values(), key=lambda run: (run.at, run.run_id))[-most:]


def _newest(trail: Trail) -> str:
    """Write the newest step that was seen, also when that was some runs ago."""
    step = next((stop.newest for stop in trail.stops if stop.newest is not None), None)
    return "" if step is None else f"step {step}"


def _now(trail: Trail) -> list[Span]:
    status = trail.stops[0].status
    spans = [Span(status.value, STATUS_STYLE[status])]
    if trail.silence is not None:
        spans.append(Span(f" since {moment_text(trail.silence.since)[:10]}", "dim"))
    for severity in (Severity.BAD, Severity.SUSPECT):
        known = sum(each.known and each.finding.severity is severity for each in trail.standing)
        if known:
            spans += [Span("  "), Span(f"{known} {severity.value}", SEVERITY_STYLE[severity], solid=True)]
    unknown = sum(not each.known and each.finding.severity is not Severity.INFO for each in trail.standing)
    return [*spans, Span("  "), Span(f"{unknown} unknown", "warn", solid=True)] if unknown else spans


def _legend(trails: Sequence[Trail]) -> list[Span]:
    used = {stop.status for trail in trails for stop in trail.stops}
    told = [
        Span(f"{letter} {status.value}", "dim", solid=True) for status, letter in _LETTERS.items() if status in used
    ]
    return [part for each in told for part in (each, Span("  "))][:-1]


def _findings(page: Page, trails: Sequence[Trail], ids: int, verbose: int) -> None:
    standing = [each for trail in trails for each in trail.standing]
    ended = [each for trail in trails for each in trail.ended]
    rules = widest((each.identity.rule for each in (*standing, *(item.standing for item in ended))), 16)
    writer = Writer(page, verbose, rules, ids)
    writer.standing("findings", [each for each in standing if each.known])
    writer.standing("unknown, since nobody looked", [each for each in standing if not each.known])
    until = {each.standing.identity.key: f" until {moment_text(each.last)}" for each in ended}
    writer.standing("findings that went away", [each.standing for each in ended], until)
