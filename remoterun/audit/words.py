"""The words of alerts: which events there are, what their lines say, and what may stand in them.

Standard library only: the file's models and the alerts themselves are made of these.
"""

from __future__ import annotations

import string
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from remoterun.errors import nearest, show

if TYPE_CHECKING:
    from collections.abc import Mapping

KEEP_AT_MOST_S: Final = 90 * 86400.0
SPLAY_AT_MOST_S: Final = 30 * 86400.0

TEMPLATES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "new": "new: $target: $subject: $rule $severity: $message",
        "cleared": "cleared: $target: $subject: $rule $severity, since $since",
        "unreachable": "no result: $target: $count times in a row, since $since: $message",
        "reachable": "back: $target gives results again, after $count times without",
        "failed": "the audit itself failed: $message",
        "working": "the audit itself works again: it had failed since $since",
    }
)
"""What a message says of each kind of event."""

NAMES: Final = ("target", "name", "playbook", "subject", "tensor", "rule", "severity", "message", "count", "since")
"""What may stand in a template, after a dollar sign; what an event has none of is empty."""


def check_template(text: str) -> str:
    """Return a template itself.

    Raises:
        ValueError: it names something that no event has, or breaks the rules of `string.Template`.
    """
    template = string.Template(text)
    if not template.is_valid():
        raise ValueError("has a $ that no name follows: write $$ for the sign itself")
    for name in template.get_identifiers():
        if name not in NAMES:
            near = nearest(name, NAMES)
            guess = f" (did you mean ${' or $'.join(near)}?)" if near else f": there are ${', $'.join(NAMES)}"
            raise ValueError(f"names {show(name)}, which no event has{guess}")
    return text
