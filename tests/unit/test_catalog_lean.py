"""Built-in payloads travel without docstrings and comments, and mean the same."""

from __future__ import annotations

import ast
import io
import tokenize
import zipfile
import zlib
from pathlib import Path

import pytest

import remoterun
from remoterun.catalog import Catalog
from remoterun.catalog.lean import lean

FOLDER = Path(remoterun.__file__).parent
MODULES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.py"))


def _documented(code: str) -> list[ast.AST]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(ast.parse(code)) if isinstance(node, kinds)]


def _meaning(code: str) -> str:
    """Write out the tree of some code, without docstrings or what stands in their place."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and body:
            first = body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                del body[0]
    return ast.dump(tree)


@pytest.mark.parametrize("module", MODULES)
def test_lean_code_means_the_same(module: str) -> None:
    code = (FOLDER / module).read_text("utf-8")
    short = lean(code)
    assert _meaning(short) == _meaning(code)
    compile(short, module, "exec", dont_inherit=True)
    assert short.count("\n") == code.count("\n")
    assert not [node for node in _documented(short) if ast.get_docstring(node)]  # type: ignore[arg-type]
    comments = [
        token
        for token in tokenize.generate_tokens(io.StringIO(short).readline)
        if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#")
    ]
    assert not comments


CODE = '''\
"""Say what
this is."""
# Why.
A = """
# no comment
"""
B = ("#", '#', "it's # not", 'say "#"')  # stays


def f(
    a: str = ":",
) -> str:
    """Say it."""
    # Why.
    return f(
        """
        text
        """
    )
'''
LEAN = '''\



A = """
# no comment
"""
B = ("#", '#', "it's # not", 'say "#"')  # stays


def f(
    a: str = ":",
) -> str:
    0
    |
    return f(
        """
        text
        """
    )
'''
OWN = '''\
# /// payload
# name = "own"
# version = "1.0.0"
# description = "Have words of its own."
# ///
"""Mine."""

def run(ctx):
    # Why.
    pass
'''


def test_what_looks_like_a_comment_stays() -> None:
    assert lean(CODE) == LEAN.replace("|", "")


def test_only_built_in_payloads_travel_lean(tmp_path: Path) -> None:
    pack = Catalog.load(None).find("check-ckpt").pack()
    with zipfile.ZipFile(io.BytesIO(pack.data)) as members:
        assert '"""' not in members.read("check_ckpt/__init__.py").decode()
    (tmp_path / "payloads").mkdir()
    (tmp_path / "payloads/own.py").write_text(OWN)
    with zipfile.ZipFile(io.BytesIO(Catalog.load(tmp_path).find("own").pack().data)) as members:
        assert members.read("own.py").decode() == OWN


def test_what_a_cold_target_is_sent_is_small() -> None:
    assert len(zlib.compress(Catalog.load(None).find("check-ckpt").pack().data, 9)) <= 150_000
