"""Paths on this machine as targets: each is a target of its own, entered without SSH."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from remoterun.errors import ConfigError, Problem, nearest
from remoterun.inventory.adhoc import LOCAL
from remoterun.inventory.settings import DEFAULT_INTERPRETER, Login
from remoterun.model import Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remoterun.inventory.overrides import Flags

_MOST_NAMES: Final = 10_000


def path_targets(paths: Sequence[str], flags: Flags, *, var: str) -> tuple[Target, ...]:
    """Return a target for each path, once each; its variable `var` holds the absolute path.

    A target's id is the absolute path, so that it is the same however it is written, and from whichever folder; its
    name is the path as it was written. The interpreter is the flags', else the one that runs this program.

    Raises:
        ConfigError: every path where there is nothing to look at, all at once.
    """
    found: dict[str, tuple[Path, str]] = {}
    problems: list[Problem] = []
    for text in paths:
        path = absolute(text)
        label = _label(text, path)
        try:
            _look(path, text)
        except ConfigError as error:
            problems += (replace(problem, path=label) for problem in error.problems)
        found.setdefault(_visible(_normal(path)), (path, label))
    if problems:
        raise ConfigError(problems)
    said = flags.settings
    interpreter = said.interpreter if said.names_python else sys.executable or DEFAULT_INTERPRETER
    host = Login().local_host(LOCAL)
    return tuple(
        Target(
            id=id_,
            name=label if label != id_ else None,
            host=host,
            interpreter=interpreter,
            venv=said.venv,
            vars={var: str(path)},
        )
        for id_, (path, label) in found.items()
    )


def is_path(target: Target) -> bool:
    """Tell whether a target is a path on this machine: any other one without a guest is called as its host."""
    return target.guest is None and target.id != target.host.key


def absolute(text: str) -> Path:
    """Return an absolute path: ``~`` is the home folder unless there is a file of that name."""
    path = Path.cwd() / text
    if not text.startswith("~") or os.path.lexists(path):
        return path
    try:
        return Path(text).expanduser()
    except RuntimeError:  # no such user: it stays what it is, and is not there
        return path


def _normal(path: Path) -> str:
    """Write an absolute path in one way; links stay, since `latest` is another folder tomorrow."""
    plain = os.path.realpath(path) if ".." in path.parts else os.path.normpath(path)
    return f"/{plain.lstrip('/')}"


def _label(text: str, path: Path) -> str:
    """Write a path as its user did."""
    if not text:
        return "PATH"
    plain = str(Path(text))
    return _visible(_normal(path) if text.startswith("~") or plain in (".", "..") else plain)


def _visible(shown: str) -> str:
    """Write a path so that no two look alike and nothing in it reaches a terminal's controls."""
    return "".join(char if char.isprintable() and char != "\\" else ascii(char)[1:-1] for char in shown)


def _look(path: Path, text: str) -> None:
    """Make sure that there is a file or a folder.

    Raises:
        ConfigError: there is not, or nobody may look.
    """
    if not text:
        # It would mean the working directory: nobody wants that of a variable that is not set.
        raise ConfigError("the path is empty")
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        if path.is_symlink():
            raise ConfigError(f"is a link to {os.readlink(path)}, which does not exist") from error  # noqa: PTH115
        near = nearest(path.name, _names(path.parent))
        written = tuple(_label(str(Path(text).with_name(name)), path.with_name(name)) for name in near)
        raise ConfigError(Problem(message="does not exist", nearest=written)) from error
    except (OSError, ValueError) as error:  # a NUL in the path
        raise ConfigError(f"cannot be looked at: {getattr(error, 'strerror', None) or error}") from error
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ConfigError("is neither a file nor a folder")


def _names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry, _ in zip(entries, range(_MOST_NAMES), strict=False)]
    except OSError:
        return []
