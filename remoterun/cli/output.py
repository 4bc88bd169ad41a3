"""Standard output: it carries the chosen format and nothing else, and its reader may leave at any time."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remoterun.model import Json


class ReaderGoneError(Exception):
    """Say that nobody reads standard output any more. Not an OSError: typer would turn that into exit status 1."""


def write(data: bytes | str) -> None:
    """Write to standard output and flush it.

    Raises:
        ReaderGoneError: when its reader has left.
    """
    try:
        sys.stdout.buffer.write(data if isinstance(data, bytes) else data.encode("utf-8", "backslashreplace"))
        sys.stdout.buffer.flush()
    except BrokenPipeError as error:
        raise ReaderGoneError from error


def write_json(value: dict[str, Json], *, indent: int | None) -> None:
    """Write one strict JSON document in ASCII."""
    write(json.dumps(value, indent=indent, allow_nan=False) + "\n")
