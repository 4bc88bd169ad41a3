"""What a page holds of its runs: their documents, bounded and compressed."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

from remoterun.report.documents import counts, document, outcome_document, plain

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

    from remoterun.model import Json, Run

MOST_TEXT: Final = 64 << 20
"""Characters of JSON that a page holds of one run: what a browser reads at once. Further records are left out."""
MOST_CAPTURED: Final = 64 << 10
"""Characters that a page holds of each captured stream: the last ones."""
_STREAMS: Final = ("stdout", "stderr", "noise")
_LEFT_OUT: Final = "records_left_out"
_GZIP: Final = 31
"""What zlib calls a window of the greatest size and gzip's header."""

_Outcome: TypeAlias = "tuple[dict[str, Json], int, Iterable[Json]]"
"""An outcome without its records, how many it has, and they."""


def packed_run(run: Run, room: int = MOST_TEXT) -> str:
    """Compress the document of a run, its records read one by one."""
    head = {**document(replace(run, outcomes=())), "counts": counts(run.outcomes)}
    outcomes = (
        (outcome_document(replace(outcome, records=())), len(outcome.records), map(plain, outcome.records))
        for outcome in run.outcomes
    )
    return _packed(_pieces(head, outcomes, room))


def packed_document(whole: Mapping[str, Json], room: int = MOST_TEXT) -> str:
    """Compress a document that `given.runs_of` let through."""
    outcomes = (each for each in _list(whole["outcomes"]) if isinstance(each, dict))
    parts = (
        (each, len(_list(each["records"])) + _count(each.get(_LEFT_OUT)), _list(each["records"])) for each in outcomes
    )
    return _packed(_pieces(whole, parts, room))


def packed(value: Json) -> str:
    """Compress any JSON value."""
    return _packed([_text(value)])


def _pieces(head: Mapping[str, Json], outcomes: Iterable[_Outcome], room: int) -> Iterator[str]:
    """Write a document, with as many records as there is room for; an outcome says how many were left out."""
    others = {key: value for key, value in head.items() if key != "outcomes"}
    yield f'{_text(others)[:-1]},"outcomes":['
    comma = ""
    for outcome, count, records in outcomes:
        start = _text({**_short(outcome), "records": None})
        room -= len(start)
        # What follows is put in the place of the null.
        yield comma + start[: -len("null}")]
        left = yield from _records(records, count, room)
        room = max(left, 0)
        comma = ","
    yield "]}"


def _records(records: Iterable[Json], count: int, room: int) -> Generator[str, None, int]:
    """Write the records of an outcome and its end; return the room that is left."""
    kept, comma = 0, "["
    for record in records if count else ():
        text = _text(record)
        room -= len(text)
        if room < 0:
            break
        yield comma + text
        kept, comma = kept + 1, ","
    end = f',"{_LEFT_OUT}":{count - kept}}}' if kept < count else "}"
    yield f"{']' if kept else '[]'}{end}"
    return room


def _short(outcome: dict[str, Json]) -> dict[str, Json]:
    """Keep the ends of long streams, and no twin of what is no text."""
    short = {key: value for key, value in outcome.items() if key not in {f"{name}_b64" for name in _STREAMS}}
    for name in _STREAMS:
        text = short.get(name)
        if isinstance(text, str) and len(text) > MOST_CAPTURED:
            left_out = len(text) - MOST_CAPTURED
            short.update({name: f"[... {left_out} characters left out ...]\n{text[left_out:]}", "truncated": True})
    # These come last.
    return {key: value for key, value in short.items() if key not in {"records", _LEFT_OUT}}


def _packed(pieces: Iterable[str]) -> str:
    compress = zlib.compressobj(9, zlib.DEFLATED, _GZIP)
    parts = [compress.compress(piece.encode("ascii")) for piece in pieces]
    return base64.b64encode(b"".join((*parts, compress.flush()))).decode("ascii")


def _text(value: object) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _count(value: Json) -> int:
    return value if isinstance(value, int) and value > 0 else 0
