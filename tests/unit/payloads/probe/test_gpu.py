"""NVIDIA facts from sample texts: what drivers and nvidia-smi of several versions say."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoterun.payloads.probe import gpu
from remoterun.payloads.probe.files import Files

if TYPE_CHECKING:
    from pathlib import Path

CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n"
    "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
)
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build  (dvs-builder@U16-I1-N07-12-3)\n"
)
OLD = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.82  Mon Oct 18 10:00:00 UTC 2021\n"
INFORMATION = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 180\nGPU UUID: \t GPU-0\nDevice Minor: \t 3\nGPU Excluded:\t No\n"

_UUID = "GPU-5a6b7c8d-0001-0002-0003-00000000000"
GPUS = (
    f"0, {_UUID}0, NVIDIA H200, 00000000:3B:00.0, 560.35.03, 143771, 1024, 97, 45, 0\n"
    f"1, {_UUID}1, NVIDIA GeForce RTX 4090, 00000000:5E:00.0, 560.35.03, 24564, 0, 0, 31, [N/A]\n"
    f"2, {_UUID}2, NVIDIA H200, 00000000:86:00.0, 560.35.03, 143771, [Unknown Error], [GPU requires reset], ERR!, 7\n"
    "Unable to determine the device handle for GPU 0000:AF:00.0: GPU is lost.  Reboot the system to recover this GPU\n"
)
APPS = (
    "GPU-5a6b7c8d-0001-0002-0003-000000000000, 4711, /root/venv/bin/python, 1000\n"
    "GPU-5a6b7c8d-0001-0002-0003-000000000000, 4712, python, with, commas, [N/A]\n"
    "No running processes found\n"
)


@pytest.mark.parametrize(
    ("text", "version"),
    [(CLOSED, "535.129.03"), (OPEN, "560.35.03"), (OLD, "470.82"), ("", None), ("GCC version: gcc 12.2.0\n", None)],
)
def test_the_kernel_modules_version(text: str, version: str | None) -> None:
    assert gpu.parse_driver_version(text) == version


def test_a_gpus_minor_number() -> None:
    assert gpu.parse_minor(INFORMATION) == 3
    assert gpu.parse_minor("Device Minor: \t ?\n") is None


def test_gpus_of_nvidia_smi() -> None:
    first, second, third = gpu.parse_gpus(GPUS)
    assert (first.number, first.name, first.driver, first.bus_id) == (0, "NVIDIA H200", "560.35.03", "00000000:3B:00.0")
    assert (first.memory_total, first.memory_used) == (143771 << 20, 1 << 30)
    assert (first.utilisation_pct, first.temperature_c, first.uncorrected_ecc) == (97, 45, 0)
    assert (second.memory_used, second.uncorrected_ecc) == (0, None)
    assert (third.memory_used, third.utilisation_pct, third.temperature_c, third.uncorrected_ecc) == (
        None,
        None,
        None,
        7,
    )


def test_processes_of_nvidia_smi() -> None:
    (processes,) = gpu.parse_processes(APPS).values()
    assert processes == [
        {"pid": 4711, "name": "/root/venv/bin/python", "memory": 1000 << 20},
        {"pid": 4712, "name": "python, with, commas", "memory": None},
    ]


@given(st.text() | st.lists(st.sampled_from([*GPUS.split(","), *APPS.split(","), "\n", ","])).map(",".join))
def test_any_text_can_be_read(text: str) -> None:
    gpu.parse_gpus(text)
    gpu.parse_processes(text)
    gpu.parse_driver_version(text)
    gpu.parse_minor(text)


# --- a machine in files -----------------------------------------------------------------------------------------------


def machine(root: Path, *, module: str | None, library: str | None, minors: tuple[int, ...] = ()) -> Files:
    if module:
        for minor in minors:
            information = root / f"proc/driver/nvidia/gpus/0000:{minor:02x}:00.0/information"
            information.parent.mkdir(parents=True, exist_ok=True)
            information.write_text(INFORMATION.replace("3\n", f"{minor}\n"))
        (root / "proc/driver/nvidia").mkdir(parents=True, exist_ok=True)
        (root / "proc/driver/nvidia/version").write_text(module)
    if library:
        add_library(root / "usr/lib/x86_64-linux-gnu", library)
    return Files(str(root))


def add_library(folder: Path, version: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"libcuda.so.{version}").touch()
    (folder / "libcuda.so.1").symlink_to(f"libcuda.so.{version}")


def test_a_driver_that_fits(tmp_path: Path) -> None:
    files = machine(tmp_path, module=CLOSED, library="535.129.03", minors=(0, 1))
    driver = gpu.parse_driver(gpu.look(files))
    assert (driver.version, driver.minors) == ("535.129.03", [0, 1])
    path = str(tmp_path / "usr/lib/x86_64-linux-gnu/libcuda.so.535.129.03")
    assert gpu.library(files) == {"library": "535.129.03", "library_path": path}


def test_a_machine_without_nvidia(tmp_path: Path) -> None:
    assert gpu.parse_driver(gpu.look(machine(tmp_path, module=None, library=None))) == gpu.Driver()


def test_the_library_is_the_one_a_program_would_load(tmp_path: Path) -> None:
    files = machine(tmp_path, module=OPEN, library="560.35.03")
    add_library(tmp_path / "opt/mine", "550.54.15")
    add_library(tmp_path / "usr/local/cuda-12.6/compat", "565.57.01")
    (tmp_path / "opt/stub").mkdir(parents=True)
    (tmp_path / "opt/stub/libcuda.so.1").touch()
    # The loader's own order: LD_LIBRARY_PATH, then the system. A compat library fits any driver; a stub has no version.
    assert gpu.find_library(files, "/opt/mine:/x")[1] == "550.54.15"
    assert gpu.find_library(files, ":relative:/usr/local/cuda-12.6/compat:/opt/stub")[1] == "560.35.03"


def test_a_link_to_a_library_that_is_not_there_is_passed_over(tmp_path: Path) -> None:
    files = machine(tmp_path, module=OPEN, library="560.35.03")
    (tmp_path / "usr/lib/x86_64-linux-gnu/libcuda.so.560.35.03").unlink()
    assert gpu.find_library(files, "") == (None, None)


def test_device_nodes(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root makes device nodes")
    dev = tmp_path / "dev"
    (dev / "nvidia-caps").mkdir(parents=True)
    (dev / "nvidia-folder").mkdir()
    (dev / "nvidia-file").touch()
    try:
        # The numbers of /dev/null, which opens; a block of numbers that no driver has, which does not.
        os.mknod(dev / "nvidiactl", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        os.mknod(dev / "nvidia-uvm", 0o660 | stat.S_IFCHR, os.makedev(4000, 0))
        os.mknod(dev / "nvidia0", 0o600 | stat.S_IFCHR, os.makedev(4000, 1))
        os.mknod(dev / "nvidia-caps/nvidia-cap1", 0o400 | stat.S_IFCHR, os.makedev(4000, 2))
    except PermissionError:
        pytest.skip("device nodes can't be made here")
    for path in (*dev.glob("nvidia?*"), *dev.glob("nvidia-caps/*")):
        if path.is_char_device():
            path.chmod(0o600)
    nodes = {node.path: node for node in gpu.device_nodes(Files(str(tmp_path)))}
    assert set(nodes) == {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap1"}
    assert nodes["/dev/nvidiactl"] == gpu.Node("/dev/nvidiactl", 1, 3, "0600", "yes")
    assert nodes["/dev/nvidia-uvm"].opens == "ENXIO"
    assert nodes["/dev/nvidia0"] == gpu.Node("/dev/nvidia0", 4000, 1, "0600", None)
    said = json.loads(gpu.look(Files(str(tmp_path))))
    assert len(said["nodes"]) == 4
