"""The program that is sent: the modules' code and nothing else, small, for every Python from 3.8 on."""

from __future__ import annotations

import ast
import subprocess
import zlib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from remoterun.model import ExecWork, Host, Job, Target
from remoterun.remote.bundle import program
from remoterun.remote.stage0 import STAGE0
from remoterun.runner.request import Packed, Request
from tests.support.lab.pythons import pythons

PROGRAM = ("wire", "system", "cache", "compiled", "link", "process", "supervisor", "relay", "leg")
RUNTIME = ("wire", "importer", "runtime")
CONTROLLER = ("__init__", "bundle", "stage0")
NEW_ENOUGH = [version for version in pythons() if tuple(map(int, version.split("."))) >= (3, 8)]

# Each costs more than all that a leg has to do, or a thread, or what a bare interpreter may lack.
HEAVY = {
    "asyncio",
    "collections",
    "ctypes",
    "dataclasses",
    "enum",
    "_json",
    "functools",
    "hashlib",
    "importlib.util",
    "json",
    "re",
    "selectors",
    "shutil",
    "signal",
    "site",
    "socket",
    "struct",
    "subprocess",
    "tempfile",
    "threading",
    "typing",
    "zipfile",
}


def _parse(module: str) -> list[ast.stmt]:
    return ast.parse(files("remoterun.remote").joinpath(f"{module}.py").read_text("utf-8")).body


def _is_ours(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and str(node.module).startswith(("remoterun", "__future__"))


def _shape(body: list[ast.stmt]) -> list[str]:
    """Write statements in a form that knows no docstrings, no imports among ourselves and no places."""
    tree = ast.Module([node for node in body if not _is_ours(node)], [])
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            node.body = [
                part for part in node.body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
            ]
    return [ast.dump(node) for node in tree.body]


def _texts() -> list[str]:
    return zlib.decompress(program()).decode().split("\0")


def test_the_program_is_the_modules_code() -> None:
    for text, modules in zip(_texts(), (PROGRAM, RUNTIME), strict=True):
        assert _shape(ast.parse(text).body) == [line for module in modules for line in _shape(_parse(module))]


def test_every_module_of_the_target_side_is_sent() -> None:
    there = {
        entry.name.removesuffix(".py") for entry in files("remoterun.remote").iterdir() if entry.name.endswith(".py")
    }
    assert there == {*PROGRAM, *RUNTIME, *CONTROLLER}


def _defined(body: list[ast.stmt], module: str) -> Iterator[tuple[str, str]]:
    """Yield each name that statements bind, and what it is bound to."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name, module
        elif isinstance(node, ast.Try):
            # Its handlers bind the same names to what takes their place.
            yield from _defined(node.body, module)
        elif isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name, "an import") for alias in node.names)
        elif not isinstance(node, ast.ImportFrom):
            names = [part for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)]
            yield from ((part.id, module) for part in names)
        elif not _is_ours(node):
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


@pytest.mark.parametrize("modules", [PROGRAM, RUNTIME], ids=["program", "runtime"])
def test_no_name_is_defined_in_two_modules(modules: tuple[str, ...]) -> None:
    owners: dict[str, str] = {}
    for module in modules:
        for name, owner in _defined(_parse(module), module):
            assert owners.setdefault(name, owner) == owner or name == "__all__", f"{name}: {owners[name]}, {owner}"


def test_it_is_small() -> None:
    assert len(program()) <= 24 * 1024


@pytest.mark.parametrize("version", NEW_ENOUGH)
def test_it_compiles(version: str) -> None:
    check = "import sys; compile(sys.stdin.buffer.read(), 'sent', 'exec', dont_inherit=True)"
    for text in _texts():
        subprocess.run([pythons()[version], "-W", "error", "-c", check], input=text.encode(), check=True)


@pytest.mark.parametrize("version", NEW_ENOUGH)
def test_a_leg_imports_nothing_heavy(version: str, tmp_path: Path) -> None:
    # A wrapper is the interpreter, so that the leg itself is the one that is sent everywhere.
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {pythons()[version]} -X importtime "$@"\n')
    wrapper.chmod(0o755)
    target = Target(id="here", host=Host(key="here", address=""), interpreter=str(wrapper))
    request = Request(Job(target=target, step=0, work=ExecWork(argv=(b"true",))), "key", Packed(), use_cache=False)
    done = subprocess.run(["/bin/sh", "-c", STAGE0], input=request.opening(), capture_output=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.decode().splitlines() if "import time:" in line}
    assert {"marshal", "zlib", "os", "select"} <= imported
    assert not imported & HEAVY
