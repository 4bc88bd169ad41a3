"""Files that a command writes, told apart from those that it reads or writes as well, by whatever name they go."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remoterun.cli.options import Format
from remoterun.cli.output import into
from remoterun.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from remoterun.cli.options import Flags


@contextmanager
def into_file(out: str | None, others: Iterable[tuple[str, str | Path]]) -> Iterator[None]:
    """Let the file of ``-o`` take what standard output would carry; None leaves that alone.

    `others` are files whose place it may not take, each with what it is.

    Raises:
        ConfigError: it would, or it is no name of a file, or it can't be made.
        OutputError: it can't be put in its place.
    """
    if out is not None:
        _refuse_format(out)
        _refuse_shared(out, others)
    with into(out):
        yield


def _refuse_format(out: str) -> None:
    if not out or out in set(Format):
        raise ConfigError(f"-o names a file; the format is --output {out or 'json'} (a file of that name: -o ./{out})")


def _refuse_shared(out: str, others: Iterable[tuple[str, str | Path]]) -> None:
    from remoterun.store import place_of

    place = place_of(out)
    for what, path in others:
        if place_of(path) == place:
            raise ConfigError(Problem(path="-o", message=f"{out} is the file of {what} as well: name another one"))


def metrics_file(path: Path | None, *, detach: bool) -> Path | None:
    """Take the path of ``--metrics``.

    Raises:
        ConfigError: when nothing can be written there, or there will be nothing to write.
    """
    if path is None:
        return None
    folder = path.resolve().parent
    if detach:
        problem = "there are no results to count: --detach does not wait for them"
    elif not folder.is_dir():
        problem = f"there is no folder {folder}"
    elif not os.access(folder, os.W_OK):
        problem = f"nothing can be written into {folder}"
    else:
        return path
    raise ConfigError(Problem(path="--metrics", message=problem))


def kept_files() -> Iterator[tuple[str, Path]]:
    """Yield what no result may replace, whatever the command is."""
    from remoterun.history import default_folder
    from remoterun.history.database import own_files

    yield from own_files(default_folder())


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
    from remoterun.audit.file import project_files
    from remoterun.inventory import find_project

    root = find_project(None, project)
    return iter(()) if root is None else project_files(root)
