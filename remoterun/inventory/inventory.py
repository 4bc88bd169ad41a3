"""The inventory as the rest of the program sees it: targets, groups, and selections from them."""

from __future__ import annotations

from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from remoterun.errors import ConfigError, Problem, show
from remoterun.inventory import adhoc, words
from remoterun.inventory.endpoints import jump_chain
from remoterun.inventory.overrides import Flags, Overrides
from remoterun.inventory.project import no_inventory
from remoterun.inventory.selection import Index, build_index
from remoterun.inventory.settings import Login, Settings
from remoterun.records import dataclass
from remoterun.store import read_bytes, remember

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from remoterun.inventory.adhoc import AdHoc
    from remoterun.inventory.gaps import Gaps
    from remoterun.inventory.resolve import Resolved
    from remoterun.model import Host, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Hold every target that a file names, in the file's order; iterating yields them.

    `groups` maps a group to its targets' ids; `hosts` has every host by key, those without targets included.
    """

    path: Path | None = None
    targets: tuple[Target, ...] = ()
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hosts: Mapping[str, Host] = field(default_factory=dict)
    _index: Index = field(default_factory=lambda: build_index((), (), {}), repr=False)
    _login: Login = field(default=Login(), repr=False)
    _settings: Settings = field(default=Settings(), repr=False)
    _default_jump: tuple[Host, ...] | None = field(default=None, repr=False)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read an inventory file.

        Raises:
            ConfigError: every problem in it at once.
        """
        data = read_bytes(path)
        # What stands in the file's place matters too: relative paths, the home folder, the name in problems.
        place = f"{path}\0{path.absolute()}\0{Path.home()}\0".encode("utf-8", "surrogateescape")
        return remember("inventory", place + data, lambda: cls._parse(path, data))

    @classmethod
    def _parse(cls, path: Path, data: bytes) -> Self:
        from remoterun.inventory.resolve import resolve
        from remoterun.inventory.yamlfile import parse

        return cls._of(path, resolve(parse(data, str(path)), path.absolute().parent))

    @classmethod
    def load_partly(cls, path: Path) -> tuple[Self, Gaps]:
        """Read as much of an inventory file with problems as can be, and tell what is left out.

        Raises:
            ConfigError: nothing of it can be read.
        """
        from remoterun.inventory.resolve import resolve_partly
        from remoterun.inventory.yamlfile import parse

        resolved, problems, gaps = resolve_partly(parse(read_bytes(path), str(path)), path.absolute().parent)
        if resolved is None:
            raise ConfigError(problems)
        return cls._of(path, resolved), gaps

    @classmethod
    def _of(cls, path: Path, resolved: Resolved) -> Self:
        return cls(
            path=path,
            targets=resolved.targets,
            groups=resolved.groups,
            hosts=resolved.hosts,
            _index=resolved.index,
            _login=resolved.login,
            _settings=resolved.settings,
            _default_jump=resolved.default_jump,
        )

    @classmethod
    def empty(cls) -> Self:
        """Return an inventory that names nothing: only targets written out in full can be selected."""
        return cls()

    def __iter__(self) -> Iterator[Target]:
        return iter(self.targets)

    def __len__(self) -> int:
        return len(self.targets)

    def select(
        self,
        on: Sequence[str],
        not_: Sequence[str] = (),
        and_: Sequence[str] = (),
        overrides: Overrides | None = None,
        *,
        where: str = "--on",
    ) -> tuple[Target, ...]:
        """Return the targets that any pattern of `on` means, less those of `not_`, cut to `and_` when it has any.

        Each stands once, in the inventory's order; targets written out in full follow in the order they were named, and
        only `on` can bring them in. `where` names the place of `on` in problems.

        Raises:
            ConfigError: overrides are wrong, patterns match nothing or are ambiguous (all at once), nothing is left.
        """
        selecting = _Selecting(self, (overrides or Overrides()).checked())
        chosen = selecting.union(where, on, selecting.written_out)
        if not_:
            chosen -= selecting.union("--not", not_, selecting.named_before)
        if and_:
            chosen &= selecting.union("--and", and_, selecting.named_before)
        if not chosen and not selecting.problems:
            selecting.problems.append(Problem(path=where, message="no target is left in the selection"))
        return selecting.finish(chosen)


class _Selecting:
    """Carry out one selection."""

    def __init__(self, inventory: Inventory, flags: Flags) -> None:
        self.problems: list[Problem] = []
        self._inventory = inventory
        self._flags = flags
        self._outside: dict[str, Target] = {}
        self._jump = self._resolved_jump()

    def _resolved_jump(self) -> tuple[Host, ...] | None:
        """Return the chain of --jump; None when it is not given."""
        parts, inventory = self._flags.login.jump, self._inventory
        if parts is None:
            return None
        try:
            return jump_chain(parts, inventory.hosts.get, inventory._login, inventory.hosts)
        except ValueError as error:
            self.problems.append(Problem(path="--jump", message=str(error)))
            return None

    def union(self, where: str, patterns: Sequence[str], outside: Callable[[AdHoc], frozenset[str]]) -> frozenset[str]:
        """Return the ids that any of the patterns means; `outside` decides on those written out in full."""
        ids: frozenset[str] = frozenset()
        for pattern in patterns:
            try:
                words.PATTERN.check(pattern)
                found = adhoc.recognise(pattern, self._inventory.hosts)
                ids |= self._inventory._index.match(pattern) if found is None else outside(found)
            except ValueError as error:
                self.problems.append(Problem(path=where, message=str(error)))
            except ConfigError as error:
                self.problems += self._unmatched(where, pattern, error)
        return ids

    def _unmatched(self, where: str, pattern: str, error: ConfigError) -> Iterable[Problem]:
        if self._inventory.path is None and not self._inventory.targets:
            return [Problem(path=where, message=f"{show(pattern)} matches no target: {no_inventory()}")]
        return [Problem(path=where, message=each.message, nearest=each.nearest) for each in error.problems]

    def written_out(self, found: AdHoc) -> frozenset[str]:
        """Bring in a target that is written out in full."""
        inventory, flags = self._inventory, self._flags
        target = adhoc.build(
            found,
            login=flags.login.over(inventory._login),
            settings=flags.settings.over(inventory._settings),
            jump=inventory._default_jump if self._jump is None else self._jump,
            user=flags.guest_user,
        )
        self._outside[target.id] = replace(target, host=replace(flags.trusting(target.host), flags=flags.typed))
        return frozenset({target.id})

    def named_before(self, found: AdHoc) -> frozenset[str]:
        """Return a target that was brought in before."""
        if found.id not in self._outside:
            raise ValueError(f"{show(found.id)} is not among the targets that are selected")
        return frozenset({found.id})

    def finish(self, chosen: frozenset[str]) -> tuple[Target, ...]:
        """Return the chosen targets in order, with the flags laid over them."""
        inside = [target for target in self._inventory.targets if target.id in chosen]
        targets = [laid for target in inside if (laid := self._laid(target)) is not None]
        if self.problems:
            raise ConfigError(self.problems)
        return (*targets, *(target for id_, target in self._outside.items() if id_ in chosen))

    def _laid(self, target: Target) -> Target | None:
        jump = self._jump
        try:
            if jump and target.host.key in {host.key for host in jump}:
                raise ValueError(f"{target.host.key} cannot be reached by jumping through itself")
            return self._flags.laid_over(target, jump)
        except ValueError as error:
            self.problems.append(Problem(path=target.id, message=str(error)))
            return None
