"""Which files below a folder are checkpoints, what to call them, and which is the newest."""

from __future__ import annotations

import os
import re
import stat
from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from ..readers.archive import LOCAL
from ..source import NotRegularError, Source, identity

EXTENSIONS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")
# Enough for any folder of checkpoints; a link to / must not send the audit through the whole machine.
_MOST_ENTRIES = 200_000

_UNFINISHED = (
    r"(?:\.(?:tmp|temp|part|partial|incomplete|unfinished|writing)(?:[._-]?\d+|[._-][0-9a-zA-Z]{6,16})?"
    r"|-(?:unfinished|incomplete)|\.orbax-checkpoint-tmp\S*)"
)
_NAME = re.compile(r".*\.(?:pt|pth|bin|ckpt|safetensors)%s?" % _UNFINISHED, re.IGNORECASE | re.DOTALL)
_TEMPORARY = re.compile(r"(?:tmp-checkpoint.*|\.tmp.*|.+%s)" % _UNFINISHED, re.IGNORECASE | re.DOTALL)
_COMPANION = re.compile(
    r"(?:training_args|scheduler(?:_\d+)?|lr_scheduler|scaler|rng_states?(?:_\d+)?|random_states_\d+|sampler(?:_\d+)?|dataloader\w*"
    r"|trainer_state|tokenizer\w*|args|config|loss_history)\.(?:pt|pth|bin|ckpt)",
    re.IGNORECASE,
)


class Candidate(NamedTuple):
    """Name a file that may be a checkpoint: its path, its path below the root, what it is called, and what stat said.

    `temporary` tells that its name or a folder's says it is not finished; `companion` that it only goes with other
    files of its folder.
    """

    path: str
    relative: str
    name: str
    size: int
    mtime_ns: int
    temporary: bool = False
    companion: bool = False


class Skipped(NamedTuple):
    """Say why something that was met was not looked into."""

    path: str
    reason: str


class Discovery(NamedTuple):
    """Hold what a search found, in no order."""

    candidates: List[Candidate]
    skipped: List[Skipped]
    entries: int


def discover(root: str, depth: int) -> Discovery:
    """Search a folder, `depth` levels of folders deep; a root that is a file is a checkpoint whatever its name.

    Raises:
        OSError: when the root can't be looked at.
    """
    status = os.stat(root)
    if not stat.S_ISDIR(status.st_mode):
        if not stat.S_ISREG(status.st_mode):
            return Discovery([], [Skipped(root, "no regular file")], 1)
        name = os.path.basename(os.path.abspath(root))
        return Discovery([Candidate(root, name, name, status.st_size, status.st_mtime_ns)], [], 1)
    search = _Search(root, depth)
    search.run()
    return Discovery(_named(search.found), search.skipped, search.entries)


class _Search:
    def __init__(self, root: str, depth: int) -> None:
        self._root = root
        self._depth = depth
        self._seen: Set[Tuple[int, int]] = set()
        self._folders: List[Tuple[str, int]] = [("", 0)]
        self._linked: List[Tuple[str, int]] = []
        self.found: List[Candidate] = []
        self.skipped: List[Skipped] = []
        self.entries = 0

    def run(self) -> None:
        # Links come last, so that what they lead to has its own name where it has one.
        while self._folders or self._linked:
            if self._folders:
                self._list(*self._folders.pop())
            else:
                relative, level = self._linked.pop(0)
                self._take(relative, level)

    def _list(self, relative: str, level: int) -> None:
        path = os.path.join(self._root, relative)
        try:
            folder = identity(os.stat(path))
            names = [] if folder in self._seen else sorted(os.listdir(path))
        except OSError as error:
            self.skipped.append(Skipped(path, error.strerror or str(error)))
            return
        self._seen.add(folder)
        for name in names:
            self.entries += 1
            if self.entries > _MOST_ENTRIES:
                self._folders, self._linked = [], []
                self.skipped.append(Skipped(path, "more than %d files and folders: stopped looking" % _MOST_ENTRIES))
                return
            inner = os.path.join(relative, name)
            if os.path.islink(os.path.join(self._root, inner)):
                self._linked.append((inner, level))
            else:
                self._take(inner, level)

    def _take(self, relative: str, level: int) -> None:
        path = os.path.join(self._root, relative)
        name = os.path.basename(relative)
        try:
            status = os.stat(path)
        except OSError as error:
            if _NAME.fullmatch(name):
                self.skipped.append(Skipped(path, error.strerror or str(error)))
            return
        if stat.S_ISDIR(status.st_mode):
            if level < self._depth:
                self._folders.append((relative, level + 1))
            return
        known = _NAME.fullmatch(name)
        if not stat.S_ISREG(status.st_mode):
            if known:
                self.skipped.append(Skipped(path, "no regular file"))
            return
        if identity(status) in self._seen or not (known or _is_unnamed_save(path, name)):
            return
        self._seen.add(identity(status))
        temporary = any(_TEMPORARY.fullmatch(part) for part in relative.split(os.sep))
        self.found.append(Candidate(path, relative, relative, status.st_size, status.st_mtime_ns, temporary))


def _is_unnamed_save(path: str, name: str) -> bool:
    """Tell whether a temporary file without a checkpoint's extension begins like one (``step_100.tmp``)."""
    if not _TEMPORARY.fullmatch(name):
        return False
    try:
        with Source(path) as source:
            return source.read(0, 4) == LOCAL
    except (OSError, NotRegularError):
        return False


def _named(found: List[Candidate]) -> List[Candidate]:
    """Call a file by its folder's name, where it is the only checkpoint there and the name is no other's."""
    members: Dict[str, int] = {}
    for each in found:
        folder = os.path.dirname(each.relative)
        members[folder] = members.get(folder, 0) + 1
    marked = [each._replace(companion=_is_companion(each, members)) for each in found]
    leading: Dict[str, int] = {}
    for each in marked:
        folder = os.path.dirname(each.relative)
        leading[folder] = leading.get(folder, 0) + (not each.companion)
    alone = [os.path.basename(folder) for folder, count in leading.items() if folder and count == 1]
    return [each._replace(name=_name(each, leading, alone)) for each in marked]


def _is_companion(each: Candidate, members: Dict[str, int]) -> bool:
    folder, file = os.path.split(each.relative)
    return members[folder] > 1 and _COMPANION.fullmatch(file) is not None


def _name(each: Candidate, leading: Dict[str, int], alone: List[str]) -> str:
    folder = os.path.dirname(each.relative)
    if each.companion or not folder or leading[folder] != 1:
        return each.relative
    name = os.path.basename(folder)
    return name if alone.count(name) == 1 else folder


# --- order ----------------------------------------------------------------------------------------------------------

_STEP = re.compile(
    r"(?<![a-z])(?:global_?)?(?:step|steps|iter|iters|iteration|it)[-_=]?(\d{1,15})(?!\d)", re.IGNORECASE
)
_NUMBERED = re.compile(r"(?<![a-z])(?:checkpoint|ckpt)[-_=]?(\d{1,15})(?!\d)", re.IGNORECASE)


def step_in_name(relative: str) -> Optional[int]:
    """Return the step that a file's name or, failing that, a folder's names."""
    for part in reversed(relative.split(os.sep)):
        stem = part.split(".")[0]
        match = (_STEP.findall(part) or _NUMBERED.findall(part) or ([stem] if re.fullmatch(r"\d{1,15}", stem) else []))[
            -1:
        ]
        if match:
            return int(match[0])
    return None


def newest_first(candidates: Sequence[Candidate]) -> List[Candidate]:
    """Sort by the steps in the names when all have one, else by when the files were last written."""
    steps = {each.path: step_in_name(each.relative) for each in candidates}
    if any(step is None for step in steps.values()):
        return sorted(candidates, key=lambda each: (-each.mtime_ns, each.relative))
    return sorted(candidates, key=lambda each: (-(steps[each.path] or 0), -each.mtime_ns, each.relative))
