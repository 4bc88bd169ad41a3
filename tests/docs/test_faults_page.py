"""The table of faults: each test that it names is there, each code is one, and it has all rows of the fault lab."""

from __future__ import annotations

import re

import pytest

from remoterun.errors import CODES
from remoterun.model import Phase, Status
from tests.docs.generate import DOCS

TESTS = DOCS.parent / "tests"
PAGE = (DOCS / "faults.md").read_text("utf-8")
ROWS = [re.split(r"(?<!\\)\|", line)[1:-1] for line in PAGE.splitlines() if re.match(r"\| (?!fault |---)", line)]
NAMED = sorted(set(re.findall(r"`([a-z_]+/[a-z_]+::[a-z0-9_]+)`", PAGE)))


@pytest.mark.parametrize("named", NAMED)
def test_every_test_that_is_named_is_there(named: str) -> None:
    place, _, name = named.partition("::")
    room, _, module = place.rpartition("/")
    assert f"def test_{name}(" in (TESTS / room / f"test_{module}.py").read_text("utf-8")


def test_every_row_is_whole() -> None:
    assert len(ROWS) > 60
    for row in ROWS:
        assert len(row) == 5, row
        assert all(re.search(r"::", word) for word in row[4].split(",")), row


def test_every_code_and_status_is_one() -> None:
    words = {*Status, *Phase}
    for _, judged, codes, *_ in ROWS:
        assert set(re.findall(r"`(\w+)`", codes)) <= set(CODES), codes
        said = judged.split(",")[0].strip()
        if re.fullmatch(r"[a-z]+", said):
            assert said in words, judged


@pytest.mark.parametrize("module", ["faults/fault_table", "faults/rough_network", "faults/clocks"])
def test_every_fault_of_the_lab_is_on_the_page(module: str) -> None:
    room, _, name = module.partition("/")
    tests = re.findall(r"^def test_(\w+)\(", (TESTS / room / f"test_{name}.py").read_text("utf-8"), re.MULTILINE)
    told = {named.partition("::")[2] for named in NAMED}
    assert set(tests) - told <= {"where_limits_are_kept_nobody_asks_for_the_time_of_day"}
