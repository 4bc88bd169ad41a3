"""The files that docs/peers.md compares tools with: what check-ckpt says of each stays what the page says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.peer_cases import Case, make
from benchmarks.peers import FOUND, NONE, NOT_RUN, OK, OURS, RAN, TOOLS, Result, Tool, page
from tests.unit.payloads.check_ckpt.support import audit

pytestmark = pytest.mark.torch

PAGE = Path(__file__).resolve().parents[4] / "docs" / "peers.md"


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    return list(make(tmp_path_factory.mktemp("cases")))


def rows(text: str) -> dict[str, list[str]]:
    """Return the rows of all tables by their first cells."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines}


def test_the_set_has_sixteen_files(cases: list[Case]) -> None:
    assert len([case for case in cases if not case.hard]) == 16
    assert len([case for case in cases if case.sound]) == 4


def test_every_file_is_judged_as_the_page_says(cases: list[Case]) -> None:
    told = rows(PAGE.read_text("utf-8"))
    for case in cases:
        heard = audit(case.path)
        what, cell, *_ = told[f"`{case.name}`"]
        found = heard.rules(above_info=True) != set()
        assert (what, cell) == (case.what, "found" if found else "ok" if case.sound else "-")
        assert found == (heard.record["verdict"] != "ok")
        assert found or case.sound or case.hard
        assert case.marker is None or not case.marker.exists()


def test_the_page_tells_of_every_tool() -> None:
    text = PAGE.read_text("utf-8")
    head, told = [tool.name for tool in (OURS, *TOOLS)], rows(text)
    assert told["case"][1:] == head
    for tool in TOOLS:
        assert tool.package.partition("==")[2] in told[tool.name][0]
    assert all(f"- {name}: {reason}." in text for name, reason in NOT_RUN.items())


def test_what_is_found_is_what_is_wrong(cases: list[Case]) -> None:
    rules = {
        "nan-weight": "CK001",
        "inf-moment": "CK003",
        "torn-step": "CK040",
        "negative-moment": "CK044",
        "zero-weight": "CK006",
        "zero-page": "CK007",
        "bit-flip": "CK022",
        "truncated": "CK020",
        "code": "CK101",
        "safetensors-truncated": "CK020",
        "bf16-nan": "CK001",
        "fp8-nan": "CK001",
    }
    assert rules.keys() == {case.name for case in cases if not case.sound and not case.hard}
    for case in cases:
        if case.name in rules:
            assert rules[case.name] in audit(case.path).rules(above_info=True), case.name


def test_a_tool_is_judged_by_its_words_and_its_exit_status() -> None:
    tool = Tool(name="t", package="t==1", argv=("t",), found="broken", found_by=(3,), passed="fine")
    said = [(0, "it is fine"), (0, "it is broken"), (3, "it is fine"), (1, "it is fine"), (0, "what?")]
    assert [tool.judge(status, words) for status, words in said] == [OK, FOUND, FOUND, NONE, NONE]


def test_what_a_tool_says_of_sound_files_too_does_not_count() -> None:
    def case(name: str, *, sound: bool) -> Case:
        return Case(name=name, path=Path(name, "c.pt"), what="w", sound=sound)

    def told(verdicts: Sequence[str]) -> dict[str, list[str]]:
        files = [case("clean", sound=True), case("bad", sound=False), case("worse", sound=False)]
        said = [
            Result(tool=TOOLS[0], case=each, verdict=verdict, status=0, words="")
            for each, verdict in zip(files, verdicts, strict=True)
        ]
        return rows("\n".join(page(said, files, TOOLS[:1], alone=True)))

    noisy = told([FOUND, FOUND, RAN])
    assert [noisy[f"`{name}`"][1] for name in ("clean", "bad", "worse")] == ["**false alarm**", "always", "**ran it**"]
    assert noisy[TOOLS[0].name][1:] == ["0 of 2", "1 of 1", "0 of 3, **ran the code**"]
    quiet = told([OK, FOUND, OK])
    assert [quiet[f"`{name}`"][1] for name in ("clean", "bad", "worse")] == ["ok", "found", "-"]
    assert quiet[TOOLS[0].name][1:] == ["1 of 2", "0 of 1", "0 of 3"]
