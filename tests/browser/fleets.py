"""Fleets to look at: one in which all is good, one with every kind of trouble, one that nobody can reach."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from remoterun.model import Finding, Json, Outcome, Phase, Run, Severity, Status, judge
from tests.support.runs import CHECK_CKPT, checkpoint, error, mixed_run

BEGIN = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)
NAMES = ("dflash-train", "dflash-eval", "qwen-sft", "qwen-dpo", "rank-0", "rank-1", "vision", "audio")


def _time(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _records(rng: random.Random, count: int, ills: dict[int, str]) -> tuple[list[dict[str, Json]], list[Finding]]:
    """Make the records of a training, the newest first, and what is found in those at the given places."""
    size, norm = rng.choice((1_493_312_000, 66_218_400_000, 14_500_000_000)), rng.uniform(80, 900)
    records: list[dict[str, Json]] = []
    found: list[Finding] = []
    for index in range(count):
        step, verdict = (index + 1) * 500, ills.get(index, "ok")
        norm *= 1 + rng.uniform(0, 0.012)
        written = BEGIN - timedelta(minutes=34 * (count - index) + rng.uniform(0, 9))
        changes: dict[str, Json] = {
            "verdict": verdict,
            "bytes": size + rng.randrange(4096),
            "mtime": _time(written),
            "weight_norm": round(norm, 4),
            "seconds": round(rng.uniform(2, 40), 3),
            "tensors": 290,
            "files": ["checkpoint.pt"],
            "crc": "zlib",
        }
        changes["bytes_checked"] = changes["bytes"]
        if verdict == "bad":
            changes.update(nan_weights=152 * (index + 1), nan_optimizer=304, weight_norm=None, findings=["CK001"])
            found.append(_nan(step, 152 * (index + 1)))
        elif verdict == "suspect":
            changes.update(findings=["CK080"])
            found.append(_standstill(step))
        elif verdict != "ok":
            changes.update(nan_weights=None, inf_weights=None, bytes_checked=0, weight_norm=None)
            if verdict == "unsupported":
                changes.update(findings=["CK031"])
                found.append(_unsupported(step))
        records.append(checkpoint(step, **changes))
    records.reverse()
    best = next((str(each["name"]) for each in records if each["verdict"] == "ok"), None)
    root = "/workspace/checkpoints"
    return [*records, {"kind": "summary", "resume_from": best, "checkpoints": count, "root": root}], found


def _nan(step: int, count: int) -> Finding:
    file = f"/workspace/checkpoints/step_{step}/checkpoint.pt"
    return Finding(
        rule="CK001",
        severity=Severity.BAD,
        subject=f"step_{step}",
        message=f"model.layers.3.mlp.down_proj.weight: {count} NaN of 16777216 elements (float32)",
        next_step="Do not resume from it: go back to the newest checkpoint that is ok.",
        evidence={"nan": count, "inf": 0, "elements": 16_777_216},
        data={"file": file, "tensor": "model.layers.3.mlp.down_proj.weight", "dtype": "float32"},
    )


def _unsupported(step: int) -> Finding:
    return Finding(
        rule="CK031",
        severity=Severity.SUSPECT,
        subject=f"step_{step}",
        message="a kind of tensor that cannot be read yet: torch.sparse_bsr",
        data={"file": f"/workspace/checkpoints/step_{step}/checkpoint.pt"},
    )


def _standstill(step: int) -> Finding:
    return Finding(
        rule="CK080",
        severity=Severity.SUSPECT,
        subject=f"step_{step}",
        message=f"2 weights are the same as in step_{step - 500}, though the optimizer worked on them",
        next_step="Find out whether these weights are trained at all.",
        data={"file": f"/workspace/checkpoints/step_{step}/checkpoint.pt"},
    )


def _audited(rng: random.Random, target: str, name: str, count: int, ills: dict[int, str]) -> Outcome:
    records, found = _records(rng, count, ills)
    took = rng.uniform(4, 90)
    return Outcome(
        target=target,
        name=name,
        step=0,
        status=Status.FINDINGS if found else Status.OK,
        phase=Phase.COLLECT,
        payload=CHECK_CKPT,
        facts={"hostname": name, "python": "3.11.7", "interpreter": "/root/venv/bin/python"},
        timings_s={
            "queued": round(rng.uniform(0, 3), 3),
            "connect": round(rng.uniform(0.1, 0.6), 3),
            "enter": round(rng.uniform(0.4, 2.5), 3),
            "upload": 0.02,
            "run": round(took, 3),
            "total": round(took + 2, 3),
        },
        connections=1,
        records=tuple(records),
        findings=tuple(found),
        exit_status=0,
    )


def _silent(target: str, name: str) -> Outcome:
    host = target.partition("/")[0]
    return Outcome(
        target=target,
        name=name,
        step=0,
        status=Status.UNREACHABLE,
        phase=Phase.CONNECT,
        error=error("connect_refused", f"{host}: nothing listens on 10.1.2.{host[-1]} port 22."),
        timings_s={"connect": 0.02, "total": 0.02},
    )


def run_at(number: int, *outcomes: Outcome, days: float = 0) -> Run:
    """Make a run of outcomes that began so many days after the first night."""
    began = BEGIN + timedelta(days=days)
    return Run(
        run_id=f"20260301T020000Z-{number:08x}",
        playbook="check-ckpt",
        playbook_sha256="a1" * 32,
        started_at=_time(began),
        finished_at=_time(began + timedelta(seconds=97.3)),
        status=judge(outcomes),
        outcomes=outcomes,
    )


def _places(count: int) -> list[tuple[str, str]]:
    return [(f"kpro{index // 8 + 1}/{200 + index}", NAMES[index % len(NAMES)]) for index in range(count)]


def all_good(targets: int = 12, checkpoints: int = 18) -> Run:
    """Make a run in which nothing is wrong."""
    rng = random.Random(1)
    return run_at(
        1, *(_audited(rng, target, name, rng.randint(6, checkpoints), {}) for target, name in _places(targets))
    )


def with_findings() -> Run:
    """Make a run with every verdict, every kind of trouble, and good results between them."""
    rng = random.Random(2)
    ills: list[dict[int, str]] = [{}, {9: "suspect"}, {14: "bad", 15: "bad", 19: "in_progress"}, {}, {3: "unsupported"}]
    good = [
        _audited(rng, target, name, 20, ills[index % len(ills)]) for index, (target, name) in enumerate(_places(10))
    ]
    troubles = [replace(each, target=f"kpro9/{each.target.partition('/')[2]}") for each in mixed_run().outcomes[1:4]]
    return run_at(2, *good, *troubles)


def nothing_reachable(targets: int = 9) -> Run:
    """Make a run of which no target could be reached."""
    return run_at(3, *(_silent(target, name) for target, name in _places(targets)))


def nights(count: int = 9) -> list[Run]:
    """Make the runs of some nights: a checkpoint goes bad in one of them, a host is away in another."""
    runs = []
    for night in range(count):
        outcomes = []
        for index, (target, name) in enumerate(_places(8)):
            ills = {8: "bad"} if index == 2 and night >= 5 else {}
            away = night == 3 and index > 4
            outcomes.append(
                _silent(target, name) if away else _audited(random.Random(index), target, name, 8 + night, ills)
            )
        runs.append(run_at(10 + night, *outcomes, days=night))
    return runs


def large(targets: int = 200, checkpoints: int = 100) -> Run:
    """Make a run of a large fleet, with trouble here and there."""
    rng = random.Random(4)
    outcomes = []
    for target, name in _places(targets):
        kinds = ("bad", "suspect", "suspect")
        ills = {rng.randrange(checkpoints): rng.choice(kinds) for _ in range(rng.choice((0, 0, 0, 1, 3)))}
        outcomes.append(_audited(rng, target, name, checkpoints, ills))
    return run_at(4, *outcomes)
