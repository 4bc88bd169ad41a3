"""A few lines at the bottom of a terminal that are drawn again and again, and text that scrolls by above them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remoterun.report.text import render, width_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remoterun.console.outlet import Outlet
    from remoterun.report.text import Line


class Screen:
    """Keep a block of lines at the bottom of a terminal.

    Each change is one write, wrapped in a synchronized update where the terminal knows that, so nothing flickers. The
    cursor is hidden only within such a write: whatever ends the program, the terminal stays usable.
    """

    def __init__(self, outlet: Outlet, *, color: bool) -> None:
        self._outlet = outlet
        self._color = color
        self._drawn: list[int] = []

    def paint(self, lines: Sequence[Line], columns: int, above: str = "") -> None:
        """Replace the block by other lines, with text (whole lines) scrolled in above it."""
        # A terminal made narrower has broken the old lines into several rows each.
        rows = sum(max(-(-width // columns), 1) for width in self._drawn)
        # Erased at once and not line by line: behind a character in the last column, "erase to the end" takes that one.
        # But from the second row on: from the top left corner, tmux takes it for a cleared screen, and keeps frames.
        top = f"\r\x1b[{rows}A\x1b[2K\x1b[1B\x1b[J\x1b[1A" if rows else "\r\x1b[K"
        block = "".join(f"{render(line, color=self._color)}\n" for line in lines)
        self._outlet.text(f"\x1b[?2026h\x1b[?25l{top}{above}{block}\x1b[?25h\x1b[?2026l")
        self._drawn = [width_of(line) for line in lines]

    def erase(self, columns: int) -> None:
        """Remove the block; the cursor stands where it began."""
        if self._drawn:
            self.paint([], columns)
