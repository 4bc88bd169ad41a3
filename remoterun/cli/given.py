"""What a command line reads from files and from standard input: targets and parameters."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from remoterun.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remoterun.model import Json

_STDIN_MAX: Final = 16 << 20


class StandardInput:
    """Hand out standard input once; `taken_by` names what reads it."""

    def __init__(self, taken_by: str | None = None) -> None:
        self._taken_by = taken_by

    def read(self, flag: str) -> bytes:
        """Read all of it.

        Raises:
            ConfigError: when something else reads it, or it can't be read, or is too large.
        """
        if self._taken_by is not None:
            raise ConfigError(f"{flag}: standard input can be read once, and {self._taken_by} reads it")
        self._taken_by = flag
        try:
            data = sys.stdin.buffer.read(_STDIN_MAX + 1)
        except OSError as error:
            raise ConfigError(f"{flag}: standard input cannot be read: {error.strerror}") from error
        if len(data) > _STDIN_MAX:
            raise ConfigError(f"{flag}: standard input is larger than {_STDIN_MAX >> 20} MiB")
        return data


def something_unread() -> bool:
    """Tell whether standard input is a pipe or a file with something to read, without taking any of it."""
    from fcntl import ioctl
    from termios import FIONREAD

    try:
        kind = os.fstat(0)
        if stat.S_ISREG(kind.st_mode):
            return os.lseek(0, 0, os.SEEK_CUR) < kind.st_size
        return stat.S_ISFIFO(kind.st_mode) and any(ioctl(0, FIONREAD, bytes(4)))
    except OSError:  # it is closed
        return False


def patterns(given: Sequence[str] | None, flag: str, stdin: StandardInput) -> tuple[str, ...]:
    """Return selection patterns; ``-`` stands for those on standard input, one a line, comments after a #.

    Raises:
        ConfigError: when standard input can't be read, is not UTF-8, or names nothing.
    """
    found: list[str] = []
    for pattern in given or ():
        found += _lines(stdin.read(f"{flag} -"), flag) if pattern == "-" else [pattern]
    return tuple(found)


def _lines(data: bytes, flag: str) -> list[str]:
    try:
        # Editors of Windows put a mark before it.
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{flag} -: standard input is not UTF-8: {error.reason} at byte {error.start}") from error
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    found = [line for line in lines if line]
    if not found:
        raise ConfigError(f"{flag} -: standard input names no target")
    return found


def params_of(given: Sequence[str] | None, stdin: StandardInput) -> dict[str, Json]:
    """Return the parameters of ``--params`` files; later files win, name by name.

    Raises:
        ConfigError: with every problem of the first file that has some.
    """
    params: dict[str, Json] = {}
    for text in given or ():
        if not text.startswith("@") or len(text) == 1:
            raise ConfigError(Problem(path="--params", message=f"{text!r} is not of the form @FILE, or @- for stdin"))
        params.update(_params(text[1:], stdin))
    return params


def _params(name: str, stdin: StandardInput) -> dict[str, Json]:
    from remoterun.inventory.yamlfile import parse, read

    document = parse(stdin.read("--params @-"), "<stdin>") if name == "-" else read(Path(name))
    if document.problems:
        raise ConfigError(document.problems)
    if not isinstance(document.root, dict):
        raise ConfigError(document.problem((), "parameters are a mapping of names to values"))
    return document.root
