"""Manifests: every problem at once, with its file and place; and no manifest that raises anything else."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remoterun.catalog import Catalog, PayloadInfo
from remoterun.catalog.manifest import read_file, read_folder
from remoterun.errors import ConfigError, Problem

HEAD = 'name = "sample"\nversion = "1.2.3"\ndescription = "A sample."\n'


def folder_with(tmp_path: Path, manifest: str | bytes, name: str = "sample") -> Path:
    folder = tmp_path / "payloads" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").write_text("def run(ctx): ...\n")
    data = manifest if isinstance(manifest, bytes) else textwrap.dedent(manifest).encode()
    (folder / "payload.toml").write_bytes(data)
    return folder


def read(folder: Path) -> PayloadInfo:
    problems: list[Problem] = []
    info = read_folder("project", folder, problems)
    assert info is not None, problems
    return info


def problems_in(folder: Path) -> list[Problem]:
    problems: list[Problem] = []
    assert (read_folder if folder.is_dir() else read_file)("project", folder, problems) is None
    assert problems
    return problems


def test_everything_a_manifest_can_say(tmp_path: Path) -> None:
    folder = folder_with(
        tmp_path,
        HEAD
        + """
entry = "sample:run"
python = ">=3.10"
requires = ["torch", "a.b"]
rules = ["SM001", "too-big"]
[limits]
run = "none"
stall = "90s"
[pack]
include = ["*.json"]
[params.root]
type = "path"
default = "/w"
help = "Where."
var = "checkpoints"
""",
    )
    info = read(folder)
    assert (info.name, info.version, info.description, info.origin) == ("sample", "1.2.3", "A sample.", "project")
    assert (info.path, info.package, info.entry, info.program) == (folder, "sample", "sample:run", None)
    assert (info.python, info.requires, info.include) == ((3, 10), ("torch", "a.b"), ("*.json",))
    assert info.rules == ("SM001", "too-big")
    assert dict(info.limits) == {"run": None, "stall": 90.0}
    (root,) = info.params
    assert (root.name, root.type, root.default, root.help, root.var) == ("root", "path", "/w", "Where.", "checkpoints")


def test_all_problems_of_all_manifests_come_at_once(tmp_path: Path) -> None:
    one = folder_with(tmp_path, 'nmae = "one"\nversion = "1"\n', "one")
    two = folder_with(tmp_path, HEAD + 'entry = "two:run"\n[params.x]\ntype = "pth"\n[limits]\nrnu = "5"\n', "two")
    problems = Catalog.load(tmp_path).problems
    found = {(problem.file, problem.path): problem for problem in problems}
    first, second = str(one / "payload.toml"), str(two / "payload.toml")
    assert len(found) == len(problems)
    assert set(found) == {
        (first, "nmae"),
        (first, "name"),
        (first, "version"),
        (first, "description"),
        (first, "entry"),
        (second, "params.x.type"),
        (second, "limits.rnu"),
    }
    assert found[first, "nmae"].nearest == ("name",)
    assert found[second, "params.x.type"].nearest == ("path",)
    assert found[second, "limits.rnu"].nearest == ("run",)


@pytest.mark.parametrize(
    ("extra", "path", "words"),
    [
        ("", "entry", 'write entry = "sample:run"'),
        ('entry = "run"', "entry", "not of the form"),
        ('entry = "other:run"', "entry", "does not start with sample"),
        ('entry = "sample.missing:run"', "entry", "not there"),
        ('entry = "sample.tests:run"', "entry", "leave out"),
        (f'entry = "sample.{"x" * 5000}:run"', "entry", "not there"),
        ('entry = "sample:run"\nprogram = "__init__.py"', "entry", "not both"),
        ('program = "run.sh"', "program", "not there"),
        ('program = "../run.sh"', "program", "plain path"),
        ('program = "/bin/sh"', "program", "plain path"),
        ('program = "./run.sh"', "program", "plain path"),
        ('program = ".run.sh"', "program", "leave out"),
        ('program = "a\\u0000b"', "program", "not there"),
        (f'program = "{"x" * 5000}"', "program", "not there"),
        ('entry = "sample:run"\npython = "3.8"', "python", ">=3.N"),
        ('entry = "sample:run"\npython = ">=3.7"', "python", "at least 8"),
        ('entry = "sample:run"\nrequires = "torch"', "requires", "expected a list, got str"),
        ('entry = "sample:run"\nrequires = ["torch>=2"]', "requires", "not the name of a Python module"),
        ('entry = "sample:run"\nrequires = [5]', "requires[0]", "expected a string"),
        ('entry = "sample:run"\nrules = ["S1", "S 2"]', "rules[1]", "no id of a rule"),
        ('entry = "sample:run"\nrules = ["S1", "S1"]', "rules[1]", "twice"),
        ('entry = "sample:run"\nrules = ["S1"]\n[params.rules]\ntype = "json"', "params.rules", "another name"),
        ('entry = "sample:run"\n[limits]\nrun = 30', "limits.run", "not a duration"),
        ('entry = "sample:run"\n[pack]\nincldue = []', "pack.incldue", "unknown key"),
        ('entry = "sample:run"\nparams = 5', "params", "expected a table"),
        ('entry = "sample:run"\n[params]\nx = 5', "params.x", "expected a table"),
        ('entry = "sample:run"\n[params.X]\ntype = "int"', "params.X", "lower_snake_case"),
        ('entry = "sample:run"\n[params.x]\nhelp = "h"', "params.x.type", "is required"),
        ('entry = "sample:run"\n[params.x]\ntype = "int"\nrequired = 1', "params.x.required", "true or false"),
        (
            'entry = "sample:run"\n[params.x]\ntype = "int"\nrequired = true\ndefault = 1',
            "params.x.default",
            "no default",
        ),
        ('entry = "sample:run"\n[params.x]\ntype = "int"\ndefault = true', "params.x.default", "expected an int"),
        ('entry = "sample:run"\n[params.x]\ntype = "int"\nmin = 5\nmax = 1', "params.x.min", "more than max"),
        ('entry = "sample:run"\n[params.x]\ntype = "int"\nmin = 5\ndefault = 1', "params.x.default", "smallest"),
        ('entry = "sample:run"\n[params.x]\ntype = "string"\nmin = 5', "params.x.min", "only"),
        ('entry = "sample:run"\n[params.x]\ntype = "enum"', "params.x.choices", "required"),
        ('entry = "sample:run"\n[params.x]\ntype = "json"\nchoices = [1]', "params.x.choices", "not for json"),
        ('entry = "sample:run"\n[params.x]\ntype = "json"\ndefault = 1979-05-27', "params.x.default", "not JSON"),
        ('entry = "sample:run"\n[params.x]\ntype = "list"\nitems = "list"', "params.x.items", "type json"),
        ('entry = "sample:run"\n[params.x]\ntype = "int"\nitems = "int"', "params.x.items", "lists only"),
        (
            'entry = "sample:run"\n[params.x]\ntype = "list"\nitems = "int"\ndefault = ["a"]',
            "params.x.default[0]",
            "int",
        ),
        ('entry = "sample:run"\n[params.x]\ntype = "int"\nvar = ""', "params.x.var", "is empty"),
    ],
)
def test_one_wrong_thing_is_named_with_its_place(tmp_path: Path, extra: str, path: str, words: str) -> None:
    folder = folder_with(tmp_path, HEAD + extra + "\n")
    (folder / "tests").mkdir()
    (folder / "tests" / "__init__.py").touch()
    (problem,) = problems_in(folder)
    assert (problem.file, problem.path) == (str(folder / "payload.toml"), path)
    assert words in problem.message


@pytest.mark.parametrize("name", ["Sample", "sam_ple", "-a", "a--b", "a-", "1a", "a b", "ä"])
def test_names_have_one_form(tmp_path: Path, name: str) -> None:
    (problem,) = problems_in(
        folder_with(tmp_path, f'{HEAD}entry="sample:run"'.replace('"sample"', json.dumps(name), 1))
    )
    assert problem.path == "name"
    assert "lowercase letters" in problem.message


@pytest.mark.parametrize("folder", ["json", "remoterun", "class", "1st", "a b", "ä"])
def test_a_package_that_would_hide_a_module_or_cant_be_imported_is_refused(tmp_path: Path, folder: str) -> None:
    (problem,) = problems_in(folder_with(tmp_path, f'{HEAD}entry = "{folder}:run"', folder))
    assert problem.path == "entry"
    assert folder in problem.message


def test_an_entry_may_be_an_inner_module(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, f'{HEAD}entry = "sample.inner.deep:main"')
    (folder / "inner").mkdir()
    (folder / "inner" / "deep.py").touch()
    assert read(folder).entry == "sample.inner.deep:main"


def test_the_version_in_a_folders_name_must_be_the_manifests(tmp_path: Path) -> None:
    assert read(folder_with(tmp_path, f'{HEAD}entry = "sample:run"', "sample@1.2.3")).package == "sample"
    (problem,) = problems_in(folder_with(tmp_path, f'{HEAD}entry = "sample:run"', "sample@1.2.4"))
    assert problem.path == "version"
    assert "promises 1.2.4" in problem.message


@pytest.mark.parametrize(
    ("manifest", "line", "words"),
    [
        (b'name = "x"\nversion = \n', 2, "not TOML"),
        (b"a = " + b"[" * 100_000, None, "not TOML"),
        (b"a = " + b"9" * 10_000, None, "not TOML"),
        (b"\xff\xfe", None, "not UTF-8"),
        (b"#" * (16 * 1024 * 1024 + 1), None, "larger than"),
    ],
)
def test_what_is_no_toml_is_one_problem(tmp_path: Path, manifest: bytes, line: int | None, words: str) -> None:
    (problem,) = problems_in(folder_with(tmp_path, manifest))
    assert problem.line == line
    assert words in problem.message


def test_a_manifest_that_is_a_folder_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "payload.toml").mkdir()
    (problem,) = problems_in(tmp_path)
    assert "cannot be read: Is a directory" in problem.message


def test_a_mark_of_byte_order_in_front_is_no_part_of_it(tmp_path: Path) -> None:
    """Editors of Windows put one there."""
    assert read(folder_with(tmp_path, f"\ufeff{HEAD}entry = 'sample:run'\n")).name == "sample"
    file = tmp_path / "sample.py"
    block = "".join(f"# {line}\n" for line in HEAD.splitlines())
    file.write_text(f"\ufeff# /// payload\n{block}# ///\ndef run(ctx): ...\n", "utf-8")
    problems: list[Problem] = []
    info = read_file("project", file, problems)
    assert (info is not None and info.entry, problems) == ("sample:run", [])


# --- inline blocks ----------------------------------------------------------------------------------------------------

BLOCK = '# /// payload\n# name = "solo"\n# version = "1.0.0"\n#\n# description = "One file."\n# ///\n'


def write(tmp_path: Path, text: str, name: str = "solo.py") -> Path:
    file = tmp_path / name
    file.write_bytes(text.encode())
    return file


@pytest.mark.parametrize(
    "text", [BLOCK, "#!/usr/bin/env python3\n\n" + BLOCK + "import os\n", BLOCK.replace("\n", "\r\n")]
)
def test_a_single_file_carries_its_manifest(tmp_path: Path, text: str) -> None:
    problems: list[Problem] = []
    info = read_file("project", write(tmp_path, text), problems)
    assert problems == []
    assert info is not None
    assert (info.name, info.entry, info.package) == ("solo", "solo:run", "solo")


@pytest.mark.parametrize("text", ["", "import os\n", "# /// script\n# x = 1\n# ///\n", '"""# /// payload"""\n'])
def test_a_file_without_a_block_is_no_payload(tmp_path: Path, text: str) -> None:
    problems: list[Problem] = []
    assert read_file("project", write(tmp_path, text), problems) is None
    assert problems == []


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("import os\n" + BLOCK.removesuffix("# ///\n"), 2, "not closed"),
        (BLOCK.replace("#\n", "\n"), 1, "not closed"),
        (BLOCK + BLOCK, 7, "second payload block"),
        ("\n" + BLOCK.replace('"solo"', "solo"), 3, "not TOML"),
        (BLOCK.replace("#\n", '# program = "x"\n'), None, "make it a folder"),
        (BLOCK.replace("#\n", '# [pack]\n# include = ["x"]\n#\n'), None, "packed alone"),
        (BLOCK.replace("#\n", '# entry = "solo.inner:run"\n'), None, "inside a single file"),
    ],
)
def test_a_wrong_block_is_named_by_its_line(tmp_path: Path, text: str, line: int | None, words: str) -> None:
    problems: list[Problem] = []
    read_file("project", write(tmp_path, text), problems)
    assert [problem.line for problem in problems if words in problem.message] == [line]


# --- any manifest at all ----------------------------------------------------------------------------------------------


def toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return value if isinstance(value, Raw) else json.dumps(value)


class Raw(str):
    """Stand for itself in TOML: a date, an infinity."""

    __slots__ = ()


_keys = st.sampled_from(
    [
        *("name", "version", "description", "entry", "program", "python", "requires", "limits", "params", "pack"),
        *("include", "run", "root", "type", "help", "required", "default", "min", "max", "choices", "items", "var"),
    ]
) | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
_scalars = (
    st.booleans()
    | st.integers()
    | st.floats().map(repr).map(Raw)
    | st.sampled_from(
        [
            "sample",
            "1.0.0",
            "sample:run",
            "int",
            "list",
            "size",
            "enum",
            "duration",
            "30s",
            "1GiB",
            "run.sh",
            ">=3.8",
            "*",
            "**/*.json",
        ]
    )
    | st.sampled_from(["1979-05-27", "0x" + "f" * 5000, "07:32:00", "1979-05-27T07:32:00Z"]).map(Raw)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"), max_size=10)
)
_values = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=6), max_leaves=12
)
_manifests = st.fixed_dictionaries(
    {"name": _values | st.just("sample"), "version": _values | st.just("1.0.0"), "description": st.just("d")},
    optional={
        "entry": _values | st.just("sample:run"),
        "limits": _values,
        "pack": _values | st.fixed_dictionaries({"include": _values}),
        "params": st.dictionaries(_keys, st.dictionaries(_keys, _values, max_size=6), max_size=4) | _values,
        "requires": _values,
    },
)


def refusals(call: Callable[[], object]) -> tuple[Problem, ...]:
    try:
        call()
    except ConfigError as error:
        return error.problems
    return ()


def assert_usable_or_refused(folder: Path) -> None:
    problems: list[Problem] = []
    info = read_folder("project", folder, problems)
    assert (info is None) == bool(problems)
    if info is not None:
        required = {param.name for param in info.params if param.required}
        refused = refusals(lambda: json.dumps(info.check_params({}, where=""), allow_nan=False))
        assert {problem.path for problem in refused} == required
        assert all("no file matches" in problem.message for problem in refusals(info.pack))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(manifest=_manifests)
def test_any_toml_is_a_payload_or_a_list_of_problems(tmp_path: Path, manifest: dict[str, object]) -> None:
    text = "\n".join(f"{key} = {toml(value)}" for key, value in manifest.items())
    assert_usable_or_refused(folder_with(tmp_path, text.encode()))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(manifest=st.binary() | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_a_list_of_problems(tmp_path: Path, manifest: bytes) -> None:
    assert problems_in(folder_with(tmp_path, manifest))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    lines=st.lists(
        st.sampled_from(
            ["# /// payload", "# ///", "#", "", "# name = 'x'", "# x", "x", "# [params", "\x0c", "# \u2028"]
        )
    )
)
def test_any_python_file_is_a_payload_a_problem_or_nothing(tmp_path: Path, lines: list[str]) -> None:
    problems: list[Problem] = []
    info = read_file("project", write(tmp_path, os.linesep.join(lines)), problems)
    assert info is None
    assert bool(problems) == ("# /// payload" in lines)
