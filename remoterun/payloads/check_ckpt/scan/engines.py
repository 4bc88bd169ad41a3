"""The choice of an engine: the standard library, or numpy where there is enough to read to pay for its import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

from .engine import StdlibEngine

if TYPE_CHECKING:
    from .engine import Engine

# Importing numpy costs about 0.1 s; per GB it saves as much for float32 and twice as much for 16-bit formats.
_WORTH_NUMPY = 500_000_000


class EngineError(Exception):
    """Say that the engine that was asked for is not to be had."""


def choose_engine(mode: str, total: int, log: Callable[[str], None]) -> Engine:
    """Return the engine for so many bytes; all engines count exactly the same.

    Raises:
        EngineError: when "numpy" is asked for and can't be imported.
    """
    if mode == "stdlib" or (mode == "auto" and total < _WORTH_NUMPY):
        return StdlibEngine()
    try:
        from .numpy_engine import NumpyEngine

        return NumpyEngine()
    except ImportError as error:
        reason = str(error)
    except Exception as error:  # a numpy that does not fit this Python fails in many ways, and none may end the audit
        reason = "%s: %s" % (type(error).__name__, error)
    if mode == "numpy":
        raise EngineError("engine=numpy was asked for, but numpy can't be imported here (%s)" % reason)
    log("numpy can't be imported (%s): counting without it" % reason)
    return StdlibEngine()
