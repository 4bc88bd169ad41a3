"""DeepSpeed's universal checkpoints: a folder for each parameter, with weights and what the optimizer keeps."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Dict, List, Set

from ..model import MASTER, MODEL, OPTIMIZER, OTHER, clean_text
from ..pickles.nodes import Pairs, Persistent, string_items
from ..pickles.training import learn
from .members import matching
from .torch_objects import plain_number

if TYPE_CHECKING:
    from typing import Optional

    from ..model import Number
    from .folder import Listing
    from .members import Members
    from .torch_objects import Loaded

_FOLDER = "zero"
_WEIGHTS = "fp32"
_FILE = r"zero/(.+)/([^/]{1,100})\.pt"
_SHARED = "zero/optimizer_state.pt"
_MOST_GROUPS = 100


def parts(listing: Listing) -> List[str]:
    """Return the files of the parameters in a folder."""
    inner = listing.folders.get(_FOLDER)
    names = ["%s/%s" % (_FOLDER, name) for name, _ in inner.walk()] if inner is not None else []
    found = [match.group() for match in matching(_FILE, names)]
    whole = any(name.endswith("/%s.pt" % _WEIGHTS) for name in found)
    return [*found, *(name for name in names if name == _SHARED)] if whole else []


class Parameters:
    """Read the folders of the parameters, and put together what the optimizer keeps."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._found = {match.group(): match for match in matching(_FILE, members.folder.files)}
        self._states: Dict[str, Dict[str, Any]] = {}
        self._groups: List[Any] = []
        self._indices: Dict[int, int] = {}
        self._numbers: Dict[int, Number] = {}

    @property
    def found(self) -> bool:
        """Tell whether there are any."""
        return bool(self._found)

    def read(self) -> None:
        """Read every file; the weights are a second copy where the model's files have them."""
        if not self._found:
            return
        known = any(tensor.role == MODEL and tensor.numel for tensor in self._members.checkpoint.tensors)
        for name, match in sorted(self._found.items()):
            role = OPTIMIZER if match.group(2) != _WEIGHTS else MASTER if known else MODEL
            part = OPTIMIZER if role == OPTIMIZER else MODEL
            self._members.take(name, part, look=partial(self._look, match.group(1), match.group(2), role))
        if _SHARED in self._members.folder.files:
            self._members.take(_SHARED, OPTIMIZER, role=OTHER, look=self._look_at_groups)
        self._judge()

    def _look(self, param: str, kind: str, role: str, loaded: Loaded) -> None:
        inner = loaded.checkpoint
        before = len(self._members.checkpoint.tensors)
        inner.tensors = [each._replace(name=clean_text(param), role=role, key=kind) for each in inner.tensors]
        number = loaded.number(loaded.entries.get("param", loaded.decoded and loaded.decoded.root))
        if role == OPTIMIZER and (len(inner.tensors) == 1 or number is not None):
            leaf = Persistent(None)
            self._states.setdefault(param, {})[kind] = leaf
            if inner.tensors:
                self._indices[id(leaf)] = before
            if number is not None:
                self._numbers[id(leaf)] = number

    def _look_at_groups(self, loaded: Loaded) -> None:
        groups = loaded.entries.get("param_groups")
        self._groups = groups[:_MOST_GROUPS] if isinstance(groups, list) else []

    def _judge(self) -> None:
        """Say which file of a parameter is missing that others have, and learn what the optimizer is."""
        kinds: Dict[str, Set[str]] = {}
        for match in self._found.values():
            kinds.setdefault(match.group(1), set()).add(match.group(2))
        every = set().union(*kinds.values()) if kinds else set()
        missing = ("zero/%s/%s.pt" % (param, kind) for param, known in kinds.items() for kind in every - known)
        self._members.lack(missing, "file of a parameter")
        # Which group a parameter is in is not said, and matters only where they differ.
        group = dict(string_items(self._groups[0])) if len(self._groups) == 1 else {}
        options = [part for key, value in group.items() if key != "params" for part in (key, value)]
        states = Pairs([part for param, state in self._states.items() for part in (param, _pairs(state))])
        groups = [Pairs([*options, "params", list(self._states)])]
        root = Pairs(["optimizer", Pairs(["state", states, "param_groups", groups])])
        learn(self._members.checkpoint, root, self._number, self._indices)

    def _number(self, node: object) -> Optional[Number]:
        if isinstance(node, Persistent):
            return self._numbers.get(id(node))
        return plain_number(node)


def _pairs(state: Dict[str, Any]) -> Pairs:
    return Pairs([part for pair in state.items() for part in pair])
