"""Where a project is: the folder that holds its inventory, playbooks and payloads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from remoterun.errors import ConfigError, Problem

FILE_NAME: Final = "inventory.yaml"
VARIABLE: Final = "REMOTERUN_PROJECT"


def find_project(start: Path | None = None, explicit: Path | None = None) -> Path | None:
    """Return the project's folder: `explicit`, else REMOTERUN_PROJECT, else the nearest folder with an inventory.yaml.

    Args:
        start: where to begin looking upwards; the working directory when left out.
        explicit: what --project says. It needs no inventory.yaml, but must be a folder.

    Raises:
        ConfigError: a project was named and is no folder.
    """
    if explicit is not None:
        return _folder(explicit, "--project")
    if named := os.environ.get(VARIABLE):
        return _folder(Path(named), VARIABLE)
    try:
        here = (Path.cwd() if start is None else start).resolve()
        return next((folder for folder in (here, *here.parents) if (folder / FILE_NAME).is_file()), None)
    except (
        OSError
    ):  # the working directory is gone, or a folder above it may not be looked into: no project can be found
        return None


def no_inventory() -> str:
    """Say where an inventory was looked for, when there is none, and what can be done without one."""
    try:
        here = str(Path.cwd())
        found = find_project()
        there = found is not None and (found / FILE_NAME).exists()
    except (ConfigError, OSError):
        here, found, there = "the working directory", None, False
    if there:
        where = "in the folder that --project names"
    elif found is not None:
        where = f"in {found}"
    else:
        where = f"in {here} or a folder above it (--project names another one)"
    return (
        f"there is no {FILE_NAME} {where}; without one, write a target in full (--on root@address or "
        "--on root@address/200), or audit a folder of this machine with `remoterun check DIR`"
    )


def _folder(path: Path, said_by: str) -> Path:
    if not path.is_dir():
        raise ConfigError(Problem(path=said_by, message=f"{path} is not a folder: name the one that holds {FILE_NAME}"))
    return path.resolve()
