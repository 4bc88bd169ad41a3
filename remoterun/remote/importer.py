"""Importing from a pack: at once where its code came compiled or is small, else as Python imports from any zip file.

Python's own importer for zip files takes 1.5 ms to begin with, and reads and unmarshals each module twice, once only to
know its name: a quarter of a millisecond for each of a hundred modules.
"""

from __future__ import annotations

import marshal
import sys

from remoterun.remote.wire import COMPILED, COMPILED_SIZE


def importable(path: str, places: dict[str, tuple[bool, str, int, int]] | None = None) -> None:
    """Put a pack first among the places that modules come from.

    `places` says of each module whether it is a package, which file of the pack it is, and where its source begins and
    ends there; None: only where the pack comes with its code compiled is it known.
    """
    sys.path.insert(0, path)
    table = _table(path, places or {})
    for name in ["", *table] if table else ():
        folder = "/".join([path, *name.split(".")]) if name else path
        if not name or table[name][0]:
            sys.path_importer_cache[folder] = Finder(folder, name, path, table)  # type: ignore[assignment]


def _table(path: str, places: dict[str, tuple[bool, str, int, int]]) -> dict[str, tuple[bool, str, bytes, bytes]]:
    """Return what is known of all modules of a pack, nothing when nothing is: package, file, code, source."""
    table = {}
    with open(path, "rb") as pack:
        if pack.read(len(COMPILED)) == COMPILED:
            size = int.from_bytes(pack.read(COMPILED_SIZE), "little")
            for name, (package, file, code) in marshal.loads(pack.read(size)).items():
                table[name] = package, file, code, b""
        elif places:
            pack.seek(0)
            data = pack.read()
            for name, (package, file, start, end) in places.items():
                table[name] = package, file, b"", data[start:end]
    return table


class Finder:
    """Find the modules in one folder of a pack."""

    def __init__(self, folder: str, package: str, path: str, table: dict[str, tuple[bool, str, bytes, bytes]]) -> None:
        self._folder = folder
        self._package = package
        self._path = path
        self._table = table

    def find_spec(self, name: str, target: object = None) -> object:
        """Return where a module comes from, None when it does not come from here."""
        if name not in self._table:
            return None
        package, file, code, source = self._table[name]
        from _frozen_importlib import ModuleSpec

        loader = Loader(self._folder, file, code, source)
        spec = ModuleSpec(name, loader, origin="%s/%s" % (self._path, file), is_package=package)  # type: ignore[arg-type]
        spec.has_location = True
        if package:
            spec.submodule_search_locations = ["%s/%s" % (self._folder, name.rpartition(".")[2])]
        return spec

    def iter_modules(self, prefix: str = "") -> list[tuple[str, bool]]:
        """Name the modules here, for pkgutil."""
        found = [(name.rpartition("."), about[0]) for name, about in self._table.items()]
        return [(prefix + last, package) for (outer, _, last), package in found if outer == self._package]


class Loader:
    """Load one module. Whatever else a loader is asked for (sources, data) the zip file's own answers."""

    def __init__(self, folder: str, file: str, code: bytes, source: bytes) -> None:
        self._folder = folder
        self._file = file
        self._code = code
        self._source = source

    def create_module(self, spec: object) -> None:
        """Leave it to Python."""

    def exec_module(self, module: object) -> None:
        """Run the module's code."""
        if self._code:
            code = marshal.loads(self._code)
        elif self._source:
            code = compile(self._source, self._file, "exec", dont_inherit=True)
        else:
            code = self.get_code(module.__name__)  # type: ignore[attr-defined,operator]
        exec(code, module.__dict__)

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        from zipimport import zipimporter

        return getattr(zipimporter(self._folder), name)
