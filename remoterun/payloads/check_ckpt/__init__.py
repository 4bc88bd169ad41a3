"""check-ckpt: audit training checkpoints without loading them."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from .audit import run

if TYPE_CHECKING:
    from remoterun.remote.runtime import Context

__all__ = ["run", "start"]


def start(ctx: Context) -> None:
    """Audit in a process of its own."""
    try:
        run(ctx)
    finally:
        # The interpreter looks through all there is for garbage when it ends: a twentieth of an audit of 1 GB.
        gc.freeze()
