"""What is wrong in a project's files, all of it at once: what is wrong in one keeps none of the others from a look."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from remoterun.api import Choice, Project
from remoterun.catalog import Catalog
from remoterun.errors import ConfigError, Problem
from remoterun.inventory import Inventory, find_project
from remoterun.playbook import FOLDER, SUFFIXES, find_playbook, located, payloads_named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from remoterun.model import Playbook


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
        self._has_inventory = True
        self.project = self._load(named)
        self._note(self.project.catalog.problems)
        self.files = self._playbook_files()
        for file in self.files:
            self._playbook(file)
        self.has_audit = self.root is not None and self._audit(self.root)

    def _note(self, problems: Iterable[Problem]) -> None:
        self.problems += [problem for problem in problems if problem not in self.problems]

    def _try(self, what: Callable[[], object]) -> bool:
        try:
            what()
        except ConfigError as error:
            self._note(error.problems)
            return False
        return True

    def _load(self, named: Path | None) -> Project:
        try:
            return Project.load(named)
        except ConfigError as error:
            self._note(error.problems)
            self._has_inventory = False
            return Project(root=self.root, inventory=Inventory.empty(), catalog=Catalog.load(self.root))

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
            # Its payloads can be looked for all the same, where it can be read at all.
            self._try(lambda: self._payloads(str(file), payloads_named(file)))
            return
        self._plan(playbook)

    def _plan(self, playbook: Playbook) -> None:
        """Plan a playbook; what is wrong with its targets does not hide what is wrong with its payloads."""
        named = dict(enumerate(step.payload for step in playbook.steps))
        has_payloads = self._payloads(playbook.source, named)
        if not self._has_inventory:
            return
        if has_payloads:
            self._try(lambda: self.project.plan_play(playbook, Choice()))
        else:
            where = f"{playbook.source or playbook.name}: targets"
            self._try(lambda: self.project.select(Choice(), playbook.targets, where))

    def _payloads(self, source: str | None, named: dict[int, str]) -> bool:
        problems: list[Problem] = []
        for index, reference in named.items():
            try:
                self.project.catalog.find(reference)
            except ConfigError as error:
                problems += [located(source, ("steps", index, "payload"), each) for each in error.problems]
        self._note(problems)
        return not problems

    def _audit(self, root: Path) -> bool:
        """Look at what an audit goes by, and tell whether there is a file of it."""
        from remoterun.audit.file import FILE_NAME, read_settings

        path = root / FILE_NAME
        if not path.exists():
            return False
        settings, problems = read_settings(root)
        self._note(problems)
        if settings.alerts is not None:
            self._try(_need_apprise)
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


def _need_apprise() -> None:
    from remoterun.audit.notify import need_apprise

    need_apprise()
