"""Where trainings can be resumed: the checkpoint of each that a summary of check-ckpt names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from remoterun.report.text import Span, scalar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from remoterun.model import Json

MAX_TRAININGS: Final = 20
"""Trainings told of one outcome without -v."""


def resume_lines(record: Mapping[str, Json], *, verbose: int = 0) -> Iterator[list[Span]]:
    """Tell a summary's checkpoint to resume from, or that of each training where there are several; a line for each."""
    best, verdicts, trainings = record.get("resume_from"), record.get("verdicts"), record.get("trainings")
    if best is not None and isinstance(trainings, list) and len(trainings) > 1:
        shown = trainings if verbose else trainings[:MAX_TRAININGS]
        yield from map(_training, shown)
        if left := len(trainings) - len(shown):
            yield [Span(f"... and {left} more trainings; -v shows them", "dim")]
    elif best is not None:
        yield [Span("resume from "), Span(scalar(best), "good")]
    elif isinstance(verdicts, dict) and verdicts.get("unchecked"):
        yield [Span("resume from: not known, since no values were checked", "hint")]
    else:
        yield [Span("resume from: none of these checkpoints", "bad")]


def _training(each: Json) -> list[Span]:
    best, folder = (each.get("resume_from"), scalar(each.get("folder"))) if isinstance(each, dict) else (None, "?")
    if best is None:
        return [Span(f"resume from: none of the checkpoints in {folder}", "bad")]
    return [Span("resume from "), Span(scalar(best), "good"), Span(f"  in {folder}", "dim")]
