"""Outcomes, records and plans as bytes in a database, and back."""

from __future__ import annotations

import base64
import io
import json
import pickle
import zlib
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from remoterun.history.database import reading
from remoterun.model import (
    Captured,
    ErrorInfo,
    Finding,
    Job,
    LimitHit,
    Outcome,
    Pack,
    PayloadRef,
    PayloadWork,
    Phase,
    Plan,
    Severity,
    Status,
)
from remoterun.report import outcome_document
from remoterun.report.documents import plain
from remoterun.store import sign, signed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from remoterun.model import Json

_STREAMS: Final = ("stdout", "stderr", "noise")
_PURPOSE: Final = "history"


def pack_json(value: Json) -> bytes:
    """Write a JSON value small."""
    return zlib.compress(json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii"), 1)


def unpack_json(data: bytes) -> Any:
    """Read what `pack_json` wrote.

    Raises:
        sqlite3.DatabaseError: it is damaged.
    """
    with reading():
        return json.loads(zlib.decompress(data))


def pack_record(record: Mapping[str, Json]) -> bytes:
    """Write a record as every document has it: strict JSON, whatever the target sent."""
    return pack_json(plain(record))


def pack_outcome(outcome: Outcome) -> bytes:
    """Write an outcome without its records, which were written as they came."""
    document = outcome_document(replace(outcome, records=()))
    for name in (*_STREAMS, *(f"{name}_b64" for name in _STREAMS)):
        document.pop(name, None)
    streams: dict[str, Json] = {name: _stream(getattr(outcome, name)) for name in _STREAMS}
    return pack_json({**document, "streams": streams})


def unpack_outcome(data: bytes, records: Sequence[Mapping[str, Json]]) -> Outcome:
    """Read what `pack_outcome` wrote.

    Raises:
        sqlite3.DatabaseError: it is damaged.
    """
    with reading():
        return _outcome(unpack_json(data), records)


def _outcome(value: dict[str, Any], records: Sequence[Mapping[str, Json]]) -> Outcome:
    error, payload = value["error"], value["payload"]
    return Outcome(
        target=value["target"],
        name=value["name"],
        step=value["step"],
        status=Status(value["status"]),
        phase=Phase(value["phase"]),
        error=None if error is None else _error(error),
        payload=None if payload is None else PayloadRef(**payload),
        facts=value["facts"],
        timings_s={name: float(seconds) for name, seconds in value["timings_s"].items()},
        connections=value["connections"],
        resumable=value.get("resumable"),
        records=records,
        findings=tuple(
            Finding(**{**finding, "severity": Severity(finding["severity"])}) for finding in value["findings"]
        ),
        exit_status=value["exit_status"],
        survivors=value["survivors"],
        log=tuple(value["log"]),
        **{name: _captured(*value["streams"][name]) for name in _STREAMS},
    )


def _error(value: dict[str, Any]) -> ErrorInfo:
    limit = value["limit"]
    hit = None if limit is None else LimitHit(**{**limit, "value_s": float(limit["value_s"])})
    return ErrorInfo(**{**value, "limit": hit})


def _stream(captured: Captured) -> list[Json]:
    return [
        base64.b64encode(captured.head).decode("ascii"),
        base64.b64encode(captured.tail).decode("ascii"),
        captured.total,
    ]


def _captured(head: str, tail: str, total: int) -> Captured:
    return Captured(head=base64.b64decode(head), tail=base64.b64decode(tail), total=total)


# --- plans ------------------------------------------------------------------------------------------------------------


def pack_plan(plan: Plan) -> tuple[bytes, dict[str, bytes]]:
    """Write a plan, signed with this user's key, and apart from it the packs that it names, by their hash."""
    packs: dict[str, Pack] = {}
    jobs = []
    for job in plan.jobs:
        if isinstance(job.work, PayloadWork):
            pack = job.work.pack
            light = packs.setdefault(pack.sha256, replace(pack, data=b""))
            jobs.append(replace(job, work=replace(job.work, pack=light)))
        else:
            jobs.append(job)
    stream = io.BytesIO()
    _Pickler(stream, pickle.HIGHEST_PROTOCOL).dump(replace(plan, jobs=tuple(jobs)))
    data = zlib.compress(stream.getbuffer(), 1)
    bodies = {job.work.pack.sha256: job.work.pack.data for job in plan.jobs if isinstance(job.work, PayloadWork)}
    return sign(_PURPOSE, data), {sha: zlib.compress(body, 6) for sha, body in bodies.items()}


def unpack_plan(data: bytes, packs: Mapping[str, bytes]) -> Plan | None:
    """Read a plan; None when this user did not write it, or this version of remoterun can't read it."""
    body = signed(_PURPOSE, data)
    if body is None:
        return None
    try:
        plan = pickle.loads(zlib.decompress(body))  # noqa: S301  # signed with this user's own key
    except Exception:  # a plan of another version fails in whatever way
        return None
    if not isinstance(plan, Plan):
        return None
    whole: dict[str, Pack] = {}
    with reading():
        return replace(plan, jobs=tuple(_with_pack(job, packs, whole) for job in plan.jobs))


def is_signed(data: bytes) -> bool:
    """Tell whether a plan was written with the key that this user has now."""
    return signed(_PURPOSE, data) is not None


class _Pickler(pickle.Pickler):
    """Write records by the names of their fields: a later version may have more of them."""

    def reducer_override(self, value: object) -> Any:
        """Return how a record is made again."""
        if not is_dataclass(value) or isinstance(value, type):
            return NotImplemented
        names = _names(type(value))
        return make_again, (type(value), names, *(getattr(value, name) for name in names))


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    """Return the names of a record's fields: the same tuple each time, which is written once."""
    return tuple(item.name for item in fields(kind))


def make_again(kind: Callable[..., object], names: tuple[str, ...], *values: object) -> object:
    """Make a record: fields that it did not have yet are as when left out, and those it has no more are an error.

    Plans that are kept name this function, so it stays where it is.
    """
    return kind(**dict(zip(names, values, strict=True)))


def _with_pack(job: Job, packs: Mapping[str, bytes], whole: dict[str, Pack]) -> Job:
    if not isinstance(job.work, PayloadWork):
        return job
    pack = job.work.pack
    if pack.sha256 not in whole:
        whole[pack.sha256] = replace(pack, data=zlib.decompress(packs[pack.sha256]))
    return replace(job, work=replace(job.work, pack=whole[pack.sha256]))
