"""Graphics processors: which are idle, what becomes of a scan without any, and a scan by torch (on the CPU)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NoReturn, cast

import pytest
import torch

from remoterun.payloads.check_ckpt.auditor import Auditor
from remoterun.payloads.check_ckpt.find.discover import discover
from remoterun.payloads.check_ckpt.scan.crc import best_checksum
from remoterun.payloads.check_ckpt.scan.cuda_engine import CudaEngine
from remoterun.payloads.check_ckpt.scan.engines import choose_engine
from remoterun.payloads.check_ckpt.scan.gpus import idle_gpus
from remoterun.payloads.check_ckpt.scan.scanner import Pace, Scanner
from remoterun.payloads.check_ckpt.scan.spans import claim
from remoterun.payloads.check_ckpt.scan.stdlib_engine import StdlibEngine
from remoterun.payloads.check_ckpt.series.memory import Memory
from remoterun.payloads.check_ckpt.series.store import Store
from remoterun.payloads.check_ckpt.settings import settings_of
from remoterun.payloads.check_ckpt.source import Source
from tests.unit.payloads.check_ckpt.scan_support import scan
from tests.unit.payloads.check_ckpt.support import Heard, save, training_state
from tests.unit.payloads.check_ckpt.test_scan_pairs import moments, pair_all

if TYPE_CHECKING:
    from pathlib import Path

    from remoterun.remote.runtime import Context

pytestmark = pytest.mark.torch


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put an nvidia-smi on the PATH that says, each time it is called, what the next file in a folder has."""
    folder = tmp_path / "smi"
    folder.mkdir()
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncd {folder}\nset -- *\ncat $1\nrm $1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return folder


def test_idle_is_what_is_idle_twice(smi: Path) -> None:
    (smi / "1").write_text("GPU-a, 3, 0\nGPU-b, 3, 0\nGPU-c, 70000, 0\nGPU-d, 500, 12\nGPU-e, [N/A], 0\nGPU-f, 1, 0\n")
    (smi / "2").write_text("GPU-a, 3, 0\nGPU-b, 900, 99\nGPU-c, 3, 0\nGPU-d, 500, 0\nGPU-e, 3, 0\nGPU-f, 1, 0\n")
    assert idle_gpus() == ["GPU-a", "GPU-f"]


@pytest.mark.parametrize("said", ["", "No devices were found\n", "NVIDIA-SMI has failed because ...\n"])
def test_none_is_idle_where_there_is_none(smi: Path, said: str) -> None:
    (smi / "1").write_text(said)
    assert idle_gpus() == []
    assert [path.name for path in smi.iterdir()] == [], "it was asked"


def test_without_an_idle_processor_the_scan_goes_on_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    logged: list[str] = []
    assert choose_engine("cuda", 5 << 30, logged.append).name == "numpy"
    assert choose_engine("cuda", 5, logged.append).name == "stdlib"
    assert logged == ["engine=cuda was asked for, but no graphics processor is idle here: counting without"] * 2


def test_with_a_processor_that_torch_can_not_use_it_says_why(smi: Path) -> None:
    """As here, where torch is built without CUDA."""
    if torch.cuda.is_available():
        pytest.skip("torch has a graphics processor here")
    for number in "12":
        (smi / number).write_text("GPU-a, 3, 0\n")
    logged: list[str] = []
    assert choose_engine("cuda", 5 << 30, logged.append).name == "numpy"
    (words,) = logged
    assert words.startswith("engine=cuda was asked for, but can't be used (")
    assert words.endswith("): counting without")


class Broken(CudaEngine):
    """Be a device that fails some time after it was tried."""

    def ask(self, *args: object, **options: object) -> NoReturn:
        """Fail as torch does."""
        raise RuntimeError("CUDA error: unspecified launch failure\nCompile with TORCH_USE_CUDA_DSA")


def test_what_fails_on_the_way_is_done_without(tmp_path: Path) -> None:
    save(training_state(), tmp_path / "a" / "step_2000.pt")
    save(training_state(1), tmp_path / "b" / "step_2000.pt")
    heard = Heard({"root": str(tmp_path)})
    context, settings = cast("Context", heard), settings_of(heard.params)
    units = discover(settings.root, settings.depth).units
    memory = Memory(settings.root, units, Store(None), deep=True, recheck_s=0, now=0)
    engine = Broken(["cpu"], StdlibEngine(), torch)
    auditor = Auditor(context, settings, engine, memory, sum(unit.size for unit in units), time.time)
    for unit in units:
        auditor.audit(unit)
    auditor.finish()
    assert heard.logged == [
        "engine=cuda failed (RuntimeError: CUDA error: unspecified launch failure): counting without it"
    ]
    assert [(record["verdict"], record["engine"]) for record in heard.records] == [("ok", "stdlib")] * 2
    assert [done for done, *_ in heard.steps] == sorted(done for done, *_ in heard.steps)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_scan_with_late_answers_tells_the_same(tmp_path: Path, workers: int) -> None:
    """In processes of their own, by two buffers in turns, with the small tensors left to another engine."""
    torch.manual_seed(3)
    first, second = moments(300_000)
    second[100_000:101_024] = 0.0
    tensors = {
        "big": torch.randn(12_000_000),
        "bf16": torch.randn(1_000_000).bfloat16(),
        "fp8": torch.randn(700_000).to(torch.float8_e5m2),
        "complex": torch.randn(200_000, dtype=torch.complex64),
        "small": torch.randn(100),
        "m": first,
        "v": second,
        "columns": torch.randn(300, 4000)[:, ::2],
    }
    tensors["big"][7_654_321] = float("nan")
    tensors["bf16"][-1] = float("-inf")
    path = save(tensors, tmp_path / "c.pt")
    wanted = scan(path, pairs=pair_all)
    with Source(str(path)) as source:
        scanner = Scanner(
            [source],
            wanted.checkpoint.regions,
            claim(wanted.checkpoint.tensors).views,
            engine=CudaEngine(["cpu"] * workers, StdlibEngine(), torch),
            checksum=best_checksum(),
            pace=Pace(None),
            on_bytes=lambda count: None,
            pairs=pair_all(wanted.checkpoint),
        )
        found = scanner.run(7)
    assert found.crcs == wanted.scanned.crcs
    assert found.counts == wanted.scanned.counts
    for index, stats in wanted.scanned.stats.items():
        assert found.stats[index]._replace(squares=None) == stats._replace(squares=None)
        assert found.stats[index].squares == pytest.approx(stats.squares, rel=2e-6)
    (one,), (other,) = found.broken, wanted.scanned.broken
    assert one == other._replace(ratio=one.ratio)
