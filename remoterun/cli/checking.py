"""What is wrong in a project's files, all of it at once: what is wrong in one keeps none of the others from a look."""

from __future__ import annotations

import itertools
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from remoterun.api import Choice, Project
from remoterun.catalog import Catalog
from remoterun.catalog.params import unknown_param
from remoterun.errors import ConfigError, Problem
from remoterun.inventory import FILE_NAME, Inventory, find_project
from remoterun.inventory.gaps import Gaps
from remoterun.model import SecretRef, VarRef
from remoterun.playbook import (
    FOLDER,
    SUFFIXES,
    find_playbook,
    left_out,
    load_partly,
    located,
    resolve_params,
    unknown_rules,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from remoterun.catalog import PayloadInfo
    from remoterun.inventory.gaps import Place
    from remoterun.model import Playbook, Step, Target


class Checking:
    """Look at the files of a project, and gather what is wrong in them.

    Attributes:
        root: the project's folder, None without one.
        files: its playbooks.
        has_audit: tells that there is an audit.yaml.
        problems: each once.
    """

    def __init__(self, named: Path | None) -> None:
        self.root = find_project(Path.cwd(), named)
        self.problems: list[Problem] = []
        self._gaps: Gaps | None = Gaps()  # of the inventory; None when nothing of it can be read
        self.project = self._load(named)
        self._note(self.project.catalog.problems)
        self.files = self._playbook_files()
        for file in self.files:
            self._playbook(file)
        self.has_audit = self.root is not None and self._audit(self.root)

    def _note(self, problems: Iterable[Problem]) -> None:
        self.problems += [problem for problem in problems if problem not in self.problems]

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except ConfigError as error:
            self._note(error.problems)

    def _load(self, named: Path | None) -> Project:
        try:
            return Project.load(named)
        except ConfigError as error:
            self._note(error.problems)
        inventory, self._gaps = Inventory.empty(), None
        if self.root is not None:
            with suppress(ConfigError):  # which has been told
                inventory, self._gaps = Inventory.load_partly(self.root / FILE_NAME)
        return Project(root=self.root, inventory=inventory, catalog=Catalog.load(self.root))

    def _playbook_files(self) -> list[Path]:
        folder = self.root / FOLDER if self.root else None
        if folder is None or not folder.is_dir():
            return []
        try:
            # Not by a glob, which passes over what it may not look into.
            return sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
        except OSError as error:
            self._note([Problem(file=str(folder), message=f"can't be looked into: {error.strerror}")])
            return []

    def _playbook(self, file: Path) -> None:
        try:
            playbook = find_playbook(self.root, file.stem, self.project.catalog.names())
        except ConfigError as error:
            self._note(error.problems)
            with suppress(ConfigError):  # which has been told
                partly = load_partly(file)
                if partly.playbook is None:
                    self._unchecked(str(file), "its steps and targets", "of this file")
                else:
                    self._parts(partly.playbook, partly.left_out)
            return
        self._plan(playbook)

    def _plan(self, playbook: Playbook) -> None:
        """Plan a playbook, or look at its parts where it can't be planned for what is wrong elsewhere."""
        known = self._gaps is not None and not self._gaps.of_targets
        if known and self._can_be_planned(playbook):
            with self._noting():
                self.project.plan_play(playbook, Choice())
        else:
            self._parts(playbook, ())

    def _can_be_planned(self, playbook: Playbook) -> bool:
        """Tell whether there are its payloads and targets, without which a plan says no more than that."""
        try:
            self.project.select(Choice(), playbook.targets)
            return all(self.project.catalog.find(step.payload) for step in playbook.steps)
        except ConfigError:
            return False

    def _parts(self, playbook: Playbook, gaps: Sequence[Place]) -> None:
        """Look at each part of a playbook by itself, but for what was left out of it."""
        source = playbook.source or playbook.name
        if self._gaps is None:
            self._unchecked(source, "its targets and their variables", "of the inventory")
        elif not left_out(gaps, ("targets",)):
            self._targets(playbook, self._gaps)
        for index, step in enumerate(playbook.steps):
            try:
                payload = self.project.catalog.find(step.payload)
            except ConfigError as error:
                place = ("steps", index, "payload")
                self._note(located(playbook.source, place, each) for each in error.problems)
                continue
            if not left_out(gaps, ("steps", index, "rules")):
                self._note(unknown_rules(playbook, index, payload.name, payload.rules))
            self._params(playbook.source, index, step, payload)

    def _targets(self, playbook: Playbook, gaps: Gaps) -> None:
        source = playbook.source or playbook.name
        doubtful = [pattern for pattern in playbook.targets if gaps.may_mean(pattern)]
        targets: list[Target] = []
        for pattern in playbook.targets:
            if pattern not in doubtful:
                with self._noting():
                    targets += self.project.select(Choice(), (pattern,), f"{source}: targets")
        if doubtful:
            self._unchecked(source, f"its targets ({', '.join(doubtful)}) and their variables", "of the inventory")
        elif gaps.of_targets:
            self._unchecked(source, "the variables of its targets", "of the inventory")
        else:
            for step, target in itertools.product(playbook.steps, targets):
                with self._noting():
                    resolve_params(step, target, playbook=playbook.name)

    def _params(self, source: str | None, index: int, step: Step, payload: PayloadInfo) -> None:
        """Look at the parameters that a step gives: which ones there are, and the values that stand there."""
        known = {param.name: param for param in payload.params}
        for name, value in step.params.items():
            problems: list[Problem] = []
            if name not in known:
                problems.append(unknown_param(name, list(known), where=""))
            elif not isinstance(value, VarRef | SecretRef):
                known[name].check(value, path=name, problems=problems)
            self._note(located(source, ("steps", index, "params", name), each) for each in problems)

    def _unchecked(self, file: str, what: str, whose: str) -> None:
        """Say what could not be looked at before other mistakes are mended."""
        self._note([Problem(file=file, message=f"{what} can be checked once the mistakes {whose} are mended")])

    def _audit(self, root: Path) -> bool:
        """Look at what an audit goes by, and tell whether there is a file of it."""
        from remoterun.audit.file import FILE_NAME, read_settings

        path = root / FILE_NAME
        if not path.exists():
            return False
        settings, problems = read_settings(root)
        self._note(problems)
        if settings.alerts is not None:
            from remoterun.audit.notify import need_apprise

            with self._noting():
                need_apprise()
        own = {file.stem for file in self.files}
        for number, name in enumerate(settings.playbooks):
            try:
                playbook = find_playbook(self.root, name, self.project.catalog.names())
            except ConfigError as error:
                if name not in own:
                    self._note(located(str(path), ("playbooks", number), each) for each in error.problems)
                continue
            if name not in own:
                self._plan(playbook)
        return True
