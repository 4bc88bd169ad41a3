"""The payload, as it is packed, on every Python here from 3.8 on: it compiles and audits with the standard library."""

from __future__ import annotations

import io
import json
import subprocess
import zipfile
from pathlib import Path

import pytest

from remoterun.catalog import Catalog
from tests.support.lab.pythons import pythons
from tests.unit.payloads.check_ckpt.support import save, training_state

pytestmark = pytest.mark.torch

SUPPORTED = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")

SCRIPT = """
import compileall, json, sys
payloads, root, cache = sys.argv[1:]
sys.pycache_prefix = cache
assert compileall.compile_dir(payloads + "/check_ckpt", quiet=2, force=True)
sys.path.insert(0, payloads)
import check_ckpt
class Context:
    params = {"root": root, "engine": "stdlib"}
    def emit(self, record): print(json.dumps(record))
    def finding(self, rule, severity, subject, *rest, **data): print(json.dumps([rule, severity, subject]))
    def progress(self, *rest): pass
    def log(self, text): pass
check_ckpt.run(Context())
"""


@pytest.mark.parametrize("version", SUPPORTED)
def test_it_runs_on(version: str, tmp_path: Path) -> None:
    if version not in pythons():
        pytest.skip(f"there is no Python {version} on this machine")
    state = training_state()
    state["model_state_dict"]["0.weight"][0, :3] = float("nan")
    state["optimizer_state_dict"]["state"][0]["exp_avg"][0, 0] = float("-inf")
    save(state, tmp_path / "checkpoints" / "step_1" / "c.pt")
    with zipfile.ZipFile(io.BytesIO(Catalog.load(None).find("check-ckpt").pack().data)) as pack:
        pack.extractall(tmp_path / "pack")
    argv = [pythons()[version], "-E", "-c", SCRIPT, str(tmp_path / "pack"), str(tmp_path / "checkpoints")]
    done = subprocess.run([*argv, str(tmp_path / "cache")], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    weights, optimizer, record, summary = (json.loads(line) for line in done.stdout.splitlines())
    assert (weights, optimizer) == (["CK001", "bad", "step_1"], ["CK003", "bad", "step_1"])
    assert (record["nan_weights"], record["inf_optimizer"], record["engine"]) == (3, 1, "stdlib")
    assert summary["verdicts"] == {"bad": 1}
