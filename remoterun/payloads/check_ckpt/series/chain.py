"""The checkpoints of an audit as chains: each is held back until the one before it has come, then compared with it.

An audit goes from the newest to the oldest, so what a checkpoint is a bad successor of comes after it. A checkpoint is
therefore given back one later than it was read. When it is reported, now or later still, all that is known by then is
among its own findings and in its verdict. What is remembered of an earlier audit is known from the start. What comes to
light only when a checkpoint has been reported (an older one, read for the first time, holds the same weights) is kept
in `late`.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Set

from ..model import Found
from ..records import Record
from .copies import Copies
from .profile import Card, Profile


class Compared(Record):
    """Hold what a comparison with the checkpoint of a key has found."""

    key: str
    found: List[Found]


class Link:
    """Be one checkpoint of a chain: `found` is what the others of its series tell of it.

    `compared` is the comparison with the one before, which may be the one that an earlier audit made.
    """

    def __init__(self, key: str, profile: Profile, remembered: Optional[Compared] = None) -> None:
        self.key = key
        self.profile = profile
        self.remembered = remembered
        self.compared: Optional[Compared] = None
        self.found: List[Found] = []

    @property
    def card(self) -> Card:
        """Return what sums it up."""
        return self.profile.card


class Late(Record):
    """Say what was found of a checkpoint, which may be reported already."""

    card: Card
    found: Found


class _Chain:
    """Hold one series: how many of it are still to come, and of how many nothing is known yet."""

    def __init__(self, size: int) -> None:
        self.copies = Copies()
        self.coming = self.unknown = size
        self.held: Optional[Link] = None
        self.released: Set[str] = set()
        self.copied: Set[str] = set()
        self.trends: Dict[str, List[Found]] = {}


class Chains:
    """Take checkpoints as they are read, and give them back when they can be reported."""

    def __init__(self, sizes: Dict[str, int], known: Sequence[Card], now: float) -> None:
        """Begin with the number of checkpoints of each series, and the cards of those that are known already."""
        self._chains = {series: _Chain(size) for series, size in sizes.items()}
        self._now = now
        self.late: List[Late] = []
        for card in known:
            self._know(self._chains[card.series], card)

    def add(self, link: Link) -> List[Link]:
        """Take the next checkpoint, and return those that wait no longer."""
        chain = self._chains[link.card.series]
        self._know(chain, link.card)
        held, chain.held = chain.held, link
        if held is not None:
            _compare(held, link)
        ready = [] if held is None else [held]
        self._look_back(chain, link.card)
        return ready + self._pass(chain)

    def skip(self, series: str) -> List[Link]:
        """Note that the next checkpoint, of this series, can't be compared; return those that wait no longer."""
        chain = self._chains[series]
        self._count(chain)
        return self._pass(chain)

    def _pass(self, chain: _Chain) -> List[Link]:
        """Let the last one go when no other can come."""
        chain.coming -= 1
        held = chain.held
        if chain.coming or held is None:
            return []
        chain.held = None
        return [held]

    def _know(self, chain: _Chain, card: Card) -> None:
        if chain.copies.add(card):
            self._count(chain)

    def _count(self, chain: _Chain) -> None:
        """Judge the series as a whole as soon as all of it is known."""
        chain.unknown -= 1
        cards = [] if chain.unknown else chain.copies.cards
        if len(cards) < 2:
            return
        from .trends import trends

        for card, found in trends(cards, self._now):
            if card.path in chain.released:
                self.late.append(Late(card, found))
            else:
                chain.trends.setdefault(card.path, []).append(found)

    def settle(self, link: Link) -> None:
        """Gather what the others of its series tell of a checkpoint that is now reported."""
        chain = self._chains[link.card.series]
        copied = list(chain.copies.judge(link.card))
        if copied:
            chain.copied.add(link.card.path)
        chain.released.add(link.card.path)
        compared = link.compared.found if link.compared else []
        link.found = [*compared, *copied, *chain.trends.pop(link.card.path, [])]

    def _look_back(self, chain: _Chain, card: Card) -> None:
        """Find what of those reported already turns out to be a copy of this one."""
        for younger in chain.copies.next(card):
            if younger.path in chain.released and younger.path not in chain.copied:
                chain.copied.add(younger.path)
                self.late += [Late(younger, found) for found in chain.copies.judge(younger)]


def _compare(one: Link, other: Link) -> None:
    """Compare two checkpoints, unless that is known from an earlier audit."""
    older, younger = (one, other) if one.card.order < other.card.order else (other, one)
    if older.card.order == younger.card.order:
        return
    if younger.remembered is not None and younger.remembered.key == older.key:
        younger.compared = younger.remembered
        return
    found = compare(older.profile, younger.profile)
    younger.compared = None if found is None else Compared(older.key, found)


def compare(older: Profile, younger: Profile) -> Optional[List[Found]]:
    """Return what a checkpoint shows to be wrong with one that follows it; None when that can't be told any more."""
    # Where all weights are the same there is nothing more to say of them.
    same = bool(older.card.model) and older.card.model == younger.card.model
    from .exchange import exchanges
    from .movement import movement
    from .pair import drift, pair_of

    pair = pair_of(older, younger)
    if pair is None:
        return None
    told: Dict[str, object] = {"compared_with": older.card.name, "compared_path": older.card.path}
    found = [*drift(pair), *([] if same else movement(pair)), *exchanges(pair)]
    return [each._replace(data={**(each.data or {}), **told}) for each in found]
