"""What the questions are asked of."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Sequence, Tuple

from ..model import Checkpoint
from ..scan.engine import Counts

if TYPE_CHECKING:
    from ..scan.scanner import Scanned
    from ..scan.spans import Claims


class Facts(NamedTuple):
    """Bring together what the questions are asked of."""

    checkpoint: Checkpoint
    claims: Claims
    scanned: Scanned
    paths: Sequence[str]

    def counts(self, roles: Tuple[str, ...]) -> Counts:
        """Add up the counts of all tensors that have one of the roles."""
        counts = [each for index, each in self.scanned.counts.items() if self.checkpoint.tensors[index].role in roles]
        return Counts(sum(each.nan for each in counts), sum(each.inf for each in counts))
