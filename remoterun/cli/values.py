"""What the texts of flags mean: parameters, limits, secrets, changes to rules."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from remoterun.errors import ConfigError, Problem
from remoterun.inventory.words import ENV_NAME, local_path
from remoterun.model import RuleChanges, SecretSource, Severity
from remoterun.model.limits import read_limits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def rule_changes(ignore: Sequence[str] | None, severity: Sequence[str] | None) -> RuleChanges:
    """Put --ignore and --severity together.

    Raises:
        ConfigError: when one of them is not of its form, or a rule stands in both.
    """
    problems: list[Problem] = []
    levels: dict[str, Severity] = {}
    for rule, level in pairs(severity, "--severity", "RULE=LEVEL").items():
        try:
            levels[rule] = Severity(level)
        except ValueError:
            message = f"{level!r} is no severity: write {', '.join(Severity)}"
            problems.append(Problem(path=f"--severity {rule}", message=message))
    both = [rule for rule in ignore or () if rule in levels]
    problems += [Problem(path="--ignore", message=f"{rule} is given a --severity as well") for rule in both]
    if problems:
        raise ConfigError(problems)
    return RuleChanges(ignore=tuple(ignore or ()), severity=levels)


def pairs(texts: Sequence[str] | None, flag: str, form: str = "NAME=VALUE") -> dict[str, str]:
    """Split ``NAME=VALUE`` texts; later ones win. `form` is what people are told to write.

    Raises:
        ConfigError: for texts without a name and an equals sign.
    """
    bad = [text for text in texts or () if "=" not in text[1:]]
    if bad:
        raise ConfigError(Problem(path=flag, message=f"{text!r} is not of the form {form}") for text in bad)
    return {key: value for key, _, value in (text.partition("=") for text in texts or ())}


def secret_sources(texts: Sequence[str] | None) -> dict[str, SecretSource]:
    """Read ``NAME``, ``NAME=env:VAR`` and ``NAME=file:PATH`` texts.

    Raises:
        ConfigError: for every one that is none of these.
    """
    sources: dict[str, SecretSource] = {}
    problems: list[Problem] = []
    for text in texts or ():
        name, _, said = text.partition("=")
        kind, _, place = (said or f"env:{name}").partition(":")
        try:
            ENV_NAME.check(name)
            if kind == "env":
                sources[name] = SecretSource(kind="env", words=(ENV_NAME.check(place),))
            elif kind == "file":
                sources[name] = SecretSource(kind="file", words=(local_path(place, Path.cwd()),))
            else:
                # What stands there may be the secret itself.
                raise ValueError("what follows the equals sign is neither env:VARIABLE nor file:PATH")
        except ValueError as error:
            problems.append(Problem(path="--secret", message=str(error)))
    if problems:
        raise ConfigError(problems)
    return sources


def limits(texts: Sequence[str] | None) -> Mapping[str, float | None]:
    """Read ``NAME=DURATION`` texts.

    Raises:
        ConfigError: for unknown names and bad durations, all at once.
    """
    return read_limits(pairs(texts, "--limit", "NAME=DURATION"), "--limit")


def word(text: str) -> bytes:
    """Return the exact bytes of a command-line word, whatever its encoding."""
    return os.fsencode(text)
