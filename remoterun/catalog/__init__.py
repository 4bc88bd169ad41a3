"""The catalog of payloads: built-in, of the project, and of installed distributions; read as data, never imported."""

from __future__ import annotations

from dataclasses import field, replace
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING

from remoterun.catalog.discovery import Broken, Found, search_built_in, search_installed, search_project
from remoterun.catalog.info import Origin, PayloadInfo
from remoterun.catalog.manifest import Said
from remoterun.catalog.packing import PACK_LIMIT, Member, canonical_zip
from remoterun.catalog.params import PARAM_TYPES, Param, ParamType
from remoterun.catalog.scaffold import Kind, scaffold
from remoterun.catalog.versions import parse_reference
from remoterun.errors import ConfigError, Problem, nearest
from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from remoterun.catalog.versions import Reference

__all__ = [
    "PACK_LIMIT",
    "PARAM_TYPES",
    "Broken",
    "Catalog",
    "Kind",
    "Member",
    "Origin",
    "Param",
    "ParamType",
    "PayloadInfo",
    "canonical_zip",
    "scaffold",
]

_NEAREST_FIRST: tuple[Origin, ...] = ("project", "entry point", "built-in")


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """Hold every payload that can be named, by name and with the highest version first.

    A name belongs to the nearest origin that has it: project, then entry point, then built-in. What it hides is not
    found, and is named by `PayloadInfo.shadows`. `overlooked` maps names to why what stands under them in the project
    is no payload. `broken` are those whose manifests are wrong: they stop only what asks for them.
    """

    payloads: tuple[PayloadInfo, ...]
    broken: tuple[Broken, ...] = ()
    overlooked: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def load(cls, project: Path | None) -> Catalog:
        """Read the manifests of all payloads; `project` is the folder of the inventory.

        What is wrong with any of them is told by `problems`, and by `find` to whoever asks for it.
        """
        found = Found()
        search_built_in(found)
        search_installed(found)
        if project is not None:
            search_project(project, found)
        _refuse_twins(found)
        payloads = _without_shadowed(found.payloads)
        return cls(payloads=payloads, broken=tuple(found.broken), overlooked=MappingProxyType(found.overlooked))

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Return everything that is wrong with any manifest."""
        return tuple(problem for broken in self.broken for problem in broken.problems)

    def names(self) -> tuple[str, ...]:
        """Return the names of all payloads, sorted, those of broken ones included."""
        broken = {name for each in self.broken for name in each.names or ()}
        return tuple(sorted({payload.name for payload in self.payloads} | broken))

    def versions(self, name: str) -> tuple[PayloadInfo, ...]:
        """Return every version of a payload, the highest first; none for an unknown name."""
        return tuple(payload for payload in self.payloads if payload.name == name)

    def find(self, reference: str) -> PayloadInfo:
        """Return the highest version that ``name``, ``name@1``, ``name@1.2`` or ``name@=1.2.0`` allows.

        Raises:
            ConfigError: for an unknown name, with the nearest ones; for a constraint that no version meets, with the
                versions there are; and for a name that a broken payload may have, with what is wrong with that.
        """
        wanted = parse_reference(reference)
        versions = self.versions(wanted.name)
        chosen = next((payload for payload in versions if wanted.accepts(payload.order)), None)
        if problems := self._problems_of(wanted, versions, chosen):
            raise ConfigError(problems)
        if not versions:
            raise ConfigError(self._unknown(wanted.name))
        if chosen is None:
            there = ", ".join(payload.version for payload in versions)
            hidden = f"; {versions[0].origin}, hides {versions[0].shadows}" if versions[0].shadows else ""
            raise ConfigError(
                f"no version of the payload {wanted.name} matches {reference!r}: there is {there}{hidden}"
            )
        return chosen

    def _problems_of(
        self, wanted: Reference, versions: Sequence[PayloadInfo], chosen: PayloadInfo | None
    ) -> list[Problem]:
        """Return what is wrong with whatever may be what is wanted, or may hide what was chosen of these versions."""
        return [
            # Whoever asks for it may have a place of its own to name, in a playbook.
            Problem(message=f"the payload {wanted.name} can't be used: {problem}")
            for broken in self.broken
            if (broken.names is None or wanted.name.replace("_", "-") in broken.names)
            and (not versions or _may_come_first(broken, wanted, versions[0].origin, chosen))
            for problem in broken.problems
        ]

    def _unknown(self, name: str) -> Problem:
        for word in (name, name.replace("-", "_")):
            if word in self.overlooked:
                return Problem(message=f"{name!r} is not a payload: {self.overlooked[word]}")
        message = f"there is no payload {name!r}; `remoterun payload list` shows what there is"
        return Problem(message=message, nearest=nearest(name, self.names()))


def _may_come_first(broken: Broken, wanted: Reference, origin: Origin, chosen: PayloadInfo | None) -> bool:
    """Tell whether something broken may be what is wanted, rather than what was chosen of an origin."""
    if broken.origin != origin:
        return _NEAREST_FIRST.index(broken.origin) < _NEAREST_FIRST.index(origin)
    return broken.versions is None or any(
        wanted.accepts(version) and (chosen is None or version >= chosen.order) for version in broken.versions
    )


def _refuse_twins(found: Found) -> None:
    first: dict[tuple[Origin, str, str], PayloadInfo] = {}
    for payload in found.payloads:
        other = first.setdefault((payload.origin, payload.name, payload.version), payload)
        if other is not payload:
            message = f"is {payload.name} {payload.version}, and so is {other.path}: give one another name or version"
            said = Said.of(payload.name, payload.version)
            found.refuse(payload.origin, said, [Problem(message=message, file=str(payload.path))])


def _without_shadowed(payloads: Iterable[PayloadInfo]) -> tuple[PayloadInfo, ...]:
    kept: list[PayloadInfo] = []
    for _, group in groupby(sorted(payloads, key=lambda payload: payload.name), key=lambda payload: payload.name):
        ranked = sorted(group, key=lambda payload: payload.order, reverse=True)
        ranked.sort(key=lambda payload: _NEAREST_FIRST.index(payload.origin))
        hidden = [f"{payload.origin} {payload.version}" for payload in ranked if payload.origin != ranked[0].origin]
        shadows = ", ".join(hidden) or None
        kept += [replace(payload, shadows=shadows) for payload in ranked if payload.origin == ranked[0].origin]
    return tuple(kept)
