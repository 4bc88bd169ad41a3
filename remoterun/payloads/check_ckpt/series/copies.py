"""Checkpoints that hold the same numbers as an older one."""

from __future__ import annotations

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


class Copies:
    """Find, by fingerprints, the older checkpoints of a series that one is a copy of."""

    def __init__(self) -> None:
        self._cards: Dict[str, Card] = {}
        self._same: Dict[Tuple[str, str], List[Card]] = {}

    @property
    def cards(self) -> List[Card]:
        """Return all cards, the oldest first."""
        return sorted(self._cards.values(), key=lambda card: card.order)

    def add(self, card: Card) -> bool:
        """Take a card, in place of what is known of the same checkpoint; tell whether nothing was."""
        new = card.path not in self._cards
        if self._cards.get(card.path) != card:
            self._cards[card.path] = card
            for kind, print_ in (("model", card.model), ("moments", card.moments)):
                if print_:
                    self._same.setdefault((kind, print_), []).append(card)
        return new

    def younger(self, card: Card) -> List[Card]:
        """Return younger checkpoints that hold what this one holds."""
        same = self._holding("model", card.model) + self._holding("moments", card.moments)
        return list({each.path: each for each in same if each.order > card.order}.values())

    def _holding(self, kind: str, print_: str) -> List[Card]:
        return [card for card in self._same.get((kind, print_), []) if self._cards[card.path] is card]

    def judge(self, card: Card) -> Iterator[Found]:
        """Say of what older checkpoint this one is a copy."""
        model, moments = self._older("model", card.model, card), self._older("moments", card.moments, card)
        if model is not None:
            yield self._same_model(card, model)
        elif moments is not None:
            weights = ", the weights are not" if card.model and moments.model else ""
            text = "the optimizer's moments are bit-identical to those of %s%s" % (moments.name, weights)
            yield Found("CK081", text, _data(moments))

    def _older(self, kind: str, print_: str, card: Card) -> Optional[Card]:
        """Return the youngest of the older checkpoints with the same fingerprint."""
        older = [each for each in self._holding(kind, print_) if each.order < card.order]
        return max(older, key=lambda each: each.order, default=None)

    def _same_model(self, card: Card, model: Card) -> Found:
        whole = bool(card.moments) and card.moments == model.moments
        moments = " and the optimizer's moments" if whole else ""
        text = "all weights%s are bit-identical to those of %s" % (moments, model.name)
        between = [each for each in self._cards.values() if each.model and model.order < each.order < card.order]
        # Of weights without an optimizer, nobody knows the rate. One that was above zero has moved them since.
        if card.idle and not between and (model.idle or not model.rates):
            return Found("CK081", text + "; the learning rate is 0", _data(model), INFO, "Nothing to do.")
        if not whole and _made_one_step(model, card):
            # A warm-up begins with a rate of 0.
            return Found("CK081", text + "; the optimizer made one step since then", _data(model), INFO)
        if _FROZEN.search(card.series) and not card.moments:
            return Found("CK081", text, _data(model), INFO, "Nothing to do if this part is not trained.")
        if whole or not between:
            rate = max(model.rates, default=0.0)
            # Some save before they set the rate of the next step, which may be 0 from then on.
            fell = card.idle and rate > 0 and not between
            text += "; the learning rate is 0, but was %g there" % rate if fell else ""
            return Found("CK081", text, _data(model), SUSPECT if fell and not whole else None)
        text += ", though those of %s, in between, are others" % max(between, key=lambda each: each.order).name
        # Training loops put the best weights back at their end, and then there is no optimizer in the file.
        return Found("CK084", text, _data(model), None if card.moments else SUSPECT)


def _made_one_step(older: Card, card: Card) -> bool:
    # Before its first step, an optimizer has no state.
    return card.optimizer_step is not None and card.optimizer_step == (older.optimizer_step or 0) + 1


def _data(older: Card) -> Dict[str, object]:
    return {"compared_with": older.name, "compared_path": older.path}
