"""Typed parameters: what is accepted, what is refused, and that nothing changes on the way."""

from __future__ import annotations

import json
import math
import textwrap
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoterun.catalog.manifest import read_file
from remoterun.errors import ConfigError, Problem

if TYPE_CHECKING:
    from pathlib import Path

    from remoterun.catalog import PayloadInfo
    from remoterun.model import Json

PARAMS = """
[params.root]
type = "path"
[params.text]
type = "string"
[params.count]
type = "int"
min = 1
max = 10
[params.ratio]
type = "float"
[params.deep]
type = "bool"
[params.wait]
type = "duration"
max = "1h"
[params.since]
type = "moment"
[params.room]
type = "size"
min = "1KiB"
[params.mode]
type = "enum"
choices = ["fast", "thorough"]
[params.names]
type = "list"
[params.sizes]
type = "list"
items = "size"
choices = ["1KiB", "1MiB"]
[params.anything]
type = "json"
"""


def load(folder: Path, params: str) -> PayloadInfo:
    head = 'name = "sample"\nversion = "1.0.0"\ndescription = "A sample."\n'
    lines = textwrap.indent((head + textwrap.dedent(params)).rstrip(), "# ", lambda _: True)
    file = folder / "sample.py"
    file.write_text(f"# /// payload\n{lines}\n# ///\ndef run(ctx): ...\n")
    problems: list[Problem] = []
    info = read_file("project", file, problems)
    assert info is not None, problems
    return info


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> PayloadInfo:
    return load(tmp_path_factory.mktemp("params"), PARAMS)


def check(info: PayloadInfo, **given: Json) -> dict[str, Json]:
    return info.check_params(given, where="params")


def problems_of(info: PayloadInfo, **given: Json) -> dict[str | None, Problem]:
    with pytest.raises(ConfigError) as caught:
        check(info, **given)
    return {problem.path: problem for problem in caught.value.problems}


@pytest.mark.parametrize(
    ("name", "value", "checked"),
    [
        ("root", "/a b/ü", "/a b/ü"),
        ("root", "/data/\udcff\udc80", "/data/\udcff\udc80"),
        ("text", "", ""),
        ("text", "\0'\"$`{}!*\n", "\0'\"$`{}!*\n"),
        ("count", 10, 10),
        ("ratio", 5, 5.0),
        ("ratio", -1.5e300, -1.5e300),
        ("deep", False, False),
        ("wait", "500ms", 0.5),
        ("wait", "1h", 3600.0),
        ("since", "7d", -604800.0),
        ("since", "1970-01-02", 86400.0),
        ("since", "1970-01-02 00:30", 88200.0),
        ("since", "1970-01-01T00:00:10Z", 10.0),
        ("since", "1970-01-01T02:00:00+02:00", 0.0),
        ("room", "10GiB", 10 * 1024**3),
        ("room", "1.5 MB", 1_500_000),
        ("room", "1025B", 1025),
        ("mode", "fast", "fast"),
        ("names", [], []),
        ("names", ["a", "b,c"], ["a", "b,c"]),
        ("sizes", ["1MiB", "1024B"], [1024**2, 1024]),
        ("anything", {"a": [None, True, 1, 1.5, "x", {}]}, {"a": [None, True, 1, 1.5, "x", {}]}),
        ("anything", 2**64 - 1, 2**64 - 1),
    ],
)
def test_a_value_of_the_right_type_is_taken(sample: PayloadInfo, name: str, value: Json, checked: Json) -> None:
    result = check(sample, **{name: value})[name]
    assert result == checked
    assert type(result) is type(checked)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("root", "", "not empty"),
        ("root", "a\0b", "NUL"),
        ("root", 5, "expected a string, got int 5"),
        ("text", "\ud800", "surrogate"),
        ("count", "5", "expected an int, got str '5'"),
        ("count", True, "expected an int, got bool true"),
        ("count", 5.0, "expected an int"),
        ("count", 0, "smallest allowed, 1"),
        ("count", 11, "largest allowed, 10"),
        pytest.param("count", 10**5000, "64 bits", id="huge"),
        ("ratio", "0.5", "expected a number"),
        ("ratio", False, "expected a number"),
        ("ratio", math.nan, "finite"),
        ("ratio", math.inf, "finite"),
        pytest.param("ratio", 10**400, "64 bits", id="huge-ratio"),
        ("deep", 1, "true or false"),
        ("deep", "true", "true or false"),
        ("wait", 30, "expected a duration"),
        ("wait", "30", "not a duration"),
        ("wait", "none", "finite duration"),
        ("wait", "2h", "largest allowed, 3,600"),
        ("wait", "9" * 400 + "d", "not a duration"),
        ("since", 7, "expected a time"),
        ("since", "yesterday", "neither an age"),
        ("since", "2026-02-30", "is no date"),
        ("since", "1969-12-31", "before 1970"),
        ("since", "0001-01-01T00:00:00+14:00", "before 1970"),
        ("room", 1024, "expected a size"),
        ("room", "10G", "expected a size"),
        ("room", "1.5B", "whole number of bytes"),
        ("room", "99999999EiB", "64 bits"),
        ("room", "1B", "smallest allowed, 1,024"),
        ("mode", "fasst", "none of fast, thorough"),
        pytest.param("mode", 10**5000, "too large to show", id="huge-enum"),
        ("names", "a,b", "expected a list"),
        ("anything", {"a": math.nan}, "finite"),
        ("anything", {"a": 2**64}, "64 bits"),
    ],
)
def test_a_wrong_value_is_refused_with_the_reason(sample: PayloadInfo, name: str, value: Json, words: str) -> None:
    found = problems_of(sample, **{name: value})
    assert list(found) == [f"params.{name}"]
    assert words in found[f"params.{name}"].message


def test_every_problem_comes_at_once_with_its_place(sample: PayloadInfo) -> None:
    found = problems_of(sample, cuont=1, mode="thorogh", names=["a", 5, None], sizes=["1GiB"], deep="yes")
    assert set(found) == {
        "params.cuont",
        "params.mode",
        "params.names[1]",
        "params.names[2]",
        "params.sizes[0]",
        "params.deep",
    }
    assert found["params.cuont"].nearest[0] == "count"
    assert found["params.mode"].nearest == ("thorough",)


def test_what_is_no_json_is_refused(sample: PayloadInfo) -> None:
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    for value in (b"bytes", {1, 2}, (1,), {5: "key"}, deep, object()):
        with pytest.raises(ConfigError):
            sample.check_params({"anything": value}, where="")  # type: ignore[dict-item]


def test_parameters_without_value_are_none(sample: PayloadInfo) -> None:
    assert set(check(sample).values()) == {None}
    assert check(sample, root=None)["root"] is None


def test_defaults_are_completed_and_converted(tmp_path: Path) -> None:
    info = load(
        tmp_path,
        """
        [params]
        room = {type = "size", default = "2KiB"}
        names = {type = "list", default = ["a"]}
        wait = {type = "duration", default = "2s"}
        root = {type = "path", required = true, help = "where to look"}
        """,
    )
    complete = check(info, root="/x")
    assert complete == {"room": 2048, "names": ["a"], "wait": 2.0, "root": "/x"}
    assert isinstance(complete["names"], list)
    complete["names"].append("b")
    assert check(info, root="/x")["names"] == ["a"], "a payload's defaults can't be changed through a result"
    assert "is required: set this path (where to look)" in problems_of(info)["params.root"].message
    assert "expected a string, got null" in problems_of(info, root=None)["params.root"].message


def test_a_targets_variable_supplies_the_default(tmp_path: Path) -> None:
    info = load(tmp_path, '[params]\nroot = {type = "path", required = true, var = "checkpoints"}\n')
    assert info.check_params({}, where="", variables={"checkpoints": "/w"}) == {"root": "/w"}
    assert info.check_params({"root": "/x"}, where="", variables={"checkpoints": "/w"}) == {"root": "/x"}
    with pytest.raises(ConfigError, match="the target's variable `checkpoints`"):
        info.check_params({}, where="", variables={"other": "/w"})
    with pytest.raises(ConfigError, match=r"vars\.checkpoints: expected a string"):
        info.check_params({}, where="", variables={"checkpoints": 5})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("root", "/a=b", "/a=b"),
        ("text", "5", "5"),
        ("text", "", ""),
        ("count", "5", 5),
        ("count", "+5", 5),
        ("ratio", "1e-3", 0.001),
        ("deep", "true", True),
        ("wait", "30s", "30s"),
        ("since", "2026-07-31", "2026-07-31"),
        ("room", "10GiB", "10GiB"),
        ("mode", "fast", "fast"),
        ("names", "", []),
        ("names", "a,b", ["a", "b"]),
        ("names", '["a,b", "c"]', ["a,b", "c"]),
        ("sizes", "1KiB,1MiB", ["1KiB", "1MiB"]),
        ("anything", '{"a": [1, null]}', {"a": [1, None]}),
        ("anything", "null", None),
    ],
)
def test_the_text_of_a_flag_is_read_by_type(sample: PayloadInfo, name: str, text: str, value: Json) -> None:
    assert sample.parse_param(name, text) == value
    check(sample, **{name: value})


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("count", "five", "'five' is not an int"),
        ("count", "5.0", "is not an int"),
        ("count", "٥", "is not an int"),
        ("count", "9" * 10000, "is not an int"),
        ("count", "11", "largest allowed"),
        ("ratio", "nan", "is not a number"),
        ("ratio", "1e999", "finite"),
        ("deep", "yes", "neither true nor false"),
        ("wait", "30", "not a duration"),
        ("names", "[a]", "is not JSON"),
        ("names", "[1]", "expected a string, got int 1"),
        ("anything", "", "is not JSON"),
        ("anything", "NaN", "finite"),
        ("anything", "[" * 100_000, "is not JSON"),
        ("anything", "9" * 10000, "is not JSON"),
        ("mood", "x", "did you mean mode"),
    ],
)
def test_a_wrong_text_is_refused_with_the_flag(sample: PayloadInfo, name: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sample.parse_param(name, text)
    assert "--set" in str(caught.value)
    assert words in str(caught.value)


# What argv can hold: any Unicode, and bytes that are not UTF-8 as Python hands them over.
_argv_text = st.text(st.characters(exclude_categories=["Cs"])) | st.binary().map(
    lambda raw: raw.decode("utf-8", "surrogateescape")
)
_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _argv_text,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_argv_text, inner, max_size=5),
    max_leaves=20,
)


@given(text=_argv_text)
def test_any_text_arrives_as_it_was(sample: PayloadInfo, text: str) -> None:
    value = sample.parse_param("text", text)
    complete = check(sample, text=value)
    assert json.loads(json.dumps(complete, ensure_ascii=True, allow_nan=False))["text"] == text


@given(names=st.lists(_argv_text, max_size=5))
def test_any_list_arrives_as_it_was(sample: PayloadInfo, names: list[str]) -> None:
    value = sample.parse_param("names", json.dumps(names))
    assert check(sample, names=value)["names"] == names


@given(value=_json)
def test_any_json_arrives_as_it_was(sample: PayloadInfo, value: Json) -> None:
    complete = check(sample, anything=value)
    assert complete["anything"] == value
    assert json.loads(json.dumps(complete, ensure_ascii=True, allow_nan=False))["anything"] == value


@given(
    value=st.integers()
    | st.floats()
    | st.text()
    | st.none()
    | st.booleans()
    | st.lists(st.integers() | st.text(), max_size=3)
    | st.binary(),
    name=st.sampled_from(
        ["root", "text", "count", "ratio", "deep", "wait", "since", "room", "mode", "names", "sizes", "anything"]
    ),
)
def test_any_value_is_taken_or_refused_but_nothing_else(sample: PayloadInfo, value: Json, name: str) -> None:
    problems: list[Problem] = []
    param = next(param for param in sample.params if param.name == name)
    checked = param.check(value, path=name, problems=problems)
    json.dumps(checked, allow_nan=False)
    assert all(problem.path and problem.path.startswith(name) for problem in problems)


def test_long_strings_pass(sample: PayloadInfo) -> None:
    long = "ü'$" * 1_000_000
    assert check(sample, text=sample.parse_param("text", long))["text"] == long


def test_a_payload_without_parameters_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no parameters"):
        check(load(tmp_path, ""), root="/x")
