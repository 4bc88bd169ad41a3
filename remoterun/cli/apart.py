"""Files that a command writes, told apart from those that it reads or writes as well, by whatever name they go."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remoterun.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from remoterun.cli.options import Flags


def refuse_shared(out: str | None, others: Iterable[tuple[str, str | Path]]) -> None:
    """Keep the result from taking the place of another file; `others` come with what they are.

    Raises:
        ConfigError: it would.
    """
    from remoterun.store import place_of

    if out is None:
        return
    place = place_of(out)
    for what, path in others:
        if place_of(path) == place:
            raise ConfigError(Problem(path="-o", message=f"{out} is the file of {what} as well: name another one"))


def kept_files() -> Iterator[tuple[str, Path]]:
    """Yield what no result may replace, whatever the command is."""
    from remoterun.history import default_folder
    from remoterun.history.database import FILE_NAME

    yield "the history", default_folder() / FILE_NAME


def files_of(flags: Flags, given: Mapping[str, Any]) -> Iterator[tuple[str, str | Path]]:
    """Yield the files that a command reads, or writes beside its result; `given` are its own arguments."""
    yield from kept_files()
    yield from _project_files(flags.project)
    for flag, paths in (
        ("--identity", flags.identity or ()),
        ("--known-hosts", flags.known_hosts or ()),
        ("--ssh-config", [flags.ssh_config] if flags.ssh_config else ()),
        ("--events", [flags.events] if flags.events and not flags.events.startswith("fd:") else ()),
        ("--metrics", [given["metrics"]] if given.get("metrics") else ()),
        ("the script", [given["script"]] if given.get("script") else ()),
        ("--params", [text[1:] for text in given.get("params") or () if text[:1] == "@"]),
    ):
        for path in paths:
            yield flag, os.path.expanduser(path)  # noqa: PTH111  # a home that nobody knows is no error here


def _project_files(project: Path | None) -> Iterator[tuple[str, Path]]:
    from remoterun.audit.file import FILE_NAME as AUDIT
    from remoterun.inventory import FILE_NAME as INVENTORY
    from remoterun.inventory import find_project
    from remoterun.playbook import FOLDER

    root = find_project(None, project)
    if root is not None:
        yield "the inventory", root / INVENTORY
        yield "the audit's settings", root / AUDIT
        for path in sorted((root / FOLDER).glob("*.y*ml")):
            yield f"the playbook {path.stem}", path
