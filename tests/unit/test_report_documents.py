"""The documents: exactly the documented fields, strict JSON whatever a target sends, and schemas that hold for them."""

from __future__ import annotations

import base64
import hashlib
import json
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from jsonschema import Draft202012Validator

import remoterun
from remoterun.errors import Problem
from remoterun.events import OutcomeReady, Progressed, RecordArrived, RunFinished
from remoterun.model import (
    Captured,
    Json,
    Outcome,
    Phase,
    Records,
    Run,
    RunStatus,
    Status,
)
from remoterun.report import (
    document,
    dump,
    error_document,
    error_schema,
    event_line,
    event_schema,
    json_pieces,
    outcome_document,
    run_schema,
    table,
    to_json,
    write_table,
)
from remoterun.report.documents import MAX_DEPTH, TOO_DEEP, plain
from tests.support.runs import GOLDEN, PROBLEMS, events_of, golden_files, mixed_run, run_of, runs, values


def strict(data: bytes) -> Any:
    """Read JSON the way a strict reader does: no NaN, no lone surrogates, no key twice."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        names = [name for name, _ in pairs]
        assert len(set(names)) == len(names)
        return dict(pairs)

    text = data.decode("ascii")
    value = json.loads(text, parse_constant=refuse, object_pairs_hook=unique)
    json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def dated(value: Any) -> Any:
    """Put the present version in place of the one that wrote a golden file."""
    return {**value, "remoterun": remoterun.__version__} if "remoterun" in value else value


@pytest.mark.parametrize("name", ["run-1.json", "error-1.json"])
def test_golden_documents(name: str) -> None:
    kept, now = strict((GOLDEN / name).read_bytes()), strict(golden_files()[name])
    assert list(now) == list(kept)
    assert now == dated(kept)


def test_golden_events() -> None:
    kept = [dated(strict(line)) for line in (GOLDEN / "events-1.jsonl").read_bytes().splitlines()]
    assert [strict(line) for line in golden_files()["events-1.jsonl"].splitlines()] == kept


def test_a_run_has_the_documented_fields_in_their_order() -> None:
    told = document(mixed_run())
    assert list(told) == [
        "schema",
        "run_id",
        "remoterun",
        "playbook",
        "started_at",
        "finished_at",
        "status",
        "exit_code",
        "counts",
        "outcomes",
    ]
    outcomes = told["outcomes"]
    assert isinstance(outcomes, list)
    assert isinstance(outcomes[0], dict)
    assert list(outcomes[0]) == [
        "target",
        "name",
        "step",
        "status",
        "phase",
        "error",
        "payload",
        "facts",
        "timings_s",
        "connections",
        "resumable",
        "records",
        "findings",
        "exit_status",
        "survivors",
        "stdout",
        "stderr",
        "noise",
        "noise_b64",
        "truncated",
        "log",
    ]
    assert told["status"] == "incomplete"
    assert told["exit_code"] == 3
    assert told["counts"] == {
        "ok": 1,
        "findings": 1,
        "failed": 1,
        "timeout": 1,
        "unreachable": 2,
        "lost": 0,
        "cancelled": 0,
        "not_started": 0,
        "running": 0,
    }


def test_timings_are_told_in_milliseconds_and_limits_with_their_key() -> None:
    audited, _, timed_out, *_ = mixed_run().outcomes
    timings = outcome_document(audited)["timings_s"]
    assert isinstance(timings, dict)
    assert timings["connect"] == 0.21
    error = outcome_document(timed_out)["error"]
    assert isinstance(error, dict)
    assert error["limit"] == {"name": "run", "value_s": 1800.0, "key": "hosts.kpro6.guests.203.limits.run"}


def test_bytes_that_are_not_utf8_come_twice() -> None:
    audited = mixed_run().outcomes[0]
    told = outcome_document(audited)
    assert told["noise"] == "Last login: \ufffd\n"
    assert base64.b64decode(str(told["noise_b64"])) == audited.noise.data
    assert "stderr_b64" not in told


def test_left_out_bytes_are_told() -> None:
    outcome = mixed_run().outcomes[0]
    cut = type(outcome)(
        target="a",
        name=None,
        step=0,
        status=Status.OK,
        phase=Phase.COLLECT,
        stdout=Captured(head=b"a", tail=b"z", total=9),
    )
    told = outcome_document(cut)
    assert told["truncated"] is True
    assert told["stdout"] == "a\n[... 7 bytes left out ...]\nz"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), "nan"),
        ([float("inf"), {"a": -float("inf")}], ["inf", {"a": "-inf"}]),
        (("a", 1.5, None, True), ["a", 1.5, None, True]),
        ("\udcff/\udcfe", "\\udcff/\\udcfe"),
        ({chr(0xD800): 1, chr(0xD801): 2}, {"\\ud800": 1, "\\ud801": 2}),
    ],
)
def test_plain_values(value: object, expected: Json) -> None:
    assert plain(value) == expected


def test_a_record_without_bottom_is_cut() -> None:
    deep: Json = []
    for _ in range(5000):
        deep = [deep]
    told = plain({"deep": deep})
    depth = 0
    while told != TOO_DEEP:
        told = told["deep"] if isinstance(told, dict) else told[0] if isinstance(told, list) else None
        depth += 1
    assert depth == MAX_DEPTH


def test_what_is_no_json_value_is_refused() -> None:
    with pytest.raises(TypeError, match="bytes is no JSON value"):
        plain({"a": b"bytes"})


@given(values())
def test_plain_is_strict_and_keeps_what_already_is(value: Json) -> None:
    once = plain(value)
    assert plain(once) == once
    assert strict(json.dumps(once, allow_nan=False).encode("ascii")) == once


@given(runs())
def test_any_run_is_one_strict_document_of_the_schema(run: Run) -> None:
    data = to_json(run)
    value = strict(data)
    Draft202012Validator(run_schema()).validate(value)
    assert value == document(run)
    assert data == dump(document(run))
    assert data.endswith(b"}\n")
    assert len(value["outcomes"]) == len(run.outcomes)


@given(runs())
def test_any_event_is_one_line_of_the_schema(run: Run) -> None:
    validator = Draft202012Validator(event_schema())
    for event in events_of(run):
        line = event_line(event)
        assert line is not None
        assert line.count(b"\n") == 1
        validator.validate(strict(line))


class _Watched(Records):
    """Be records that are made when they are read, and know how many there are at a time."""

    def __init__(self, count: int, size: int) -> None:
        self._count = count
        self._size = size
        self.most = 0
        self._alive: list[weakref.ref[object]] = []

    def __len__(self) -> int:
        return self._count

    def read(self, start: int) -> Iterator[dict[str, Json]]:
        """Make them."""
        for number in range(start, self._count):
            text = _Text("t" * self._size)
            self._alive = [each for each in self._alive if each() is not None] + [weakref.ref(text)]
            self.most = max(self.most, len(self._alive))
            yield {"n": number, "text": text}
            del text


class _Text(str):
    """Be a string that can be watched."""


def _of_many(records: Records) -> Run:
    outcome = Outcome(target="a", name=None, step=0, status=Status.OK, phase=Phase.COLLECT, records=records)
    return run_of(outcome, replace(outcome, target="b"))


def test_a_run_of_many_records_is_written_piece_by_piece() -> None:
    records = _Watched(500, 10_000)
    run = _of_many(records)
    sizes, digest = [], hashlib.sha256()
    for piece in json_pieces(run):
        sizes.append(len(piece))
        digest.update(piece)
    assert records.most <= 3
    assert max(sizes) < 100_000
    assert sum(sizes) > 10_000_000
    assert digest.digest() == hashlib.sha256(dump(document(run))).digest()


def test_a_table_of_many_records_is_written_as_it_is_made() -> None:
    records = _Watched(100, 3000)
    run = _of_many(records)
    parts: list[str] = []
    write_table(run, parts.append, width=80, color=False, verbose=1)
    assert records.most <= 3
    assert len(parts) > 10
    assert "".join(parts) == table(run, width=80, color=False, verbose=1)


def test_the_line_of_an_outcome_holds_its_records_only_while_it_can_be_read() -> None:
    few, many = _Watched(3, 1000), _Watched(2000, 1000)
    lines = [event_line(OutcomeReady(outcome=_of_many(records).outcomes[0])) or b"" for records in (few, many)]
    with_few, with_many = map(strict, lines)
    assert [record["n"] for record in with_few["records"]] == [0, 1, 2]
    assert "records_left_out" not in with_few
    assert (with_many["records"], with_many["records_left_out"]) == ([], 2000)
    assert len(lines[1]) < 2000
    for value in (with_few, with_many):
        Draft202012Validator(event_schema()).validate(value)


def test_golden_documents_satisfy_their_schemas() -> None:
    Draft202012Validator(run_schema()).validate(strict((GOLDEN / "run-1.json").read_bytes()))
    Draft202012Validator(error_schema()).validate(strict((GOLDEN / "error-1.json").read_bytes()))
    for line in (GOLDEN / "events-1.jsonl").read_bytes().splitlines():
        Draft202012Validator(event_schema()).validate(strict(line))


@pytest.mark.parametrize("schema", [run_schema(), error_schema(), event_schema()], ids=["run", "error", "event"])
def test_schemas_are_schemas(schema: dict[str, Json]) -> None:
    Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("field", ["outcomes", "status", "counts"])
def test_the_schema_misses_what_is_missing(field: str) -> None:
    told = document(mixed_run())
    del told[field]
    assert not Draft202012Validator(run_schema()).is_valid(told)


def test_the_schema_allows_fields_of_later_versions_but_no_unknown_status() -> None:
    validator = Draft202012Validator(run_schema())
    told = document(mixed_run())
    assert validator.is_valid({**told, "later": 1})
    assert not validator.is_valid({**told, "status": "fine"})


def test_events_for_the_eye_are_no_lines() -> None:
    assert event_line(Progressed(target="a", step=0, done=1, total=2, unit="bytes", what="x")) is None


def test_lines_tell_what_they_are() -> None:
    run = mixed_run()
    kinds = [
        strict(event_line(event) or b"")["type"]
        for event in (
            RecordArrived(target="kpro6/200", step=0, record={"a": float("nan")}),
            OutcomeReady(outcome=run.outcomes[0]),
            RunFinished(run=run),
        )
    ]
    assert kinds == ["record", "outcome", "run_finished"]


def test_each_record_and_finding_stands_on_a_line_of_its_own() -> None:
    lines = to_json(mixed_run()).decode().splitlines()
    assert sum('"kind": "checkpoint"' in line for line in lines) == 7
    assert sum('"rule": "CK0' in line for line in lines) == 3


def test_an_error_tells_its_only_problem_and_its_status() -> None:
    told = error_document((Problem(message="no such target", nearest=("kpro6",)),))
    assert told["message"] == "no such target (did you mean kpro6?)"
    assert (told["status"], told["exit_code"]) == ("invalid", 2)
    assert error_document(PROBLEMS, status=RunStatus.ERROR)["exit_code"] == 4
    assert strict(dump(error_document(PROBLEMS)))["message"] == "2 problems; nothing was started"


def test_an_empty_run_is_a_document_too() -> None:
    assert strict(to_json(run_of()))["outcomes"] == []
