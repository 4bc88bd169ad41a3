"""A terminal to look at: enough of one to see what a program left on the screen."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from typing import Final

_TOKEN: Final = re.compile(r"\x1b\[(?P<parameters>[0-9;?]*)(?P<final>[A-Za-z])|(?P<char>.)", re.DOTALL)


class Terminal:
    """Show text on rows without end, `columns` wide; any control that it does not know is an error.

    `rows` are the lines as they stand, without trailing blanks; `hidden` tells whether the cursor is. `kept` counts
    what was erased from the top left corner on: tmux keeps such screens in its history.
    """

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.hidden = False
        self.kept = 0
        self._rows: list[str] = [""]
        self._row = 0
        self._column = 0

    @property
    def rows(self) -> list[str]:
        """Return the lines down to the last one that is not empty."""
        rows = [row.rstrip() for row in self._rows]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    @property
    def cursor(self) -> tuple[int, int]:
        """Return the cursor's row and column, counted from 0."""
        return self._row, self._column

    def feed(self, text: str) -> None:
        """Take what a program writes (a terminal's driver turns a line feed into carriage return and line feed)."""
        for token in _TOKEN.finditer(text):
            if token["final"]:
                self._control(token["parameters"], token["final"])
            else:
                self._char(token["char"])

    def _char(self, char: str) -> None:
        if char == "\n":
            self._move(self._row + 1, 0)
        elif char == "\r":
            self._column = 0
        elif char.isprintable():
            if self._column == self.columns:
                self._move(self._row + 1, 0)
            row = self._rows[self._row].ljust(self._column)
            self._rows[self._row] = row[: self._column] + char + row[self._column + 1 :]
            self._column += 1
        else:
            raise AssertionError(f"an unexpected control character: {char!r}")

    def _control(self, parameters: str, final: str) -> None:
        match final:
            case "A":
                self._row = max(self._row - int(parameters), 0)
            case "B":
                self._move(self._row + int(parameters), self._column)
            case "K":
                # To the end, unless the whole row is meant.
                self._rows[self._row] = "" if parameters == "2" else self._rows[self._row][: self._column]
            case "J":
                self.kept += self.cursor == (0, 0)
                # A cursor that waits behind the last column stands on it (xterm, VTE).
                self._rows[self._row] = self._rows[self._row][: min(self._column, self.columns - 1)]
                del self._rows[self._row + 1 :]
            case "h" | "l":
                self.hidden = parameters == "?25" and final == "l"
            case "m":
                pass
            case _:
                raise AssertionError(f"an unexpected control sequence: {parameters}{final}")

    def _move(self, row: int, column: int) -> None:
        self._row, self._column = row, column
        while len(self._rows) <= row:
            self._rows.append("")


def on_a_terminal(argv: list[str], columns: int = 80, stream: str = "stdout") -> str:
    """Run a command one of whose streams is a terminal, and return what that shows."""
    ours, theirs = pty.openpty()
    out, err = (theirs if name == stream else subprocess.DEVNULL for name in ("stdout", "stderr"))
    with subprocess.Popen(argv, stdout=out, stderr=err, env={**os.environ, "COLUMNS": str(columns)}):
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # what a terminal says when nobody has it open any more
            os.close(ours)
    return shown.decode().replace("\r\n", "\n")
