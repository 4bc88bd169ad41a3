"""Where payloads are found: inside this package, in the project, and in installed distributions."""

from __future__ import annotations

import importlib.util
import os
import sys
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from remoterun.catalog.manifest import MANIFEST, Said, read_file, read_folder
from remoterun.errors import Problem
from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from remoterun.catalog.info import Origin, PayloadInfo
    from remoterun.catalog.versions import Version

GROUP: Final = "remoterun.payloads"


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """Hold what is wrong where a payload stands: `names` and `versions` that it may have, None where it may be any."""

    origin: Origin
    names: frozenset[str] | None
    versions: frozenset[Version] | None
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """Gather what searches find; `overlooked` tells, by bare name, what looks like a payload but has no manifest."""

    payloads: list[PayloadInfo] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)
    overlooked: dict[str, str] = field(default_factory=dict)

    def read(self, origin: Origin, path: Path, name: str) -> bool:
        """Read the payload of a folder or a file, which goes by `name` when it is broken; False when it is none."""
        problems: list[Problem] = []
        said = Said.of(name)
        payload = (read_folder if path.is_dir() else read_file)(origin, path, problems, said)
        if payload is not None and origin == "entry point" and payload.name != name:
            message = f"is {payload.name!r}, but the entry point that leads here is called {name!r}"
            problems.append(Problem(message=message, file=str(path / MANIFEST), path="name"))
        if problems:
            self.refuse(origin, said, problems)
        elif payload is not None:
            self.payloads.append(payload)
        return bool(problems) or payload is not None

    def refuse(self, origin: Origin, said: Said | None, problems: Iterable[Problem]) -> None:
        """Note what is wrong with whatever says that it is this payload; None: with every payload of the origin."""
        names = None if said is None else frozenset(said.names)
        versions = frozenset(said.versions) if said is not None and said.versions else None
        self.broken.append(Broken(origin=origin, names=names, versions=versions, problems=tuple(problems)))


def search_built_in(found: Found) -> None:
    """Find the payloads of this package, without importing them."""
    for path in sorted((Path(__file__).parents[1] / "payloads").iterdir()):
        if (path / MANIFEST).is_file():
            found.read("built-in", path, _hyphened(path))


def search_project(project: Path, found: Found) -> None:
    """Find the payloads in the folder `payloads` beside a project's inventory."""
    folder = project / "payloads"
    try:
        paths = sorted(folder.iterdir()) if folder.exists() else []
    except OSError as error:
        found.refuse("project", None, [_unreadable(folder, error)])
        return
    for path in paths:
        if path.name.startswith((".", "__")):
            continue
        try:
            missing = _look(path, found)
        except OSError as error:
            found.refuse("project", Said.of(_hyphened(path)), [_unreadable(path, error)])
            continue
        if missing:
            found.overlooked[path.name.removesuffix(".py").partition("@")[0]] = missing


def _look(path: Path, found: Found) -> str | None:
    """Find the payload that stands at a path; return what is missing there to be one.

    Raises:
        OSError: nobody may look there.
    """
    if path.is_dir():
        is_one = (path / MANIFEST).exists() and found.read("project", path, _hyphened(path))
        return None if is_one else f"{path} has no {MANIFEST}"
    if path.suffix == ".py":
        return None if found.read("project", path, _hyphened(path)) else f"{path} has no block `# /// payload`"
    return None


def _hyphened(path: Path) -> str:
    """Return the name that a payload at a path mostly has."""
    return path.name.removesuffix(".py").partition("@")[0].replace("_", "-")


def _unreadable(path: Path, error: OSError) -> Problem:
    return Problem(message=f"can't be read: {error.strerror}", file=str(path))


def search_installed(found: Found) -> None:
    """Find the payloads that installed distributions offer as entry points, without importing them."""
    if not _anything_offered():
        return
    from importlib.metadata import entry_points  # 30 ms that only a search needs

    for name, value in sorted({(point.name, point.value) for point in entry_points(group=GROUP)}):
        folder = next((path for path in _package_folders(value) if _has_manifest(path)), None)
        if folder is None:
            message = (
                f"entry point {name!r} of the group {GROUP} names {value!r}, which is no package with a {MANIFEST}"
            )
            found.refuse("entry point", Said.of(name), [Problem(message=message)])
        else:
            found.read("entry point", folder, name)


def _has_manifest(folder: Path) -> bool:
    try:
        return (folder / MANIFEST).is_file()
    except OSError:  # nobody may look there
        return False


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
                # As importlib.metadata takes one that may not be read.
                with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                    if GROUP.encode() in file.read_bytes():
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
