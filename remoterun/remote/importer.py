"""Importing from a pack: at once where its code came compiled, else as Python imports from any zip file.

Python's own importer reads and unmarshals each module of a zip file twice, once only to know its name: a quarter of a
millisecond for each of a hundred modules.
"""

from __future__ import annotations

import marshal
import sys

from remoterun.remote.wire import COMPILED, COMPILED_SIZE


def importable(path: str) -> None:
    """Put a pack first among the places that modules come from."""
    sys.path.insert(0, path)
    table = _table(path)
    for name, (package, _, _) in [("", (True, "", b"")), *table.items()] if table else ():
        if package:
            folder = "/".join([path, *name.split(".")]) if name else path
            sys.path_importer_cache[folder] = Finder(folder, name, path, table)  # type: ignore[assignment]


def _table(path: str) -> dict[str, tuple[bool, str, bytes]]:
    """Return the code of all modules in front of a pack, nothing when it is not there."""
    with open(path, "rb") as pack:
        if pack.read(len(COMPILED)) != COMPILED:
            return {}
        size = int.from_bytes(pack.read(COMPILED_SIZE), "little")
        table: dict[str, tuple[bool, str, bytes]] = marshal.loads(pack.read(size))
        return table


class Finder:
    """Find the modules in one folder of a pack."""

    def __init__(self, folder: str, package: str, path: str, table: dict[str, tuple[bool, str, bytes]]) -> None:
        self._folder = folder
        self._package = package
        self._path = path
        self._table = table

    def find_spec(self, name: str, target: object = None) -> object:
        """Return where a module comes from, None when it does not come from here."""
        if name not in self._table:
            return None
        package, file, code = self._table[name]
        from _frozen_importlib import ModuleSpec

        spec = ModuleSpec(name, Loader(self._folder, code), origin="%s/%s" % (self._path, file), is_package=package)  # type: ignore[arg-type]
        spec.has_location = True
        if package:
            spec.submodule_search_locations = ["%s/%s" % (self._folder, name.rpartition(".")[2])]
        return spec

    def iter_modules(self, prefix: str = "") -> list[tuple[str, bool]]:
        """Name the modules here, for pkgutil."""
        found = [(name.rpartition("."), package) for name, (package, _, _) in self._table.items()]
        return [(prefix + last, package) for (outer, _, last), package in found if outer == self._package]


class Loader:
    """Load one module. Whatever else a loader is asked for (sources, data) the zip file's own answers."""

    def __init__(self, folder: str, code: bytes) -> None:
        self._folder = folder
        self._code = code

    def create_module(self, spec: object) -> None:
        """Leave it to Python."""

    def exec_module(self, module: object) -> None:
        """Run the module's code."""
        code = marshal.loads(self._code) if self._code else self.get_code(module.__name__)  # type: ignore[attr-defined,operator]
        exec(code, module.__dict__)

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        from zipimport import zipimporter

        return getattr(zipimporter(self._folder), name)
