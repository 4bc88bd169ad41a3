"""Where numpy comes from: its compiled core alone where that is known to do, all of it elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from remoterun.payloads.check_ckpt.scan.engines import choose_engine

REPO = Path(__file__).resolve().parents[4]
PACKAGE = Path(np.__path__[0])

SCRIPT = """
import os, sys
sys.path[:] = [{code!r}, {packages!r}, *(path for path in sys.path if "site-packages" not in path)]
from check_ckpt.scan.engines import EngineError, choose_engine
from check_ckpt.dtypes import DTYPES
try:
    engine = choose_engine({mode!r}, 5 << 30, print)
except EngineError as error:
    print(error)
    sys.exit()
print(engine.name, "numpy" in sys.modules, os.environ.get("OPENBLAS_NUM_THREADS"))
data = bytes(range(64)) * 100
look = engine.look(DTYPES["float32"], data, 0, len(data), thorough=True)
print(look.counts.nan, look.zeros)
if "numpy" not in sys.modules and engine.name == "numpy":
    import numpy
    print(numpy.__version__, numpy.dtype("float32"), float(numpy.linalg.norm(numpy.ones(4))))
"""


def run(packages: Path, mode: str = "numpy") -> list[str]:
    """Choose an engine in a Python that finds other packages than this one."""
    script = SCRIPT.format(code=str(REPO / "remoterun" / "payloads"), packages=str(packages), mode=mode)
    done = subprocess.run([sys.executable, "-E", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def lay_out(folder: Path, version: str) -> Path:
    """Lay out the numpy of this machine as another version."""
    for name in ("numpy", "numpy.libs"):
        if (PACKAGE.parent / name).exists():
            (folder / name).symlink_to(PACKAGE.parent / name)
    (folder / f"numpy-{version}.dist-info").mkdir()
    return folder


def test_the_core_is_enough_and_in_nobodys_way(tmp_path: Path) -> None:
    """All of numpy can be imported afterwards."""
    lines = run(lay_out(tmp_path, "2.4.0"))
    assert lines == ["numpy False 1", "0 0", f"{np.__version__} float32 2.0"]


@pytest.mark.parametrize("version", ["9.9.0", "1.17.0", "2.5.0rc1"])
def test_of_other_versions_all_is_imported(tmp_path: Path, version: str) -> None:
    assert run(lay_out(tmp_path, version)) == ["numpy True 1", "0 0"]


def test_where_versions_are_mixed_up_all_is_imported(tmp_path: Path) -> None:
    lay_out(tmp_path, "2.4.0")
    (tmp_path / "numpy-2.3.1.dist-info").mkdir()
    assert run(tmp_path) == ["numpy True 1", "0 0"]


@pytest.mark.parametrize("version", ["2.4.0", "9.9.0"])
def test_a_broken_numpy_is_told_or_done_without(tmp_path: Path, version: str) -> None:
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text("raise RuntimeError('compiled for another Python')\n")
    (tmp_path / f"numpy-{version}.dist-info").mkdir()
    reason = "numpy can't be imported here (RuntimeError: compiled for another Python)"
    assert run(tmp_path) == [f"engine=numpy was asked for, but {reason}"]
    assert run(tmp_path, "auto") == [f"{reason}: counting without it", "stdlib False 1", "0 0"]


def test_a_numpy_that_miscounts_is_not_used(tmp_path: Path) -> None:
    """Such as one whose BLAS does not fit the processor."""
    package = tmp_path / "numpy"
    package.mkdir()
    package.joinpath("__init__.py").write_text(
        f"import sys\n__path__ = [{str(PACKAGE)!r}]\nexec(open({str(PACKAGE / '__init__.py')!r}).read())\n"
        "def vecdot(one, other): return (one * other).sum(-1) + 1\n"
    )
    assert run(tmp_path) == ["engine=numpy was asked for, but numpy computes other than it should here"]
    assert run(tmp_path, "auto")[0] == "numpy computes other than it should here: counting without it"


def test_little_is_not_worth_it() -> None:
    assert choose_engine("auto", 1_000_000, print).name == "stdlib"
    assert choose_engine("auto", 2_000_000, print).name == "numpy"
    assert choose_engine("stdlib", 1 << 40, print).name == "stdlib"
