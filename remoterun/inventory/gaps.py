"""What could not be read of a file: nobody may call unknown what may stand there."""

from __future__ import annotations

from typing import Final, TypeAlias

from remoterun.inventory.selection import ALL, is_glob, is_tag
from remoterun.records import dataclass

Place: TypeAlias = tuple[str | int, ...]

# Keys of hosts and guests that say which targets there are and what selects them; and those that put values into them.
_SELECTING: Final = frozenset({"guests", "name", "tags", "self"})
_VALUES: Final = frozenset({"vars", "members"})
_GUEST_DEPTH: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """Hold the places of an inventory file that were left out of what was made of it."""

    places: tuple[Place, ...] = ()

    def may_mean(self, pattern: str) -> bool:
        """Tell whether a pattern may mean something that stands in a gap."""
        return any(_may_mean(place, pattern) for place in self.places)

    @property
    def of_targets(self) -> bool:
        """Tell whether there may be other targets than are known, or other variables of theirs."""
        return any(_selects(place) or _VALUES & {*place} for place in self.places)

    @property
    def of_jumps(self) -> bool:
        """Tell whether there may be other hosts than are known, or other ways to them."""
        return any(len(place) <= 2 or "jump" in place for place in self.places if place[:1] != ("groups",))


def _is_place(place: Place) -> bool:
    """Tell whether a whole host, guest, group or section is left out."""
    if len(place) <= 1 or place[0] == "defaults":
        return len(place) <= 1
    return len(place) == 2 or (place[0] == "hosts" and len(place) == _GUEST_DEPTH and place[2] == "guests")


def _selects(place: Place) -> bool:
    return _is_place(place) or place[-1] in _SELECTING


def _may_mean(place: Place, pattern: str) -> bool:
    if pattern == ALL or place in ((), ("hosts",)):
        return _selects(place)
    if place[0] == "groups":
        return len(place) == 1 or place[1] == pattern
    if place[-1] == "tags" or place == ("defaults",):
        return is_tag(pattern)
    if place[0] == "defaults" or not _selects(place):
        return False
    return "/" not in pattern or is_glob(pattern) or pattern.startswith(f"{place[1]}/")
