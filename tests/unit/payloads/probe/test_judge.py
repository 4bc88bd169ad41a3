"""Rules: each one's trouble is found, and what only looks like it is not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoterun.payloads.probe import judge
from remoterun.payloads.probe.gpu import Driver, Gpu, Node
from remoterun.payloads.probe.memory import Memory
from remoterun.payloads.probe.storage import Room

MIB, GIB, TIB = 1 << 20, 1 << 30, 1 << 40
REPOSITORY = Path(__file__).parents[4]


def room(**changes: Any) -> Room:
    plain = Room("/data", "/dev/sda1", "ext4", False, False, "ok", None, TIB, TIB // 2, 50.0, 50.0)
    return plain._replace(**changes)


def rules(troubles: list[judge.Trouble]) -> list[tuple[str, str]]:
    return [(trouble.rule, trouble.severity) for trouble in troubles]


def storage(*rooms: Room, torch: bool = True) -> list[tuple[str, str]]:
    return rules(judge.storage(list(rooms), min_free_pct=5.0, min_free=50 * GIB, limit_s=5.0, torch=torch))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"free_pct": 4.0, "available": 40 * GIB}, [("PR001", "suspect")]),
        ({"free_pct": 4.0, "available": 50 * GIB}, []),
        ({"free_pct": 6.0, "available": 40 * GIB}, []),
        ({"free_pct": 0.5, "available": 5 * GIB}, [("PR001", "bad")]),
        ({"free_pct": 4.0, "available": GIB - 1}, [("PR001", "bad")]),
        ({"free_pct": 0.0, "available": 0}, [("PR001", "bad")]),
        ({"free_pct": 3.0, "available": 10 * MIB, "total": 300 * MIB}, [("PR001", "info")]),
        ({"free_pct": 0.0, "available": 0, "read_only": True}, []),
        ({"free_pct": None, "available": 0, "total": 0}, []),
        ({"inodes_free_pct": 0.5}, [("PR002", "suspect")]),
        ({"inodes_free_pct": 1.0}, []),
        ({"inodes_free_pct": None}, []),
        ({"inodes_free_pct": 0.0, "read_only": True}, []),
        ({"state": "no answer", "fstype": "nfs4"}, [("PR003", "bad")]),
        ({"state": "error", "error": "ESTALE"}, [("PR004", "bad")]),
        ({"state": "error", "error": "EIO"}, [("PR004", "bad")]),
        ({"state": "error", "error": "EACCES"}, []),
        ({"state": "error", "error": "ENOENT"}, []),
        ({"read_only": True, "turned_read_only": True}, [("PR005", "suspect")]),
        ({"read_only": True, "turned_read_only": True, "fstype": "squashfs"}, []),
    ],
)
def test_mounts(changes: dict[str, object], expected: list[tuple[str, str]]) -> None:
    assert storage(room(**changes)) == expected


def test_a_full_pool_is_told_once_and_its_quotas_each() -> None:
    full = {"fstype": "zfs", "free_pct": 2.0, "total": TIB}
    pool = [room(point=f"/{at}", source=f"tank/{at}", available=20 * GIB, **full) for at in range(50)]
    quota = room(point="/q", source="tank/q", available=30 * GIB, **full)
    other = room(point="/o", source="fast/o", available=20 * GIB, **full)
    assert storage(*pool, quota, other) == [("PR001", "suspect")] * 3


@pytest.mark.parametrize(
    ("total", "available", "torch", "expected"),
    [
        (64 * MIB, 64 * MIB, True, [("PR006", "suspect")]),
        (64 * MIB, 64 * MIB, False, []),
        (256 * MIB, 256 * MIB, True, []),
        (32 * GIB, 100 * MIB, True, [("PR006", "suspect")]),
        (32 * GIB, 30 * GIB, True, []),
    ],
)
def test_shared_memory(total: int, available: int, torch: bool, expected: list[tuple[str, str]]) -> None:
    shm = room(point="/dev/shm", fstype="tmpfs", total=total, available=available, free_pct=100 * available / total)
    assert storage(shm, torch=torch) == expected


def test_shared_memory_that_does_not_answer_is_no_trouble_of_its_own() -> None:
    assert (
        storage(room(point="/dev/shm", state="error", error="ENOENT", total=None, available=None, free_pct=None)) == []
    )


@pytest.mark.parametrize(
    ("machine", "group", "expected"),
    [
        (None, None, []),
        ((64 * GIB, 32 * GIB), None, []),
        ((64 * GIB, 3 * GIB), None, [("PR007", "suspect")]),
        ((64 * GIB, GIB), None, [("PR007", "suspect")]),
        ((64 * GIB, GIB - 1), None, [("PR007", "bad")]),
        ((2 * TIB, 50 * GIB), None, []),
        ((GIB, 100 * MIB), None, []),
        ((64 * GIB, 32 * GIB), (8 * GIB, 100 * MIB, 0), [("PR007", "bad")]),
        ((64 * GIB, 32 * GIB), (8 * GIB, 4 * GIB, 2), [("PR012", "info")]),
        ((64 * GIB, 32 * GIB), (8 * GIB, 4 * GIB, None), []),
    ],
)
def test_memory(
    machine: tuple[int, int] | None, group: tuple[int, int, int | None] | None, expected: list[tuple[str, str]]
) -> None:
    troubles = judge.memory(
        Memory("machine", *machine) if machine else None, Memory("control group", *group) if group else None
    )
    assert rules(troubles) == expected


CTL = Node("/dev/nvidiactl", 195, 255, "0666", "yes")
UVM = Node("/dev/nvidia-uvm", 510, 0, "0666", "yes")
GPU0 = Node("/dev/nvidia0", 195, 0, "0666")
FINE = Driver("560.35.03", "560.35.03", "/lib/libcuda.so.560.35.03", [0], [CTL, UVM, GPU0])
CARD = Gpu(0, "GPU-0", "NVIDIA H200", "3B", "560.35.03", GIB, 0, 0, 40, 0)
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 560.28\n"


def gpu(
    driver: Driver | None = FINE,
    gpus: tuple[Gpu, ...] = (CARD,),
    smi: str | None = None,
    *,
    container: bool = True,
    torch: bool = True,
    torch_cuda: bool = True,
) -> list[tuple[str, str]]:
    return rules(
        judge.gpu(driver, list(gpus), smi, limit_s=5.0, container=container, torch=torch, torch_cuda=torch_cuda)
    )


def test_a_machine_without_nvidia_is_no_trouble() -> None:
    assert gpu(Driver(), (), "couldn't communicate with the NVIDIA driver") == []
    assert gpu(Driver(library="560.35.03"), ()) == []
    assert gpu() == []


def test_module_and_library_of_two_versions() -> None:
    other = FINE._replace(library="550.54.15")
    assert gpu(other) == [("PR008", "suspect")]
    assert gpu(other, (), MISMATCH) == [("PR008", "bad")]
    assert gpu(FINE._replace(library=None), (), MISMATCH) == [("PR008", "bad")]
    assert gpu(FINE._replace(library=None)) == []


def test_nodes_that_are_missing_in_a_container() -> None:
    none = FINE._replace(nodes=[])
    assert gpu(none, (), "no devices") == [("PR009", "suspect")]
    assert gpu(none, (), "no devices", torch_cuda=False) == [("PR009", "info")]
    assert gpu(none, (), None, container=False) == []
    assert gpu(FINE._replace(nodes=[CTL, GPU0])) == [("PR009", "suspect")]
    assert gpu(FINE._replace(nodes=[GPU0])) == [("PR009", "suspect")] * 2
    assert gpu(FINE._replace(nodes=[CTL, GPU0]), container=False) == []


def test_a_container_with_some_of_the_hosts_gpus_is_no_trouble() -> None:
    assert gpu(FINE._replace(minors=[0, 1, 2, 3])) == []


def test_nodes_that_may_not_be_opened() -> None:
    assert gpu(FINE._replace(nodes=[CTL._replace(opens="EPERM"), UVM, GPU0])) == [("PR010", "suspect")]
    assert gpu(FINE._replace(nodes=[CTL, UVM._replace(opens=None), GPU0])) == []


def test_a_driver_or_nvidia_smi_that_hangs_or_fails() -> None:
    assert gpu(None) == [("PR011", "bad")]
    assert gpu(smi="") == [("PR011", "bad")]
    lost = "0, GPU-0, NVIDIA H200\nUnable to determine the device handle for GPU 0000:AF:00.0: GPU is lost.\n"
    (trouble,) = judge.gpu(FINE, [CARD], lost, limit_s=5.0, container=True, torch=True, torch_cuda=True)
    assert (trouble.rule, trouble.severity) == ("PR011", "suspect")
    assert "said: Unable to determine the device handle" in trouble.message


def test_a_torch_without_cuda_beside_gpus() -> None:
    assert gpu(torch_cuda=False) == [("PR013", "info")]
    assert gpu(torch=False, torch_cuda=False) == []
    assert gpu(gpus=(), torch_cuda=False) == []


def test_memory_errors_of_a_gpu() -> None:
    assert gpu(gpus=(CARD, CARD._replace(number=1, uncorrected_ecc=3))) == [("PR014", "suspect")]
    assert gpu(gpus=(CARD._replace(uncorrected_ecc=None),)) == []


def test_the_verdict_is_that_of_the_highest_finding_above_info() -> None:
    def trouble(severity: str) -> judge.Trouble:
        return judge.Trouble("PR000", severity, "s", "m", "", {})

    assert judge.worst([]) == "ok"
    assert judge.worst([trouble("info")]) == "ok"
    assert judge.worst([trouble("suspect"), trouble("info")]) == "suspect"
    assert judge.worst([trouble("suspect"), trouble("bad"), trouble("info")]) == "bad"


@given(free=st.floats(0, 100), less=st.floats(0, 100), available=st.integers(0, TIB))
def test_less_room_is_never_judged_better(free: float, less: float, available: int) -> None:
    more, fewer = max(free, less), min(free, less)

    def rank(free_pct: float) -> int:
        found = storage(room(free_pct=free_pct, available=available))
        return max((1 + judge.SEVERITIES.index(severity) for _, severity in found), default=0)

    assert rank(fewer) >= rank(more)


def test_every_rule_is_documented() -> None:
    used = set(re.findall(r'"(PR\d{3})"', Path(judge.__file__).read_text(encoding="utf-8")))
    documented = set(
        re.findall(r"^\| (PR\d{3}) \|", (REPOSITORY / "docs/payloads.md").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert len(used) == 14
    assert documented == used
