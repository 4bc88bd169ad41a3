"""Versions of payloads and the constraints that choose among them."""

from __future__ import annotations

import re
from typing import TypeAlias

from remoterun.errors import ConfigError
from remoterun.records import dataclass

Version: TypeAlias = tuple[int, int, int]

# No leading zeros, so that a version has one spelling; nine digits, so that no spelling is costly to read.
_NUMBER = r"(?:0|[1-9][0-9]{0,8})"
_VERSION = re.compile(rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})")
_CONSTRAINT = re.compile(rf"=?{_NUMBER}\.{_NUMBER}\.{_NUMBER}|{_NUMBER}(?:\.{_NUMBER})?")


def parse_version(text: str) -> Version | None:
    """Read ``MAJOR.MINOR.PATCH``, strictly; None for anything else."""
    match = _VERSION.fullmatch(text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Name a payload and the versions of it that will do: those that start with `prefix`."""

    name: str
    prefix: tuple[int, ...] = ()

    def accepts(self, version: Version) -> bool:
        """Tell whether a version will do."""
        return version[: len(self.prefix)] == self.prefix


def parse_reference(text: str) -> Reference:
    """Read ``name``, ``name@1``, ``name@1.2`` or ``name@=1.2.0`` (``name@1.2.0`` means the same).

    Raises:
        ConfigError: for any other constraint.
    """
    name, at, constraint = text.partition("@")
    if not at:
        return Reference(name=name)
    if not _CONSTRAINT.fullmatch(constraint):
        raise ConfigError(
            f"{text!r} has no version constraint after the @: write {name}@1, {name}@1.2 or {name}@=1.2.0"
        )
    return Reference(name=name, prefix=tuple(int(number) for number in constraint.removeprefix("=").split(".")))
