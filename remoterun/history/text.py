"""How targets fared over their runs, for people: a line for each target, a letter for each run, and what was found."""

from __future__ import annotations

from collections import Counter
from shlex import quote
from typing import TYPE_CHECKING, Final

from remoterun.compare.text import Writer, moment_text, widest
from remoterun.errors import clean
from remoterun.history.database import project_name
from remoterun.model import Severity, Status
from remoterun.report.severities import worst_of_each
from remoterun.report.text import SEVERITY_STYLE, STATUS_STYLE, Page, Span, pad, plural, shown_target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remoterun.compare import Moment, Standing
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


_WIDEST_ID: Final = 32


def former_text(project: str, former: Sequence[str]) -> str:
    """Say how a project goes on with the history of a folder that is gone, if it was the same one."""
    move = f"remoterun history move {quote(former[0])} --project {quote(project)}"
    return clean(f"{former[0]} is gone, but has a history: if it was {project}, go on with that by `{move}`")


def trails_text(
    trails: Sequence[Trail],
    *,
    width: int,
    color: bool,
    verbose: int = 0,
    height: int | None = None,
    notes: Sequence[str] = (),
) -> str:
    """Write trails for people, in lines of at most `width` cells, each ended by a newline.

    They come by playbook and, where there are several, by project. `notes` say what else there is, and how to get it.
    `verbose` also shows findings of severity info, what to do about each, and lists in full. What does not fit into
    `height` lines is shortened, unless it is to be verbose, and what is left out is said.
    """
    page = Page(width, color=color)
    lines = list(dict.fromkeys((trail.project, trail.playbook) for trail in trails))
    own = {line: [trail for trail in trails if (trail.project, trail.playbook) == line] for line in lines}
    titles = _titles(lines)
    for line in lines:
        page.gap()
        playbook_lines(page, titles[line], own[line])
        _findings(page, own[line], widest((trail.target for trail in own[line]), _WIDEST_ID), verbose)
    _notes(page, notes)
    text = page.text()
    # The prompt that follows needs a line as well.
    if height is None or verbose or text.count("\n") < height:
        return text
    from remoterun.history.brief import brief

    page = Page(width, color=color)
    brief(page, [(titles[line], own[line]) for line in lines], height - len(notes) - bool(notes))
    _notes(page, notes)
    return page.text()


def _titles(lines: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Name playbooks; most people have one project, and need not be told its name."""
    several = len({project for project, _ in lines}) > 1
    return {
        (project, playbook): f"{playbook} of {project_name(project) or 'no project'}" if several else playbook
        for project, playbook in lines
    }


def _notes(page: Page, notes: Sequence[str]) -> None:
    if notes:
        page.gap()
    for note in notes:
        page.line(Span(note, "dim"), hang=2)


def playbook_lines(page: Page, title: str, trails: Sequence[Trail], shown_trails: Sequence[Trail] = ()) -> None:
    """Add the runs of a playbook: a head, a line for each target, and what the letters mean.

    `shown_trails` are the only ones that get a line, where not all do.
    """
    runs = _runs(trails)
    called = _called(trails)
    ids = widest((target for target, _ in called.values()), min(_WIDEST_ID, page.width // 3))
    names = widest((name for _, name in called.values()), 24)
    steps = widest((_newest(trail) for trail in trails), 20)
    # What stands right of the runs needs some room as well.
    states = widest(("".join(span.text for span in _now(trail)) for trail in trails), 60)
    room = page.width - ids - names - steps - states - 10
    shown = runs[-max(room, 8) :]
    span = f"{moment_text(shown[0])} to {moment_text(shown[-1])}" if len(shown) > 1 else moment_text(shown[-1])
    page.line(Span(title, "bold"), Span(f"  {plural(len(shown), 'run')}, {span}", "dim"), hang=2)
    for trail in shown_trails or trails:
        stops = {stop.run.run_id: stop.status for stop in trail.stops}
        strip = [stops.get(run.run_id) for run in shown]
        target, name = called[trail.target]
        page.line(
            Span(pad(clean(target), ids), "bold"),
            Span(f"  {pad(clean(name), names)}" if names else ""),
            Span("  "),
            *(Span(_LETTERS[each], STATUS_STYLE[each]) if each else Span(" ", solid=True) for each in strip),
            Span(f"  {pad(_newest(trail), steps)}" if steps else "", "dim"),
            Span("  "),
            *_now(trail),
            indent=2,
            hang=ids + 2,
        )
    page.line(*_legend(trails), indent=2, hang=2)


def _called(trails: Sequence[Trail]) -> dict[str, tuple[str, str]]:
    """Return what targets are called, by their ids; paths are so as they were written, where that is no other's too."""
    called = {trail.target: shown_target(trail.target, trail.name) for trail in trails}
    count = Counter(first for first, _ in called.values())
    return {target: pair if count[pair[0]] == 1 else (target, pair[1]) for target, pair in called.items()}


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
    known = [each for each in trail.standing if each.known]
    for severity, count in worst_of_each((_subject(each), each.finding.severity) for each in known).items():
        spans += [Span("  "), Span(f"{count} {severity.value}", SEVERITY_STYLE[severity], solid=True)]
    unknown = {_subject(each) for each in trail.standing if each.finding.severity is not Severity.INFO}
    unknown -= {_subject(each) for each in known}
    return [*spans, Span("  "), Span(f"{len(unknown)} unknown", "warn", solid=True)] if unknown else spans


def _subject(standing: Standing) -> tuple[str, str]:
    return standing.identity.payload, standing.identity.subject


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
