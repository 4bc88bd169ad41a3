"""What the tests of the scan share: one file read and scanned, and what torch and zlib say of the same bytes."""

from __future__ import annotations

import contextlib
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from remoterun.payloads.check_ckpt.readers.reader import read_torch_file
from remoterun.payloads.check_ckpt.scan.crc import best_checksum
from remoterun.payloads.check_ckpt.scan.engines import choose_engine
from remoterun.payloads.check_ckpt.scan.scanner import Pace, Scanned, Scanner
from remoterun.payloads.check_ckpt.scan.spans import claim
from remoterun.payloads.check_ckpt.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from remoterun.payloads.check_ckpt.model import Checkpoint
    from remoterun.payloads.check_ckpt.scan.stats import Pair, Stats

# Far smaller than engines want them, so that small files have many.
CHUNK = 256 * 1024


@dataclass(frozen=True)
class Seen:
    """Hold what was read of a file and what was seen in it."""

    checkpoint: Checkpoint
    scanned: Scanned

    def index(self, name: str) -> int:
        """Return the index of a tensor."""
        (index,) = (index for index, tensor in enumerate(self.checkpoint.tensors) if tensor.name == name)
        return index

    def stats(self, name: str) -> Stats:
        """Return the statistics of a tensor."""
        return self.scanned.stats[self.index(name)]


def scan(
    path: Path,
    *,
    engine: str = "numpy",
    workers: int = 1,
    chunk: int = CHUNK,
    mbps: float | None = None,
    pairs: Callable[[Checkpoint], Sequence[Pair]] | None = None,
    samples: dict[int, tuple[int, int]] | None = None,
    on_bytes: Callable[[int], None] = lambda count: None,
    prepare: Callable[[], None] = lambda: None,
) -> Seen:
    """Read one file, do what is to be done before its bytes are looked at, and look at them all."""
    looker = choose_engine(engine, 0, print)
    looker.chunk = chunk
    with contextlib.closing(Source(str(path))) as source:
        checkpoint = read_torch_file(source).checkpoint
        scanner = Scanner(
            [source],
            checkpoint.regions,
            claim(checkpoint.tensors).views,
            engine=looker,
            checksum=best_checksum(),
            pace=Pace(None if mbps is None else mbps * 1e6),
            on_bytes=on_bytes,
            pairs=pairs(checkpoint) if pairs else (),
            samples=samples,
        )
        prepare()
        return Seen(checkpoint, scanner.run(workers))


def bytes_of(tensor: torch.Tensor) -> bytes:
    """Return the elements of a tensor, in order."""
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def digest_of(data: bytes) -> int:
    """Say by its definition what the digest of a tensor is: all bytes, and the first 8 of every 256 KiB."""
    sample = b"".join(data[at : at + 8192] for at in range(0, len(data), 262144))
    return zlib.crc32(data) << 32 | zlib.adler32(sample)
