"""Lines for people: a terminal gets them broken at blanks, anything else gets each as one line."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from remoterun.cli.output import write
from remoterun.errors import clean

if TYPE_CHECKING:
    from collections.abc import Sequence


def write_line(text: str, *, hang: int = 4) -> None:
    """Write a line; on a terminal, what follows its first row is indented by `hang`, or less where words are long."""
    if not sys.stdout.isatty():
        write(f"{clean(text)}\n")
        return
    from remoterun.report.text import Span, cells, render, wrap

    columns = shutil.get_terminal_size().columns
    longest = max(map(cells, clean(text).split()), default=0)
    rows = wrap([Span(text)], columns, hang=max(min(hang, columns - longest), 0))
    write("".join(f"{render(row, color=False)}\n" for row in rows) or "\n")


def write_rows(rows: Sequence[Sequence[str]]) -> None:
    """Write rows in columns as wide as their widest cell."""
    from remoterun.report.text import cells, pad

    cleaned = [[clean(cell) for cell in row] for row in rows]
    widths = [max(map(cells, column)) for column in zip(*cleaned, strict=True)]
    for row in cleaned:
        write_line("  ".join(pad(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip())
