"""From the models of an inventory file to hosts, targets and groups.

Imports pydantic and PyYAML: load this module lazily.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from remoterun.errors import ConfigError, Problem, show
from remoterun.inventory import words
from remoterun.inventory.check import check
from remoterun.inventory.endpoints import MOST_JUMPS, jump_chain, split_jump
from remoterun.inventory.gaps import Gaps
from remoterun.inventory.overrides import inner_user
from remoterun.inventory.schema import DefaultsFile, HostFile, InventoryFile, LoginKeys, PlaceKeys
from remoterun.inventory.selection import Index, build_index
from remoterun.inventory.settings import GuestHop, Login, Settings, check_guest
from remoterun.inventory.yamlfile import in_order
from remoterun.model import HopKind, Host, Json, Target
from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from remoterun.inventory.yamlfile import Document, Part

_T = TypeVar("_T")
_Place: TypeAlias = tuple[str, ...]

_PYTHON: Final = ("venv",)

_DEEPEST_GROUP: Final = 16
_SSH_KEYS: Final = ("address", "port", "user", "identity_file", "known_hosts", "host_key", "ssh_config", "jump")
_NOT_FABRICS: Final = ("host_key", "jump")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Hold all that an inventory file says, settings laid over each other."""

    targets: tuple[Target, ...]
    hosts: Mapping[str, Host]
    groups: Mapping[str, tuple[str, ...]]
    index: Index
    login: Login
    settings: Settings
    default_jump: tuple[Host, ...] | None


def resolve(document: Document, folder: Path) -> Resolved:
    """Resolve a parsed inventory; relative paths in it start at `folder`.

    Raises:
        ConfigError: every problem at once.
    """
    resolved, problems, _ = resolve_partly(document, folder)
    if problems or resolved is None:
        raise ConfigError(problems)
    return resolved


def resolve_partly(document: Document, folder: Path) -> tuple[Resolved | None, list[Problem], Gaps]:
    """Resolve as much of a parsed inventory as can be; say what is wrong with it, and what is left out."""
    checked = check(document, InventoryFile)
    gaps = Gaps(places=checked.left_out)
    if checked.value is None:
        return None, in_order(checked.problems), gaps
    resolver = _Resolver(document, checked.value, folder, gaps)
    resolved = resolver.resolve()
    return resolved, in_order([*checked.problems, *resolver.problems]), gaps


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """Hold a target as far as it is known before groups are, and what its guest and host say of it."""

    target: Target
    own: Settings


class _Resolver:
    """Resolve one file.

    References are not blamed for the parts that were left out.
    """

    def __init__(self, document: Document, file: InventoryFile, folder: Path, gaps: Gaps) -> None:
        self.problems: list[Problem] = []
        self._document = document
        self._files = file.hosts or {}
        self._groups = file.groups or {}
        self._folder = folder
        self._gaps = gaps
        defaults = file.defaults or DefaultsFile()
        self._settings = self._settings_of(defaults, ("defaults",), hop=defaults.hop, tags=defaults.tags)
        login = self._login_of(defaults, ("defaults",))
        self._login, self._default_parts = replace(login, jump=None), login.jump
        self._logins = {key: self._login_of(host, ("hosts", key)) for key, host in self._files.items()}
        self._on_default_way = self._hosts_on_default_way()
        self._hosts: dict[str, Host] = {}
        self._default_jump: tuple[Host, ...] | None = None

    def resolve(self) -> Resolved:
        """Return everything; it is of use only when no problem was found."""
        self._check_names()
        if self._default_parts is not None:
            self._default_jump = self._chain(self._default_parts, ("defaults", "jump"), ())
        hosts = {key: self._host(key, ()) for key in self._files}
        drafts = [draft for key in self._files for draft in self._drafts(key)]
        index = self._index([draft.target for draft in drafts])
        laid = self._group_settings(drafts, index.groups)
        targets = tuple(self._finished(draft, laid[draft.target.id]) for draft in drafts)
        return Resolved(
            targets=targets,
            hosts=hosts,
            groups={name: tuple(t.id for t in targets if t.id in ids) for name, ids in index.groups.items()},
            index=index,
            login=self._login,
            settings=self._settings,
            default_jump=self._default_jump,
        )

    def _report(self, path: Iterable[Part], message: str, nearest: tuple[str, ...] = ()) -> None:
        self.problems.append(self._document.problem(path, message, nearest=nearest))

    def _try(self, path: Iterable[Part], ask: Callable[[], _T]) -> _T | None:
        """Return what a check gives; report what it raises."""
        try:
            return ask()
        except ValueError as error:
            self._report(path, str(error))
            return None

    # --- names ---

    def _check_names(self) -> None:
        """Report every name that means two things."""
        taken = {name: f"{name} has a meaning of its own in selections" for name in words.RESERVED}
        for key in self._files:
            self._take(taken, key, ("hosts", key), f"the host {key}")
        for name in self._groups:
            self._take(taken, name, ("groups", name), f"the group {name}")
        for key, host in self._files.items():
            for guest, file in (host.guests or {}).items():
                if file.name is not None:
                    self._take(taken, file.name, ("hosts", key, "guests", guest, "name"), f"the target {key}/{guest}")

    def _take(self, taken: dict[str, str], name: str, path: tuple[Part, ...], owner: str) -> None:
        if words.VMID.fits(name):
            self._report(path, f"the name {show(name)} looks like a VMID: choose another")
        if name in taken:
            self._report(path, f"the name {show(name)} is taken ({taken[name]}): choose another")
        taken.setdefault(name, f"by {owner}")

    # --- hosts ---

    def _login_of(self, keys: LoginKeys, path: tuple[Part, ...]) -> Login:
        def paths(name: str, texts: Sequence[str] | None) -> tuple[str, ...] | None:
            if texts is None:
                return None
            return self._try((*path, name), lambda: tuple(words.local_path(text, self._folder) for text in texts))

        config, jump = keys.ssh_config, keys.jump
        said = keys.host_key if isinstance(keys, (HostFile, DefaultsFile)) else None
        texts = [said] if isinstance(said, str) else said
        trust = None if texts is None else self._try((*path, "host_key"), lambda: words.host_keys(texts))
        return Login(
            user=keys.user,
            port=keys.port,
            identity_files=paths("identity_file", keys.identity_file),
            known_hosts=paths("known_hosts", keys.known_hosts),
            host_key=trust and trust[0],
            accept_new=trust and trust[1],
            ssh_config=config and self._try((*path, "ssh_config"), lambda: words.config_path(config, self._folder)),
            jump=None if jump is None else self._try((*path, "jump"), lambda: split_jump(jump)),
            become=keys.become,
            concurrency=keys.concurrency.values() if keys.concurrency else {},
        )

    def _hosts_on_default_way(self) -> frozenset[str]:
        """Return the hosts that the default jump chain goes through: to them it cannot apply as a whole."""
        found: set[str] = set()
        open_ends = list(self._default_parts or ())
        while open_ends:
            key = open_ends.pop()
            if key in self._logins and key not in found:
                found.add(key)
                open_ends += self._logins[key].jump or ()
        return frozenset(found)

    def _host(self, key: str, via: tuple[str, ...]) -> Host:
        """Build a host, those it jumps through first; `via` are the hosts being built around it."""
        if key not in self._hosts:
            file, login = self._files[key], self._logins[key].over(self._login)
            if file.transport == "local":
                for name in sorted(file.model_fields_set.intersection(_SSH_KEYS)):
                    self._report(("hosts", key, name), "has no meaning with `transport: local`: remove one of the two")
                self._hosts[key] = login.local_host(key)
            elif file.transport == "fabric":
                for name in sorted(file.model_fields_set.intersection(_NOT_FABRICS)):
                    self._report(("hosts", key, name), "has no meaning with `transport: fabric`: remove one of the two")
                if self._login.host_key:
                    self._report(("hosts", key), "is reached by Fabric, which knows nothing of `defaults.host_key`")
                self._hosts[key] = login.fabric_host(key, file.address or key)
            else:
                self._hosts[key] = login.host(key, file.address or key, jump=self._jump_of(key, (*via, key)))
        return self._hosts[key]

    def _jump_of(self, key: str, via: tuple[str, ...]) -> tuple[Host, ...] | None:
        own, default = self._logins[key].jump, self._default_parts or ()
        if own is not None:
            return self._chain(own, ("hosts", key, "jump"), via)
        if key not in self._on_default_way:
            return self._default_jump
        before = default[: default.index(key)] if key in default else ()
        return self._chain(before, ("hosts", key), via) if before else None

    def _chain(self, parts: Sequence[str], path: tuple[Part, ...], via: tuple[str, ...]) -> tuple[Host, ...] | None:
        def find(part: str) -> Host | None:
            if part in via:
                raise ValueError(f"the jump chain {' > '.join((*via, part))} comes back to where it was")
            if len(via) > MOST_JUMPS:
                raise ValueError(f"the jump chain is longer than {MOST_JUMPS} hosts")
            return self._host(part, via) if part in self._files else None

        try:
            return jump_chain(parts, find, self._login, self._files)
        except ValueError as error:
            if not self._gaps.of_jumps:
                self._report(path, str(error))
            return None

    # --- targets ---

    def _settings_of(
        self, keys: PlaceKeys, path: tuple[Part, ...], *, hop: HopKind | None = None, tags: list[str] | None = None
    ) -> Settings:
        if keys.venv is not None and keys.python is not None:
            self._report(
                (*path, "python"), "stands beside venv, which names the interpreter already: keep one of the two"
            )
        return keys.settings(hop=hop, tags=tags)

    def _drafts(self, key: str) -> Iterator[_Draft]:
        """Yield the targets of a host: itself, if it is one, then its guests."""
        file = self._files[key]
        own = self._settings_of(file, ("hosts", key), hop=file.hop, tags=file.tags)
        if file.is_target or (file.is_target is None and not file.guests):
            yield self._draft(Target(id=key, host=self._hosts[key]), own)
        if file.guests and file.hop == "none":
            self._report(("hosts", key, "hop"), "must be pct or lxc: the host has guests to enter")
        for guest, said in (file.guests or {}).items():
            path = ("hosts", key, "guests", guest)
            settings = self._settings_of(said, path, hop=said.hop, tags=said.tags).over(own)
            hop: GuestHop = "lxc" if settings.over(self._settings).hop == "lxc" else "pct"
            self._try(path, partial(check_guest, guest, hop))
            target = Target(id=f"{key}/{guest}", host=self._hosts[key], guest=guest, hop=hop)
            yield self._draft(replace(target, name=said.name, user=inner_user(said.user)), settings)

    def _draft(self, target: Target, own: Settings) -> _Draft:
        return _Draft(target=replace(target, tags=own.tags | self._settings.tags), own=own)

    def _finished(self, draft: _Draft, group: Settings) -> Target:
        settings = draft.own.over(group).over(self._settings)
        return replace(
            draft.target,
            interpreter=settings.interpreter,
            venv=settings.venv,
            env=settings.env,
            vars=settings.vars,
            limits=settings.limits,
        )

    # --- groups ---

    def _index(self, targets: Sequence[Target]) -> Index:
        index = build_index(targets, self._files, dict.fromkeys(self._groups, frozenset()))
        groups: dict[str, frozenset[str]] = {}
        for name in self._groups:
            self._members(name, (name,), index, groups)
        return replace(index, groups={name: groups[name] for name in self._groups})

    def _members(
        self, name: str, via: tuple[str, ...], index: Index, groups: dict[str, frozenset[str]]
    ) -> frozenset[str]:
        """Return a group's targets, those of groups in it included; `via` are the groups being looked into."""
        if name in groups:
            return groups[name]
        ids: set[str] = set()
        for number, pattern in enumerate(self._groups[name].members):
            path = ("groups", name, "members", number)
            if pattern in via:
                self._report(path, f"the groups {' > '.join((*via, pattern))} contain each other")
            elif pattern not in self._groups:
                ids |= self._matched(pattern, path, index)
            elif len(via) < _DEEPEST_GROUP:
                ids |= self._members(pattern, (*via, pattern), index, groups)
            else:
                self._report(path, f"groups are nested more than {_DEEPEST_GROUP} deep")
        groups[name] = frozenset(ids)
        return groups[name]

    def _matched(self, pattern: str, path: tuple[Part, ...], index: Index) -> frozenset[str]:
        try:
            return index.match(pattern)
        except ConfigError as error:
            if not self._gaps.may_mean(pattern):
                for problem in error.problems:
                    self._report(path, problem.message, problem.nearest)
            return frozenset()

    def _group_settings(self, drafts: Sequence[_Draft], groups: Mapping[str, frozenset[str]]) -> Mapping[str, Settings]:
        """Return what the groups of each target say of it; report where two disagree and nothing nearer decides."""
        said = {name: self._settings_of(file, ("groups", name)) for name, file in self._groups.items()}
        flat = {name: _flat(settings) for name, settings in said.items()}
        laid = {draft.target.id: Settings() for draft in drafts}
        told: set[tuple[str, str, _Place]] = set()
        for draft in drafts:
            target, nearer = draft.target.id, _flat(draft.own)
            by: dict[_Place, tuple[str, str]] = {}
            for name in (name for name in said if target in groups[name]):
                for place, value in flat[name].items():
                    first, other = by.setdefault(place, (name, value))
                    if other != value and place not in nearer and (first, name, place) not in told:
                        told.add((first, name, place))
                        self._report(("groups", name, *place), _disagreement(place, first, target))
                laid[target] = said[name].over(laid[target])
        return laid


def _flat(settings: Settings) -> dict[_Place, str]:
    """Return each single thing that is said, as JSON text, by its place in the file."""
    flat: dict[_Place, Json] = {("env", name): text for name, text in settings.env.items()}
    flat |= {("vars", name): value for name, value in settings.vars.items()}
    flat |= {("limits", name): seconds for name, seconds in settings.limits.items()}
    if settings.names_python:
        flat[_PYTHON] = [settings.venv, settings.python]
    return {place: json.dumps(value, sort_keys=True) for place, value in flat.items()}


def _disagreement(place: _Place, other: str, target: str) -> str:
    key = "venv or python" if place == _PYTHON else ".".join(place)
    return f"{key} differs from that of the group {other}, and {target} is in both: set it nearer, on the guest or host"
