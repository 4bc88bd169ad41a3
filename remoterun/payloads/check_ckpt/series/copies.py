"""Checkpoints that hold the same numbers as an older one."""

from __future__ import annotations

import bisect
import re
from typing import Dict, Iterator, List, Optional, Tuple

from ..model import Found
from ..patterns import pattern
from ..rules.rule import INFO, SUSPECT
from .profile import Card

# Parts of a pipeline that are saved along and seldom trained.
_FROZEN = pattern(
    r"(?:^|[/_.-])(?:vae|vqvae|text_?encoder|image_?encoder|safety_checker|ref|reference|teacher|frozen|base)"
    r"(?:[/_.-]|\d|$)",
    re.IGNORECASE,
)


# A kind of fingerprint, and one of that kind.
_Key = Tuple[str, str]
_ANY_MODEL = ("any model", "")
# No path is greater.
_LAST = chr(0x10FFFF)


class Copies:
    """Find, by fingerprints, the older checkpoints of a series that one is a copy of."""

    def __init__(self) -> None:
        self._cards: Dict[str, Card] = {}
        # The order and the path of each that has a fingerprint, ascending.
        self._places: Dict[_Key, List[Tuple[float, str]]] = {}

    @property
    def cards(self) -> List[Card]:
        """Return all cards, the oldest first."""
        return sorted(self._cards.values(), key=lambda card: card.order)

    def add(self, card: Card) -> bool:
        """Take a card, in place of what is known of the same checkpoint; tell whether nothing was."""
        known = self._cards.get(card.path)
        if known == card:
            return False
        if known is not None:
            for key in _keys(known):
                self._places[key].remove((known.order, known.path))
        for key in _keys(card):
            bisect.insort(self._places.setdefault(key, []), (card.order, card.path))
        self._cards[card.path] = card
        return known is None

    def next(self, card: Card) -> List[Card]:
        """Return the next younger ones that hold what this one holds; what comes after those is a copy of them."""
        found: Dict[str, Card] = {}
        for key in _keys(card):
            places = self._places.get(key, []) if key != _ANY_MODEL else []
            after = places[bisect.bisect_left(places, (card.order, _LAST)) :]
            for order, path in after:
                if order > after[0][0]:
                    break
                found[path] = self._cards[path]
        return list(found.values())

    def judge(self, card: Card) -> Iterator[Found]:
        """Say of what older checkpoint this one is a copy."""
        model, moments = (self._older(key, card.order) for key in (("model", card.model), ("moments", card.moments)))
        if model is not None:
            yield self._same_model(card, model)
        elif moments is not None:
            weights = ", the weights are not" if card.model and moments.model else ""
            text = "the optimizer's moments are bit-identical to those of %s%s" % (moments.name, weights)
            # Weights are averaged at the end of a training, which may count as a step and is none of the optimizer.
            once = self._older(("moments", card.moments), moments.order) is None
            last = all(each.order <= card.order for each in self._cards.values())
            ended = once and last and (card.step or 0) - (moments.step or 0) == 1
            yield Found("CK081", text, _data(moments), INFO if ended else None)

    def _older(self, key: _Key, order: float) -> Optional[Card]:
        """Return the youngest of the older checkpoints with the same fingerprint."""
        places = self._places.get(key, [])
        at = bisect.bisect_left(places, (order, ""))
        return self._cards[places[at - 1][1]] if at else None

    def _same_model(self, card: Card, model: Card) -> Found:
        whole = bool(card.moments) and card.moments == model.moments
        moments = " and the optimizer's moments" if whole else ""
        text = "all weights%s are bit-identical to those of %s" % (moments, model.name)
        last = self._older(_ANY_MODEL, card.order)
        between = last if last is not None and last.order > model.order else None
        # Of weights without an optimizer, nobody knows the rate. One that was above zero has moved them since.
        if card.idle and between is None and (model.idle or not model.rates):
            return Found("CK081", text + "; the learning rate is 0", _data(model), INFO, "Nothing to do.")
        if not whole and _made_one_step(model, card):
            # A warm-up begins with a rate of 0.
            return Found("CK081", text + "; the optimizer made one step since then", _data(model), INFO)
        if _FROZEN.search(card.series) and not card.moments:
            return Found("CK081", text, _data(model), INFO, "Nothing to do if this part is not trained.")
        if whole or between is None:
            rate = max(model.rates, default=0.0)
            # Some save before they set the rate of the next step, which may be 0 from then on.
            fell = card.idle and rate > 0 and between is None
            text += "; the learning rate is 0, but was %g there" % rate if fell else ""
            return Found("CK081", text, _data(model), SUSPECT if fell and not whole else None)
        text += ", though those of %s, in between, are others" % between.name
        # Training loops put the best weights back at their end, and then there is no optimizer in the file.
        return Found("CK084", text, _data(model), None if card.moments else SUSPECT)


def _keys(card: Card) -> List[_Key]:
    keys = ("model", card.model), ("moments", card.moments)
    return [key for key in keys if key[1]] + ([_ANY_MODEL] if card.model else [])


def _made_one_step(older: Card, card: Card) -> bool:
    # Before its first step, an optimizer has no state.
    return card.optimizer_step is not None and card.optimizer_step == (older.optimizer_step or 0) + 1


def _data(older: Card) -> Dict[str, object]:
    return {"compared_with": older.name, "compared_path": older.path}
