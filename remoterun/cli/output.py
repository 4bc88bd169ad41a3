"""Standard output: it carries the chosen format and nothing else, and its reader may leave at any time."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remoterun.model import Json


class ReaderGoneError(Exception):
    """Say that nobody reads standard output any more. Not an OSError: typer would turn that into exit status 1."""


class EarlyInterruptError(Exception):
    """Say that Ctrl-C came while no run was under way. Not a KeyboardInterrupt: typer would swallow that."""


class OutputError(Exception):
    """Say that standard output can't be written: a full disk, mostly."""


def no_output(error: Exception) -> ReaderGoneError | OutputError:
    """Tell a reader that has left from an output that can't be written."""
    if isinstance(error, BrokenPipeError):
        return ReaderGoneError()
    return OutputError(f"standard output cannot be written: {getattr(error, 'strerror', None) or error}")


def tell(text: str) -> None:
    """Write to standard error, if that can be written at all."""
    with suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()


def write(data: bytes | str) -> None:
    """Write to standard output and flush it.

    Raises:
        ReaderGoneError: when its reader has left.
        OutputError: when it can't be written for another reason.
    """
    try:
        sys.stdout.buffer.write(data if isinstance(data, bytes) else data.encode("utf-8", "backslashreplace"))
        sys.stdout.buffer.flush()
    except (OSError, ValueError) as error:
        raise no_output(error) from error


def write_json(value: dict[str, Json], *, indent: int | None) -> None:
    """Write one strict JSON document in ASCII."""
    write(json.dumps(value, indent=indent, allow_nan=False) + "\n")
