"""Lines for people: a terminal gets them broken at blanks, anything else gets each as one line."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, TextIO

from remoterun.cli.output import tell, write
from remoterun.errors import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def write_line(text: str, *, hang: int = 4) -> None:
    """Write a line; on a terminal, what follows its first row is indented by `hang`, or less where words are long."""
    write(_rows(text, sys.stdout, hang))


def tell_line(text: str, *, hang: int = 4) -> None:
    """Write a line in the same way to standard error."""
    tell_lines([text], hang=hang)


def tell_lines(texts: Iterable[str], *, hang: int = 4) -> None:
    """Write several such lines at once to standard error."""
    tell("".join(_rows(text, sys.stderr, hang) for text in texts))


def _rows(text: str, stream: TextIO, hang: int) -> str:
    if not stream.isatty():
        return f"{clean(text)}\n"
    from remoterun.report.text import Span, cells, render, wrap

    columns = shutil.get_terminal_size().columns
    longest = max(map(cells, clean(text).split()), default=0)
    rows = wrap([Span(text)], columns, hang=max(min(hang, columns - longest), 0))
    return "".join(f"{render(row, color=False)}\n" for row in rows) or "\n"


def write_rows(*tables: Sequence[Sequence[str]]) -> None:
    """Write the first of some tables that fits a terminal, in columns as wide as their widest cell.

    Where none fits, rows of the last one go on under their second column.
    """
    from remoterun.report.text import cells

    lines: list[str] = []
    hang = 0
    for rows in tables:
        lines, hang = _aligned(rows)
        if not sys.stdout.isatty() or max(map(cells, lines), default=0) <= shutil.get_terminal_size().columns:
            break
    for line in lines:
        write_line(line, hang=hang)


def _aligned(rows: Sequence[Sequence[str]]) -> tuple[list[str], int]:
    """Return rows as lines, and where their second column begins."""
    from remoterun.report.text import cells, pad

    cleaned = [[clean(cell) for cell in row] for row in rows]
    widths = [max(map(cells, column)) for column in zip(*cleaned, strict=True)]
    lines = ["  ".join(map(pad, row, widths)).rstrip() for row in cleaned]
    return lines, widths[0] + 2
