"""Memory, control groups of both versions, processes: from sample files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoterun.payloads.probe import memory
from remoterun.payloads.probe.files import Files
from remoterun.payloads.probe.storage import parse_mountinfo

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30
MEMINFO = (
    "MemTotal:       16384 kB\nMemFree:          100 kB\nMemAvailable:    8192 kB\n"
    "Active(anon):  12 kB\nHugePages_Total:       3\nBad: x kB\n"
)
V2 = "35 24 0:31 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "41 31 0:35 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
    "42 31 0:36 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" + V2
)
OWN_V1 = "4:memory:/docker/abc/inner\n3:cpu,cpuacct:/docker/abc\n0::/docker/abc\n"


def tree(root: Path, files: dict[str, str]) -> Files:
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Files(str(root))


def test_meminfo() -> None:
    values = memory.parse_meminfo(MEMINFO)
    assert values == {
        "MemTotal": 16 << 20,
        "MemFree": 100 << 10,
        "MemAvailable": 8 << 20,
        "Active(anon)": 12288,
        "HugePages_Total": 3,
    }


def test_the_machines_memory_and_no_group(tmp_path: Path) -> None:
    facts = memory.collect(tree(tmp_path, {"/proc/meminfo": MEMINFO}), [])
    assert memory.to_judge(facts) == (memory.Memory("machine", 16 << 20, 8 << 20), None)
    assert memory.to_judge({}) == (None, None)


@pytest.mark.parametrize(
    "text", ["", "MemTotal: 0 kB\nMemAvailable: 0 kB\n", "MemTotal: 5 kB\n", "MemTotal: 99999999999999999999999 kB\n"]
)
def test_a_kernel_that_does_not_tell_has_no_memory_to_judge(text: str, tmp_path: Path) -> None:
    assert memory.to_judge(memory.collect(tree(tmp_path, {"/proc/meminfo": text}), [])) == (None, None)


def test_the_groups_memory_is_judged_as_it_was_collected(tmp_path: Path) -> None:
    group = {"memory.max": f"{GIB}\n", "memory.current": "0\n"}
    files = tree(
        tmp_path,
        {f"/sys/fs/cgroup/{name}": text for name, text in group.items()} | {"/proc/self/cgroup": "0::/\n"},
    )
    facts = json.loads(json.dumps(memory.collect(files, parse_mountinfo(V2))))
    _, judged = memory.to_judge(facts)
    assert judged == memory.group_memory(files, 2, ["/sys/fs/cgroup"])
    assert judged is not None
    assert judged.total == GIB


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    memory.parse_meminfo(text)
    memory.parse_pairs(text)
    memory.parse_stat(text)
    memory.describe(text.split("\0"))
    memory.group_folders(parse_mountinfo(V1), text, "memory")


def test_groups_of_version_2_are_ours_and_all_above() -> None:
    version, folders = memory.group_folders(parse_mountinfo(V2), "0::/system.slice/train.service\n", "memory")
    assert version == 2
    assert folders == ["/sys/fs/cgroup/system.slice/train.service", "/sys/fs/cgroup/system.slice", "/sys/fs/cgroup"]
    assert memory.group_folders(parse_mountinfo(V2), "0::/\n", "cpu") == (2, ["/sys/fs/cgroup"])


def test_a_group_outside_of_what_is_mounted_leaves_the_groups_around_the_mount() -> None:
    assert memory.group_folders(parse_mountinfo(V2), "0::/../../elsewhere\n", "cpu") == (2, ["/sys/fs/cgroup"])


def test_groups_of_version_1_come_first_and_may_be_mounted_from_inside() -> None:
    mounts = parse_mountinfo(V1)
    assert memory.group_folders(mounts, OWN_V1, "memory") == (
        1,
        ["/sys/fs/cgroup/memory/inner", "/sys/fs/cgroup/memory"],
    )
    assert memory.group_folders(mounts, OWN_V1, "cpu") == (
        1,
        ["/sys/fs/cgroup/cpu,cpuacct/docker/abc", "/sys/fs/cgroup/cpu,cpuacct/docker", "/sys/fs/cgroup/cpu,cpuacct"],
    )
    assert memory.group_folders(mounts, "4:memory:/elsewhere\n", "memory") == (1, ["/sys/fs/cgroup/memory"])
    assert memory.group_folders([], "0::/\n", "memory") == (0, [])


def test_room_in_groups_of_version_2(tmp_path: Path) -> None:
    files = tree(
        tmp_path,
        {
            "/g/memory.max": "max\n",
            "/g/memory.current": "1\n",
            "/g/a/memory.max": f"{8 * GIB}\n",
            "/g/a/memory.current": f"{7 * GIB}\n",
            "/g/a/memory.stat": f"anon {GIB}\nfile {5 * GIB}\nshmem {2 * GIB}\n",
            "/g/a/memory.events": "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\n",
            "/g/a/b/memory.max": f"{16 * GIB}\n",
            "/g/a/b/memory.current": f"{GIB}\n",
        },
    )
    # 7 used, of which 3 are page cache that gives way, and 2 lie in tmpfs and do not.
    assert memory.group_memory(files, 2, ["/g/a/b", "/g/a", "/g"]) == memory.Memory(
        "control group", 8 * GIB, 4 * GIB, 2
    )


def test_room_in_groups_of_version_1(tmp_path: Path) -> None:
    files = tree(
        tmp_path,
        {
            "/g/memory.limit_in_bytes": "9223372036854771712\n",
            "/g/memory.usage_in_bytes": "1\n",
            "/g/a/memory.limit_in_bytes": f"{4 * GIB}\n",
            "/g/a/memory.usage_in_bytes": f"{4 * GIB}\n",
            "/g/a/memory.stat": f"cache 1\ntotal_cache {GIB}\ntotal_shmem 0\n",
            "/g/a/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
        },
    )
    assert memory.group_memory(files, 1, ["/g/a", "/g"]) == memory.Memory("control group", 4 * GIB, GIB, 1)


def test_without_limits_there_is_no_group_to_judge(tmp_path: Path) -> None:
    files = tree(tmp_path, {"/g/memory.max": "max\n", "/g/memory.current": "5\n", "/h/memory.max": "5\n"})
    assert memory.group_memory(files, 2, ["/g", "/h", "/missing"]) is None
    assert memory.group_memory(files, 0, []) is None


@pytest.mark.parametrize(
    ("version", "texts", "quota"),
    [
        (2, {"cpu.max": "250000 100000\n"}, 2.5),
        (2, {"cpu.max": "max 100000\n"}, None),
        (2, {"cpu.max": "\n"}, None),
        (2, {}, None),
        (1, {"cpu.cfs_quota_us": "50000\n", "cpu.cfs_period_us": "100000\n"}, 0.5),
        (1, {"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}, None),
        (1, {"cpu.cfs_quota_us": "5\n", "cpu.cfs_period_us": "0\n"}, None),
    ],
)
def test_processor_quota(tmp_path: Path, version: int, texts: dict[str, str], quota: float | None) -> None:
    files = tree(tmp_path, {f"/g/{name}": text for name, text in texts.items()})
    assert memory.quota(files, version, ["/g", "/missing"]) == quota


def test_the_tightest_quota_counts(tmp_path: Path) -> None:
    files = tree(tmp_path, {"/g/cpu.max": "400000 100000\n", "/g/a/cpu.max": "800000 100000\n"})
    assert memory.quota(files, 2, ["/g/a", "/g"]) == 4.0


@pytest.mark.parametrize(
    ("text", "name", "state"),
    [("1 (python) S 0 1", "python", "S"), ("2 (a) (b c) ) D 0", "a) (b c) ", "D"), ("", "", ""), ("3 (x", "", "")],
)
def test_stat_of_a_process(text: str, name: str, state: str) -> None:
    assert memory.parse_stat(text) == (name, state)


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["/root/venv/bin/python", "-u", "train.py", "--token=SECRET"], "python train.py"),
        (["python3", "-m", "torch.distributed.run", "--password", "SECRET"], "python3 -m torch.distributed.run"),
        (["python3", "-c", "SECRET = 1"], "python3"),
        (["mysql", "-pSECRET", "SECRET"], "mysql"),
        (["sshpass", "-p", "SECRET", "ssh"], "sshpass"),
        (["python3", "-m"], "python3"),
        (["python3", "-m", "x; SECRET"], "python3"),
        ([""], ""),
        ([], ""),
    ],
)
def test_a_command_line_is_shown_without_what_may_be_secret(argv: list[str], shown: str) -> None:
    assert memory.describe(argv) == shown


def test_the_biggest_processes_of_this_machine() -> None:
    hold = "x = bytearray(200 << 20); x[::4096] = b'1' * len(x[::4096]); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        said = json.loads(memory.biggest_processes(Files()))
        found = {each["pid"]: each for each in said["biggest"]}
        assert len(found) == memory.TOP or said["count"] < memory.TOP
        # Where larger ones run, it is left out for them.
        left_for = min(each["rss"] for each in said["biggest"])
        assert found.get(process.pid, {"rss": left_for})["rss"] > 200 << 20
        process.communicate(b"\n")
    assert os.getpid() not in found


def test_processes_from_files(tmp_path: Path) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    files = tree(
        tmp_path,
        {
            "/proc/4000001/statm": "100 50 1 1 0 1 0\n",
            "/proc/4000001/stat": "4000001 (train loop) D 1",
            "/proc/4000001/cmdline": "python\0train.py\0--secret\0",
            "/proc/4000002/statm": "0 0 0 0 0 0 0\n",
            "/proc/4000003/statm": "",
            "/proc/self/statm": "1 1",
        },
    )
    assert json.loads(memory.biggest_processes(files)) == {
        "count": 3,
        "biggest": [
            {"pid": 4000001, "name": "train loop", "command": "python train.py", "state": "D", "rss": 50 * page}
        ],
    }


def test_limits_are_those_of_this_process() -> None:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = memory.limits()
    assert limits["nofile"]["soft"] == (soft if soft != resource.RLIM_INFINITY else "unlimited")
    assert {"nofile", "memlock", "nproc"} <= set(limits)
