"""Looking for NaN and infinity with numpy, several times as fast and without the GIL."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .engine import Counts, count_codes

if TYPE_CHECKING:
    from ..dtypes import Dtype
    from .engine import Buffer

# BLAS would start a thread per core beside the training job; it reads these once, when it is loaded.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np  # noqa: E402 - after the environment above


class NumpyEngine:
    """Screen by a dot product (float32 and float64) or by the largest bit pattern, count by masks."""

    name = "numpy"
    parallel = True

    def screen(self, dtype: Dtype, buffer: Buffer, start: int, stop: int) -> bool:
        """Tell whether a closer look is needed: a sum of squares also overflows over large finite numbers."""
        if dtype.lane >= 4:
            floats = np.frombuffer(buffer, "<f%d" % dtype.lane, (stop - start) // dtype.lane, start)
            with np.errstate(all="ignore"):
                return not np.isfinite(np.dot(floats, floats))
        if dtype.exponent:
            # As signed numbers positive NaN and infinity are the largest; as unsigned ones, the negative are.
            signed = np.frombuffer(buffer, "<i%d" % dtype.lane, (stop - start) // dtype.lane, start)
            sign = 1 << (8 * dtype.lane - 1)
            return bool(
                signed.max() >= dtype.exponent or signed.view("<u%d" % dtype.lane).max() >= dtype.exponent | sign
            )
        data = buffer[start:stop]
        return any(top in data for top in dtype.tops)

    def count(self, dtype: Dtype, data: bytes) -> Counts:
        """Count exactly."""
        if dtype.kind == "codes":
            return count_codes(dtype, data)
        lanes = np.frombuffer(data, "<u%d" % dtype.lane)
        odd = (lanes & lanes.dtype.type(dtype.exponent)) == dtype.exponent
        nan = odd & ((lanes & lanes.dtype.type(dtype.mantissa)) != 0)
        inf = odd & ~nan
        negative = 0
        if dtype.parts == 2:
            nan, inf = nan.reshape(-1, 2).any(1), inf.reshape(-1, 2).any(1)
            odd = nan | inf
        else:
            negative = int(np.count_nonzero(inf & (lanes >> lanes.dtype.type(8 * dtype.lane - 1) != 0)))
        first = int(odd.argmax()) if odd.any() else -1
        return Counts(int(np.count_nonzero(nan)), int(np.count_nonzero(inf)), negative, first)
