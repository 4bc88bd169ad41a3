"""Runs to report on: one mixed sample that the golden files show, and strategies that build any run.

``python -m tests.support.runs`` writes the golden files anew; look at the difference before keeping it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from hypothesis import strategies as st

from remoterun.errors import CODES, Problem, TargetError
from remoterun.events import Event, OutcomeReady, RecordArrived, RunFinished, RunStarted
from remoterun.model import (
    Captured,
    ErrorInfo,
    Finding,
    Host,
    Job,
    Json,
    LimitHit,
    Outcome,
    Pack,
    PayloadRef,
    PayloadWork,
    Phase,
    Plan,
    Run,
    RunStatus,
    Severity,
    Status,
    Target,
    judge,
)
from remoterun.report import error_document, event_line, table, to_json
from remoterun.report.documents import dump

if TYPE_CHECKING:
    from collections.abc import Sequence

GOLDEN: Final = Path(__file__).parent.parent / "data" / "golden"
CHECK_CKPT: Final = PayloadRef(name="check-ckpt", version="1.0.0", sha256="5c" * 32)


def checkpoint(step: int, **changes: Json) -> dict[str, Json]:
    """Make a record as check-ckpt emits it for a clean checkpoint, with changes."""
    return {
        "kind": "checkpoint",
        "name": f"step_{step}",
        "path": f"/workspace/checkpoints/step_{step}/checkpoint.pt",
        "format": "torch-zip",
        "step": step,
        "epoch": 0,
        "params": 5_518_200_000,
        "nan_weights": 0,
        "inf_weights": 0,
        "nan_optimizer": 0,
        "inf_optimizer": 0,
        "verdict": "ok",
        "findings": [],
        "bytes": 66_218_400_000,
        "bytes_checked": 66_218_400_000,
        "unchecked": [],
        "seconds": 33.1,
        "engine": "numpy",
        **changes,
    }


def error(code: str, message: str, *, limit: tuple[str, float, str] | None = None) -> ErrorInfo:
    """Make an outcome's error the way the runner does."""
    return ErrorInfo.of(TargetError(code, message, limit=limit))


def captured(data: bytes) -> Captured:
    """Keep a whole stream."""
    return Captured(head=data, total=len(data))


def run_of(*outcomes: Outcome, finished_at: str = "2026-03-01T02:30:02.100Z", ended_as: RunStatus | None = None) -> Run:
    """Make a run of outcomes."""
    return Run(
        run_id="0195bc5e7a0c",
        playbook="check-ckpt",
        playbook_sha256="a1" * 32,
        started_at="2026-03-01T02:00:00.000Z",
        finished_at=finished_at,
        status=judge(outcomes, ended_as=ended_as),
        outcomes=outcomes,
    )


def _audited() -> Outcome:
    torn: dict[str, Json] = dict.fromkeys(
        ("epoch", "params", "nan_weights", "inf_weights", "nan_optimizer", "inf_optimizer")
    )
    return Outcome(
        target="kpro6/200",
        name="dflash-train",
        step=0,
        status=Status.FINDINGS,
        phase=Phase.COLLECT,
        payload=CHECK_CKPT,
        facts={"hostname": "dflash-train", "python": "3.11.7", "interpreter": "/root/venv/bin/python"},
        timings_s={"queued": 0.0, "connect": 0.2104, "enter": 0.64, "upload": 0.01, "run": 33.24, "total": 34.1},
        connections=1,
        records=(
            checkpoint(4001, epoch=1, findings=[]),
            checkpoint(2029, nan_weights=152, nan_optimizer=304, verdict="bad", findings=["CK010", "CK012"]),
            checkpoint(2000),
            checkpoint(1000, **torn, verdict="bad", bytes_checked=21_000_000_000, findings=["CK002"]),
            {"kind": "summary", "resume_from": "step_4001", "checkpoints": 4},
        ),
        findings=(
            Finding(
                rule="CK010",
                severity=Severity.BAD,
                subject="step_2029",
                message="152 NaN in the weights, the first in layers.3.mlp.down_proj.weight at element 4096",
                next_step="Resume from step_2000; nothing trained from this checkpoint can be trusted.",
                evidence={"nan": 152, "largest": float("inf")},
                data={"tensor": "layers.3.mlp.down_proj.weight"},
            ),
            Finding(rule="CK012", severity=Severity.SUSPECT, subject="step_2029", message="304 NaN in the optimizer"),
            Finding(
                rule="CK002",
                severity=Severity.BAD,
                subject="step_1000",
                message="the file ends 45.2 GB before its own directory says",
                next_step="Delete it, or copy it again from where it was saved.",
            ),
        ),
        exit_status=0,
        survivors=0,
        stderr=captured(b"audit done\n"),
        noise=captured(b"Last login: \xff\n"),
    )


def _timed_out() -> Outcome:
    message = "The payload ran longer than the limit `run` and was killed."
    return Outcome(
        target="kpro6/203",
        name="slow-nfs",
        step=0,
        status=Status.TIMEOUT,
        phase=Phase.RUN,
        error=error("run_timeout", message, limit=("run", 1800.0, "hosts.kpro6.guests.203.limits.run")),
        payload=CHECK_CKPT,
        timings_s={"connect": 0.21, "enter": 0.7, "upload": 0.01, "run": 1800.0, "total": 1801.2},
        connections=1,
        records=(checkpoint(9000, epoch=3), checkpoint(8500, epoch=3)),
        exit_status=-9,
        survivors=0,
        stderr=captured(b"warning: /mnt/nfs answers slowly\n"),
    )


def _unreachable(target: str, name: str | None) -> Outcome:
    return Outcome(
        target=target,
        name=name,
        step=0,
        status=Status.UNREACHABLE,
        phase=Phase.CONNECT,
        error=error("connect_refused", "kpro7: nothing listens on 10.1.2.7 port 22."),
        timings_s={"connect": 0.02, "total": 0.02},
    )


def mixed_run() -> Run:
    """Make the run that the golden files show: every kind of trouble next to good results."""
    stopped = Outcome(
        target="kpro6/201",
        name="eval",
        step=0,
        status=Status.FAILED,
        phase=Phase.ENTER,
        error=error("guest_stopped", "The guest is not running."),
        timings_s={"connect": 0.2, "enter": 0.55, "total": 0.75},
        connections=1,
    )
    clean = Outcome(
        target="kpro8/100",
        name=None,
        step=0,
        status=Status.OK,
        phase=Phase.COLLECT,
        payload=CHECK_CKPT,
        timings_s={"connect": 0.3, "enter": 0.6, "upload": 0.0, "run": 2.1, "total": 3.0},
        connections=1,
        records=(checkpoint(12_000, params=124_439_808, bytes=1_493_312_000, bytes_checked=1_493_312_000),),
        exit_status=0,
        survivors=0,
    )
    return run_of(
        _audited(), stopped, _timed_out(), _unreachable("kpro7/300", "aux"), _unreachable("kpro7/301", None), clean
    )


def plan_of(*ids: str, payload: str = "check-ckpt", steps: int = 1, work: Job | None = None) -> Plan:
    """Plan jobs for targets of these ids; `work` lends its work."""
    nothing = PayloadWork(pack=Pack(ref=CHECK_CKPT, data=b""), params={})
    jobs = tuple(
        Job(
            target=Target(id=name, host=Host(key=name.partition("/")[0], address="10.1.2.6")),
            step=step,
            work=work.work if work else nothing,
        )
        for name in ids
        for step in range(steps)
    )
    return Plan(run_id="0195bc5e7a0c", playbook=payload, playbook_sha256=None, jobs=jobs)


def events_of(run: Run) -> list[Event]:
    """Tell a run as the events that a stream of JSON lines shows."""
    events: list[Event] = [
        RunStarted(plan=plan_of(*(outcome.target for outcome in run.outcomes)), started_at=run.started_at)
    ]
    for outcome in run.outcomes:
        events += [RecordArrived(target=outcome.target, step=outcome.step, record=item) for item in outcome.records]
        events.append(OutcomeReady(outcome=outcome))
    return [*events, RunFinished(run=run)]


PROBLEMS: Final[Sequence[Problem]] = (
    Problem(message="unknown key", file="inventory.yaml", line=7, path="hosts.kpro6.usr", nearest=("user",)),
    Problem(message="'30' is not a duration: write 500ms, 30s, 20m, 2h or none", path="--limit run"),
)


def golden_files() -> dict[str, bytes]:
    """Make the content of every golden file."""
    run = mixed_run()
    return {
        "run-1.json": to_json(run),
        "events-1.jsonl": b"".join(event_line(event) or b"" for event in events_of(run)),
        "error-1.json": dump(error_document(PROBLEMS)),
        "table-80.txt": table(run, width=80, color=False).encode(),
        "table-140.txt": table(run, width=140, color=False).encode(),
        "table-80-verbose.txt": table(run, width=80, color=False, verbose=2).encode(),
    }


# --- strategies -----------------------------------------------------------------------------------

HOSTILE: Final = (
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x1b]8;;http://x\x1b\\link",
    "\x1bPq#0\x1b\\",
    "\x9b2J",
    "\x1b[2J\x1b[H",
    "\x1b",
    "a\rb",
    "line\nline",
    "\u202eabc\u2066",
    "zero\u200bwidth\u2060",
    "\u2028",
    "\ud800",
    "\x07\x08\x7f",
    "日本語",
    "e\u0301",
    "",
)


def texts() -> st.SearchStrategy[str]:
    """Build any text, lone surrogates and all that a terminal would obey included."""
    anything = st.text(st.characters(exclude_categories=()), max_size=30)
    return st.one_of(anything, st.lists(st.sampled_from(HOSTILE), max_size=3).map("".join))


def values() -> st.SearchStrategy[Json]:
    """Build any JSON value, numbers that are not finite included."""
    leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts())
    return st.recursive(
        leaves,
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts(), inner, max_size=4)),
        max_leaves=8,
    )


def records() -> st.SearchStrategy[dict[str, Json]]:
    """Build any record: of any shape, and such that claim to be of a known kind."""
    names = (
        "name step epoch params nan_weights verdict bytes bytes_checked resume_from skipped system python cpu memory"
    )
    keys = st.sampled_from([*names.split(), "gpu", "mounts", "load", "total", "available", "torch"])
    known = st.dictionaries(keys, values(), max_size=9)
    kinds = st.sampled_from(["checkpoint", "summary", "probe", "other"])
    return st.one_of(
        st.dictionaries(texts(), values(), max_size=5),
        st.builds(lambda record, kind: {"kind": kind, **record}, known, kinds),
    )


def streams() -> st.SearchStrategy[Captured]:
    """Build any captured stream, truncated ones included."""
    return st.builds(
        lambda head, tail, more: Captured(head=head, tail=tail, total=len(head) + len(tail) + more),
        st.one_of(st.binary(max_size=40), texts().map(lambda text: text.encode("utf-8", "replace"))),
        st.binary(max_size=10),
        st.integers(0, 10**9),
    )


def _finding_strategy() -> st.SearchStrategy[Finding]:
    return st.builds(
        Finding,
        rule=texts(),
        severity=st.sampled_from(Severity),
        subject=texts(),
        message=texts(),
        next_step=texts(),
        evidence=values(),
        data=st.dictionaries(texts(), values(), max_size=3),
    )


def _error_strategy() -> st.SearchStrategy[ErrorInfo]:
    limits = st.builds(LimitHit, name=st.just("run"), value_s=st.floats(0.001, 1e9), key=st.just("limits.run"))
    return st.builds(
        ErrorInfo, code=st.sampled_from(sorted(CODES)), message=texts(), hint=texts(), limit=st.none() | limits
    )


def outcomes() -> st.SearchStrategy[Outcome]:
    """Build any outcome."""
    sha256 = st.just("ab" * 32)
    return st.builds(
        Outcome,
        target=texts(),
        name=st.none() | texts(),
        step=st.integers(0, 2),
        # What is still at work has no outcome yet.
        status=st.sampled_from([status for status in Status if status is not Status.RUNNING]),
        phase=st.sampled_from(Phase),
        error=st.none() | _error_strategy(),
        payload=st.none() | st.builds(PayloadRef, name=texts(), version=st.none() | texts(), sha256=sha256),
        facts=st.dictionaries(texts(), values(), max_size=3),
        timings_s=st.dictionaries(st.sampled_from(["queued", "connect", "run", "total"]), st.floats(), max_size=4),
        connections=st.integers(0, 3),
        records=st.lists(records(), max_size=3).map(tuple),
        findings=st.lists(_finding_strategy(), max_size=3).map(tuple),
        exit_status=st.none() | st.integers(-64, 255),
        survivors=st.none() | st.integers(0, 3),
        stdout=streams(),
        stderr=streams(),
        noise=streams(),
        log=st.lists(texts(), max_size=2).map(tuple),
    )


def runs() -> st.SearchStrategy[Run]:
    """Build any run."""
    return st.builds(
        Run,
        run_id=st.just("0195bc5e7a0c"),
        playbook=texts(),
        playbook_sha256=st.none() | st.just("cd" * 32),
        started_at=st.just("2026-03-01T02:00:00.000Z"),
        finished_at=st.sampled_from(["2026-03-01T02:00:04.100Z", "not a time"]),
        status=st.sampled_from(RunStatus),
        outcomes=st.lists(outcomes(), max_size=4).map(tuple),
    )


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for file_name, content in golden_files().items():
        (GOLDEN / file_name).write_bytes(content)
