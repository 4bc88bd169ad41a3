"""Text for people: what a terminal would obey never gets through, and lines keep to their width."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoterun.errors import clean
from remoterun.model import Captured
from remoterun.report.text import (
    MAX_LINE,
    Page,
    Span,
    cells,
    clip,
    human_bytes,
    human_count,
    human_seconds,
    last_lines,
    number,
    pad,
    plural,
    wrap,
)
from tests.support.runs import captured, texts

INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


@given(texts())
def test_a_clean_text_is_one_line_of_visible_characters(text: str) -> None:
    result = clean(text)
    assert not [char for char in result if unicodedata.category(char) in INVISIBLE]
    assert clean(result) == result


@given(st.text(st.characters(categories=("L", "N", "P", "S"))))
def test_visible_text_stays_as_it_is(text: str) -> None:
    assert clean(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x9b31mred", "red"),
        ("a\x1b]0;title\x07b", "ab"),
        ("a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "alink"),
        ("torn\x1b]0;title\nnext", "torn next"),
        ("\x1b(B\x1b=done", "done"),
        ("one\ttwo\r\nthree", "one two  three"),
        ("\u202egnp.exe", "gnp.exe"),
        ("a\u200bb\ufeffc", "abc"),
        ("x\u2028y", "x y"),
        ("\ud800!", "\ufffd!"),
        ("日本語 café", "日本語 café"),
    ],
)
def test_what_cleaning_makes_of_it(text: str, expected: str) -> None:
    assert clean(text) == expected


def test_cells_count_wide_and_combining_characters() -> None:
    assert [cells("abc"), cells("日本"), cells("e\u0301")] == [3, 4, 1]
    assert pad("日本", 6) == "日本  "


@given(texts().map(clean), st.integers(0, 20))
def test_clipping_keeps_to_the_width(text: str, width: int) -> None:
    assert cells(clip(text, width)) <= width
    assert clip(text, cells(text)) == text


@given(st.lists(st.tuples(texts(), st.booleans()), max_size=6), st.integers(10, 40), st.integers(0, 6))
def test_wrapping_keeps_the_width_and_every_visible_character(
    parts: list[tuple[str, bool]], width: int, hang: int
) -> None:
    line = [Span(text, solid=solid) for text, solid in parts]
    rows = ["".join(span.text for span in row) for row in wrap(line, width, hang=hang)]
    assert all(cells(row) <= width for row in rows)
    whole = "".join(span.text for span in line)
    assert "".join(rows).replace(" ", "") == whole.replace(" ", "")


def test_wrapping_breaks_at_blanks_but_not_inside_solid_spans() -> None:
    line = [Span("one two "), Span("three four", solid=True), Span(" five")]
    assert ["".join(span.text for span in row) for row in wrap(line, 14, hang=2)] == [
        "one two",
        "  three four",
        "  five",
    ]


def test_a_command_is_never_broken() -> None:
    command = "`remoterun hostkeys accept --on root@10.1.2.6:2222 --jump gate`"
    line = [Span("fix: trust it with "), Span(command, command=True), Span(". Or pin it.")]
    for width in (40, 72):
        rows = ["".join(span.text for span in row) for row in wrap(line, width, hang=5)]
        assert [row.strip().startswith(f"{command}.") for row in rows if "accept" in row] == [True]
        assert all(len(row) <= width for row in rows if command not in row)
        assert " ".join(" ".join(rows).split()) == "".join(span.text for span in line)


def test_a_page_bounds_what_one_line_of_a_target_may_fill() -> None:
    page = Page(80, color=False)
    page.line(Span("x" * (MAX_LINE + 7)))
    assert page.text().endswith("[... 7 characters left out]\n")


def test_a_page_hands_on_what_it_has_while_it_is_filled() -> None:
    parts: list[str] = []
    whole, handed = Page(80, color=False), Page(80, color=False, out=parts.append)
    for page in (whole, handed):
        page.gap()
        for index in range(1200):
            page.line(Span(f"line {index}"))
            if index % 100 == 99:
                page.gap()
                page.gap()
    assert len(parts) == 2
    handed.hand_on()
    handed.hand_on()
    assert "".join(parts) == whole.text()
    assert len(parts) == 3


def test_only_the_page_makes_colours() -> None:
    coloured, plain = Page(80, color=True), Page(80, color=False)
    for page in (coloured, plain):
        page.line(Span("\x1b[5mbad", "bad"), Span(" news"))
    assert coloured.text() == "\x1b[1;31mbad\x1b[0m news\n"
    assert plain.text() == "bad news\n"


@pytest.mark.parametrize(
    ("data", "count", "expected"),
    [
        (b"", 3, ([], 0)),
        (b"one\ntwo\n\n", 3, (["one", "two"], 0)),
        (b"1\n2\n3\n4\n", 2, (["3", "4"], 2)),
        (b" 10%\r 50%\r100%\r\nend \x1b[K\xff", 5, (["100%", "end \ufffd"], 0)),
    ],
)
def test_last_lines(data: bytes, count: int, expected: tuple[list[str], int]) -> None:
    assert last_lines(captured(data), count) == expected


def test_last_lines_show_where_bytes_were_left_out() -> None:
    lines, _ = last_lines(Captured(head=b"begin", tail=b"end", total=1008), 5)
    assert lines == ["begin", "[... 1000 bytes left out ...]", "end"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (66_218_400_000, "66.2 GB"),
        (999_960, "1.0 MB"),
        (5e18, "5000.0 PB"),
    ],
)
def test_human_bytes(value: float, expected: str) -> None:
    assert human_bytes(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"), [(5_518_200_000, "5518.2M"), (124_439_808, "124.4M"), (12_345, "12.3K"), (42, "42")]
)
def test_human_count(value: float, expected: str) -> None:
    assert human_count(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.004, "0.00 s"), (0.21, "0.21 s"), (0.996, "1.0 s"), (33.14, "33.1 s"), (725, "12m 05s"), (7425, "2h 03m")],
)
def test_human_seconds(value: float, expected: str) -> None:
    assert human_seconds(value) == expected


@given(st.one_of(st.integers(), st.floats(), st.just(10**400), st.just(-(10**400))))
def test_no_number_is_too_odd_to_be_written(value: float) -> None:
    assert abs(number(value)) <= 1e30
    assert human_bytes(value)
    assert human_count(value)
    assert human_seconds(value)


def test_plural() -> None:
    assert [plural(1, "record"), plural(0, "record"), plural(2, "process", "processes")] == [
        "1 record",
        "0 records",
        "2 processes",
    ]
