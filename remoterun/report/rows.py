"""Records as lines of a page: checkpoints in columns, anything else as keys and values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from remoterun.errors import clean
from remoterun.records import dataclass
from remoterun.report.documents import plain
from remoterun.report.facts import digest, is_probe, measured
from remoterun.report.resuming import resume_lines
from remoterun.report.text import (
    Page,
    Span,
    Style,
    cells,
    clip,
    human_bytes,
    human_count,
    pad,
    plural,
    render,
    scalar,
    wrap,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from remoterun.model import Json

MAX_ROWS: Final = 200
"""Checkpoints shown of one outcome without -v; those that are not ok are always shown."""
MAX_RECORDS: Final = 50
"""Other records shown of one outcome without -v."""
MAX_SKIPPED: Final = 5
"""Files named that a summary says were not checked, without -v."""
MAX_ITEMS: Final = 16
"""Items shown of a list inside a record without -v."""
_NARROWEST: Final = 16
"""Cells of a last column that is wrapped."""

_VERDICT_STYLE: Final[dict[str, Style]] = {
    "ok": "good",
    "suspect": "warn",
    "unsupported": "warn",
    "bad": "bad",
    "in_progress": "hint",
    "unchecked": "hint",
}
QUIET_VERDICTS: Final = ("ok", "unchecked")
"""Verdicts of checkpoints that are left out when there are many."""

# --- checkpoints ----------------------------------------------------------------------------------

_COLUMNS: Final = (
    ("step", "step"),
    ("epoch", "epoch"),
    ("params", "params"),
    ("nan_w", "nan_weights"),
    ("inf_w", "inf_weights"),
    ("opt_nan", "nan_optimizer"),
)
_RARE_COLUMN: Final = ("opt_inf", "inf_optimizer")
_COUNTS_OF_ILLS: Final = frozenset({"nan_w", "inf_w", "opt_nan", "opt_inf"})
# What is remembered of a target that makes names up.
_MOST_RULES: Final = 1000
_LONGEST_TIME: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Hold the columns that checkpoints share: (label, key, cells) each, and the widths of name and verdict."""

    columns: tuple[tuple[str, str, int], ...]
    name: int
    verdict: int

    @property
    def width(self) -> int:
        """Count the cells of a row."""
        return 2 + self.name + 1 + sum(1 + width for _, _, width in self.columns) + 2 + self.verdict


class Survey:
    """Look once over the records of an outcome: how many there are of each kind, how wide, and what they add up to."""

    def __init__(self, records: Iterable[Mapping[str, Json]]) -> None:
        self.checkpoints = self.summaries = self.series = self.others = 0
        self.widths = dict.fromkeys((label for label, _ in (*_COLUMNS, _RARE_COLUMN)), 0)
        self.name = self.verdict = 0
        self.has_rare = False
        self.ignored: dict[str, int] = {}
        self.cached = 0
        self.checked_at: tuple[str, str] | None = None
        """The earliest and the latest check that verdicts are from."""
        for record in records:
            self._add(record)

    def _add(self, record: Mapping[str, Json]) -> None:
        if is_checkpoint(record):
            self.checkpoints += 1
            self._measure(record)
        elif is_series(record):
            self.series += 1
        elif is_summary(record):
            self.summaries += 1
        else:
            self.others += 1
            return
        _count_ignored(self.ignored, record)

    def _measure(self, record: Mapping[str, Json]) -> None:
        for label, key in (*_COLUMNS, _RARE_COLUMN):
            self.widths[label] = max(self.widths[label], cells(_field(record, label, key)))
        self.has_rare = self.has_rare or _is_ill(record, *_RARE_COLUMN)
        self.name = max(self.name, cells(_name(record)))
        self.verdict = max(self.verdict, cells(_verdict(record)))
        if record.get("cached") is True:
            self.cached += 1
            time = scalar(record.get("checked_at"))[:_LONGEST_TIME]
            first, last = self.checked_at or (time, time)
            self.checked_at = min(first, time), max(last, time)


def checkpoint_grid(surveys: Sequence[Survey]) -> Grid:
    """Size the columns so that the checkpoints of these outcomes stand in line."""
    rare = any(survey.has_rare for survey in surveys)
    columns = (*_COLUMNS, _RARE_COLUMN) if rare else _COLUMNS
    return Grid(
        columns=tuple(
            (label, key, max((survey.widths[label] for survey in surveys), default=0)) for label, key in columns
        ),
        name=max((survey.name for survey in surveys), default=0),
        verdict=max((survey.verdict for survey in surveys), default=0),
    )


def is_checkpoint(record: Mapping[str, Json]) -> bool:
    """Tell whether a record is check-ckpt's of one checkpoint."""
    return record.get("kind") == "checkpoint"


def is_summary(record: Mapping[str, Json]) -> bool:
    """Tell whether a record sums its outcome up; it becomes the footer."""
    return record.get("kind") == "summary"


def is_series(record: Mapping[str, Json]) -> bool:
    """Tell whether a record is check-ckpt's of a series of checkpoints, whose findings stand with these."""
    return record.get("kind") == "series"


def _name(record: Mapping[str, Json]) -> str:
    return clip(clean(scalar(record.get("name") or record.get("path") or "?")), 200)


def _verdict(record: Mapping[str, Json]) -> str:
    return clip(clean(scalar(record.get("verdict") or "no verdict")), 16)


def _field(record: Mapping[str, Json], label: str, key: str) -> str:
    value = record.get(key)
    if value is None:
        return f"{label}=-"
    if key == "params" and isinstance(value, (int, float)):
        return f"{label}={human_count(value)}"
    if label in _COUNTS_OF_ILLS and value == 0 and _checked(record):
        return f"{label}=0?"
    return f"{label}={clip(clean(scalar(value)), 20)}"


def _checked(record: Mapping[str, Json]) -> str:
    """Say how much was checked, when that is not all of it and the verdict does not say so."""
    size, checked = record.get("bytes"), record.get("bytes_checked")
    if not isinstance(size, int) or not isinstance(checked, int) or checked >= size:
        return ""
    if record.get("verdict") == "unchecked" and not checked:
        return ""
    share, whole = human_bytes(checked), human_bytes(size)
    return f"only {share} of {whole} checked" if share != whole else f"all but {human_bytes(size - checked)} checked"


def checkpoint_row(page: Page, record: Mapping[str, Json], grid: Grid, *, verbose: int) -> None:
    """Add the line of one checkpoint: ``step_2000: step=2000 epoch=0 params=5518.2M nan_w=0 inf_w=0 opt_nan=0  ok``."""
    name, verdict = _name(record), _verdict(record)
    # Columns that the page cannot hold would be worse than none: such rows are broken at blanks.
    aligned = grid.width <= page.width
    fields: list[Span] = []
    for label, key, width in grid.columns:
        text = _field(record, label, key)
        style: Style = "bad" if _is_ill(record, label, key) else "plain"
        fields += [Span(" "), Span(pad(text, width) if aligned else text, style)]
    gap = " " * (grid.name - cells(name)) if aligned else ""
    end = [Span("  "), Span(verdict, _VERDICT_STYLE.get(verdict, "bold"))]
    page.line(Span(f"{name}:", "bold"), Span(gap), *fields, *end, indent=2, hang=4)
    page.line(Span(_checked(record), "dim"), indent=4)
    page.line(*_loaded(record, verbose=verbose), indent=4, hang=2)
    if verbose:
        ignored: dict[str, int] = {}
        _count_ignored(ignored, record)
        page.line(Span(_ignored(ignored), "dim"), indent=4, hang=2)
        page.line(Span(_checkpoint_details(record), "dim"), indent=4, hang=2)


def _is_ill(record: Mapping[str, Json], label: str, key: str) -> bool:
    value = record.get(key)
    return label in _COUNTS_OF_ILLS and isinstance(value, (int, float)) and value != 0


def _checkpoint_details(record: Mapping[str, Json]) -> str:
    shown = {"kind", "name", "verdict", "findings", "load", "ignored", *(key for _, key in (*_COLUMNS, _RARE_COLUMN))}
    files = record.get("files")
    if isinstance(files, list) and len(files) == 1:
        shown.add("files")  # the path says it
    rest = {key: value for key, value in record.items() if key not in shown and value not in ([], None)}
    return pairs(rest)


def _loaded(record: Mapping[str, Json], *, verbose: int) -> list[Span]:
    """Tell what the loaders themselves say of a checkpoint, when they were asked."""
    load = record.get("load")
    if not isinstance(load, dict):
        return []
    version, accepted, error = load.get("torch"), load.get("accepted"), scalar(load.get("error"))
    who = scalar(load.get("by")) if version is None else f"torch {scalar(version)}"
    cost = f" ({scalar(load.get('seconds'), 'seconds')}, {scalar(load.get('rss_mib'))} MiB)" if verbose else ""
    if accepted is True:
        damaged, files = record.get("verdict") == "bad", record.get("files")
        what = "its files" if isinstance(files, list) and len(files) > 1 else "it"
        return [Span(f"{who} loads {what}{' all the same' if damaged else ''}{cost}", "warn" if damaged else "dim")]
    return [Span(f"{who} refuses it: {error}{cost}" if accepted is False else f"not loaded: {error}{cost}", "dim")]


def _count_ignored(counts: dict[str, int], record: Mapping[str, Json]) -> None:
    """Count the findings that were ignored, by rule."""
    ignored = record.get("ignored")
    for rule, count in ignored.items() if isinstance(ignored, dict) else ():
        if isinstance(count, int) and (rule in counts or len(counts) < _MOST_RULES):
            counts[rule] = counts.get(rule, 0) + count


def _ignored(counts: Mapping[str, int]) -> str:
    told = [plural(count, f"finding of {rule}", f"findings of {rule}") for rule, count in sorted(counts.items())]
    return f"ignored  {', '.join(told)}" if told else ""


def sums_lines(page: Page, survey: Survey) -> None:
    """Add what holds for many checkpoints: how many findings were ignored, how many verdicts are from earlier."""
    page.line(Span(_ignored(survey.ignored), "warn"), indent=2, hang=9)
    if survey.checked_at is not None:
        first, last = survey.checked_at
        earliest = f", checked {first}{' and later' if last != first else ''}"
        count = plural(survey.checkpoints, "checkpoint")
        page.line(Span(f"cached   {survey.cached} of {count}{earliest}", "dim"), indent=2, hang=9)


# --- any record -----------------------------------------------------------------------------------


def pairs(record: Mapping[str, Json]) -> str:
    """Write a mapping in one line, as ``key=value`` twice spaced."""
    return "  ".join(f"{key}={scalar(value, key)}" for key, value in record.items())


def record_lines(page: Page, record: Mapping[str, Json], *, verbose: int) -> None:
    """Add a record of any payload: in one line when it is small and flat, else a line per key; whole with -v."""
    if is_probe(record):
        record = measured(record) if verbose else digest(record)
    body = {key: plain(value) for key, value in record.items() if key != "kind"}
    kind = record.get("kind")
    title = [] if kind is None else [Span(scalar(kind), "bold"), Span("  ")]
    line = pairs(body)
    if not any(isinstance(value, (dict, list)) for value in body.values()) and len(line) <= 2 * page.width:
        page.line(*title, Span(line), indent=2, hang=2)
        return
    page.line(*title, indent=2)
    if verbose:
        for text in _outline(body):
            page.line(Span(text), indent=2, hang=4)
        return
    width = min(max(cells(clean(key)) for key in body), 20)
    for key, value in body.items():
        label = clip(clean(key), width)
        for index, text in enumerate(_values(value, key, page.width - width - 4)):
            head = Span(pad(label if index == 0 else "", width), "dim")
            page.line(head, Span("  "), Span(text), indent=2, hang=width + 2)


def _values(value: Json, key: str, width: int) -> Iterator[str]:
    """Write a record's value in lines, one for each item of a list of objects."""
    if isinstance(value, dict) and value:
        yield pairs(value)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        shown = value[:MAX_ITEMS]
        yield from _columns(shown, width) or [pairs(item) if isinstance(item, dict) else scalar(item) for item in shown]
        if len(value) > MAX_ITEMS:
            yield f"... and {len(value) - MAX_ITEMS} more; -v shows all"
    else:
        yield scalar(value, key)


def _columns(items: Sequence[Json], width: int) -> list[str]:
    """Line up several objects of the same keys under a head; nothing when they differ or are too wide.

    The last column is wrapped where that makes room for the others.
    """
    objects = [item for item in items if isinstance(item, dict)]
    keys = list(objects[0]) if objects else []
    if not keys or len(objects) < max(len(items), 2) or any(list(item) != keys for item in objects):
        return []
    grid = [
        [clean(key) for key in keys],
        *([clean(scalar(value, key)) for key, value in item.items()] for item in objects),
    ]
    widths = [max(cells(text) for text in column) for column in zip(*grid, strict=True)]
    *firsts, last = widths
    room = width - sum(firsts) - 2 * len(widths)
    if room < min(last, _NARROWEST):
        return []
    lines: list[str] = []
    for *row, text in grid:
        head = "".join(f"{pad(cell, size)}  " for cell, size in zip(row, firsts, strict=True))
        for part in list(wrap([Span(text)], room)) or [[]]:
            lines.append(f"{head}{render(part, color=False)}")
            head = " " * cells(head)
    return lines


def _outline(value: Json) -> Iterator[str]:
    """Write a nested value as an outline, the way YAML would."""
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, dict) or (
                isinstance(item, list) and any(isinstance(part, (dict, list)) for part in item)
            ):
                yield f"{key}:"
                yield from (f"  {line}" for line in _outline(item))
            else:
                yield f"{key}: {scalar(item, key)}"
    elif isinstance(value, list):
        for item in value:
            first, *rest = list(_outline(item)) or [scalar(item)]
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield scalar(value)


def summary_line(page: Page, record: Mapping[str, Json], *, verbose: int) -> None:
    """Add the footer of an outcome: ``resume from step_4001``, and what was not checked."""
    if "resume_from" not in record or verbose > 1:
        record_lines(page, record, verbose=verbose)
        return
    for line in resume_lines(record, verbose=verbose):
        page.line(*line, indent=2, hang=2)
    verdicts = record.get("verdicts")
    unfinished = verdicts.get("in_progress") if isinstance(verdicts, dict) else None
    if isinstance(unfinished, int) and unfinished > 0:
        what = plural(unfinished, "checkpoint that is not finished", "checkpoints that are not finished")
        page.line(Span("not judged   ", "warn"), Span(what), indent=2, hang=13)
    skipped = record.get("skipped")
    for item in (skipped if verbose else skipped[:MAX_SKIPPED]) if isinstance(skipped, list) else ():
        what = scalar(item)
        if isinstance(item, dict):
            what = f"{_below(record.get('root'), item.get('path'))}  {scalar(item.get('reason'))}"
        page.line(Span("not checked  ", "warn"), Span(what), indent=2, hang=13)
    if isinstance(skipped, list) and len(skipped) > MAX_SKIPPED and not verbose:
        page.line(Span(f"... and {len(skipped) - MAX_SKIPPED} more not checked; -v shows them", "dim"), indent=2)


def _below(root: Json, path: Json) -> str:
    """Show a path as checkpoints are shown: from the folder on that was searched."""
    shown = scalar(path)
    return shown.removeprefix(f"{root.rstrip('/')}/") or shown if isinstance(root, str) else shown
