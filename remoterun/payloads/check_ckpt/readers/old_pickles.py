"""Files without a zip around them: torch's before 1.6, and plain pickles.

So far, only their structure and what loading them would do are looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from ..model import Checkpoint
from ..pickles.layout import progress
from .torch_zip import decode_pickle

if TYPE_CHECKING:
    from ..model import Number
    from ..pickles.nodes import Decoded
    from ..source import Source

_MAGIC = 0x1950A86A20F9469CFC6C
# torch wrote a magic number, a protocol number, facts of the machine and the object itself, then the storages' bytes.
_PICKLES = 4


def is_pickle(head: bytes) -> bool:
    """Tell whether a file begins as pickles of protocol 2 and later do."""
    return head[:1] == b"\x80" and b"\x02" <= head[1:2] <= b"\x05"


def may_be_pickle(head: bytes) -> bool:
    """Tell whether a text may be a pickle of protocol 0: a global, a collection, or torch's magic number."""
    return head[:1] in (b"c", b"(") or head.startswith(b"L%dL" % _MAGIC)


def read_old_pickle(source: Source) -> Checkpoint:
    """Decode the pickles of a file, and say that its values were not checked."""
    checkpoint = Checkpoint("pickle", source.size)
    decoded = decode_pickle(source, 0, source.size, checkpoint, "the pickle")
    name = "a plain pickle"
    if decoded is not None and decoded.root == _MAGIC:
        checkpoint.format = "torch-legacy"
        name = "torch's format from before 1.6"
        for number in range(2, _PICKLES + 1):
            start = decoded.stop if decoded is not None else source.size
            decoded = decode_pickle(source, start, source.size, checkpoint, "pickle %d" % number)
            if decoded is None:
                break
    return _told(checkpoint, decoded, name)


def _told(checkpoint: Checkpoint, decoded: Optional[Decoded], name: str) -> Checkpoint:
    if decoded is not None:
        checkpoint.step, checkpoint.epoch = progress(decoded.root, _plain)
        checkpoint.unsupported = "it is %s: structure and safety were checked, values were not" % name
    return checkpoint


def _plain(value: object) -> Optional[Number]:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1 << 62 else None
