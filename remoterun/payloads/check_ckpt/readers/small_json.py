"""The reading of the JSON files that lie beside tensors; they are as little trusted as these."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Dict, List, Tuple

from ..model import FlawedError, clean_text, count_of

if TYPE_CHECKING:
    from .folder import Folder

# An index of 100,000 tensors takes 10 MB, a history of as many entries 20 MB.
_MOST_BYTES = 32_000_000
# Estimated bytes that the decoded objects may take.
_BUDGET = 45_000_000
_MOST_DIGITS = 300
_MOST_REPEATED = 20


class Document:
    """Hold a decoded JSON file; `repeated` are keys that an object of it has more than once."""

    def __init__(self, raw: bytes) -> None:
        self.repeated: List[str] = []
        self.root: Any = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=self._object, parse_int=_integer)

    def _object(self, pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
        known: Dict[str, Any] = {}
        for key, value in pairs:
            if key in known and len(self.repeated) < _MOST_REPEATED:
                self.repeated.append(key)
            known[key] = value
        return known


def _integer(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError("a number of %d digits" % len(text))
    return int(text)


def read_json(folder: Folder, name: str) -> Document:
    """Decode a JSON file.

    Raises:
        FlawedError: when it is none, or more than such a file can need.
        OSError, NotRegularError, ChangedError: when it can't be read as it was found.
    """
    shown, path = clean_text(name), clean_text(folder.locate(name), 1000)
    with folder.open(name) as source:
        size = source.size
        if size > _MOST_BYTES:
            message = "%s has %s; no more than 32 MB are decoded" % (shown, count_of(size, "byte"))
            raise FlawedError("CK103", message, severity="suspect", file=path)
        raw = source.read(0, size)
    if not raw.strip(b"\0"):
        raise FlawedError("CK021", "%s %s" % (shown, "holds nothing but zeros" if raw else "is empty"), file=path)
    if 200 * raw.count(b"{") + 80 * raw.count(b"[") + 60 * raw.count(b",") + 30 * raw.count(b'"') > _BUDGET:
        message = "%s holds more than can be decoded: %s" % (shown, count_of(raw.count(b","), "item"))
        raise FlawedError("CK103", message, severity="suspect", file=path)
    try:
        return Document(raw)
    except (ValueError, RecursionError) as error:
        cut = not raw.rstrip().endswith((b"}", b"]"))
        message = "%s is not the JSON it should be%s: %s"
        told = shown, ", it is cut off" if cut else "", clean_text(str(error), 200)
        raise FlawedError("CK020" if cut else "CK025", message % told, file=path) from error
