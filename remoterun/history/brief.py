"""How targets fared over their runs, on one screen: what is wrong now comes first, and what is left out is said."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from remoterun.compare.text import folded_standing, moment_text, widest
from remoterun.errors import clean
from remoterun.history.text import playbook_lines
from remoterun.model import Severity, Status
from remoterun.report.text import SEVERITY_STYLE, Page, Span, cells, clip, pad, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remoterun.compare import Standing
    from remoterun.history.trail import Trail

_PROMPT: Final = 1
_FEWEST: Final = 3
"""Targets and findings that are shown on the smallest screen."""
_LEAST_OF_FINDINGS: Final = 7
"""Lines that findings get of a screen, their head and what is left out included, where there are so many."""
_LOST_AT_ENDS: Final = 12
"""Cells of a line that stay empty, since lines are broken at blanks."""
_CALM: Final = frozenset({Status.OK, Status.CANCELLED, Status.NOT_STARTED, Status.RUNNING})


def brief(page: Page, playbooks: Sequence[tuple[str, Sequence[Trail]]], height: int) -> None:
    """Fill a page of about so many lines: `playbooks` are titles and trails, that of the newest run first."""
    room = height - _PROMPT
    whole = _whole(playbooks, room)
    others = playbooks[len(whole) :]
    below = len(others) + 1 if others else 0
    trails = [trail for _, own in whole for trail in own]
    told = _told(trails)
    if len(whole) == 1:
        (title, own), spare = whole[0], room - below - 2 - _lines_of_findings(told)
        _targets(page, title, own, max(spare, _FEWEST))
    else:
        for title, own in whole:
            page.gap()
            playbook_lines(page, title, own)
    if told:
        _findings(page, trails, told, max(room - page.height - below - 3, _FEWEST))
    if others:
        page.gap()
    for title, own in others:
        page.line(Span(title, "bold"), Span(f"  {_in_short(own)}", "dim"), hang=2)


def _whole(playbooks: Sequence[tuple[str, Sequence[Trail]]], room: int) -> Sequence[tuple[str, Sequence[Trail]]]:
    """Return the playbooks that can be shown with all their targets, and the first one in any case."""
    for count in range(len(playbooks), 1, -1):
        chosen = playbooks[:count]
        heights = sum(len(own) + 3 for _, own in chosen)
        left = len(playbooks) - count + 1
        if heights + left + _lines_of_findings(_told([trail for _, own in chosen for trail in own])) <= room:
            return chosen
    return playbooks[:1]


def _lines_of_findings(told: Sequence[object]) -> int:
    return min(len(told) + 3, _LEAST_OF_FINDINGS) if told else 0


def _targets(page: Page, title: str, trails: Sequence[Trail], most: int) -> None:
    if len(trails) <= most:
        playbook_lines(page, title, trails)
        return
    ranked = sorted(trails, key=lambda trail: trail.stops[0].status in _CALM)
    playbook_lines(page, title, trails, ranked[: most - 1])
    rest = ranked[most - 1 :]
    page.line(Span(f"... and {plural(len(rest), 'target')} more: {_statuses(rest)}; -v shows all", "dim"), indent=2)


def _told(trails: Sequence[Trail]) -> list[tuple[Standing, tuple[str, ...]]]:
    """Return what is worth a line: the worst first, of these the newest."""
    standing = [each for trail in trails for each in trail.standing if each.finding.severity is not Severity.INFO]
    folded = sorted(folded_standing(standing), key=lambda pair: pair[0].since.at, reverse=True)
    return sorted(folded, key=lambda pair: -pair[0].finding.severity.rank)


def _findings(page: Page, trails: Sequence[Trail], told: Sequence[tuple[Standing, tuple[str, ...]]], most: int) -> None:
    page.gap()
    page.line(Span("findings", "bold"))
    shown = told[:most]
    who = [clean(targets[0]) if len(targets) == 1 else plural(len(targets), "target") for _, targets in shown]
    widths = widest((each.identity.rule for each, _ in shown), 16), widest(who, 24)
    for (each, _), where in zip(shown, who, strict=True):
        _finding(page, each, where, widths, most // len(shown))
    calm = sum(each.finding.severity is Severity.INFO for trail in trails for each in trail.standing)
    left = [f"{len(told) - len(shown)} more"] if len(shown) < len(told) else []
    left += [f"{calm} of severity info"] if calm else []
    more = f"... and {', '.join(left)}; " if left else ""
    page.line(Span(f"{more}-v shows all, --target TARGET those of one", "dim"), indent=2)


def _finding(page: Page, standing: Standing, where: str, widths: tuple[int, int], rows: int) -> None:
    """Add a finding in at most so many lines, as a rule."""
    finding, (rules, ids) = standing.finding, widths
    severity = pad(finding.severity.value, 7)
    rule, place = (pad(clip(text, width), width) for text, width in ((clean(finding.rule), rules), (where, ids)))
    since = f"  {'' if standing.known else 'unknown '}since {moment_text(standing.since)[:10]}"
    said = clean(f"{finding.subject}: {finding.message}" if finding.subject else finding.message)
    head = cells(severity) + rules + ids + 6
    hang = head if head < page.width // 2 else 4
    room = page.width - 2 - head - cells(since) + (rows - 1) * (page.width - 2 - hang - _LOST_AT_ENDS)
    page.line(
        Span(severity, SEVERITY_STYLE[finding.severity]),
        Span(f"  {rule}", "dim"),
        Span(f"  {place}  ", "bold"),
        Span(clip(said, max(room, 1))),
        Span(since, "dim", solid=True),
        indent=2,
        hang=hang,
    )


def _in_short(trails: Sequence[Trail]) -> str:
    newest = max(trail.stops[0].run.at for trail in trails)
    return f"{newest.replace('T', ' ')[:16]}: {_statuses(trails)}; --playbook shows it"


def _statuses(trails: Sequence[Trail]) -> str:
    counts = Counter(trail.stops[0].status.value for trail in trails)
    return ", ".join(f"{count} {status}" for status, count in counts.items())
