"""Messages of alerts: the lines of one audit, each by its template, in one text of bounded size. Pure."""

from __future__ import annotations

import string
from collections import Counter
from typing import TYPE_CHECKING, Final

from remoterun.audit.words import NAMES
from remoterun.errors import clean
from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remoterun.audit.ledger import Event

MOST_LINES: Final = 40
"""So many lines a message has; the rest is counted."""
_MOST_CHARS: Final = 4000
_TITLES: Final = (
    ("failed", "audit failed"),
    ("new", "new"),
    ("unreachable", "without a result"),
    ("cleared", "cleared"),
    ("reachable", "back"),
    ("working", "audit works again"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Hold what is sent: plain text, whatever stands in it."""

    title: str
    body: str


def message(project: str, events: Sequence[Event], templates: Mapping[str, str], *, dropped: int = 0) -> Message:
    """Put events into one message: equal lines once, the gravest first as in the table, no more than can be read.

    What targets say is put into the templates' places and never looked at again, so none of it is obeyed.
    """
    order = {template: number for number, (template, _) in enumerate(_TITLES)}
    ranked = sorted(events, key=lambda event: (order[event.template], -event.rank))
    lines = list(dict.fromkeys(line_of(event, templates) for event in ranked))
    shown = _within(lines)
    left = len(lines) - len(shown)
    if left:
        shown.append(f"and {left} more: remoterun diff, or remoterun show last")
    if dropped:
        shown.append(f"{dropped} older {'event was' if dropped == 1 else 'events were'} dropped unsent")
    return Message(title=f"remoterun {clean(project)}: {summary(events)}", body="\n".join(shown))


def line_of(event: Event, templates: Mapping[str, str]) -> str:
    """Word one event."""
    values = {name: getattr(event, name) for name in NAMES}
    return string.Template(templates[event.template]).safe_substitute(values)


def summary(events: Sequence[Event]) -> str:
    """Count events by what they tell: `2 new, 1 cleared`."""
    counts = Counter(event.template for event in events)
    return ", ".join(
        said if template in {"failed", "working"} else f"{counts[template]} {said}"
        for template, said in _TITLES
        if counts[template]
    )


def _within(lines: Sequence[str]) -> list[str]:
    """Return the first lines, as many as a message has room for, one at least."""
    shown: list[str] = []
    size = 0
    for line in lines[:MOST_LINES]:
        size += len(line) + 1
        if shown and size > _MOST_CHARS:
            break
        shown.append(line)
    return shown
