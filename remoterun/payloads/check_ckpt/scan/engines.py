"""The choice of an engine: the standard library, or numpy where there is enough to read to pay for its import."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Callable

from ..dtypes import DTYPES
from .engine import Blocks
from .stdlib_engine import StdlibEngine, look_at_values

if TYPE_CHECKING:
    from .engine import Engine

# Importing what is needed of numpy costs 0.02 s (all of it 0.1 s); so much takes the standard library 0.03 s.
_WORTH_NUMPY = 1 << 20


class EngineError(Exception):
    """Say that the engine that was asked for is not to be had."""


def choose_engine(mode: str, total: int, log: Callable[[str], None]) -> Engine:
    """Return the engine for so many bytes; all engines count exactly the same.

    Raises:
        EngineError: when "numpy" is asked for and can't be used.
    """
    if mode == "stdlib" or (mode == "auto" and total < _WORTH_NUMPY):
        return StdlibEngine()
    try:
        from .numpy_engine import NumpyEngine

        engine = NumpyEngine()
        if _agrees(engine):
            return engine
        reason = "numpy computes other than it should here"
    except ImportError as error:
        reason = "numpy can't be imported here (%s)" % error
    except Exception as error:  # a numpy that does not fit this Python fails in many ways, and none may end the audit
        reason = "numpy can't be imported here (%s: %s)" % (type(error).__name__, error)
    if mode == "numpy":
        raise EngineError("engine=numpy was asked for, but %s" % reason)
    log("%s: counting without it" % reason)
    return StdlibEngine()


def _agrees(engine: Engine) -> bool:
    """Hold an engine against numbers looked at one by one; powers of two have the same sums in any order."""
    values = [(-1.0) ** place * 2.0 ** (place % 5) for place in range(600)] + [0.0, float("nan"), float("-inf")]
    data, dtype = struct.pack("<%df" % len(values), *values), DTYPES["float32"]
    for blocks in (Blocks(squares=True, width=256, phase=9), Blocks(squares=False, width=256, phase=0)):
        for part in (data, data[:2400]):
            if engine.look(dtype, part, 0, len(part), blocks=blocks) != look_at_values(dtype, part, blocks):
                return False
    return True
