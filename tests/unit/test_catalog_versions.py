"""Versions and the constraints that choose among them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoterun.catalog.versions import parse_reference, parse_version
from remoterun.errors import ConfigError

_numbers = st.integers(0, 10**9 - 1)
_versions = st.tuples(_numbers, _numbers, _numbers)


@given(_versions)
def test_a_version_reads_as_written(version: tuple[int, int, int]) -> None:
    assert parse_version(".".join(map(str, version))) == version


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1.2",
        "1.2.3.4",
        "01.2.3",
        "1.2.x",
        "v1.2.3",
        "1.2.3 ",
        "1.-2.3",
        "1.2.3-rc1",
        "١.٢.٣",
        "9" * 5000 + ".0.0",
    ],
)
def test_anything_else_is_no_version(text: str) -> None:
    assert parse_version(text) is None


@given(st.text(max_size=20))
def test_any_text_is_a_version_or_none(text: str) -> None:
    version = parse_version(text)
    assert version is None or ".".join(map(str, version)) == text


@pytest.mark.parametrize(
    ("reference", "accepted", "refused"),
    [
        ("p", (0, 0, 1), None),
        ("p@1", (1, 9, 9), (10, 0, 0)),
        ("p@1.2", (1, 2, 9), (1, 20, 0)),
        ("p@1.2.3", (1, 2, 3), (1, 2, 4)),
        ("p@=1.2.3", (1, 2, 3), (1, 2, 4)),
    ],
)
def test_a_constraint_accepts_what_starts_with_it(
    reference: str, accepted: tuple[int, int, int], refused: tuple[int, int, int] | None
) -> None:
    wanted = parse_reference(reference)
    assert wanted.name == "p"
    assert wanted.accepts(accepted)
    assert refused is None or not wanted.accepts(refused)


@pytest.mark.parametrize("reference", ["p@", "p@=1", "p@=1.2", "p@>=1.2.0", "p@1.2.3.4", "p@latest", "p@1@2", "p@ 1"])
def test_other_constraints_are_refused_with_the_ways_to_write_one(reference: str) -> None:
    with pytest.raises(ConfigError, match=r"p@=1\.2\.0"):
        parse_reference(reference)
