"""Numbers that no training has, in places where it keeps some: the audit goes on, and what it says is strict JSON."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from remoterun.payloads.check_ckpt.loadtest import Allowance, LoadTests
from tests.unit.payloads.check_ckpt.layouts import trainer
from tests.unit.payloads.check_ckpt.support import audit, network, save, settle, write
from tests.unit.payloads.check_ckpt.test_loadtest import stand_in
from tests.unit.payloads.check_ckpt.zero_layout import Training, save_zero_3

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*no_dist.*"),
    pytest.mark.filterwarnings("ignore:torch.distributed is"),
]


@pytest.mark.parametrize("count", [math.inf, -math.inf, math.nan, 1e308, -1])
def test_a_scheduler_that_counts_no_steps(tmp_path: Path, count: float) -> None:
    path = trainer(tmp_path / "checkpoint-100", 100)
    scheduler = torch.load(path / "scheduler.pt", weights_only=False)
    save({**scheduler, "last_epoch": count}, path / "scheduler.pt")
    heard = audit(tmp_path)
    assert heard.record["verdict"] == ("suspect" if math.isfinite(count) else "ok")


def distributed(path: Path, betas: Any) -> Path:
    """Save with torch.distributed.checkpoint, with any betas."""
    model, optimizer = network(width=8, layers=2)
    state = optimizer.state_dict()
    state["param_groups"][0]["betas"] = betas
    save_distributed({"model": model.state_dict(), "optim": state}, storage_writer=FileSystemWriter(path), no_dist=True)
    for file in path.iterdir():
        settle(file)
    return path


def test_one_checkpoint_does_not_end_the_audit_of_others(tmp_path: Path) -> None:
    distributed(tmp_path / "step_2", [10**400, 0.9])
    distributed(tmp_path / "step_1", [0.9, 0.999])
    heard = audit(tmp_path)
    assert heard.record_of("step_1")["verdict"] == "ok"
    assert len(heard.records) == 2


def test_a_parameter_of_a_universal_checkpoint_without_end(tmp_path: Path) -> None:
    for kind, value in (("fp32", torch.randn(4, 4)), ("exp_avg", torch.randn(4, 4)), ("step", 10**400)):
        save({"param": value}, tmp_path / f"c/zero/w/{kind}.pt")
    groups = [{"lr": 10**400, "betas": (0.9, 10**400), "params": [0]}]
    save({"param_groups": groups}, tmp_path / "c/zero/optimizer_state.pt")
    heard = audit(tmp_path)
    assert heard.record["tensors"] == 2
    assert "CK030" not in heard.rules()


@pytest.mark.parametrize("shapes", [[], (), None, {}, 3])
def test_frozen_weights_of_no_shape(tmp_path: Path, shapes: object) -> None:
    path = save_zero_3(tmp_path / "global_step100", Training())
    for file in path.glob("*model_states.pt"):
        save({**torch.load(file, weights_only=False), "frozen_param_shapes": shapes}, file)
    heard = audit(path)
    assert heard.record["verdict"] == "ok"


@pytest.mark.parametrize("said", ['"seconds": NaN', '"seconds": 1e999', '"seconds": -1e999', f'"memory": {10**400}'])
def test_a_loader_that_a_file_got_hold_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    answer = '{"accepted": true, ' + said + "}\n"
    stand_in(tmp_path, monkeypatch, f"os.write(3, {answer.encode()!r})")
    tests = LoadTests(Allowance(1 << 30, 60.0))
    told = tests.of_files([str(write(tmp_path / "a.pt", b"PK\3\4"))], lambda: None)
    tests.close()
    assert told["accepted"] is True
    assert json.loads(json.dumps(told, allow_nan=False)) == told
