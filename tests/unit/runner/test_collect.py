"""What a target says, however hostile: it becomes an outcome or a TargetError, never anything else."""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from remoterun.errors import CODES, TargetError
from remoterun.events import Logged, OutputArrived, Progressed, RecordArrived
from remoterun.model import (
    CacheWork,
    ExecWork,
    Host,
    Job,
    Json,
    Limits,
    Pack,
    PayloadRef,
    PayloadWork,
    Records,
    ScriptWork,
    Severity,
    Status,
    Target,
    Work,
)
from remoterun.remote import wire
from remoterun.runner.collect import Collector
from remoterun.runner.keep import (
    FINDINGS_IN_MEMORY,
    MAX_BYTES,
    MAX_CONTAINERS,
    MAX_RECORDS,
    MAX_RUN_BYTES,
    Keep,
)
from remoterun.secrets import Redactor
from remoterun.transports.session import Capture
from tests.support.memory import without_memory

TARGET = Target(id="kpro6/200", host=Host(key="kpro6", address="10.1.2.6"), guest="200", hop="pct")
PACK = Pack(ref=PayloadRef(name="look", version="1.0.0", sha256="0" * 64), data=b"", entry="look:run")
PROGRAM = Pack(ref=PACK.ref, data=b"", program="look.sh")
PAYLOAD = PayloadWork(pack=PACK, params={})
SCRIPT = ScriptWork(name="look.py", source=b"")
KINDS = [getattr(wire, name) for name in dir(wire) if name.isupper() and isinstance(getattr(wire, name), int)]


def _collector(work: Work = PAYLOAD, **options: Any) -> Collector:
    return Collector(Job(target=TARGET, step=2, work=work, **options))


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


class Sender:
    """Say what an honest supervisor says: it counts and hashes what it sends."""

    def __init__(self, work: Work = PAYLOAD, **options: Any) -> None:
        self.collector = _collector(work, **options)
        self._hash = hashlib.sha256()
        self._count = 0

    def say(self, kind: int, value: object) -> None:
        body = _json(value)
        if kind in (wire.RECORD, wire.FINDING):
            self._count += 1
            self._hash.update(struct.pack(">BI", kind, len(body)) + body)
        self.collector.handle(kind, body)

    def finding(self, severity: str, rule: str = "r") -> None:
        self.say(wire.FINDING, {"rule": rule, "severity": severity, "subject": "s", "message": "m"})

    def result(self, **changes: Json) -> Collector:
        """Say the result of a payload that has done its work, but for the changes."""
        value: dict[str, Json] = {
            "exit_status": 0,
            "cause": None,
            "done": True,
            "records": self._count,
            "hash": self._hash.hexdigest(),
            "survivors": 0,
            "stdout_total": 0,
            "stderr_total": 0,
        }
        self.say(wire.RESULT, value | changes)
        return self.collector


def _refusal(collector: Collector) -> TargetError:
    with pytest.raises(TargetError) as caught:
        collector.judge()
    return caught.value


# --- hostile messages ---

_scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from([10**400, -(10**400), 1e308, "bad", "run", "limit", "upload_damaged", "\ud800", 1 << 63])
)
_anything = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
_known = [
    "code", "message", "rule", "severity", "subject", "next_step", "evidence", "data", "done", "total", "unit", "what",
    "text", "kind", "type", "state", "exit_status", "cause", "records", "hash", "survivors", "stdout_total",
    "stderr_total", "removed", "freed", "hostname", "interpreter", "verdict",
]  # fmt: skip
_objects = st.dictionaries(st.sampled_from(_known), _anything, max_size=8)
_hostile_bodies = st.one_of(
    _objects.map(_json),
    _anything.map(_json),
    st.binary(max_size=60),
    st.sampled_from(
        [
            b"",
            b"[" * 100_000,
            b'{"a":' * 2000 + b"1" + b"}" * 2000,
            b'{"a":%s1%s}' % (b"[" * 64, b"]" * 64),
            b'{"x":NaN}',
            b'{"x":-Infinity}',
            b'{"x":1e999}',
            b'{"x":%s}' % (b"9" * 5000),
            b'{"x":"\\ud800"}',
            b'{"x":"\xff"}',
            b"\xef\xbb\xbf{}",
            "{}".encode("utf-16"),
            b"\x00{\x00}",
            b'{"records":true,"hash":[]}',
            b'{"severity":["bad"]}',
            b'{"severity":{}}',
            b'{"code":[]}',
            b'{"code":{}}',
        ]
    ),
)
_works = st.sampled_from(
    [PAYLOAD, PayloadWork(pack=PROGRAM, params={}), SCRIPT, ExecWork(argv=(b"true",)), CacheWork()]
)


@given(_works, st.lists(st.tuples(st.sampled_from(KINDS) | st.integers(0, 255), _hostile_bodies), max_size=6))
@example(PAYLOAD, [(wire.FINDING, b'{"severity":["bad"]}')])
@example(PAYLOAD, [(wire.PROBLEM, b'{"code":{}}')])
@example(PAYLOAD, [(wire.RESULT, b'{"cause":{"a":[]}}')])
def test_whatever_comes_only_target_errors_rise(work: Work, messages: Sequence[tuple[int, bytes]]) -> None:
    collector = _collector(work)
    for kind, body in messages:
        with contextlib.suppress(TargetError):
            collector.handle(kind, body)
    with contextlib.suppress(TargetError):
        assert collector.judge() in {Status.OK, Status.FINDINGS}
    assert collector.level() in {-1, 0, 1, 2}
    for captured in (collector.stdout, collector.stderr):
        assert captured.total >= len(captured.head) + len(captured.tail)
    for value in (collector.exit_status, collector.survivors):
        assert value is None or isinstance(value, int)
    # What was kept can be written as strict JSON, whatever it is.
    kept = [collector.records, collector.facts, [[item.evidence, dict(item.data)] for item in collector.findings]]
    json.dumps(kept, allow_nan=False)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"not json", "is no JSON"),
        (b"[1]", "is no JSON object"),
        (b'{"x":NaN}', "NaN is no JSON"),
        (b'{"x":[-Infinity]}', "-Infinity is no JSON"),
        (b'{"x":1e999}', "1e999"),
        (b'{"x":-1e999}', "-1e999"),
        (b"[" * 100_000, "is no JSON"),
        (b'{"x":%s1%s}' % (b"[" * 64, b"]" * 64), "deeper than 64"),
    ],
)
def test_a_bad_record_is_damage_and_of_a_program_its_own_failure(body: bytes, what: str) -> None:
    for pack, code in ((PACK, "result_damaged"), (PROGRAM, "payload_failed")):
        with pytest.raises(TargetError) as caught:
            _collector(PayloadWork(pack=pack, params={})).handle(wire.RECORD, body)
        assert caught.value.code == code
        assert what in caught.value.message


def test_a_record_may_be_nested_64_deep() -> None:
    collector = _collector()
    collector.handle(wire.RECORD, b'{"x":%s1%s}' % (b"[" * 63, b"]" * 63))
    assert len(collector.records) == 1


def test_a_problem_of_the_target_is_raised_under_its_own_code() -> None:
    with pytest.raises(TargetError) as caught:
        _collector().handle(wire.PROBLEM, _json({"code": "no_space", "message": "m" * 9000}))
    assert caught.value.code == "no_space"
    assert caught.value.message == "m" * 4000


@pytest.mark.parametrize("code", ["cancelled", "internal", "", None, 7, [], {}])
def test_a_target_cannot_name_any_other_problem(code: Json) -> None:
    with pytest.raises(TargetError) as caught:
        _collector().handle(wire.PROBLEM, _json({"code": code}))
    assert caught.value.code == "result_damaged"


@pytest.mark.parametrize("severity", ["BAD", "", None, 2, ["bad"], {"bad": 1}, True])
def test_a_finding_of_an_unknown_severity_is_damage(severity: Json) -> None:
    with pytest.raises(TargetError) as caught:
        _collector().handle(wire.FINDING, _json({"severity": severity}))
    assert caught.value.code == "result_damaged"


# --- what comes of messages ---


def test_messages_become_events_and_are_kept() -> None:
    collector = _collector()
    where: dict[str, Any] = {"target": "kpro6/200", "step": 2}
    assert collector.handle(wire.HELLO, _json({"hostname": "h" * 2000, "python": "3.8.18", "odd": [1]})) is None
    assert collector.facts == {"hostname": "h" * 1000, "python": "3.8.18", "odd": None}
    assert collector.handle(wire.RECORD, b'{"n":1}') == RecordArrived(record={"n": 1}, **where)
    assert collector.handle(wire.LOG, _json({"text": "t" * 5000})) == Logged(text="t" * 4000, **where)
    assert collector.handle(
        wire.PROGRESS, _json({"done": 1, "total": None, "unit": "bytes" * 20, "what": 7})
    ) == Progressed(done=1, total=None, unit=("bytes" * 20)[:32], what="7", **where)
    assert collector.handle(wire.PROGRESS, _json({"done": "half"})) is None
    assert collector.handle(99, b"{}") is None
    assert collector.log == ["t" * 4000]


def test_a_finding_is_kept_with_all_it_says() -> None:
    sender = Sender()
    told = {
        "rule": "nan", "severity": "suspect", "subject": "step_1", "message": "m", "next_step": "n",
        "evidence": [1], "data": {"tensor": "w"},
    }  # fmt: skip
    sender.say(wire.FINDING, told)
    (finding,) = sender.collector.findings
    assert {name: getattr(finding, name) for name in told} == told
    assert finding.severity is Severity.SUSPECT


def test_output_of_a_script_is_passed_on_and_of_a_payload_kept() -> None:
    script, payload = _collector(SCRIPT), _collector()
    where: dict[str, Any] = {"target": "kpro6/200", "step": 2}
    assert script.handle(wire.STDOUT, b"\xff") == OutputArrived(stream="stdout", data=b"\xff", **where)
    assert script.handle(wire.STDERR, b"e") == OutputArrived(stream="stderr", data=b"e", **where)
    assert payload.handle(wire.STDOUT, b"\xff") is None
    assert payload.handle(wire.STDERR_TAIL, b"e") is None
    assert (payload.stdout.data, payload.stderr.data) == (b"\xff", b"e")


def test_the_log_is_kept_to_its_bound() -> None:
    collector = _collector()
    for number in range(1100):
        collector.handle(wire.LOG, _json({"text": str(number)}))
    assert collector.log == [str(number) for number in range(1000)]


@given(half=st.integers(1, 40), parts=st.lists(st.binary(max_size=60), max_size=12), beyond=st.integers(0, 5))
def test_a_capture_holds_exactly_head_and_tail(half: int, parts: list[bytes], beyond: int) -> None:
    kept = Capture(head=half, tail=half)
    for part in parts:
        kept.add(part)
    whole = b"".join(parts)
    captured = kept.snapshot(len(whole) + beyond if beyond else None)
    assert captured.head == whole[:half]
    assert captured.tail == whole[half:][-half:]
    assert captured.total == len(whole) + beyond
    assert captured.truncated == (len(whole) + beyond > 2 * half or beyond > 0)


# --- limits ---


def _over(collector: Collector, kind: int, body: bytes) -> TargetError:
    with pytest.raises(TargetError) as caught:
        collector.handle(kind, body)
    return caught.value


def test_as_many_records_as_allowed_are_taken_and_no_more() -> None:
    sender = Sender()
    body = b"{}"
    for _ in range(MAX_RECORDS):
        sender.say(wire.RECORD, {})
    assert len(sender.collector.records) == MAX_RECORDS
    assert _over(sender.collector, wire.RECORD, body).code == "output_limit"
    assert sender.result().result is not None


def test_exactly_the_allowed_number_of_records_is_ok() -> None:
    sender = Sender()
    for number in range(MAX_RECORDS):
        sender.say(wire.RECORD, {"n": number})
    sender.say(wire.HEARTBEAT, {"state": "S"})
    assert sender.result().judge() is Status.OK


def test_what_is_not_kept_has_no_bound() -> None:
    sender = Sender()
    for _ in range(MAX_BYTES // (8 << 20) + 1):
        sender.say(wire.PROGRESS, {"done": 1, "what": "w" * (8 << 20)})
    assert sender.result().judge() is Status.OK


def test_more_bytes_than_allowed_are_refused_and_the_result_still_heard() -> None:
    sender = Sender()
    record = {"x": "y" * ((16 << 20) - 100)}
    for _ in range(MAX_BYTES // (16 << 20)):
        sender.say(wire.RECORD, record)
    assert _over(sender.collector, wire.RECORD, _json(record)).code == "output_limit"
    collector = sender.result(survivors=3)
    assert collector.result is not None
    assert collector.survivors == 3


def test_small_things_that_are_large_in_memory_are_refused() -> None:
    sender = Sender()
    sender.say(wire.RECORD, {"x": [[]] * (MAX_CONTAINERS - 2)})
    assert _over(sender.collector, wire.RECORD, b"{}").code == "output_limit"
    assert sender.result().result is not None
    for kind in (wire.PROGRESS, wire.LOG, wire.HEARTBEAT, wire.ERROR, wire.HELLO, wire.RESULT, 99):
        assert _over(_collector(), kind, b'{"x":[' + b"[]," * 10_000 + b"[]]}").code == "result_damaged"


# --- what a run keeps of all its targets ---


def _kept_by(keep: Keep, **options: Any) -> Sender:
    sender = Sender(**options)
    sender.collector = Collector(Job(target=TARGET, step=2, work=PAYLOAD, **options), keep=keep)
    return sender


def test_records_beyond_memory_are_read_again_as_they_came(tmp_path: Path) -> None:
    keep = Keep(4, [str(tmp_path)])
    quiet, talkative = _kept_by(keep), _kept_by(keep, fail_on=Severity.BAD)
    quiet.say(wire.RECORD, {"n": 1})
    records: list[dict[str, Json]] = [{"n": number, "text": "t" * 50_000} for number in range(400)]
    records[-1]["verdict"] = "bad"
    for record in records:
        talkative.say(wire.RECORD, record)
    quiet.say(wire.RECORD, {"n": 2})
    found = talkative.result().records
    assert isinstance(found, Records)
    assert list(found) == records
    assert talkative.collector.judge() is Status.FINDINGS
    assert quiet.result().records == ({"n": 1}, {"n": 2})


@pytest.mark.parametrize("text", ['{"a":\n[1,\n2],\r\n"b": "\\n"}', '{"\u0a0a": "\xfc\u2028"}'])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32-be", "utf-8-sig"])
def test_however_a_record_is_written_it_reads_the_same(tmp_path: Path, text: str, encoding: str) -> None:
    collector = _kept_by(without_memory(tmp_path)).collector
    for _ in range(3):
        collector.handle(wire.RECORD, text.encode(encoding))
    assert isinstance(collector.records, Records)
    assert list(collector.records) == [json.loads(text)] * 3


def test_no_secret_is_put_away(tmp_path: Path) -> None:
    job = Job(target=TARGET, step=0, work=PAYLOAD)
    collector = Collector(job, Redactor({"TOKEN": "s3cr3t-value"}), without_memory(tmp_path))
    for _ in range(10):
        collector.handle(wire.RECORD, _json({"x": "s3cr3t-value", "pad": "p" * 20_000}))
    assert {record["x"] for record in collector.records} == {"[secret TOKEN]"}


def test_without_room_for_more_records_the_outcome_says_so_and_keeps_what_had_arrived() -> None:
    sender = _kept_by(without_memory())
    sender.say(wire.RECORD, {"n": 0})
    for number in range(1, 3):
        sender.say(wire.RECORD, {"n": number, "text": "t" * 30_000})
    refused = _over(sender.collector, wire.RECORD, _json({"n": 3, "text": "t" * 30_000}))
    assert refused.code == "output_limit"
    assert "no room on this machine" in refused.message
    assert "TMPDIR" in refused.hint
    assert sender.collector.short_of_room
    # What comes later would leave a gap.
    assert _over(sender.collector, wire.RECORD, b"{}") is refused
    assert [record["n"] for record in sender.collector.records] == [0, 1, 2]
    assert _refusal(sender.result()) is refused


def test_the_bytes_of_a_run_are_shared_out() -> None:
    sender = _kept_by(Keep(MAX_RUN_BYTES // (1 << 20)))
    sender.say(wire.RECORD, {"x": "y" * 1_000_000})
    refused = _over(sender.collector, wire.RECORD, _json({"x": "y" * 100_000}))
    assert "1 MiB" in refused.message
    assert Keep(256).bytes == MAX_BYTES


def test_findings_of_all_targets_share_their_memory() -> None:
    keep = Keep(100)
    flood = _kept_by(keep)
    finding = {"severity": "bad", "message": "m" * 30_000}
    half = FINDINGS_IN_MEMORY // 2
    for _ in range(half // 31_000):
        flood.say(wire.FINDING, finding)
    flood.say(wire.FINDING, {"severity": "bad", "message": "m" * (half - half // 31_000 * 30_300)})
    assert _over(flood.collector, wire.FINDING, _json({**finding, "message": "m" * 300_000})).code == "output_limit"
    quiet = _kept_by(keep)
    for number in range(100):
        quiet.finding("info", f"r{number}")
    quiet.say(wire.LOG, {"text": "a line"})
    assert len(quiet.result().findings) == 100
    assert quiet.collector.log == ["a line"]
    for _ in range(100):
        flood.say(wire.LOG, {"text": "l" * 4000})
    assert len(flood.collector.log) < 100


# --- the judgement ---


def test_nothing_but_a_whole_result_is_ok() -> None:
    sender = Sender()
    sender.say(wire.RECORD, {"n": 1})
    assert _refusal(sender.collector).code == "connection_lost"
    assert sender.result().judge() is Status.OK


@pytest.mark.parametrize(
    "changes",
    [
        {"records": 0},
        {"records": 2},
        {"records": None},
        {"records": "1"},
        {"hash": ""},
        {"hash": None},
        {"hash": hashlib.sha256(b"").hexdigest()},
    ],
)
def test_a_count_or_hash_that_differs_is_damage(changes: Mapping[str, Json]) -> None:
    sender = Sender()
    sender.say(wire.RECORD, {"n": 1})
    error = _refusal(sender.result(**changes))
    assert error.code == "result_damaged"
    assert "1 records arrived" in error.message


@pytest.mark.parametrize(
    ("said", "changes", "code"),
    [
        ({"kind": "crash", "type": "x" * (4 << 20), "message": "y" * (4 << 20)}, {}, "payload_crashed"),
        ({"kind": "nothing", "message": "m", "hint": "z" * (4 << 20)}, {}, "nothing_to_check"),
        (None, {"records": "9" * (4 << 20)}, "result_damaged"),
        (None, {"cause": "c" * (4 << 20)}, "result_damaged"),
        (None, {"cause": []}, "result_damaged"),
        (None, {"more": ["m" * (4 << 20)]}, None),
    ],
)
def test_nothing_that_ends_a_run_can_be_large(
    said: dict[str, Json] | None, changes: dict[str, Json], code: str | None
) -> None:
    sender = Sender()
    if said is not None:
        sender.say(wire.ERROR, said)
    sender.say(wire.HEARTBEAT, {"state": "S" * (4 << 20)})
    sender.result(**changes)
    if code is None:
        assert sender.collector.judge() is Status.OK
    else:
        error = _refusal(sender.collector)
        assert (error.code, len(error.message) + len(error.hint) < 20_000) == (code, True)
    assert len(json.dumps([sender.collector.result, sender.collector.state])) < 20_000


def test_a_record_that_changed_on_its_way_is_damage() -> None:
    sender = Sender()
    sender.say(wire.RECORD, {"n": 1})
    changed = _collector()
    changed.handle(wire.RECORD, _json({"n": 2}))
    changed.handle(wire.RESULT, _json(dict(sender.result().result or {})))
    assert _refusal(changed).code == "result_damaged"


def test_a_result_without_a_count_means_that_nothing_was_started() -> None:
    collector = _collector()
    collector.handle(wire.RESULT, b"{}")
    assert _refusal(collector).code == "start_failed"


def _hint_of_no_start(argv: tuple[bytes, ...], *, redactor: Redactor | None = None, **options: Any) -> str:
    collector = Collector(Job(target=TARGET, step=2, work=ExecWork(argv=argv), **options), redactor or Redactor({}))
    said = {"code": "start_failed", "message": f"{argv[0].decode()}: No such file or directory"}
    with pytest.raises(TargetError) as caught:
        collector.handle(wire.PROBLEM, _json(said))
    return caught.value.hint


@pytest.mark.parametrize(
    ("argv", "env", "words"),
    [
        ((b"echo hi",), {}, "start one with `-- sh -c 'echo hi'`"),
        ((b"echo\x1b[2J hi",), {}, "start one with `-- sh -c COMMAND`"),
        ((b"nvidia-smi",), {}, "not installed there, or not in PATH=/usr/local/sbin:"),
        ((b"nvidia-smi",), {"PATH": "/opt/bin"}, "not in PATH=/opt/bin, as `env` says"),
        ((b"a program", b"word"), {}, "not installed there"),
        ((b"cd", b"/a b"), {}, "start one for all of it, `-- sh -c 'cd '\"'\"'/a b'\"'\"'; ...'`"),
        (
            (b"source", b"/venv/bin/activate"),
            {},
            "start one for all of it, `-- sh -c '. /venv/bin/activate; ...'`",
        ),
        ((b"/opt/run.sh",), {}, "its first line (`#!`)"),
    ],
)
def test_a_program_that_is_not_there_is_told_from_a_command_line(
    argv: tuple[bytes, ...], env: dict[str, str], words: str
) -> None:
    assert words in _hint_of_no_start(argv, env=env)


def test_a_programs_words_are_told_without_secrets() -> None:
    hint = _hint_of_no_start((b"login --with hunter22",), redactor=Redactor({"PASSWORD": "hunter22"}))
    assert "sh -c 'login --with" in hint
    assert "hunter22" not in hint


LIMITS = Limits(run=90.0, stall=600.0)
_NOTHING = {"kind": "nothing", "message": "no checkpoint"}
_CRASH = {"kind": "crash", "type": "ValueError", "message": "no"}
_MODULE = {"kind": "module", "type": "ModuleNotFoundError", "message": "No module named 'torch'"}


@pytest.mark.parametrize(
    ("error", "changes", "code", "words"),
    [
        (None, {"done": False}, "payload_crashed", "without finishing"),
        (None, {"done": "yes"}, "payload_crashed", "without finishing"),
        (None, {"exit_status": 3, "done": False}, "nonzero_exit", "status 3"),
        (None, {"exit_status": 3}, "nonzero_exit", "status 3"),
        (None, {"exit_status": -9}, "payload_killed", "SIGKILL"),
        (None, {"exit_status": -200}, "payload_killed", "signal 200"),
        (None, {"exit_status": None}, "result_damaged", "did not say"),
        (None, {"exit_status": True}, "result_damaged", "did not say"),
        (None, {"exit_status": 1 << 70}, "result_damaged", "did not say"),
        (_NOTHING, {"exit_status": 1, "done": False}, "nothing_to_check", "no checkpoint"),
        ({"kind": "fail", "message": "cannot"}, {"exit_status": 1}, "payload_failed", "cannot"),
        ({"kind": "limit", "message": "over"}, {"exit_status": 0}, "output_limit", "over"),
        (_MODULE, {"exit_status": 1}, "module_missing", "'torch' in python3"),
        (_CRASH, {"exit_status": 1}, "payload_crashed", "ValueError: no"),
        ({"kind": "other"}, {"exit_status": 1}, "payload_crashed", "None"),
        # The cause for which the target ended the payload beats all that the ending brought about.
        (_CRASH, {"exit_status": -15, "cause": "run"}, "run_timeout", "90s"),
        (_CRASH, {"exit_status": -9, "cause": "stall"}, "stall_timeout", "10m"),
        (_NOTHING, {"exit_status": 1, "cause": "output"}, "output_limit", "16 MiB"),
        (None, {"exit_status": 0, "cause": "cancel"}, "cancelled", "cancelled"),
        (None, {"exit_status": -15, "cause": "link"}, "lease_expired", "heard nothing"),
        (None, {"exit_status": -15, "cause": "silence"}, "lease_expired", "heard nothing"),
        (None, {"exit_status": 0, "cause": {"odd": []}}, "result_damaged", "does not exist"),
        # A damaged result beats everything: nothing it says can be trusted.
        (_NOTHING, {"exit_status": 1, "cause": "run", "hash": "0"}, "result_damaged", "hash differs"),
    ],
)
def test_the_cause_that_counts(
    error: Mapping[str, Json] | None, changes: Mapping[str, Json], code: str, words: str
) -> None:
    sender = Sender(limits=LIMITS)
    if error is not None:
        sender.say(wire.ERROR, error)
        sender.say(wire.ERROR, {"kind": "crash", "type": "Later", "message": "an error after the first"})
    refused = _refusal(sender.result(**changes))
    assert refused.code == code
    assert words in refused.message


@pytest.mark.parametrize(
    ("cause", "limit"), [("run", ("run", 90.0, "limits.run")), ("stall", ("stall", 600.0, "limits.stall"))]
)
def test_a_limit_is_named_with_its_value_and_key(cause: str, limit: tuple[str, float, str]) -> None:
    sender = Sender(limits=LIMITS)
    sender.say(wire.HEARTBEAT, {"state": "D"})
    refused = _refusal(sender.result(cause=cause, exit_status=-9))
    assert refused.limit == limit
    assert ("waiting for a disk" in refused.message) == (cause == "stall")


@pytest.mark.parametrize(("number", "words"), [(9, "out-of-memory"), (11, "PYTHONFAULTHANDLER"), (7, "/dev/shm")])
def test_a_crash_of_compiled_code_is_told_from_a_kill(number: int, words: str) -> None:
    assert words in _refusal(Sender().result(exit_status=-number, done=False)).hint


def test_the_missing_module_is_told_with_the_interpreter_that_lacks_it() -> None:
    sender = Sender()
    sender.say(wire.HELLO, {"interpreter": "/root/venv/bin/python"})
    sender.say(wire.ERROR, _MODULE)
    assert _refusal(sender.result(exit_status=1)).message == "No module named 'torch' in /root/venv/bin/python"


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ("no checkpoint below /a/b", "Look elsewhere with `--set root=DIR`, in a playbook under `params`."),
        (
            "no checkpoint below /a/b is called like run*",
            "Look elsewhere with `--set root=DIR` or `--set match=VALUE`, in a playbook under `params`.",
        ),
        ("nothing", CODES["nothing_to_check"].hint),
    ],
)
def test_where_there_is_nothing_to_check_the_parameter_is_named(message: str, hint: str) -> None:
    work = replace(PAYLOAD, params={"root": "/a/b", "match": "run*", "empty": "", "depth": 3, "since": None})
    sender = Sender(work)
    sender.say(wire.ERROR, {"kind": "nothing", "message": message})
    assert _refusal(sender.result(exit_status=1, done=False)).hint == hint


@pytest.mark.parametrize(
    ("status", "words"), [(1, ""), (126, "ls -l"), (127, "/usr/local/sbin:"), (137, "out-of-memory killer")]
)
def test_an_exit_status_of_which_more_is_known(status: int, words: str) -> None:
    hint = _refusal(Sender(SCRIPT).result(done=False, exit_status=status)).hint
    assert (words in hint) if words else not hint


def test_a_script_is_done_when_it_ends() -> None:
    assert Sender(SCRIPT).result(done=False).judge() is Status.OK
    assert _refusal(Sender(SCRIPT).result(done=False, exit_status=1)).code == "nonzero_exit"


@pytest.mark.parametrize(
    ("said", "fail_on", "status"),
    [
        ([], Severity.INFO, Status.OK),
        (["info"], Severity.INFO, Status.FINDINGS),
        (["info"], Severity.SUSPECT, Status.OK),
        (["info", "suspect"], Severity.SUSPECT, Status.FINDINGS),
        (["suspect"], Severity.BAD, Status.OK),
        (["bad", "info"], Severity.BAD, Status.FINDINGS),
    ],
)
def test_findings_are_judged_by_the_highest(said: list[str], fail_on: Severity, status: Status) -> None:
    sender = Sender(fail_on=fail_on)
    for severity in said:
        sender.finding(severity)
    assert sender.result().judge() is status


@pytest.mark.parametrize(
    ("verdict", "level"),
    [("ok", -1), ("in_progress", -1), ("suspect", 1), ("unsupported", 1), ("bad", 2), (None, -1), ([], -1), (3, -1)],
)
def test_verdicts_of_records_count_like_findings(verdict: Json, level: int) -> None:
    sender = Sender()
    sender.say(wire.RECORD, {"verdict": verdict})
    sender.say(wire.RECORD, {"no": "verdict"})
    assert sender.collector.level() == level


def test_emptying_a_cache_becomes_a_record() -> None:
    collector = _collector(CacheWork())
    collector.handle(wire.RESULT, _json({"removed": 3, "freed": "much"}))
    assert collector.judge() is Status.OK
    assert collector.records == ({"kind": "cache", "removed": 3, "freed": None},)
