"""The main job end to end: real checkpoints in real containers, with torch as the oracle."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import Guest, Lab, LabHost, guest
from tests.support.project import GUEST_PYTHON, Project, write_project

torch = pytest.importorskip("torch", reason="torch is the oracle of these tests")

ROOT = "/workspace/checkpoints"


def training_state(step: int) -> dict[str, Any]:
    """Train a small model for two steps and return what a trainer saves."""
    torch.manual_seed(step)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, 64)).square().mean().backward()
        optimizer.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "global_step": step,
        "epoch": step // 1000,
    }


def saved(state: dict[str, Any]) -> bytes:
    """Return a state as torch saves it."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def non_finite(values: Any) -> tuple[int, int]:
    """Count NaN and Inf the way the usual script does."""
    tensors = [item for item in values if isinstance(item, torch.Tensor) and item.is_floating_point()]
    return sum(int(item.isnan().sum()) for item in tensors), sum(int(item.isinf().sum()) for item in tensors)


def place(box: Guest, step: int, data: bytes) -> None:
    """Put a checkpoint into a guest."""
    box.write(f"{ROOT}/step_{step}/checkpoint.pt", data)


@pytest.fixture(scope="module")
def host(lab: Lab) -> LabHost:
    """Return a host with ten checkpoints in one guest, three of them broken, and none in the other."""
    made = lab.host("kpro6", guests=[guest(200, name="dflash-train"), guest(201, name="empty-run")])
    box = made.guest(200)
    for step in range(1000, 8000, 1000):
        place(box, step, saved(training_state(step)))
    poisoned = training_state(8000)
    poisoned["model"]["0.weight"][3, 5:9] = float("nan")
    poisoned["model"]["2.bias"][1] = float("-inf")
    place(box, 8000, saved(poisoned))
    whole = saved(training_state(9000))
    place(box, 9000, whole[: len(whole) // 2])
    torn = bytearray(saved(training_state(10000)))
    torn[len(torn) // 3] ^= 0xFF
    place(box, 10000, bytes(torn))
    return made


@pytest.fixture
def project(tmp_path: Path, host: LabHost) -> Project:
    """Return a project with that host."""
    return write_project(tmp_path, [host])


@pytest.mark.lab
def test_ten_checkpoints_of_which_three_are_broken(project: Project) -> None:
    result = project.run("play", "check-ckpt", "--on", "kpro6/200", "--output", "json")
    assert result.status == 1, result
    outcome = result.outcome("kpro6/200")
    assert outcome["status"] == "findings"
    records = {item["name"]: item for item in outcome["records"] if item["kind"] == "checkpoint"}
    assert list(records) == [f"step_{step}" for step in range(10000, 0, -1000)]
    assert [name for name, record in records.items() if record["verdict"] != "ok"] == [
        "step_10000",
        "step_9000",
        "step_8000",
    ]
    rules: dict[str, set[str]] = {item["subject"]: set() for item in outcome["findings"]}
    for item in outcome["findings"]:
        rules[item["subject"]].add(item["rule"])
    assert "CK001" in rules["step_8000"]
    assert "CK020" in rules["step_9000"]
    assert "CK022" in rules["step_10000"]
    summary = outcome["records"][-1]
    assert summary["kind"] == "summary"
    assert summary["resume_from"] == "step_7000"


@pytest.mark.lab
def test_counts_are_those_of_torch(project: Project, host: LabHost) -> None:
    result = project.run("play", "check-ckpt", "--on", "kpro6/200", "--output", "json")
    records = {item["name"]: item for item in result.outcome("kpro6/200")["records"] if item["kind"] == "checkpoint"}
    for step in (7000, 8000):
        path = host.guest(200).path(f"{ROOT}/step_{step}/checkpoint.pt")
        state = torch.load(path, weights_only=True)
        record = records[f"step_{step}"]
        assert (record["nan_weights"], record["inf_weights"]) == non_finite(state["model"].values())
        moments = [value for entry in state["optimizer"]["state"].values() for value in entry.values()]
        assert (record["nan_optimizer"], record["inf_optimizer"]) == non_finite(moments)
        assert record["params"] == sum(item.numel() for item in state["model"].values())
        assert (record["step"], record["epoch"]) == (step, step // 1000)
        assert record["bytes"] == path.stat().st_size
        assert record["unchecked"] == []


@pytest.mark.lab
def test_table_shows_every_checkpoint(project: Project) -> None:
    result = project.run("play", "check-ckpt", "--on", "kpro6/200")
    text = result.stdout.decode()
    assert result.status == 1
    assert all(f"step_{step}" in text for step in range(1000, 11000, 1000))
    assert "resume from step_7000" in text
    assert "nan_w=4" in text


@pytest.mark.lab
@pytest.mark.parametrize("make_root", [True, False])
def test_nothing_to_check_is_never_a_pass(project: Project, host: LabHost, make_root: bool) -> None:
    root = ROOT if make_root else "/no/such/folder"
    if make_root:
        host.guest(201).sh(f"mkdir -p {ROOT}", check=True)
    result = project.run("play", "check-ckpt", "--on", "kpro6/201", "--set", f"root={root}", "--output", "json")
    assert result.status == 3, result
    error = result.outcome("kpro6/201")["error"]
    assert error["code"] == "nothing_to_check"
    assert root in error["message"]


@pytest.mark.lab
def test_without_any_file(tmp_path: Path, host: LabHost) -> None:
    """The story at 2 a.m.: nothing written yet, one command line."""
    empty = Project(folder=tmp_path)
    words = ["--known-hosts", str(host.known_hosts), "--identity", str(host.identity_file), "--ssh-config", "none"]
    import subprocess
    import sys

    done = subprocess.run(
        [
            sys.executable, "-m", "remoterun", "play", "check-ckpt", "--on", f"root@{host.address}/200",
            "--python", GUEST_PYTHON, "--set", f"root={ROOT}", "--output", "json", "--port", str(host.port), *words,
        ],
        cwd=empty.folder, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done
    assert done.stdout.count(b'"kind": "checkpoint"') == 10


@pytest.mark.lab
def test_fail_on_bad_lets_suspects_pass(project: Project, host: LabHost) -> None:
    folder = project.folder / "playbooks"
    folder.mkdir()
    book = """\
targets: kpro6/200
steps:
  - payload: check-ckpt@1
    fail_on: bad
    params: {match: "step_[1-7]000"}
"""
    (folder / "early.yaml").write_text(book, "utf-8")
    result = project.run("play", "early", "--output", "json")
    assert result.status == 0, result
    assert result.document["playbook"]["name"] == "early"
    assert len(result.document["playbook"]["sha256"]) == 64
