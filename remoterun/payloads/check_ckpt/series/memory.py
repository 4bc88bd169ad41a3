"""What is known of the checkpoints of an audit: what earlier audits found, and how they compare with each other.

A checkpoint whose files are what they were is not read again, until it was last read too long ago. One is remembered
only if it was read whole and can't have changed unseen: not while it is written, and not just after.
"""

from __future__ import annotations

import collections
import functools
import os
from typing import TYPE_CHECKING, Any, Counter, Dict, List, Optional, Sequence, Tuple

from ..model import Found, clean_text
from ..records import Record
from ..report import Outcome
from ..rules.catalogue import severity
from ..rules.rule import BAD, INFO, SUSPECT
from .chain import Chains, Compared, Link
from .naming import place_of
from .profile import Card, Mark, Profile, card_of, marks_of
from .store import Header, Identity, Past, Store, identify, is_settled, key_of

if TYPE_CHECKING:
    from ..find.unit import Unit
    from ..model import Tensor
    from ..report import Report

Files = Tuple[Identity, ...]
# Where more series wait for their next checkpoint, the marks of a checkpoint are read from where they are kept.
_MOST_AT_HAND = 16


class Known(Record):
    """Hold what is remembered of a checkpoint: what was found, what sums it up, and when that was, since 1970."""

    outcome: Outcome
    card: Card
    compared: Optional[Compared]
    checked_at: float


class Entry:
    """Be one checkpoint on its way to be reported; `recalled` tells that an earlier audit read it."""

    def __init__(self, unit: Unit, outcome: Outcome, *, checked_at: float = 0.0, recalled: bool = False) -> None:
        self.unit = unit
        self.outcome = outcome
        self.checked_at = checked_at
        self.recalled = recalled
        self.card: Optional[Card] = None
        self.link: Optional[Link] = None
        self.lasting = recalled


class Memory:
    """Remember checkpoints, and let each wait for the one before it."""

    def __init__(
        self, root: str, units: Sequence[Unit], store: Store, *, deep: bool, recheck_s: float, now: float
    ) -> None:
        """Look up all checkpoints of an audit; where only headers are wanted, what is known of values is welcome."""
        self._root = root
        self._store = store
        self._past = Past(store)
        self._deep = deep
        self._known: Dict[str, Tuple[Files, str]] = {}
        self._waiting: Dict[str, Entry] = {}
        self._units: Dict[str, Unit] = {}
        cards: List[Card] = []
        for unit in units:
            files = look(unit)
            for tier in (True,) if deep else (True, False):
                key = key_of(unit.relative, files, deep=tier)
                known = _unpack(store.find(key))
                if known is not None and 0 <= now - known.checked_at <= recheck_s:
                    self._known[unit.relative] = files, key
                    card = self._placed(unit, known.card)
                    cards += [] if card is None else [card]
                    break
        self._sizes: Counter[str] = collections.Counter(place_of(unit.relative).series for unit in units)
        self._chains = Chains(self._sizes, cards, now)

    def late(self) -> Dict[str, List[Tuple[Unit, Found]]]:
        """Return what was found of checkpoints after they had been reported, by their series."""
        found: Dict[str, List[Tuple[Unit, Found]]] = {}
        for late in self._chains.late:
            found.setdefault(late.card.series, []).append((self._units[late.card.path], late.found))
        return found

    def knows(self, unit: Unit) -> bool:
        """Tell whether a checkpoint was unchanged at the start, and need not be read."""
        return unit.relative in self._known

    def recall(self, unit: Unit) -> Optional[Entry]:
        """Return a checkpoint that has not changed since an earlier audit."""
        if not self.knows(unit):
            return None
        files, key = self._known[unit.relative]
        known = _unpack(self._store.find(key)) if look(unit) == files else None
        if known is None:
            return None
        entry = Entry(unit, known.outcome, checked_at=known.checked_at, recalled=True)
        self._join(entry, key, known.card, None, known.compared)
        if entry.link is not None and self._follows_itself(unit):
            entry.link.compared = known.compared
        return entry

    def learn(self, report: Report, outcome: Outcome, files: Files, now: float) -> Entry:
        """Take a checkpoint that was read; `files` is what `look` said before, `now` when that was."""
        entry = Entry(report.unit, outcome, checked_at=now)
        if outcome.waiting or outcome.failed or not files or look(report.unit) != files:
            return entry
        marks = marks_of(report.checkpoint, report.scanned)
        card = card_of(report.checkpoint, marks)._replace(torn=any(map(_tells_torn, outcome.found)))
        entry.lasting = (report.whole or report.shallow) and is_settled(files, now)
        key = key_of(report.unit.relative, files, deep=self._deep)
        self._join(entry, key, card, marks)
        if entry.link is not None and self._follows_itself(report.unit):
            entry.link.compared = entry.link.remembered = self._held_against_past(report.unit, entry.link)
        kept, store = self._keep(entry, key, marks), self._store
        if kept and self._deep and entry.link is not None and self._follows_itself(report.unit):
            self._past.add(report.unit.path, key)
        if kept and entry.link is not None and len(self._waiting) >= _MOST_AT_HAND:
            entry.link.profile = Profile(entry.link.card, lambda: store.marks(key))
        return entry

    def samples(self, unit: Unit, tensors: Sequence[Tensor]) -> Dict[int, Tuple[int, int]]:
        """Return what is to be kept of tensors to know them again, if another checkpoint is held against this one."""
        if self._sizes[place_of(unit.relative).series] < 2 and not self._follows_itself(unit):
            return {}
        from .exchange import samples

        return samples(tensors)

    def _follows_itself(self, unit: Unit) -> bool:
        """Tell whether each save of a checkpoint is in the place of the one before, as far as its name tells."""
        place = place_of(unit.relative)
        return place.order is None and self._sizes[place.series] == 1 and self._store.keeps

    def _held_against_past(self, unit: Unit, link: Link) -> Optional[Compared]:
        """Compare a checkpoint with what earlier audits saw in its place, of the same training."""
        from .past import follows

        olders = []
        for key in self._past.of(unit.path):
            known = _unpack(self._store.find(key)) if key != link.key else None
            card = None if known is None else self._placed(unit, known.card)
            if card is not None and card.order < link.card.order:
                told = "%s at step %d" % (card.name, card.order)
                olders.append(Link(key, Profile(card._replace(name=told), functools.partial(self._store.marks, key))))
        return follows(olders, link)

    def follow(self, entry: Entry) -> List[Entry]:
        """Take the next checkpoint of the audit, and return those that can be reported now."""
        if entry.link is None:
            links = self._chains.skip(place_of(entry.unit.relative).series)
            return [*map(self._released, links), entry]
        self._waiting[entry.link.card.path] = entry
        self._units[entry.link.card.path] = entry.unit
        return [self._released(link) for link in self._chains.add(entry.link)]

    def of_others(self, entry: Entry) -> List[Found]:
        """Return what the others of its series tell of a checkpoint that is now reported."""
        if entry.link is None:
            return []
        self._chains.settle(entry.link)
        return entry.link.found

    def _released(self, link: Link) -> Entry:
        entry = self._waiting.pop(link.card.path)
        if link.compared is not None and link.compared is not link.remembered:
            marks = link.profile.marks()
            if marks:
                self._keep(entry, link.key, marks)
        # It may wait long to be reported, and nothing is compared with it any more.
        link.profile = Profile(link.card, list)
        return entry

    def _join(
        self, entry: Entry, key: str, card: Card, marks: Optional[List[Mark]], remembered: Optional[Compared] = None
    ) -> None:
        """Give a checkpoint its part in its series, if it has one."""
        entry.card = card
        placed, store = self._placed(entry.unit, card), self._store
        if placed is not None:
            profile = Profile(placed, (lambda: store.marks(key)) if marks is None else (lambda: marks))
            entry.link = Link(key, profile, remembered)

    def _keep(self, entry: Entry, key: str, marks: Sequence[Mark]) -> bool:
        if not entry.lasting or entry.card is None:
            return False
        compared = entry.link.compared if entry.link is not None else None
        return self._store.keep(key, _pack(Known(entry.outcome, entry.card, compared, entry.checked_at)), marks)

    def _placed(self, unit: Unit, card: Card) -> Optional[Card]:
        """Put a card in its place in a series, which depends on where the audit began; None when it has no place."""
        place = place_of(unit.relative)
        order = card.step if place.order is None else place.order
        if order is None or not card.tensors:
            return None
        path = os.path.join(self._root, unit.relative) if unit.family and unit.relative else unit.path
        name = clean_text(unit.name)
        return card._replace(
            series=place.series, order=float(order), name=name, path=clean_text(path, 4000), mtime_ns=unit.mtime_ns
        )


def look(unit: Unit) -> Files:
    """Return what tells whether the files of a checkpoint stay what they are; nothing when that can't be told."""
    try:
        return identify([os.path.join(unit.folder, name) for name in unit.files])
    except OSError:
        return ()


def _tells_torn(found: Found) -> bool:
    return found.rule == "CK041" or (found.rule == "CK040" and found.severity == BAD)


# --- as it is kept --------------------------------------------------------------------------------------------------


def _pack(known: Known) -> Header:
    return {
        "found": known.outcome.found,
        "record": known.outcome.record,
        "weights": known.outcome.weights,
        "optimizer": known.outcome.optimizer,
        "card": known.card,
        "compared": known.compared,
        "checked_at": known.checked_at,
    }


def _unpack(header: Optional[Header]) -> Optional[Known]:
    """Return what was kept; None when there is nothing, or nothing that this program would have kept."""
    if header is None:
        return None
    try:
        found, record = list(map(_found, header["found"])), dict(header["record"])
        outcome = Outcome(found, record, bool(header["weights"]), bool(header["optimizer"]))
        card = Card(*header["card"])
        card = card._replace(odd=(int(card.odd[0]), int(card.odd[1])), rates=tuple(map(float, card.rates)))
        compared = header["compared"]
        if compared is not None:
            compared = Compared(str(compared[0]), list(map(_found, compared[1])))
        known = _is_like(card, Card(), float) and {"params", "bytes_checked", "step", "format"} <= record.keys()
        return Known(outcome, card, compared, float(header["checked_at"])) if known else None
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        return None


def _is_like(values: Sequence[object], others: Sequence[object], optional: type) -> bool:
    """Tell whether each value is of the kind of the other; where that is None, another kind will do."""
    pairs = zip(values, others)
    return all(isinstance(value, (type(None), optional) if other is None else type(other)) for value, other in pairs)


def _found(values: Sequence[Any]) -> Found:
    """Read a finding.

    Raises:
        KeyError, TypeError: when it is none.
    """
    found = Found(*values)
    found = found._replace(data=found.data or {}, evidence=found.evidence or {})
    if not _is_like(found, Found("", "", {}, None, None, {}), str) or severity(found) not in (INFO, SUSPECT, BAD):
        raise TypeError
    return found
