"""Take what a target sends, distrust it, and judge how it ended. No I/O."""

from __future__ import annotations

import hashlib
import json
import math
import signal
import struct
from typing import TYPE_CHECKING, Final

from remoterun.errors import TargetError
from remoterun.events import Event, Logged, OutputArrived, Progressed, RecordArrived
from remoterun.model import (
    CacheWork,
    Captured,
    Finding,
    Job,
    Json,
    PayloadWork,
    Severity,
    Status,
    format_duration,
)
from remoterun.remote import wire
from remoterun.runner import advice
from remoterun.runner.keep import FINDINGS_IN_MEMORY, MAX_CONTAINERS, MAX_RECORDS, Keep, memory_for
from remoterun.runner.request import streams
from remoterun.runner.spool import Shelf
from remoterun.secrets import NO_SECRETS
from remoterun.transports.session import Capture

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from remoterun.secrets import Redactor

_MAX_CONTAINERS_ASIDE: Final = 10_000
_MAX_DEPTH: Final = 64
_MAX_LOG: Final = 1000
# What these hold is counted and compared here, and shown nowhere.
_NUMBERS: Final = frozenset({wire.RESULT, wire.HEARTBEAT})
_VERDICT_RANK: Final = {"suspect": 1, "unsupported": 1, "bad": 2}
# All that is looked at of these messages, however much more a target puts into them.
_OF_RESULT: Final = (
    *("cause", "done", "exit_status", "survivors", "records", "hash", "stdout_total", "stderr_total"),
    *("removed", "freed"),
)
_OF_ERROR: Final = ("kind", "message", "type", "hint")
_LONGEST: Final = 4000
# What a target may name as its problem; anything else it says is taken as damage.
_TARGET_CODES: Final = frozenset(
    {
        *("python_too_old", "upload_damaged", "no_space", "start_failed", "payload_killed"),
        *("lease_expired", "taken_over", "output_forgotten"),
    }
)
_CRASHES: Final = frozenset({"SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE"})
_CRASHED: Final = (
    "Compiled code in it crashed: with PYTHONFAULTHANDLER=1 in `env`, stderr says where. SIGBUS: is /dev/shm full?"
)
# Another connection of ours has come first: it is to be asked for.
_RUNS_ALREADY: Final = "runs_already"


class Collector:
    """Gather the messages of one job and judge them.

    `handle` returns the events that a message gives rise to. What a target claims is never believed beyond its own
    outcome: sizes, counts and depth are capped, and an outcome is ok only with a complete result whose count and hash
    agree with what arrived. `keep` says how much of it all may be kept, beside what else the run keeps.
    """

    def __init__(self, job: Job, redactor: Redactor = NO_SECRETS.redactor, keep: Keep | None = None) -> None:
        self._keep = keep or Keep()
        # Head and tail of two streams.
        half = min((4 << 20) if streams(job) else (512 << 10), self._keep.output // 4)
        self._job = job
        self._streams = streams(job)
        self._hash = hashlib.sha256()
        self._count = 0
        self._bytes = self._containers = 0
        self._records_bytes = self._findings_bytes = 0
        self._worst = -1
        self._over: TargetError | None = None
        self._shelf = Shelf(self._keep.spool)
        self._redactor = redactor
        self._clean_out, self._clean_err = redactor.stream(), redactor.stream()
        self._stdout, self._stderr = Capture(head=half, tail=half), Capture(head=half, tail=half)
        self._error: Mapping[str, Json] | None = None
        self.facts: dict[str, Json] = {}
        self.short_of_room = False
        self.findings: list[Finding] = []
        self.log: list[str] = []
        self.result: Mapping[str, Json] | None = None
        self.state: Mapping[str, Json] = {}
        self.resumable: bool | None = None

    def handle(self, kind: int, body: bytes) -> Event | None:
        """Take one whole message.

        Raises:
            TargetError: when it is damaged, says that the target has a problem, or is more than an outcome may hold.
        """
        if kind in (wire.STDOUT, wire.STDERR, wire.STDOUT_TAIL, wire.STDERR_TAIL):
            return self._output(kind, body)
        if kind in (wire.RECORD, wire.FINDING):
            return self._kept(kind, body)
        if _containers(body) > _MAX_CONTAINERS_ASIDE:
            raise self._bad(kind, f"holds more than {_MAX_CONTAINERS_ASIDE} lists and objects")
        value = self._object(kind, body)
        if self._redactor and kind not in _NUMBERS:
            value = self._without_secrets(value)
        handler = _HANDLERS.get(kind)
        return handler(self, value) if handler else None

    def _without_secrets(self, value: dict[str, Json]) -> dict[str, Json]:
        return {self._redactor.text(key): self._redactor.json(item) for key, item in value.items()}

    def _kept(self, kind: int, body: bytes) -> Event | None:
        """Take what is kept to the end of the run; after the first that is not, no other one is."""
        if self._over is not None:
            raise self._over
        try:
            self._count_in(kind, body)
            value = self._object(kind, body)
            if self._redactor:
                value = self._without_secrets(value)
                body = json.dumps(value).encode("ascii")
            if kind == wire.RECORD:
                return self._record(value, body)
            self._finding(value, body)
        except TargetError as error:
            self._over = error
            raise
        return None

    def _count_in(self, kind: int, body: bytes) -> None:
        """Count what is kept: nothing else grows with the length of the run."""
        self._count += 1
        self._bytes += len(body)
        self._containers += _containers(body)
        self._hash.update(struct.pack(">BI", kind, len(body)) + body)
        most = self._keep.bytes
        if self._count > MAX_RECORDS or self._bytes > most or self._containers > MAX_CONTAINERS:
            limits = f"{MAX_RECORDS} records, {most / (1 << 20):.4g} MiB or {MAX_CONTAINERS} lists and objects in them"
            raise TargetError("output_limit", f"the payload sent more than {limits}")

    def _object(self, kind: int, body: bytes) -> dict[str, Json]:
        try:
            value = json.loads(body, parse_constant=_finite, parse_float=_finite)
        except (ValueError, RecursionError) as error:
            raise self._bad(kind, f"is no JSON: {error}") from error
        if not isinstance(value, dict):
            raise self._bad(kind, "is no JSON object")
        if not _shallow(value, _MAX_DEPTH):
            raise self._bad(kind, f"is nested deeper than {_MAX_DEPTH} levels")
        return value

    def _bad(self, kind: int, what: str) -> TargetError:
        work = self._job.work
        if kind == wire.RECORD and isinstance(work, PayloadWork) and work.pack.program:
            return TargetError("payload_failed", f"record {self._count} of the payload {what}")
        return TargetError("result_damaged", f"a message from the target {what}")

    # --- messages ---

    def _output(self, kind: int, body: bytes) -> Event | None:
        out = kind in (wire.STDOUT, wire.STDOUT_TAIL)
        clean = self._clean_out if out else self._clean_err
        tail = kind in (wire.STDOUT_TAIL, wire.STDERR_TAIL)
        return self._said(clean.finish_after_gap(body) if tail else clean.feed(body), out=out)

    def _said(self, data: bytes, *, out: bool) -> Event | None:
        """Keep output without secrets, and pass it on if it is to be seen at once."""
        (self._stdout if out else self._stderr).add(data)
        if not self._streams or not data:
            return None
        target, step = self._job.target.id, self._job.step
        return OutputArrived(target=target, step=step, stream="stdout" if out else "stderr", data=data)

    def rest(self) -> list[Event]:
        """Return what is left of the output at its end: what might have been the beginning of a secret."""
        events = [self._said(self._clean_out.finish(), out=True), self._said(self._clean_err.finish(), out=False)]
        return [event for event in events if event is not None]

    def _hello(self, value: dict[str, Json]) -> None:
        self.facts = {str(key)[:64]: _short(item) for key, item in list(value.items())[:32]}

    def _problem(self, value: dict[str, Json]) -> None:
        code, message = value.get("code"), str(value.get("message", ""))[:_LONGEST]
        if isinstance(code, str) and code in _TARGET_CODES:
            hint = advice.not_started(self._job, message) if code == "start_failed" else None
            raise TargetError(code, message, hint=hint and self._redactor.text(hint))
        if code == _RUNS_ALREADY:
            raise TargetError("connection_lost", message)
        raise TargetError("result_damaged", f"the target named a problem that does not exist: {code!r}"[:_LONGEST])

    def _started(self, value: dict[str, Json]) -> None:
        self.resumable = value.get("resumable") is True

    def announced(self, body: bytes) -> tuple[int, Json]:
        """Return how many messages there are for whoever takes up a run, and what the target knows of it."""
        value = self._object(wire.ATTACHED, body)
        return int(_number(value.get("count")) or 0), value.get("about")

    def _record(self, value: dict[str, Json], body: bytes) -> Event:
        size = memory_for(len(body), _containers(body))
        if self._shelf.all_in_memory and self._keep.records.take(self._records_bytes, size):
            self._records_bytes += size
            self._shelf.keep(value)
        else:
            self._put_away(value, body)
        self._worst = max(self._worst, _VERDICT_RANK.get(str(value.get("verdict")), -1))
        return RecordArrived(target=self._job.target.id, step=self._job.step, record=value)

    def _put_away(self, value: dict[str, Json], body: bytes) -> None:
        # JSON may come in other encodings as well.
        plain = body.isascii() and b"\0" not in body
        try:
            self._shelf.put_away(body if plain else json.dumps(value).encode("ascii"))
        except OSError as error:
            self.short_of_room = True
            raise TargetError(
                "output_limit",
                f"there is no room on this machine for more records: {error}",
                hint="Make room there, or name another folder in TMPDIR; what had arrived is kept.",
            ) from error

    def _finding(self, value: dict[str, Json], body: bytes) -> None:
        severity, data = value.get("severity"), value.get("data")
        if not isinstance(severity, str) or severity not in set(Severity):
            raise TargetError("result_damaged", f"a finding came with the severity {severity!r}"[:_LONGEST])
        size = memory_for(len(body), _containers(body))
        if not self._keep.findings.take(self._findings_bytes, size):
            most = f"{FINDINGS_IN_MEMORY >> 20} MiB"
            raise TargetError("output_limit", f"the findings of all targets take more than the {most} for them")
        self._findings_bytes += size
        self.findings.append(
            Finding(
                rule=str(value.get("rule", "")),
                severity=Severity(severity),
                subject=str(value.get("subject", "")),
                message=str(value.get("message", "")),
                next_step=str(value.get("next_step", "")),
                evidence=value.get("evidence"),
                data=data if isinstance(data, dict) else {},
            )
        )

    def _progress(self, value: dict[str, Json]) -> Event | None:
        done, total = _number(value.get("done")), _number(value.get("total"))
        if done is None:
            return None
        return Progressed(
            target=self._job.target.id,
            step=self._job.step,
            done=done,
            total=total,
            unit=str(value.get("unit", ""))[:32],
            what=str(value.get("what", ""))[:500],
        )

    def _logged(self, value: dict[str, Json]) -> Event | None:
        text = str(value.get("text", ""))[:_LONGEST]
        if len(self.log) >= _MAX_LOG or not self._keep.findings.take(self._findings_bytes, len(text)):
            return None
        self._findings_bytes += len(text)
        self.log.append(text)
        return Logged(target=self._job.target.id, step=self._job.step, text=text)

    def _said_error(self, value: dict[str, Json]) -> None:
        self._error = self._error or _only(value, _OF_ERROR)

    def _beat(self, value: dict[str, Json]) -> None:
        self.state = _only(value, ("state",))

    def _finished(self, value: dict[str, Json]) -> None:
        self.result = _only(value, _OF_RESULT)
        if isinstance(self._job.work, CacheWork):
            counts: dict[str, Json] = {name: _number(value.get(name)) for name in ("removed", "freed")}
            self._shelf.keep({"kind": "cache", **counts})

    # --- the end ---

    @property
    def records(self) -> Sequence[Mapping[str, Json]]:
        """Return the records that came, when no more will."""
        return self._shelf.records()

    @property
    def exit_status(self) -> int | None:
        """Return the program's own exit status, negative for a signal."""
        return self._integer("exit_status")

    @property
    def survivors(self) -> int | None:
        """Return how many processes could not be killed; None when nobody could look."""
        count = self._integer("survivors")
        return count if count is None or count >= 0 else None

    @property
    def stdout(self) -> Captured:
        """Return what was kept of the program's standard output."""
        return self._stdout.snapshot((self._integer("stdout_total") or 0) + self._clean_out.growth)

    @property
    def stderr(self) -> Captured:
        """Return what was kept of the program's standard error."""
        return self._stderr.snapshot((self._integer("stderr_total") or 0) + self._clean_err.growth)

    def _integer(self, name: str) -> int | None:
        value = (self.result or {}).get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62 else None

    def judge(self) -> Status:
        """Say ok or findings.

        Raises:
            TargetError: for every other end.
        """
        if self.result is None:
            raise TargetError("connection_lost", "the target's result did not arrive")
        if self._over is not None:
            raise self._over
        if isinstance(self._job.work, CacheWork):
            return Status.OK
        self._check_whole(self.result)
        cause = self.result.get("cause")
        if cause is not None:
            raise self._ended_by(str(cause))
        if self._error is not None:
            raise self._told(self._error)
        self._check_exit(self.exit_status)
        if isinstance(self._job.work, PayloadWork) and self.result.get("done") is not True:
            raise TargetError("payload_crashed", "the payload's process ended without finishing its work")
        if self.survivors:
            raise TargetError("processes_left", f"{self.survivors} processes of the run could not be killed")
        return Status.FINDINGS if self.level() >= self._job.fail_on.rank else Status.OK

    def level(self) -> int:
        """Rank the worst that was found: -1 nothing, 0 info, 1 suspect, 2 bad.

        A verdict `unsupported` counts as suspect: nothing unchecked is called ok.
        """
        return max([self._worst, *(finding.severity.rank for finding in self.findings)])

    def _check_whole(self, result: Mapping[str, Json]) -> None:
        if "records" not in result:
            raise TargetError("start_failed", "the payload's process was never started")
        if result.get("records") != self._count or result.get("hash") != self._hash.hexdigest():
            said = result.get("records")
            raise TargetError(
                "result_damaged",
                f"{self._count} records arrived where the target counted {said}, or their hash differs",
            )

    def _ended_by(self, cause: str) -> TargetError:
        limits = self._job.limits
        if cause == "run" and limits.run is not None:
            message = f"the payload was killed after {format_duration(limits.run)}"
            return TargetError("run_timeout", message, limit=("run", limits.run, "limits.run"))
        if cause == "stall" and limits.stall is not None:
            message = f"the payload was killed after {format_duration(limits.stall)} without progress{self._doing()}"
            return TargetError("stall_timeout", message, limit=("stall", limits.stall, "limits.stall"))
        if cause == "output":
            return TargetError("output_limit", "the payload sent a record larger than 16 MiB and was ended")
        if cause == "cancel":
            return TargetError("cancelled", "the run was cancelled while the payload ran")
        if cause in ("silence", "link"):
            return TargetError("lease_expired", "the target heard nothing from here and ended the payload")
        return TargetError("result_damaged", f"the target names a cause that does not exist: {cause!r}")

    def _doing(self) -> str:
        state = self.state.get("state")
        meaning = {"D": "waiting for a disk or network file system", "S": "asleep", "R": "busy"}.get(str(state))
        return f" (its processes were {meaning})" if meaning else ""

    def _told(self, error: Mapping[str, Json]) -> TargetError:
        kind, message = error.get("kind"), str(error.get("message", ""))
        if kind == "nothing":
            said = error.get("hint")
            hint = said[:1000] if isinstance(said, str) else advice.nothing_found(self._job, message)
            return TargetError("nothing_to_check", message, hint=hint)
        if kind == "fail":
            return TargetError("payload_failed", message)
        if kind == "limit":
            return TargetError("output_limit", message)
        if kind == "module":
            where = self.facts.get("interpreter", self._job.target.interpreter)
            return TargetError("module_missing", f"{message} in {where}")
        return TargetError("payload_crashed", f"{error.get('type')}: {message}")

    def _check_exit(self, status: int | None) -> None:
        if status is None:
            raise TargetError("result_damaged", "the target did not say how the payload ended")
        if status < 0:
            name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
            raise TargetError(
                "payload_killed", f"the program was ended by {name}", hint=_CRASHED if name in _CRASHES else None
            )
        if status > 0:
            message = f"the program ended with exit status {status}"
            raise TargetError("nonzero_exit", message, hint=advice.exited(status))


_HANDLERS: Final = {
    wire.HELLO: Collector._hello,
    wire.PROBLEM: Collector._problem,
    wire.STARTED: Collector._started,
    wire.PROGRESS: Collector._progress,
    wire.LOG: Collector._logged,
    wire.ERROR: Collector._said_error,
    wire.HEARTBEAT: Collector._beat,
    wire.RESULT: Collector._finished,
}


def _finite(text: str) -> float:
    """Read a number, or a word that JSON does not have; 1e999 reads as an infinity, which it has no word for."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is no JSON number")
    return number


def _number(value: Json) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e18:
        return value
    return None


def _short(value: Json, most: int = 1000) -> Json:
    return value[:most] if isinstance(value, str) else value if isinstance(value, (int, float)) else None


def _only(value: Mapping[str, Json], names: Iterable[str]) -> dict[str, Json]:
    """Return these parts of a message, of which some may be missing: short ones, and words for lists and objects."""
    parts = {name: value[name] for name in names if name in value}
    return {
        name: "a list or object" if isinstance(part, (list, dict)) else _short(part, _LONGEST)
        for name, part in parts.items()
    }


def _containers(body: bytes) -> int:
    """Count the lists and objects in a JSON text, or more: brackets in its strings count as well."""
    return body.count(b"[") + body.count(b"{")


def _shallow(value: Json, depth: int) -> bool:
    """Tell whether a value is nested at most so deep, without recursion: the depth is the target's choice."""
    waiting: list[tuple[Json, int]] = [(value, depth)]
    while waiting:
        item, left = waiting.pop()
        if left < 0:
            return False
        if isinstance(item, dict):
            waiting += [(child, left - 1) for child in item.values()]
        elif isinstance(item, list):
            waiting += [(child, left - 1) for child in item]
    return True
