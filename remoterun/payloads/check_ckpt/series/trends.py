"""What only a whole series shows: where it went wrong, in which order it was written, whether it goes on."""

from __future__ import annotations

import math
import statistics
from typing import Dict, Iterator, List, Optional, Sequence

from ..find.unit import span
from ..model import Found
from ..rules.rule import INFO, SUSPECT
from .chain import Late
from .naming import EPOCH, epoch_in
from .profile import Card

# A norm that was steady for so many checkpoints, within this factor, and then is so many times as large or as small.
_STEADY, _STEADY_WITHIN, _NORM_LEAP = 3, 2.0, 10.0
# Gaps are regular when most of at least so many are the same.
_FEWEST_GAPS, _REGULAR, _WIDE = 4, 0.75, 1.5
# Copying mixes times up by less than it takes to make a checkpoint.
_APART_NS = 60 * 10**9
# After so many intervals the next checkpoint is late; after far more, training has ended for one reason or other.
_LATE, _OVER = 3.0, 50.0
# Where more of a series are out of line, that is how it is.
_FEW = 1 / 3


def trends(cards: Sequence[Card], now: float) -> List[Late]:
    """Judge a whole series, the oldest first; `now` is in seconds since 1970."""
    judges = (_spoiled, _norms, _steps_back, _times_back, _gaps, _offsets)
    return [trend for judge in judges for trend in judge(cards)] + list(_late(cards, now))


def _trend(rule: str, card: Card, message: str, other: Card, severity: Optional[str] = None) -> Late:
    data: Dict[str, object] = {"compared_with": other.name, "compared_path": other.path}
    return Late(card, Found(rule, message, data, severity))


# --- CK085: values --------------------------------------------------------------------------------------------------


def _spoiled(cards: Sequence[Card]) -> Iterator[Late]:
    """Name the first checkpoint with non-finite numbers; what it holds is found bad by itself."""
    for index, what in enumerate(("weights", "optimizer state")):
        for before, card in zip(cards, cards[1:]):
            if card.odd[index] and not before.odd[index]:
                text = "the first of this series with non-finite %s; %s, before it, has none" % (what, before.name)
                yield _trend("CK085", card, text, before, INFO)
                break


def _norms(cards: Sequence[Card]) -> Iterator[Late]:
    known = [card for card in cards if card.norm and not card.odd[0]]
    for index in range(_STEADY, len(known)):
        card, before = known[index], known[index - _STEADY : index]
        norms = [each.norm or 0.0 for each in before]
        norm = card.norm or 0.0
        leapt = norm > _NORM_LEAP * max(norms) or norm * _NORM_LEAP < min(norms)
        if leapt and max(norms) <= _STEADY_WITHIN * min(norms) and not _is_fresh(before[-1], card):
            text = "the norm of all weights is %.4g, after %.4g in %s and much the same before"
            yield _trend("CK085", card, text % (norm, norms[-1], before[-1].name), before[-1])


def _is_fresh(before: Card, card: Card) -> bool:
    """Tell that the optimizer was started afresh in between."""
    return (card.optimizer_step or 0) < (before.optimizer_step or 0)


# --- CK086: order ---------------------------------------------------------------------------------------------------


def _steps_back(cards: Sequence[Card]) -> Iterator[Late]:
    known = [card for card in cards if card.step is not None]
    for before, card in zip(known, known[1:]):
        if not _less(card.step, before.step):
            continue
        # Some count the steps of an epoch.
        counted = card.epoch is not None and before.epoch is not None and card.epoch <= before.epoch
        text = "step %s inside, after step %s in %s" % (_shown(card.step), _shown(before.step), before.name)
        yield _trend("CK086", card, text, before, SUSPECT if counted else INFO)


def _less(one: Optional[float], other: Optional[float]) -> bool:
    return one is not None and other is not None and one < other


def _shown(number: Optional[float]) -> str:
    number = number or 0
    return "%d" % number if abs(number) < 1e15 and number == int(number) else "%g" % number


def _times_back(cards: Sequence[Card]) -> Iterator[Late]:
    back = [(before, card) for before, card in zip(cards, cards[1:]) if card.mtime_ns < before.mtime_ns - _APART_NS]
    for before, card in back[-1:]:
        text = "last written before %s, which it follows" % before.name
        more = "; so are %d others of this series" % (len(back) - 1) if len(back) > 1 else ""
        yield _trend("CK086", card, text + more, before)


def _gaps(cards: Sequence[Card]) -> Iterator[Late]:
    if len(cards) <= _FEWEST_GAPS:
        return
    # Where no epoch is named, steps may be as many as the tokens are.
    size = EPOCH if epoch_in(cards[0].name) is not None else math.inf
    gaps = [after.order % size - before.order % size for before, after in zip(cards, cards[1:])]
    usual = statistics.median(gaps)
    wide = [index for index, gap in enumerate(gaps) if gap > _WIDE * usual]
    # Old ones are thinned out on purpose.
    wide = [index for index in wide if index >= len(gaps) - _FEWEST_GAPS]
    if sum(gap == usual for gap in gaps) >= _REGULAR * len(gaps):
        for index in wide:
            text = "it follows %s by %s, where %s is usual: some in between are missing"
            numbers = _shown(gaps[index]), _shown(usual)
            yield _trend("CK086", cards[index + 1], text % (cards[index].name, *numbers), cards[index])


# --- CK087: time ----------------------------------------------------------------------------------------------------


def _late(cards: Sequence[Card], now: float) -> Iterator[Late]:
    times = [card.mtime_ns / 1e9 for card in cards]
    waits = [after - before for before, after in zip(times, times[1:])]
    if len(waits) < _FEWEST_GAPS or min(waits) <= 0:
        return
    usual, wait = statistics.median(waits), now - times[-1]
    # Files that were copied have the times of the copy.
    if usual * 1e9 < _APART_NS:
        return
    if _LATE * max(waits) < wait < _OVER * usual:
        text = "written %s ago, where one every %s is usual: training has ended, or hangs" % (span(wait), span(usual))
        yield _trend("CK087", cards[-1], text, cards[-2])


# --- CK048: steps of training and of the optimizer ------------------------------------------------------------------


def _offsets(cards: Sequence[Card]) -> Iterator[Late]:
    """Find the optimizer's steps out of line in one checkpoint: skipped steps only ever move them apart."""
    known = [card for card in cards if card.step is not None and card.optimizer_step is not None]
    offsets = [(card.step or 0) - (card.optimizer_step or 0) for card in known]
    inner = range(1, len(known) - 1)
    odd = [index for index in inner if offsets[index - 1] == offsets[index + 1] != offsets[index]]
    # Two runs in one folder take turns.
    for index in odd if len(odd) <= _FEW * len(known) else ():
        before, offset = offsets[index - 1 : index + 1]
        text = "the optimizer made %s steps, %s %s than the checkpoints before and after it let expect"
        apart, word = _shown(abs(offset - before)), "fewer" if offset > before else "more"
        steps = _shown(known[index].optimizer_step or 0), apart, word
        yield _trend("CK048", known[index], text % steps, known[index - 1], SUSPECT)
