"""The putting together of one checkpoint from what its files hold."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, Set

from ..model import MODEL, OTHER, Checkpoint, FlawedError, Tensor, Unchecked, clean_text, count_of
from .folder import escapes
from .reader import read_torch_file
from .small_json import read_json

if TYPE_CHECKING:
    from .folder import Folder
    from .torch_objects import Loaded

# Names of missing files that a finding lists, and that it counts: numbers in files may ask for any.
_MOST_NAMES, _MOST_MISSING = 20, 100_000


class Members:
    """Read the files of one checkpoint and join them in `checkpoint`."""

    def __init__(self, folder: Folder, fmt: str) -> None:
        self.folder = folder
        self.checkpoint = Checkpoint(fmt, sum(seen.size for seen in folder.files.values()))

    def take(
        self,
        name: str,
        part: str,
        *,
        role: Optional[str] = None,
        look: Optional[Callable[[Loaded], None]] = None,
    ) -> Checkpoint:
        """Read a file that a part of the checkpoint lies in; what it takes for the model gets the role, if any.

        `look` is shown what was read before it is joined with the rest, and while the file is open.

        Raises:
            OSError, NotRegularError, ChangedError: when it can't be read as it was found.
        """
        member = self._read(name, look)
        checkpoint = self.checkpoint
        if role is not None:
            member.tensors = [_as(tensor, role) for tensor in member.tensors]
        if member.unsupported:
            checkpoint.add("CK128", "%s: %s" % (clean_text(name), member.unsupported), file=self.folder.locate(name))
            self._pass_over(name, member, "its format can't be read")
        checkpoint.decoded = checkpoint.decoded or member.decoded
        checkpoint.truncated = checkpoint.truncated or member.truncated or not member.decoded
        checkpoint.parts.add(part)
        self._join(name, member)
        return member

    def take_along(self, name: str) -> Checkpoint:
        """Read a file that only goes with the others: it needs no tensors, and they belong to nothing.

        Raises:
            OSError, NotRegularError, ChangedError: when it can't be read as it was found.
        """
        member = self._read(name)
        member.tensors = [_as(tensor, OTHER) for tensor in member.tensors]
        member.parts.discard(MODEL)
        if not member.decoded:
            self._pass_over(name, member, "its values can't be read")
        self._join(name, member)
        return member

    def take_aside(self, name: str, part: str = "") -> Checkpoint:
        """Read a file that goes with the others and tells nothing but that there is that part.

        Raises:
            OSError, NotRegularError, ChangedError: when it can't be read as it was found.
        """
        parts, told = set(self.checkpoint.parts), len(self.checkpoint.progress)
        step, epoch, optimizers = self.checkpoint.step, self.checkpoint.epoch, len(self.checkpoint.optimizers)
        member = self.take_along(name)
        self.checkpoint.parts = parts.union((part,) if part else ())
        self.checkpoint.step, self.checkpoint.epoch = step, epoch
        del self.checkpoint.progress[told:], self.checkpoint.optimizers[optimizers:]
        return member

    def take_folder(
        self, name: str, read: Callable[[Folder], Checkpoint], *, role: Optional[str] = None, prefix: str = ""
    ) -> Checkpoint:
        """Read a checkpoint that lies in one of the folders and is a part of this one; `prefix` tells its names."""
        inner = read(self.folder.inner(name))
        checkpoint = self.checkpoint
        if prefix:
            inner.tensors = [tensor._replace(name=prefix + tensor.name) for tensor in inner.tensors]
        if role is not None:
            inner.tensors = [_as(tensor, role) for tensor in inner.tensors]
            inner.parts.discard(MODEL)
        if inner.unsupported:
            checkpoint.add("CK128", "%s: %s" % (clean_text(name), inner.unsupported))
            self._pass_over(name, inner, "its format can't be read")
        checkpoint.decoded = checkpoint.decoded or inner.decoded
        checkpoint.truncated = checkpoint.truncated or inner.truncated or not inner.decoded
        self._tell_progress(name, inner)
        checkpoint.absorb(inner, None)
        return inner

    def json(self, name: str) -> Optional[Dict[str, Any]]:
        """Read one of the files as a JSON object, an empty one if it is none; None when it can't be decoded.

        Raises:
            OSError, NotRegularError, ChangedError: when it can't be read as it was found.
        """
        try:
            root = read_json(self.folder, name).root
        except FlawedError as error:
            self.checkpoint.found.append(error.found)
            return None
        return root if isinstance(root, dict) else {}

    def escape(self, names: Iterable[str], shown: str) -> List[str]:
        """Return the paths in a file that lead out of the checkpoint's folder, and tell of them."""
        escaping = sorted(filter(escapes, names))
        if escaping:
            path = clean_text(escaping[0])
            message = "%s points out of the checkpoint's folder: %s" % (shown, path)
            self.checkpoint.add("CK104", message, path=path, count=len(escaping))
        return escaping

    def lack(self, names: Iterable[str], what: str, *, severity: Optional[str] = None) -> None:
        """Note files that belong to the checkpoint and are not there; names beyond many are not asked for."""
        missing = sorted(itertools.islice(names, _MOST_MISSING))
        if not missing:
            return
        shown = [clean_text(name) for name in missing[:_MOST_NAMES]]
        noun, space, rest = what.partition(" ")
        counted = count_of(len(missing), noun) + space + rest
        message = "%s missing: %s%s" % (counted, shown[0], ", ..." if len(missing) > 1 else "")
        message = "at least " * (len(missing) == _MOST_MISSING) + message
        if severity is None:
            self.checkpoint.truncated = True
        self.checkpoint.add("CK060", message, severity=severity, missing=shown, count=len(missing))

    def _read(self, name: str, look: Optional[Callable[[Loaded], None]] = None) -> Checkpoint:
        with self.folder.open(name) as source:
            loaded = read_torch_file(source)
            if look is not None:
                look(loaded)
        member = loaded.checkpoint
        path = clean_text(self.folder.locate(name), 1000)
        told = {each.message for each in self.checkpoint.found if each.rule == "CK028"}
        found = [each for each in member.found if each.rule != "CK028" or each.message not in told]
        member.found = [each._replace(data={"file": path, **(each.data or {})}) for each in found]
        return member

    def _join(self, name: str, member: Checkpoint) -> None:
        self._tell_progress(name, member)
        self.checkpoint.absorb(member, self.folder.number(name))

    def _tell_progress(self, name: str, member: Checkpoint) -> None:
        checkpoint, shown = self.checkpoint, clean_text(name, 100)
        member.progress = [each._replace(where="%s: %s" % (shown, each.where)) for each in member.progress]
        if checkpoint.step is None:
            checkpoint.step = member.step
        if checkpoint.epoch is None:
            checkpoint.epoch = member.epoch

    def _pass_over(self, name: str, member: Checkpoint, reason: str) -> None:
        member.unchecked.append(Unchecked(clean_text(name), "?", member.size, reason, "all of %s" % name))


def _as(tensor: Tensor, role: str) -> Tensor:
    return tensor._replace(role=role) if tensor.role in (MODEL, OTHER) else tensor


def gaps(numbers: Set[int]) -> List[int]:
    """Return the numbers that are left out of 0, 1, 2 and so on, up to the largest; no more than are there."""
    if not numbers or max(numbers) >= 2 * len(numbers) + 1:
        return []
    return [number for number in range(max(numbers)) if number not in numbers]


def matching(pattern: str, names: Iterable[str]) -> List["re.Match[str]"]:
    """Return how names match a pattern, those that do."""
    fullmatch = re.compile(pattern, re.DOTALL).fullmatch
    return [match for match in map(fullmatch, names) if match]
