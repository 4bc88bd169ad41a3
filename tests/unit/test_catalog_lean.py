"""Built-in payloads travel without docstrings, comments and types, and mean the same."""

from __future__ import annotations

import ast
import bz2
import io
import tokenize
import typing
import zipfile
from pathlib import Path

import pytest

import remoterun
from remoterun.catalog import Catalog
from remoterun.catalog.lean import lean

FOLDER = Path(remoterun.__file__).parent
MODULES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.glob("payloads/*/**/*.py"))


def _documented(code: str) -> list[ast.AST]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(ast.parse(code)) if isinstance(node, kinds)]


class _Untyped(ast.NodeTransformer):
    """Take out of a tree what only type checkers look at."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(0)
        self.generic_visit(node)
        if isinstance(node.target, ast.Attribute) and node.value is not None:
            return ast.Assign([node.target], node.value, lineno=node.lineno)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        value = node.value.value if isinstance(node.value, ast.Subscript) else node.value
        typing = {"Callable", "Dict", "List", "Optional", "Tuple", "Union"}
        called = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "TypeVar"
        if called or (value is not node.value and isinstance(value, ast.Name) and value.id in typing):
            node.value = ast.Constant(0)
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST | None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" and not node.orelse:
            return None
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(0) if node.id == "TYPE_CHECKING" else node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return None if node.module == "typing" else node


class _Numbered(ast.NodeTransformer):
    """Call the constants that a module keeps to itself by their numbers."""

    def __init__(self, tree: ast.Module) -> None:
        targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
        targets += [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
        names = (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
        self._numbers = {name: f"_{number}" for number, name in enumerate(dict.fromkeys(names)) if name[0] == "_"}

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._numbers.get(node.id, node.id)
        return node


def _meaning(code: str) -> str:
    """Write out the tree of some code, without types, names, and docstrings or what stands in their place."""
    tree = ast.parse(code)
    tree = _Numbered(tree).visit(tree)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and body:
            first = body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                del body[0]
    return ast.dump(_Untyped().visit(tree))


def _unknown(code: str) -> set[str]:
    """Return what a module imports from typing no more, but still names."""
    tree = ast.parse(code)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    known = {alias.name for node in imports for alias in node.names}
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in typing.__all__} - known


@pytest.mark.parametrize("module", MODULES)
def test_lean_code_means_the_same(module: str) -> None:
    code = (FOLDER / module).read_text("utf-8")
    short = lean(code)
    assert _meaning(short) == _meaning(code)
    compile(short, module, "exec", dont_inherit=True)
    assert short.count("\n") == code.count("\n")
    assert not [node for node in _documented(short) if ast.get_docstring(node)]  # type: ignore[arg-type]
    assert not [
        token for token in tokenize.generate_tokens(io.StringIO(short).readline) if token.type == tokenize.COMMENT
    ]


@pytest.mark.parametrize("module", MODULES)
def test_lean_code_imports_what_it_names(module: str) -> None:
    assert not _unknown(lean((FOLDER / module).read_text("utf-8")))


CODE = '''\
"""Say what
this is."""
# Why.
from typing import TYPE_CHECKING, Dict, List, Optional, Tuple

A = """
# no comment
"""
B = ("#", '#', "it's # not", 'say "#"')  # goes
Names = Dict[str, List[int]]
if TYPE_CHECKING:
    from a import b

    C = 1


class D(Tuple[int, ...]):
    a: Dict[str, Names]
    b: Optional[int] = None


def f(
    a: str = ":",
    *b: Callable[[D], str],
) -> str:
    """Say it."""
    # Why.
    c: List[int] = [1]
    d = {
        a: b
        for a in c
    }
    return f(
        """
        text
        """
    )
'''
LEAN = '''\



from typing import Tuple

A="""
# no comment
"""
B=("#",'#',"it's # not",'say "#"')
Names=0






class D(Tuple[int,...]):
\ta:0
\tb:0=None


def f(
\ta=":",
\t*b,
):
\t0

\tc:0=[1]
\td={
\t\ta:b
\t\tfor a in c
\t}
\treturn f(
\t\t"""
        text
        """
\t)
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
    assert lean(CODE) == LEAN


def test_only_built_in_payloads_travel_lean(tmp_path: Path) -> None:
    pack = Catalog.load(None).find("check-ckpt").pack()
    with zipfile.ZipFile(io.BytesIO(pack.data)) as members:
        assert '"""' not in members.read("check_ckpt/__init__.py").decode()
    (tmp_path / "payloads").mkdir()
    (tmp_path / "payloads/own.py").write_text(OWN)
    with zipfile.ZipFile(io.BytesIO(Catalog.load(tmp_path).find("own").pack().data)) as members:
        assert members.read("own.py").decode() == OWN


def test_what_a_cold_target_is_sent_is_small() -> None:
    """The promise is 150 KB; where a Python lacks bz2 it is a quarter more."""
    assert len(bz2.compress(Catalog.load(None).find("check-ckpt").pack().data, 9)) <= 130_000
