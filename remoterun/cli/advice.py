"""What a usage error says beyond its own words: where that which was meant is to be put."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# How the words of a program are told from remoterun's own.
_PROGRAMS: Final[Mapping[str, str]] = MappingProxyType(
    {"run": "remoterun run SCRIPT.py --on TARGET -- {}", "exec": "remoterun exec --on TARGET -- PROGRAM {}"}
)
_FAIL_ON: Final = (
    "`fail_on: {}` belongs to a step of a playbook, and `play` has no flag for it; what a rule counts for in this run "
    "is said by --severity and --ignore"
)


def advice(words: Sequence[str], option: str) -> str | None:
    """Say what to do about an option that a command does not have, where that is known; `words` are the command's."""
    command = words[0] if words else ""
    if command in _PROGRAMS and "--" not in words:
        return f"what belongs to the program goes behind `--`: {_PROGRAMS[command].format(option)}"
    if command == "play" and option.replace("_", "-") == "--fail-on":
        return _FAIL_ON.format(_value(words, option) or "LEVEL")
    return None


def _value(words: Sequence[str], option: str) -> str | None:
    for number, word in enumerate(words):
        name, _, value = word.partition("=")
        if name == option:
            return value or next(iter(words[number + 1 : number + 2]), None)
    return None
