"""Files as bytes, bounded; importing this costs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from remoterun.errors import ConfigError, Problem
from remoterun.inventory.words import show

if TYPE_CHECKING:
    from pathlib import Path

MOST_BYTES: Final = 8 << 20


def read_bytes(path: Path) -> bytes:
    """Read a file of bounded size.

    Raises:
        ConfigError: it cannot be read or is too large.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(Problem(file=str(path), message=f"cannot be read: {error.strerror or error}")) from error
    except ValueError as error:  # a NUL in the path
        raise ConfigError(Problem(file=show(str(path)), message=f"cannot be read: {error}")) from error
    if len(data) > MOST_BYTES:
        raise ConfigError(Problem(file=str(path), message=f"is larger than {MOST_BYTES} bytes"))
    return data
