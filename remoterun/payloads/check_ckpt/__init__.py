"""check-ckpt: audit training checkpoints without loading them."""

from .audit import run

__all__ = ["run"]
