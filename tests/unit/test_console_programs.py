"""Output of programs: raw for one target, line by line for several, safe on a terminal, untouched elsewhere."""

from __future__ import annotations

import unicodedata
from itertools import pairwise
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoterun.console.programs import (
    MAX_LINE_BYTES,
    PATIENCE_S,
    Lines,
    Programs,
    TerminalFilter,
    safe_text,
    terminal_line,
)
from remoterun.events import OutputArrived
from tests.support.runs import texts

CHUNKS = st.lists(st.one_of(st.binary(max_size=20), st.sampled_from([b"\n", b"a\nb", b"\r\n", b"\xff\n"])), max_size=8)


def output(data: bytes, target: str = "a/1", stream: Literal["stdout", "stderr"] = "stdout") -> OutputArrived:
    return OutputArrived(target=target, step=0, stream=stream, data=data)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut data at some places."""
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@given(CHUNKS)
def test_one_target_into_a_pipe_is_untouched(chunks: list[bytes]) -> None:
    programs = Programs(["a/1"], terminals=(), color=False)
    shown = [programs.show(output(chunk)) for chunk in chunks]
    assert b"".join(part for part in shown if isinstance(part, bytes)) == b"".join(chunks)
    assert list(programs.finish("a/1", 0)) == []


@given(CHUNKS)
def test_several_targets_into_a_pipe_come_line_by_line(chunks: list[bytes]) -> None:
    programs = Programs(["a/1", "b/22"], terminals=(), color=False)
    shown = [programs.show(output(chunk)) for chunk in chunks]
    shown += [part for _, part in programs.finish("a/1", 0)]
    text = b"".join(part for part in shown if isinstance(part, bytes))
    data = b"".join(chunks)
    lines = data.split(b"\n")
    expected = lines if lines[-1] else lines[:-1]
    assert text == b"".join(b"a/1  | %b\n" % line for line in expected)


def test_streams_and_targets_do_not_mix_their_lines() -> None:
    programs = Programs(["a/1", "b/2"], terminals=(), color=False)
    programs.show(output(b"half"))
    programs.show(output(b"error", stream="stderr"))
    assert programs.show(output(b"whole\n", "b/2")) == b"b/2 | whole\n"
    assert programs.show(output(b" line\n")) == b"a/1 | half line\n"
    assert ("stderr", b"a/1 | error\n") in list(programs.finish_all())
    assert list(programs.finish_all()) == []


MIXED = st.lists(
    st.tuples(st.sampled_from(["stdout", "stderr"]), st.sampled_from([b"a", b"b\n", b"\n", b"c\nd", b"", b"\xff"])),
    max_size=12,
)


@given(MIXED, st.booleans())
def test_two_streams_in_one_place_keep_their_lines_whole(chunks: list[tuple[Any, bytes]], is_terminal: bool) -> None:
    programs = Programs(["a/1"], terminals=("stdout", "stderr") if is_terminal else (), color=False, shared=True)
    shown = [programs.show(output(data, stream=stream)) for stream, data in chunks]
    shown += [part for _, part in programs.finish("a/1", 0)]
    text = "".join(part if isinstance(part, str) else part.decode("utf-8", "replace") for part in shown)
    said = {
        stream: b"".join(data for each, data in chunks if each == stream).decode("utf-8", "replace")
        for stream in ("stdout", "stderr")
    }
    if is_terminal:
        ends = [line for each in said.values() for line in each.removesuffix("\n").split("\n") if each]
        assert sorted(text.removesuffix("\n").split("\n") if text else []) == sorted(ends)
    else:
        assert len(text) == sum(map(len, said.values()))


def test_a_line_that_gets_no_end_is_shown_after_a_while() -> None:
    programs = Programs(["a/1"], terminals=("stdout", "stderr"), color=False, shared=True)
    assert programs.show(output(b"one\nsure? "), 10.0) == "one\n"
    assert list(programs.let_go(10.1)) == []
    assert list(programs.let_go(10.0 + PATIENCE_S)) == [("stdout", "sure? ")]
    # From then on it goes as it comes, until somebody else has something to say.
    assert programs.show(output(b"[y/N] "), 11.0) == "[y/N] "
    assert programs.show(output(b"warning\n", stream="stderr"), 11.1) == "\nwarning\n"
    assert programs.show(output(b"no\n"), 11.2) == "no\n"
    assert programs.show(output(b"next"), 12.0) == ""
    assert list(programs.finish_all()) == [("stdout", "next"), ("stdout", ""), ("stderr", "")]


def test_nothing_is_held_where_the_streams_go_apart() -> None:
    programs = Programs(["a/1"], terminals=("stdout",), color=False)
    assert programs.show(output(b"half")) == "half"
    assert programs.show(output(b"oops", stream="stderr")) == b"oops"


def test_of_several_targets_a_line_that_gets_no_end_comes_in_pieces_on_a_terminal() -> None:
    programs = Programs(["a/1", "b/2"], terminals=("stdout",), color=False)
    assert programs.show(output(b"one\nsure? "), 10.0) == "a/1 | one\n"
    assert programs.show(output(b" 10%\r 50%", "b/2"), 10.0) == ""
    assert programs.show(output(b"torn", stream="stderr"), 10.0) == b""
    assert list(programs.let_go(10.3)) == []
    assert list(programs.let_go(10.5)) == [("stdout", "a/1 | sure? \n")]
    assert list(programs.let_go(20.0)) == []
    assert programs.show(output(b"yes\n"), 20.0) == "a/1 + yes\n"
    assert programs.show(output(b"next? "), 21.0) == ""
    assert list(programs.let_go(22.0)) == [("stdout", "a/1 | next? \n")]
    # The end of a line alone is no piece.
    assert programs.show(output(b"\n\n"), 22.0) == "a/1 | \n"
    # Of a bar that is drawn again and again, and of what goes into a file, the whole line is worth something.
    rest = [part for part in programs.finish_all() if part[1]]
    assert rest == [("stderr", b"a/1 | torn\n"), ("stdout", "b/2 |  50%\n")]


@given(st.lists(st.integers(0, 3 * MAX_LINE_BYTES), max_size=4))
def test_a_long_line_comes_in_bounded_pieces(cuts: list[int]) -> None:
    data = b"x" * (2 * MAX_LINE_BYTES + 5) + b"\nend"
    lines = Lines()
    got = [piece for chunk in pieces(data, cuts) for piece in lines.feed(chunk)] + list(lines.finish())
    assert [(len(line), continued) for line, continued in got] == [
        (MAX_LINE_BYTES, False),
        (MAX_LINE_BYTES, True),
        (5, True),
        (3, False),
    ]


def test_later_pieces_of_a_long_line_are_marked() -> None:
    programs = Programs(["a/1", "b/2"], terminals=(), color=False)
    shown = programs.show(output(b"x" * (MAX_LINE_BYTES + 1) + b"\n"))
    assert isinstance(shown, bytes)
    assert [line[:6] for line in shown.splitlines()] == [b"a/1 | ", b"a/1 + "]


@given(texts(), st.booleans(), st.lists(st.integers(0, 60), max_size=5))
def test_a_terminal_gets_the_same_however_the_bytes_are_cut(text: str, color: bool, cuts: list[int]) -> None:
    data = text.encode("utf-8", "replace")
    whole, cut = TerminalFilter(color=color), TerminalFilter(color=color)
    expected = whole.feed(data) + whole.finish()
    assert "".join(cut.feed(piece) for piece in pieces(data, cuts)) + cut.finish() == expected


@given(st.binary(max_size=60), st.booleans())
def test_a_terminal_gets_no_control_but_the_harmless(data: bytes, color: bool) -> None:
    filtered = TerminalFilter(color=color)
    text = filtered.feed(data) + filtered.finish()
    allowed = "\n\t\r\b" + ("\x1b" if color else "")
    assert not [char for char in text if char not in allowed and unicodedata.category(char) in {"Cc", "Cf", "Cs"}]


@pytest.mark.parametrize(
    ("text", "with_color", "without"),
    [
        ("\x1b[32mgreen\x1b[0m", "\x1b[32mgreen\x1b[0m", "green"),
        ("\x1b[38:2::1:2:3mx", "\x1b[38:2::1:2:3mx", "x"),
        ("\x1b[2Jgone\x1b[H", "gone", "gone"),
        ("\x1b]0;title\x07x", "x", "x"),
        ("a\tb\u202ec", "a\tbc", "a\tbc"),
        ("\x1b\x1b[31mx", "\x1b[31mx", "x"),
    ],
)
def test_colours_are_all_that_remains_of_escapes(text: str, with_color: str, without: str) -> None:
    assert safe_text(text, color=True) == with_color
    assert safe_text(text, color=False) == without


def test_raw_output_ends_its_colours() -> None:
    filtered = TerminalFilter(color=True)
    assert filtered.feed(b"\x1b[31mred\n") == "\x1b[31mred\n"
    assert filtered.finish() == "\x1b[0m"


def test_an_escape_that_never_ends_is_not_held_back_for_ever() -> None:
    filtered = TerminalFilter(color=False)
    filtered.feed(b"\x1b]0;" + b"x" * 10_000)
    assert filtered.feed(b"\nvisible\n").endswith("visible\n")


def test_a_progress_bar_shows_its_last_state_when_its_line_ends() -> None:
    assert terminal_line(b" 10%\r 50%\r100%\r", color=False) == "100%"
    assert terminal_line(b"\x1b[31mred", color=True) == "\x1b[31mred\x1b[0m"


def test_prefixes_are_coloured_on_a_terminal_only() -> None:
    programs = Programs(["a/1", "b/2"], terminals=["stdout"], color=True)
    assert programs.show(output(b"x\n")) == "\x1b[36ma/1 |\x1b[0m x\n"
    assert programs.show(output(b"x\n", stream="stderr")) == b"a/1 | x\n"
