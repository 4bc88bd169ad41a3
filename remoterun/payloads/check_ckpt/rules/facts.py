"""What the questions are asked of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Tuple

from ..find.names import step_in_name
from ..model import Checkpoint, Number, State, Tensor
from ..records import Record
from ..scan.engine import Counts
from ..scan.spans import pieces
from .parameters import matched

if TYPE_CHECKING:
    from ..scan.scanner import Scanned
    from ..scan.spans import Claims
    from ..scan.stats import Stats


# What is initialised with zeros has moved by this step, if it is ever to move.
EARLY = 100
# Data that never arrived, or was never meant to be there.
_MISSING = ("CK020", "CK021", "CK027")


def peak_of(stats: Optional[Stats]) -> Optional[float]:
    """Return the greatest magnitude of a tensor's finite elements, None where it is not known."""
    if stats is None or stats.minimum is None or stats.maximum is None:
        return None
    return max(abs(stats.minimum), abs(stats.maximum))


class Kept(Record):
    """Hold what an optimizer keeps of a parameter, and the options of its group."""

    state: State
    options: Dict[str, object]


class Facts:
    """Bring together what the questions are asked of; what several of them need is put together once.

    `name` is where the checkpoint lies below the root, which may tell its step; `paths` are those of its files.
    """

    def __init__(
        self, checkpoint: Checkpoint, claims: Claims, scanned: Scanned, paths: Sequence[str], name: str = ""
    ) -> None:
        self.checkpoint = checkpoint
        self.claims = claims
        self.scanned = scanned
        self.paths = paths
        self.name = name
        self._matched: Optional[List[Dict[str, int]]] = None
        self._kept: Optional[Dict[int, Kept]] = None
        self._seen: Optional[List[Tuple[int, Tensor, Stats]]] = None
        self._seen_as: Dict[Tuple[str, ...], List[Tuple[int, Tensor, Stats]]] = {}

    @property
    def step(self) -> Optional[Number]:
        """Return how far training was, by what is inside or else by the name."""
        return self.checkpoint.step if self.checkpoint.step is not None else step_in_name(self.name)

    @property
    def whole(self) -> bool:
        """Tell whether nothing is known to be missing, whose place zeros may have taken."""
        return not self.checkpoint.truncated and not any(each.rule in _MISSING for each in self.checkpoint.found)

    def counts(self, roles: Tuple[str, ...]) -> Counts:
        """Add up the counts of all tensors that have one of the roles."""
        counts = [each for index, each in self.scanned.counts.items() if self.checkpoint.tensors[index].role in roles]
        return Counts(sum(each.nan for each in counts), sum(each.inf for each in counts))

    def stats(self, index: int) -> Optional[Stats]:
        """Return what is known of all elements of a tensor; None when it is not, or not of all."""
        stats = self.scanned.stats.get(index)
        whole = stats is not None and stats.elements and stats.elements == self.checkpoint.tensors[index].numel
        return stats if whole else None

    def seen(self, roles: Tuple[str, ...]) -> List[Tuple[int, Tensor, Stats]]:
        """Return the tensors of some roles of which all elements were looked at, none when some of them are missing."""
        if self._seen is None:
            indexes = sorted(self.scanned.stats) if self.whole else []
            known = ((index, self.stats(index)) for index in indexes)
            tensors = self.checkpoint.tensors
            self._seen = [(index, tensors[index], stats) for index, stats in known if stats is not None]
        if roles not in self._seen_as:
            self._seen_as[roles] = [each for each in self._seen if each[1].role in roles]
        return self._seen_as[roles]

    def matched(self) -> List[Dict[str, int]]:
        """Return for each optimizer which tensor, by its index, a parameter is, by its id; see `matched`."""
        if self._matched is None:
            self._matched = matched(self.checkpoint, self.paths)
        return self._matched

    def kept(self) -> Dict[int, Kept]:
        """Return what an optimizer keeps of the model's tensors, by their index, as far as it is known of which."""
        if self._kept is None:
            self._kept = {}
            for optimizer, found in zip(self.checkpoint.optimizers, self.matched()):
                options = {key: group.options for group in optimizer.groups for key in group.params}
                for key, index in found.items():
                    if key in optimizer.states:
                        self._kept[index] = Kept(optimizer.states[key], options[key])
        return self._kept

    def moved(self, kept: Kept) -> bool:
        """Tell whether a parameter must have changed since it was made."""
        tensors, options = kept.state.tensors, kept.options
        # A schedule may begin with a rate of zero, which leaves steps without effect until it has made its first one.
        counts = [
            kept.state.numbers.get("step", 2),
            *(each.get("last_epoch", 2) for each in self.checkpoint.schedulers),
        ]
        if (min(counts) < 2 and "initial_lr" in options) or (options.get("lr") == 0 and not self._ran_out(kept)):
            return False
        moments = [self.stats(tensors[key]) for key in ("exp_avg", "exp_avg_sq") if key in tensors]
        return any(each is not None and each.zeros is not None and each.zeros < each.elements for each in moments)

    def _ran_out(self, kept: Kept) -> bool:
        """Tell whether a rate of zero is where a schedule has ended: for all, and not near the start."""
        groups = [group for optimizer in self.checkpoint.optimizers for group in optimizer.groups]
        over = not any(group.options.get("lr") for group in groups)
        return over and bool(kept.options.get("initial_lr")) and kept.state.numbers.get("step", 0) >= EARLY

    def place(self, index: int) -> Dict[str, object]:
        """Say which tensor a finding is about, and where it lies."""
        tensor = self.checkpoint.tensors[index]
        region = self.checkpoint.regions[tensor.region]
        runs = pieces(tensor, 1)
        data: Dict[str, object] = {
            "tensor": tensor.name,
            "dtype": tensor.dtype.name,
            "shape": list(tensor.shape),
            "file": self.paths[region.file],
        }
        if runs and region.data is None:
            data["range"] = [region.offset + runs[0][0], region.offset + runs[-1][1]]
        return data
