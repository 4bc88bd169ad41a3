"""The YAML layer: what scalars and keys mean, where things stand, and what a hostile file can do (nothing)."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from remoterun import store
from remoterun.errors import ConfigError, Problem
from remoterun.inventory import Inventory
from remoterun.inventory import yamlfile as yf
from remoterun.playbook import load_playbook

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from remoterun.model import Json


def parsed(text: str | bytes) -> yf.Document:
    return yf.parse(text.encode() if isinstance(text, str) else text, "f.yaml")


def value(text: str) -> Json:
    document = parsed(text)
    assert document.problems == ()
    return document.root


def fatal(text: str | bytes) -> Problem:
    with pytest.raises(ConfigError) as caught:
        parsed(text)
    (problem,) = caught.value.problems
    assert problem.file == "f.yaml"
    return problem


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("yes", "yes"),
        ("No", "No"),
        ("on", "on"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("1", 1),
        ("-7", -7),
        ("0", 0),
        ("0o17", 15),
        ("0x1F", 31),
        ("017", "017"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2024-05-06", "2024-05-06"),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("01.5", "01.5"),
        ("1.2.3", "1.2.3"),
        ("10.1.2.6", "10.1.2.6"),
        ("'1'", "1"),
        ('"true"', "true"),
        ("!!str 1", "1"),
        ("! 1", "1"),
        ("|\n  two\n  lines\n", "two\nlines\n"),
        ("9" * 301, "9" * 301),
        ("=", "="),
        ("<<", "<<"),
    ],
)
def test_scalars(text: str, expected: Json) -> None:
    found = value(f"k: {text}\n")
    assert found == {"k": expected}
    assert isinstance(found, dict)
    assert type(found["k"]) is type(expected)


def test_keys_are_text_as_written() -> None:
    assert value("{200: a, '300': b, 0x10: c, on: d}") == {"200": "a", "300": "b", "0x10": "c", "on": "d"}


@pytest.mark.parametrize(
    ("text", "line", "path", "words"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2\n", 4, "b.c", "given twice (first on line 3)"),
        ("x:\n  200: 1\n  '200': 2\n", 3, "x.200", "given twice"),
        ("- a\n- b: 1\n  b: [1]\n", 3, "1.b", "given twice"),
        ("true: 1", 1, None, "the key true is not text"),
        ("~: 1", 1, None, "the key nothing is not text"),
        ("1.5: 1", 1, None, "the key 1.5 is not text"),
        ("x:\n  ? [a]\n  : 1\n", 2, "x", "is not text"),
        ("x: &a {}\ny: {*a : 1}", 2, "y", "is not text"),
        ("x: &a {b: 1}\ny:\n  <<: *a\n", 3, 'y."<<"', "merge keys"),
        ("x: !!python/object/apply:os.system ['id']", 1, "x", "tags are not used"),
        ("x: !!binary aGk=", 1, "x", "tags are not used"),
        ("x:\n- !thing {}\n", 2, "x.0", "tags are not used"),
        ("x: !!int 3", 1, "x", "tags are not used"),
        ("x: .inf", 1, "x", "not a finite number"),
        ("x: [1, -.INF]", 1, "x.1", "not a finite number"),
        ("x: .nan", 1, "x", "not a finite number"),
        ("x: 1e999", 1, "x", "not a finite number"),
    ],
)
def test_lesser_problems(text: str, line: int, path: str | None, words: str) -> None:
    (problem,) = parsed(text).problems
    assert (problem.line, problem.path) == (line, path)
    assert words in problem.message


def test_lesser_problems_do_not_hide_each_other() -> None:
    document = parsed("a: 1\na: 2\nb: .nan\ntrue: {x: 1, x: 2}\nc: 3\n")
    assert [problem.line for problem in document.problems] == [2, 3, 4, 4]
    assert document.root == {"a": 1, "b": 0, "c": 3}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", None, "not YAML"),
        ("a:\n\t- 1\n", 2, "a tab"),
        ("a:\n  b:\n  \tc: 1\n", 3, "a tab"),
        ("a:\n  b: 1\n    c: 'x\t\n", None, "not YAML: "),
        ("a: 'open\n", None, "not YAML"),
        ("a: b: c\n", 1, "not YAML"),
        ("%YAML 3.0\n--- a\n", 1, "not YAML"),
        ("a: 1\n---\nb: 2\n", 2, "second document"),
        ("a: *nowhere\n", 1, "alias"),
        ("a: &a [*a]\n", 1, "alias"),
        (b"a: 1\nb: \xff\n", 2, "UTF-8"),
        (b"\xff\xfea\x00", 1, "UTF-8"),
        ("a: 1\nb: \x07\n", 2, "'\\x07'"),
        ("[" * 100 + "]" * 100, 1, "levels deep"),
        ("\n".join("  " * i + "a:" for i in range(100)), yf.MOST_DEPTH + 1, "levels deep"),
    ],
)
def test_fatal_problems(text: str | bytes, line: int | None, words: str) -> None:
    problem = fatal(text)
    assert words in problem.message
    if line is not None:
        assert problem.line == line


def test_aliases_are_values_until_they_are_a_bomb() -> None:
    assert value("a: &x [1, {k: v}]\nb: *x\n") == {"a": [1, {"k": "v"}], "b": [1, {"k": "v"}]}
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 20)
    )
    assert "values, those repeated by aliases included" in fatal(bomb).message


def test_size_is_bounded(tmp_path: Path) -> None:
    big = tmp_path / "big.yaml"
    with big.open("wb") as stream:
        stream.truncate(store.MOST_BYTES + 1)
    with pytest.raises(ConfigError, match="larger than"):
        yf.read(big)
    assert "values" in fatal("[" + "1," * (yf.MOST_NODES + 1) + "]").message


def test_half_a_surrogate_pair_never_gets_in() -> None:
    try:
        document = parsed('a: "\\ud800"')
    except ConfigError:
        return
    assert document.problems


def test_a_byte_order_mark_and_windows_line_ends() -> None:
    document = parsed("\ufeffa: 1\r\nb: 2\r\n")
    assert document.root == {"a": 1, "b": 2}
    assert document.locate(("b",)) == (("b",), 2)


def test_locate_leaves_out_what_is_not_there() -> None:
    document = parsed("a:\n  b:\n  - c: 1\n  - d\n")
    assert document.locate(("a", "model", "b", 0, "c")) == (("a", "b", 0, "c"), 3)
    assert document.locate(("a", "b", 1)) == (("a", "b", 1), 4)
    assert document.locate(("a", "b", 7, "x")) == (("a", "b"), 2)
    assert document.locate(()) == ((), None)


def test_paths_are_printable() -> None:
    assert yf.dotted(("hosts", "pve.lan", 3, "\x1b[2J")) == 'hosts."pve.lan".3."\\u001b[2J"'


FLOATS = st.floats(allow_nan=False, allow_infinity=False)
# JSON escapes what lies beyond the basic plane by two halves of a surrogate pair, which are no characters in YAML; and
# a key on one line with its value has at most 1024 characters there.
WORDS = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=30)
JSON_KEYS = WORDS.filter(lambda key: key != "<<")
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | FLOATS | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(JSON_KEYS, inner, max_size=4),
    max_leaves=20,
)


@given(JSON_VALUES)
def test_json_is_read_as_json(original: Json) -> None:
    document = parsed(json.dumps({"root": original}))
    assert document.problems == ()
    assert document.root == {"root": original}


FRAGMENTS = st.sampled_from(
    [
        *"{}[]:,'\"|>?~#%@`\t\0\n\x85\u2028\ud7ff\U0001f600",
        *("- ", "&a", "*a", "!!str", "!x", "<<: *a", "---", "...", "\n  ", "\n    "),
        *("hosts:", "guests:", "200:", "defaults:", "groups:", "jump:", "limits:", "run:", "30s", "vars:", "env:"),
        *("steps:", "payload:", "params:", "{var: a}", "name:", "all", "tag:x", "user:", "self: true"),
        *("transport: local", "hop: lxc", "0", "-1", "1e999", ".nan", "yes"),
    ]
)
TEXTS = st.lists(FRAGMENTS | st.text(max_size=6), max_size=30).map(" ".join) | st.lists(FRAGMENTS, max_size=30).map(
    "".join
)
FILES = st.binary(max_size=200) | TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass"))


@given(FILES)
@example(b"hosts: {h: {guests: {200: {name: h}}}}\ngroups: {h: h, g: [g]}")
@example(b"hosts: &a {h: {guests: *a}}")
@example(b"hosts: {h: &a {usr: x}, i: *a}")
@example(b"hosts: {h: {tags: &a [1]}, i: {tags: *a, jump: *a}}\ngroups: {g: *a}")
@example(b"steps: &a [{payload: x@y, params: {p: {var: [a]}}}, {payload: 3}]\ntargets: *a")
def test_no_file_raises_anything_but_config_errors(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "random.yaml"
    path.write_bytes(data)
    for load in (Inventory.load, load_playbook):
        for problem in problems_of(load, path):
            assert problem.file == str(path)
            assert problem.line is None or problem.line >= 1
            str(problem).encode()


def problems_of(load: Callable[[Path], object], path: Path) -> tuple[Problem, ...]:
    try:
        load(path)
    except ConfigError as error:
        return error.problems or (Problem(message="an error without a problem"),)
    return ()


VALUES = ["h", "a", "b", "all", "none", "h/100", "tag:t", "u@x:1", "30s", "*", "/v", "lxc", "local", "sudo", "a,b"]
KEYS = [
    *("hosts", "defaults", "groups", "h", "a", "b", "guests", "100", "name", "user", "jump", "members", "vars", "env"),
    *("limits", "run", "tags", "venv", "python", "hop", "transport", "self", "host_key", "identity_file", "address"),
    *("steps", "payload", "params", "targets", "var", "default", "fail_on", "description", "concurrency", "sessions"),
]
STRUCTURES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 300) | FLOATS | st.sampled_from(VALUES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=40,
)
SECTIONS = dict.fromkeys(("hosts", "groups", "defaults", "steps"), STRUCTURES)


@given(st.fixed_dictionaries({}, optional=SECTIONS))
def test_no_structure_raises_anything_but_config_errors(tmp_path_factory: pytest.TempPathFactory, root: Json) -> None:
    path = tmp_path_factory.getbasetemp() / "structure.yaml"
    path.write_text(json.dumps(root, indent=1), encoding="utf-8")
    lines = len(path.read_text(encoding="utf-8").splitlines())
    for load in (Inventory.load, load_playbook):
        for problem in problems_of(load, path):
            assert problem.file == str(path)
            assert problem.line is None or 1 <= problem.line <= lines


@given(st.integers(-(10**400), 10**400))
def test_whole_numbers_of_any_size_are_safe(number: int) -> None:
    found = value(f"[{number}]")
    assert isinstance(found, list)
    assert (
        found[0] in (number, str(number))
        if len(str(number)) < sys.get_int_max_str_digits()
        else found[0] == str(number)
    )


@given(FLOATS)
def test_numbers_come_back_exactly(number: float) -> None:
    found = value(f"[{number!r}]")
    assert isinstance(found, list)
    assert isinstance(found[0], float)
    assert math.copysign(1, found[0]) == math.copysign(1, number)
    assert found[0] == number
