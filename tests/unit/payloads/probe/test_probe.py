"""The whole probe, as it is packed, on every Python of this machine and against real trouble."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from remoterun.catalog import Catalog
from remoterun.compare.probe import probe_facts
from remoterun.payloads.probe import Params
from remoterun.payloads.probe import probe as find_out
from remoterun.payloads.probe.files import Files
from tests.support.lab.pythons import pythons

if TYPE_CHECKING:
    from remoterun.catalog import PayloadInfo

# What stands in for the runtime: JSON in, strict JSON out.
# For whatever answers, on a machine that has other things to do.
ENOUGH_S = 2

DRIVER = """
import json, sys
sys.path.insert(0, sys.argv[1])
said = {"records": [], "findings": [], "imported": []}

class Context:
    params = json.loads(sys.argv[2])
    def emit(self, record):
        said["records"].append(record)
    def finding(self, rule, severity, subject, message, next_step="", evidence=None, **data):
        assert not data
        said["findings"].append([rule, severity, subject, message, next_step, evidence])

import probe
probe.run(Context())
said["imported"] = [name for name in ("torch", "numpy") if name in sys.modules]
print(json.dumps(said, ensure_ascii=True, allow_nan=False))
"""

# A file system whose server never answers: nobody reads the requests of this FUSE mount. It ends with this process.
HANGING_MOUNT = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result != 0:
        print(json.dumps({"skip": os.strerror(ctypes.get_errno())}))
        sys.exit()
import json
try:
    server = os.open("/dev/fuse", os.O_RDWR)
except OSError as error:
    print(json.dumps({"skip": str(error)}))
    sys.exit()
check(libc.unshare(0x20000))
check(libc.mount(b"none", b"/", None, (1 << 14) | (1 << 18), None))
options = b"fd=%d,rootmode=40000,user_id=0,group_id=0" % server
check(libc.mount(b"server:/export", sys.argv[3].encode(), b"fuse", 0, options))
"""


@pytest.fixture(scope="module")
def probe() -> PayloadInfo:
    return Catalog.load(None).find("probe")


@pytest.fixture
def pack(probe: PayloadInfo, tmp_path: Path) -> Path:
    path = tmp_path / "pack"
    path.write_bytes(probe.pack().data)
    return path


def run(
    pack: Path, params: dict[str, Any], *, python: str = sys.executable, before: str = "", extra: str = ""
) -> dict[str, Any]:
    argv = [python, "-c", before + DRIVER, str(pack), json.dumps(params), extra]
    ran = subprocess.run(argv, capture_output=True, text=True, check=False, cwd="/", timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    return dict(json.loads(ran.stdout))


def older_pythons() -> list[str]:
    return [path for version, path in pythons().items() if version not in ("2.7", "3.6", "3.7")]


@pytest.mark.parametrize("python", [sys.executable, *older_pythons()])
def test_one_record_with_every_fact(probe: PayloadInfo, pack: Path, python: str) -> None:
    said = run(pack, probe.check_params({}, where=""), python=python)
    (record,) = said["records"]
    ask = (
        "import json, platform as p, sys; "
        "print(json.dumps([p.python_version(), p.python_implementation(), sys.prefix, sys.base_prefix]))"
    )
    asked = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    assert [record["python"][key] for key in ("version", "implementation", "prefix", "base_prefix")] == json.loads(
        asked.stdout
    )
    assert record["kind"] == "probe"
    assert record["name"] == record["system"]["hostname"] == os.uname().nodename
    assert record["system"]["kernel"] == os.uname().release
    assert record["cpu"]["affinity"] == len(os.sched_getaffinity(0))
    assert record["memory"]["total"] > record["memory"]["available"] > 0
    root = next(mount for mount in record["mounts"] if mount["point"] == "/")
    stat = os.statvfs("/")
    assert root["total"] == stat.f_blocks * stat.f_frsize
    assert record["processes"]["count"] > 0
    assert record["limits"]["nofile"]["soft"]
    assert record["findings"] == sorted({finding[0] for finding in said["findings"]})
    assert record["seconds"] > 0


@pytest.mark.torch
def test_torch_is_described_without_being_imported(probe: PayloadInfo, pack: Path) -> None:
    import torch

    said = run(pack, probe.check_params({}, where=""))
    assert said["imported"] == []
    described = said["records"][0]["python"]["torch"]
    # The metadata of some builds leaves out what torch itself appends, such as +cu130; `cuda` has it.
    assert described["version"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert described["cuda"] == torch.version.cuda
    assert described["path"] == str(Path(torch.__file__).parent)


def test_without_the_gpu_part_nothing_is_said_of_gpus(probe: PayloadInfo, pack: Path) -> None:
    said = run(pack, probe.check_params({"gpu": False}, where=""))
    assert said["records"][0]["gpu"] is None


def test_a_full_disk_is_found_by_the_parameters(probe: PayloadInfo, pack: Path) -> None:
    params = probe.check_params({"min_free_pct": 100, "min_free": "1000TB", "gpu": False}, where="")
    said = run(pack, params)
    writable = {mount["point"] for mount in said["records"][0]["mounts"] if mount["total"] and not mount["read_only"]}
    found = {finding[2] for finding in said["findings"] if finding[0] == "PR001"}
    assert found
    assert found <= writable


@pytest.mark.lab
def test_a_mount_that_hangs_is_a_finding_and_not_a_hang(probe: PayloadInfo, pack: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a file system that never answers")
    point = tmp_path / "never answers"
    point.mkdir()
    params = probe.check_params({"answer_within": f"{ENOUGH_S}s", "gpu": False}, where="")
    said = run(pack, params, before=HANGING_MOUNT, extra=str(point))
    if "skip" in said:
        pytest.skip(f"needs FUSE: {said['skip']}")
    (finding,) = [finding for finding in said["findings"] if finding[0] == "PR003"]
    assert finding[1:3] == ["bad", str(point)]
    assert "fuse from server:/export" in finding[3]
    (record,) = said["records"]
    assert f"mount {point}: no answer" in record["unchecked"]
    assert record["verdict"] == "bad"
    assert {mount["point"]: mount["state"] for mount in record["mounts"]}["/"] == "ok"


# The standard library comes first; all that is installed comes after.
BEFORE_PACKAGES = """
at = next((at for at, path in enumerate(sys.path) if path.endswith("-packages")), len(sys.path))
sys.path.insert(at, sys.argv[3] + "/packages")
"""


@pytest.mark.lab
@pytest.mark.parametrize(
    ("found_by", "name", "python"),
    [
        *((BEFORE_PACKAGES, "python packages", python) for python in (sys.executable, *older_pythons())),
        ("os.environ['PATH'] = sys.argv[3] + ':' + os.environ['PATH']", "gpus", sys.executable),
        ("os.environ['LD_LIBRARY_PATH'] = sys.argv[3] + '/lib'", "library", sys.executable),
    ],
)
def test_a_folder_of_programs_on_a_mount_that_hangs_costs_only_what_is_looked_for_there(
    probe: PayloadInfo, pack: Path, tmp_path: Path, found_by: str, name: str, python: str
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a file system that never answers")
    point = tmp_path / "never"
    point.mkdir()
    params = probe.check_params({"answer_within": f"{ENOUGH_S}s"}, where="")
    said = run(pack, params, python=python, before=f"{HANGING_MOUNT}{found_by}\n", extra=str(point))
    if "skip" in said:
        pytest.skip(f"needs FUSE: {said['skip']}")
    (record,) = said["records"]
    assert f"{name}: no answer" in record["unchecked"]
    assert ("torch" in record["python"]) == (name != "python packages")
    # The driver has nothing to do with it.
    assert [finding[0] for finding in said["findings"] if finding[0] in ("PR003", "PR011")] == ["PR003"]
    assert record["system"]["distribution"]
    assert record["memory"]["total"]


NEVER = {
    "/proc/meminfo": {"memory"},
    "/proc/cpuinfo": {"cpu", "system"},
    "/proc/loadavg": {"cpu"},
    "/proc/uptime": {"system"},
    "/proc/1/environ": {"system"},
    "/etc/os-release": {"system"},
    "/proc/driver/nvidia/version": {"driver"},
}


@pytest.mark.parametrize("path", NEVER)
def test_a_file_that_never_answers_costs_only_its_own_facts(tmp_path: Path, path: str) -> None:
    fifo = tmp_path / path.lstrip("/")
    fifo.parent.mkdir(parents=True)
    os.mkfifo(fifo)
    started = time.monotonic()
    record, _ = find_out(Params(gpu=True, min_free_pct=5, min_free=1, answer_within=ENOUGH_S), Files(str(tmp_path)))
    assert time.monotonic() - started < 40
    assert {f"{name}: no answer" for name in NEVER[path]} <= set(cast("list[str]", record["unchecked"]))
    facts = (("system", "container"), ("cpu", "count"), ("memory", "total"), ("gpu", "driver"), ("gpu", "nodes"))
    for part, fact in facts:
        assert (fact in cast("dict[str, Any]", record[part])) == (part.replace("gpu", "driver") not in NEVER[path])
    # What the kernel says at once is there all the same.
    assert record["name"] == os.uname().nodename
    assert cast("dict[str, Any]", record["cpu"])["affinity"]
    assert json.dumps(record, allow_nan=False)


def test_a_package_whose_version_never_comes_is_not_taken_for_a_missing_one(
    probe: PayloadInfo, pack: Path, tmp_path: Path
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").touch()
    os.mkfifo(tmp_path / "torch/version.py")
    params = probe.check_params({"answer_within": f"{ENOUGH_S}s", "gpu": False}, where="")
    (record,) = run(pack, params, before=f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n")["records"]
    assert "python packages: no answer" in record["unchecked"]
    assert {"torch", "numpy", "safetensors"}.isdisjoint(record["python"])
    assert record["python"]["prefix"]
    assert "torch" not in dict(probe_facts(record))


FAKE_SMI = """#!/bin/sh
case "$1" in
--query-gpu=*) echo "0, GPU-aa, NVIDIA H200, 00000000:3B:00.0, 560.35.03, 143771, 1024, 97, 45, 0";;
--query-compute-apps=*) echo "GPU-aa, 4711, python, 1000";;
esac
"""


def with_smi(folder: Path, script: str) -> str:
    folder.mkdir()
    (folder / "nvidia-smi").write_text(script)
    (folder / "nvidia-smi").chmod(0o755)
    return f"import os\nos.environ['PATH'] = {str(folder)!r} + ':' + os.environ['PATH']\n"


def test_gpus_and_their_processes_come_from_nvidia_smi(probe: PayloadInfo, pack: Path, tmp_path: Path) -> None:
    said = run(pack, probe.check_params({}, where=""), before=with_smi(tmp_path / "bin", FAKE_SMI))
    (card,) = said["records"][0]["gpu"]["gpus"]
    assert (card["name"], card["memory_used"]) == ("NVIDIA H200", 1 << 30)
    assert card["processes"] == [{"pid": 4711, "name": "python", "memory": 1000 << 20}]
    assert said["records"][0]["gpu"]["nvidia_smi"] == "ok"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("#!/bin/sh\nexec sleep 1000\n", "no answer"),
        ("#!/bin/sh\necho broken >&2; exit 9\n", "broken\n"),
        ("#!/bin/sh\nexit 9\n", "nothing (exit status 9)"),
        ("#!/bin/sh\necho No devices were found\n", "No devices were found\n"),
        ("#!/bin/sh\nexit 0\n", "nothing (exit status 0)"),
    ],
)
def test_an_nvidia_smi_that_hangs_or_fails_is_told(
    probe: PayloadInfo, pack: Path, tmp_path: Path, script: str, words: str
) -> None:
    params = probe.check_params({"answer_within": f"{ENOUGH_S}s"}, where="")
    (record,) = run(pack, params, before=with_smi(tmp_path / "bin", script))["records"]
    assert record["gpu"]["nvidia_smi"] == words
    assert record["gpu"]["gpus"] == []
    assert ("gpus: no answer" in record["unchecked"]) == (words == "no answer")
