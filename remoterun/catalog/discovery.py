"""Where payloads are found: inside this package, in the project, and in installed distributions."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from remoterun.catalog.manifest import MANIFEST, read_file, read_folder
from remoterun.errors import Problem
from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from remoterun.catalog.info import PayloadInfo

GROUP: Final = "remoterun.payloads"


@dataclass(frozen=True, slots=True)
class Found:
    """Gather what searches find; `overlooked` tells, by bare name, what looks like a payload but has no manifest."""

    payloads: list[PayloadInfo] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    overlooked: dict[str, str] = field(default_factory=dict)

    def add(self, payload: PayloadInfo | None) -> None:
        """Add a payload that could be read."""
        if payload is not None:
            self.payloads.append(payload)


def search_built_in(found: Found) -> None:
    """Find the payloads of this package, without importing them."""
    for path in sorted((Path(__file__).parents[1] / "payloads").iterdir()):
        if (path / MANIFEST).is_file():
            found.add(read_folder("built-in", path, found.problems))


def search_project(project: Path, found: Found) -> None:
    """Find the payloads in the folder `payloads` beside a project's inventory."""
    folder = project / "payloads"
    try:
        paths = sorted(folder.iterdir()) if folder.exists() else []
    except OSError as error:
        found.problems.append(Problem(message=f"can't be read: {error.strerror}", file=str(folder)))
        return
    for path in paths:
        if path.name.startswith((".", "__")):
            continue
        before = len(found.payloads) + len(found.problems)
        if path.is_dir():
            if (path / MANIFEST).exists():
                found.add(read_folder("project", path, found.problems))
            missing = f"{path} has no {MANIFEST}"
        elif path.suffix == ".py":
            found.add(read_file("project", path, found.problems))
            missing = f"{path} has no block `# /// payload`"
        else:
            continue
        if len(found.payloads) + len(found.problems) == before:
            found.overlooked[path.name.removesuffix(".py").partition("@")[0]] = missing


def search_installed(found: Found) -> None:
    """Find the payloads that installed distributions offer as entry points, without importing them."""
    if not _anything_offered():
        return
    from importlib.metadata import entry_points  # 30 ms that only a search needs

    for name, value in sorted({(point.name, point.value) for point in entry_points(group=GROUP)}):
        folder = next((path for path in _package_folders(value) if (path / MANIFEST).is_file()), None)
        if folder is None:
            message = (
                f"entry point {name!r} of the group {GROUP} names {value!r}, which is no package with a {MANIFEST}"
            )
            found.problems.append(Problem(message=message))
            continue
        payload = read_folder("entry point", folder, found.problems)
        if payload is not None and payload.name != name:
            message = f"is {payload.name!r}, but the entry point that leads here is called {name!r}"
            found.problems.append(Problem(message=message, file=str(folder / MANIFEST), path="name"))
        found.add(payload)


def _anything_offered() -> bool:
    """Tell whether any distribution may offer payloads: looking is a tenth of what importlib.metadata costs."""
    for place in sys.path:
        try:
            names = os.listdir(place or ".")  # noqa: PTH208  # at every start
        except NotADirectoryError:
            # A zip: only importlib.metadata can look into it.
            return True
        except OSError:
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                file = Path(place, name, "entry_points.txt")
                if file.exists() and GROUP.encode() in file.read_bytes():
                    return True
    return False


def _package_folders(module: str) -> Iterator[Path]:
    """Yield the folders that a package may have.

    Only the top-level package is looked up: finding the spec of an inner one would run the code of the outer ones.
    """
    top, *inner = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return
    for location in spec.submodule_search_locations or () if spec else ():
        yield Path(location, *inner)
