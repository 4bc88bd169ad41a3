"""Rules about what loading a file would do."""

from __future__ import annotations

import os
import sys
from typing import Dict, Iterator, Optional, Tuple

from ..model import Found
from ..patterns import pattern
from .facts import Facts
from .rule import BAD, INFO, SUSPECT, Rule

RULES: Dict[str, Rule] = {
    "CK100": Rule(SUSPECT, "Load it only if you know where it comes from."),
    "CK101": Rule(BAD, "Do not load it, and find out who wrote it."),
    "CK102": Rule(BAD, "torch did not write this file as it is: do not load it before you know who did."),
    "CK103": Rule(
        BAD,
        "Do not load it: reading it can exhaust the machine's memory.",
        "Nothing to do: it is long, and its step is known.",
    ),
    "CK104": Rule(BAD, "Do not load or unpack it, and find out who wrote it."),
    "CK105": Rule(SUSPECT, "Load it only if you know where it comes from."),
    "CK106": Rule(INFO, "Save what matters in it as tensors, to have it checked."),
    "CK107": Rule(INFO, "Load it with a newer torch."),
}

# What torch.load(weights_only=True) does not protect from, by the first version that does.
_FLAWS = (
    ((2, 6), "CVE-2025-32434, by which loading a file runs code"),
    ((2, 10), "CVE-2026-24747, by which loading a file overwrites memory"),
)
_INSTALLED = pattern(r"torch-(\d{1,4})\.(\d{1,4})[^-]*\.(?:dist|egg)-info")
# Findings that make a file one to be careful with, and folders of what came from elsewhere.
_STRANGE = frozenset(("CK100", "CK101", "CK102", "CK103", "CK105"))
_FETCHED = frozenset((".cache", "hub", "huggingface", "downloads", "download"))
_PICKLED = frozenset(("torch-zip", "torch-legacy", "torchscript", "pickle", "nemo", "tar", "dcp"))


def _old_torch(facts: Facts) -> Iterator[Found]:
    checkpoint = facts.checkpoint
    if checkpoint.format not in _PICKLED or not _is_foreign(facts):
        return
    version = _torch_version()
    flaws = [text for fixed, text in _FLAWS if version is not None and version < fixed]
    if version is not None and flaws:
        text = "torch %d.%d is installed here, which has %s, even with weights_only=True"
        yield Found("CK107", text % (*version, " and ".join(flaws)), {"torch": "%d.%d" % version})


def _is_foreign(facts: Facts) -> bool:
    if any(each.rule in _STRANGE for each in facts.checkpoint.found):
        return True
    return any(not _FETCHED.isdisjoint(path.lower().split("/")) for path in facts.paths)


def _torch_version() -> Optional[Tuple[int, int]]:
    """Return the version of the torch that this Python would import, without importing it."""
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:  # a zip, or a folder that is gone
            continue
        found = [match for match in map(_INSTALLED.fullmatch, names) if match]
        if found:
            return int(found[0].group(1)), int(found[0].group(2))
    return None


QUESTIONS = (_old_torch,)
