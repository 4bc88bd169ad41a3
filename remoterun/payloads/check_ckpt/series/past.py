"""A checkpoint that is written over the one before, held against what earlier audits saw in its place."""

from __future__ import annotations

import statistics
from typing import Optional, Sequence

from ..model import Found
from ..rules.rule import INFO
from .chain import Compared, Link, compare
from .copies import Copies
from .exchange import changes_of
from .pair import pair_of
from .profile import Profile

# The correlation of a matrix with itself in one training, even a long one; with that of another training it is none.
_SAME = 0.5


def follows(olders: Sequence[Link], younger: Link) -> Optional[Compared]:
    """Compare a save with earlier ones, of which the first comes directly before it, up to one of another training.

    Who begins anew often writes into the same place. None when there is nothing to compare it with.
    """
    copies, first = Copies(), None
    copies.add(younger.card)
    for number, older in enumerate(olders):
        if not _is_of_same_training(older.profile, younger.profile):
            break
        first = first or older
        # In a series, each has a path of its own.
        copies.add(older.card._replace(path="%s@%d" % (older.card.path, number)))
    if first is None:
        return None
    found = [*(compare(first.profile, younger.profile) or []), *copies.judge(younger.card)]
    told = [each._replace(data={**(each.data or {}), "compared_path": younger.card.path}) for each in found]
    return Compared(first.key, [_eased(each) if _is_as_of_another(each) else each for each in told])


def _is_as_of_another(found: Found) -> bool:
    """Tell whether a second training from the same weights would look like that: its head is new, its form may be."""
    return found.rule == "CK083" or (found.rule == "CK089" and "alike" not in (found.evidence or {}))


def _eased(found: Found) -> Found:
    return found._replace(severity=INFO, next_step="Nothing to do if this is another training from the same weights.")


def _is_of_same_training(older: Profile, younger: Profile) -> bool:
    """Tell whether all weights are the same, or most matrices are still like they were."""
    if older.card.model and older.card.model == younger.card.model:
        return True
    pair = pair_of(older, younger)
    alike = [each.alike for each in changes_of(*pair.model)] if pair else []
    return bool(alike) and statistics.median(alike) > _SAME
