"""Lines for people: a terminal gets them broken at blanks, anything else gets each as one line."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, TextIO

from remoterun.cli.output import tell, write
from remoterun.errors import clean

if TYPE_CHECKING:
    from collections.abc import Sequence


def write_line(text: str, *, hang: int = 4) -> None:
    """Write a line; on a terminal, what follows its first row is indented by `hang`, or less where words are long."""
    write(_rows(text, sys.stdout, hang))


def tell_line(text: str, *, hang: int = 4) -> None:
    """Write a line in the same way to standard error."""
    tell(_rows(text, sys.stderr, hang))


def _rows(text: str, stream: TextIO, hang: int) -> str:
    if not stream.isatty():
        return f"{clean(text)}\n"
    from remoterun.report.text import Span, cells, render, wrap

    columns = shutil.get_terminal_size().columns
    longest = max(map(cells, clean(text).split()), default=0)
    rows = wrap([Span(text)], columns, hang=max(min(hang, columns - longest), 0))
    return "".join(f"{render(row, color=False)}\n" for row in rows) or "\n"


def write_rows(rows: Sequence[Sequence[str]]) -> None:
    """Write rows in columns as wide as their widest cell; what does not fit a terminal goes on under the second one."""
    from remoterun.report.text import cells, pad

    cleaned = [[clean(cell) for cell in row] for row in rows]
    widths = [max(map(cells, column)) for column in zip(*cleaned, strict=True)]
    for row in cleaned:
        text = "  ".join(pad(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()
        write_line(text, hang=widths[0] + 2)
