"""The choice of an engine: the standard library, numpy where there is enough to read, or torch when it is asked for."""

from __future__ import annotations

import struct
from typing import Callable, List, Optional

from ..dtypes import DTYPES
from .engine import Blocks, Engine
from .stdlib_engine import StdlibEngine, look_at_values
from .workers import Job, share

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
    if mode == "cuda":
        return _cuda(log) or choose_engine("auto", total, log)
    try:
        from .numpy_engine import NumpyEngine

        engine = NumpyEngine()
        if _agrees(engine, 1):
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


def _cuda(log: Callable[[str], None]) -> Optional[Engine]:
    """Return an engine on all idle graphics processors, or say why there is none."""
    from .gpus import idle_gpus

    idle = idle_gpus()
    if not idle:
        log("engine=cuda was asked for, but no graphics processor is idle here: counting without")
        return None
    # Before torch is imported: it is told as well to start no threads.
    small = choose_engine("auto", _WORTH_NUMPY, log)
    try:
        import torch

        from .cuda_engine import CudaEngine

        engine = CudaEngine(idle, small, torch)
        tried: List[bool] = []
        share(_Trial(engine), len(idle), tried.append)
        if all(tried):
            return engine
        reason = "it computes other than it should here"
    except Exception as error:  # of drivers, libraries and versions that have to fit, any may not
        reason = "%s: %s" % (type(error).__name__, str(error).strip().splitlines()[-1:])
    log("engine=cuda was asked for, but can't be used (%s): counting without" % reason)
    return None


class _Trial(Job):
    """Try an engine where it will work: in processes that can be thrown away."""

    apart = True

    def __init__(self, engine: Engine) -> None:
        self.pieces = engine.workers or 1
        self._engine = engine

    def begin(self, worker: int) -> None:
        """Take one of the devices."""
        self._engine.start(worker, ())

    def do(self, number: int) -> bool:
        """Tell whether it does what it should."""
        return _agrees(self._engine, 200)


def _agrees(engine: Engine, times: int) -> bool:
    """Hold an engine against numbers looked at one by one; powers of two have the same sums in any order."""
    values = [(-1.0) ** place * 2.0 ** (place % 5) for place in range(600)]
    dtype = DTYPES["float32"]
    for more in ([], [0.0, float("nan"), float("-inf")]):
        numbers = values * times + more
        data = struct.pack("<%df" % len(numbers), *numbers)
        for blocks in (Blocks(squares=True, width=256, phase=9), Blocks(squares=False, width=256, phase=0)):
            if engine.look(dtype, data, 0, len(data), blocks=blocks) != look_at_values(dtype, data, blocks):
                return False
    return True
