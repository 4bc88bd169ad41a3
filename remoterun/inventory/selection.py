"""Patterns to targets: what each word means in an inventory, and the algebra of --on, --not and --and."""

from __future__ import annotations

from collections import defaultdict
from fnmatch import fnmatchcase
from itertools import chain
from typing import TYPE_CHECKING, Final

from remoterun.errors import ConfigError, Problem, nearest, show
from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from remoterun.model import Target

ALL: Final = "all"
_TAG: Final = "tag:"
_NONE: Final = "the inventory has none (in full, one is written user@address/200)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """Hold what each word means, as ids of targets.

    `targets` has ids and names, `guests` the bare keys of guests: a word means a guest by its key only when it is
    nothing else, and only when one guest has that key.
    """

    everything: frozenset[str]
    targets: Mapping[str, str]
    hosts: Mapping[str, frozenset[str]]
    groups: Mapping[str, frozenset[str]]
    guests: Mapping[str, Sequence[str]]
    tags: Mapping[str, frozenset[str]]

    def match(self, pattern: str) -> frozenset[str]:
        """Return the ids of the targets that a pattern means, at least one.

        Raises:
            ConfigError: it means none, or more than one thing.
        """
        ids = self._ids(pattern)
        if not ids:
            raise ConfigError(self._unmatched(pattern))
        return ids

    def _ids(self, pattern: str) -> frozenset[str]:
        if pattern == ALL:
            return self.everything
        if is_tag(pattern):
            tag = pattern.removeprefix(_TAG)
            hits = [ids for known, ids in self.tags.items() if fnmatchcase(known, tag)] if is_glob(tag) else []
            return frozenset().union(*hits) if hits else self.tags.get(tag, frozenset())
        if is_glob(pattern):
            return frozenset(id_ for word, id_ in self.targets.items() if fnmatchcase(word, pattern))
        return self._exact(pattern)

    def _exact(self, word: str) -> frozenset[str]:
        for several in (self.groups, self.hosts):
            if word in several:
                return several[word]
        if word in self.targets:
            return frozenset({self.targets[word]})
        guests = self.guests.get(word, ())
        if len(guests) > 1:
            raise ConfigError(
                Problem(message=f"{show(word)} is ambiguous: several hosts have it", nearest=tuple(guests))
            )
        return frozenset(guests)

    def _unmatched(self, pattern: str) -> Problem:
        if not self.everything:
            return Problem(message=f"{show(pattern)} matches no target: {_NONE}")
        if pattern in self.hosts or pattern in self.groups:
            return Problem(message=f"{show(pattern)} has no targets of its own")
        if "," in pattern or " " in pattern.strip():
            how = "patterns stand one by one, not between commas or blanks"
            return Problem(message=f"{show(pattern)} matches no target: {how}")
        if "/" in pattern and (id_ := self.targets.get(pattern.rpartition("/")[2])):
            return Problem(message=f"{show(pattern)} matches no target", nearest=(id_,))
        known = chain(self.targets, self.hosts, self.groups, (f"{_TAG}{tag}" for tag in self.tags))
        where = (
            ""
            if "/" in pattern or is_tag(pattern) or not {".", ":"} & {*pattern}
            else " (outside the inventory: user@address)"
        )
        return Problem(message=f"{show(pattern)} matches no target{where}", nearest=nearest(pattern.strip(), known))


def is_tag(text: str) -> bool:
    """Tell whether a pattern selects by a tag."""
    return text.startswith(_TAG)


def is_glob(text: str) -> bool:
    """Tell whether a pattern is a glob."""
    return any(mark in text for mark in "*?[")


def build_index(targets: Sequence[Target], hosts: Iterable[str], groups: Mapping[str, frozenset[str]]) -> Index:
    """Build the index of some targets; `hosts` are the keys of all hosts, those without targets included."""
    words: dict[str, str] = {}
    guests: dict[str, list[str]] = defaultdict(list)
    tags: dict[str, set[str]] = defaultdict(set)
    of_host: dict[str, set[str]] = {key: set() for key in hosts}
    for target in targets:
        of_host[target.host.key].add(target.id)
        words[target.id] = target.id
        if target.name is not None:
            words[target.name] = target.id
        if target.guest is not None:
            guests[target.guest].append(target.id)
        for tag in target.tags:
            tags[tag].add(target.id)
    return Index(
        everything=frozenset(target.id for target in targets),
        targets=words,
        hosts={key: frozenset(ids) for key, ids in of_host.items()},
        groups=groups,
        guests={key: tuple(ids) for key, ids in guests.items()},
        tags={tag: frozenset(ids) for tag, ids in tags.items()},
    )
