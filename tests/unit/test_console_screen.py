"""The block at the bottom of a terminal: what is above it stays, what is in it is the newest."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from remoterun.console.outlet import Outlet
from remoterun.console.screen import Screen
from remoterun.report.text import Span
from tests.support.terminal import Terminal

WORDS = st.text("abc xyz", max_size=19)
FRAMES = st.lists(
    st.tuples(st.lists(WORDS, max_size=5), st.lists(st.text("def ", max_size=45), max_size=3)), max_size=6
)


def painted(columns: int = 20, *, color: bool = False) -> tuple[Screen, Terminal, io.StringIO]:
    stream = io.StringIO()
    return Screen(Outlet(stream), color=color), Terminal(columns), stream


def rows_of(text: str, columns: int) -> list[str]:
    return [text[start : start + columns].rstrip() for start in range(0, max(len(text), 1), columns)]


@given(FRAMES, st.booleans())
def test_what_scrolled_by_stays_above_the_newest_block(frames: list[tuple[list[str], list[str]]], color: bool) -> None:
    screen, terminal, stream = painted(color=color)
    above: list[str] = []
    block: list[str] = []
    for block, lines in frames:
        above += [row for line in lines for row in rows_of(line, 20)]
        screen.paint([[Span(text, "bold")] for text in block], 20, "".join(f"{line}\n" for line in lines))
    terminal.feed(stream.getvalue())
    expected = [*above, *(text.rstrip() for text in block)]
    while expected and not expected[-1]:
        expected.pop()
    assert terminal.rows == expected
    assert not terminal.hidden


def test_erasing_leaves_the_cursor_where_the_block_began() -> None:
    screen, terminal, stream = painted()
    screen.paint([[Span("one")], [Span("two")]], 20, "above\n")
    screen.erase(20)
    screen.erase(20)
    terminal.feed(stream.getvalue())
    assert terminal.rows == ["above"]
    assert terminal.cursor == (1, 0)


def test_frames_at_the_top_of_a_terminal_are_not_kept_in_its_history() -> None:
    screen, terminal, stream = painted()
    for number in range(3):
        screen.paint([[Span("one")], [Span(f"frame {number}")]], 20)
    screen.paint([[Span("last")]], 20)
    screen.erase(20)
    terminal.feed(stream.getvalue())
    assert (terminal.rows, terminal.cursor, terminal.kept) == ([], (0, 0), 0)


def test_lines_that_a_narrower_terminal_broke_are_all_replaced() -> None:
    screen, _, stream = painted()
    screen.paint([[Span("x" * 15)], [Span("y" * 5)]], 20)
    written = len(stream.getvalue())
    screen.paint([[Span("z")]], 10)
    # 15 characters take two rows of a terminal with 10 columns, 5 take one.
    assert "\x1b[3A" in stream.getvalue()[written:]


def test_each_change_is_one_write() -> None:
    writes: list[str] = []

    class Counting(io.StringIO):
        def write(self, text: str) -> int:
            writes.append(text)
            return len(text)

    screen = Screen(Outlet(Counting()), color=True)
    screen.paint([[Span("one")], [Span("two")]], 80, "above\n")
    screen.paint([[Span("three")]], 80)
    assert len(writes) == 2
