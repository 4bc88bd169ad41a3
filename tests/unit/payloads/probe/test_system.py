"""Kernel, distribution, container and virtualisation, from sample files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoterun.payloads.probe import python, system
from remoterun.payloads.probe.files import Files, number, printable
from remoterun.payloads.probe.storage import parse_mountinfo

GROUP = "35 24 0:31 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
DEBIAN = """PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"
NAME="Debian GNU/Linux"
VERSION_ID="12"
ID=debian
# a comment = no value
BROKEN="not closed
HOME_URL='https://www.debian.org/'
"""


def tree(root: Path, files: dict[str, str | bytes]) -> Files:
    for name, content in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return Files(str(root))


def test_os_release() -> None:
    values = system.parse_os_release(DEBIAN)
    assert values["PRETTY_NAME"] == "Debian GNU/Linux 12 (bookworm)"
    assert values["ID"] == "debian"
    assert values["HOME_URL"] == "https://www.debian.org/"
    assert values["BROKEN"] == '"not closed'
    assert len(values) == 6


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    system.parse_os_release(text)
    system.parse_environ(text)
    system.parse_uptime(text)
    system.parse_load(text)
    system.virtualisation(text, text, text)
    python.parse_version_py(text)
    value = number(text)
    assert value is None or value >= 0


@pytest.mark.parametrize(
    ("text", "seconds"), [("86400.25 1234.5\n", 86400.25), ("5", 5.0), ("", None), ("x", None), ("nan 1", None)]
)
def test_uptime(text: str, seconds: float | None) -> None:
    assert system.parse_uptime(text) == seconds


def test_load() -> None:
    assert system.parse_load("1.50 0.75 12.00 2/345 6789\n") == [1.5, 0.75, 12.0]
    assert system.parse_load("") is None


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({}, None),
        ({"/run/systemd/container": "lxc\n"}, "lxc"),
        ({"/proc/1/environ": b"PATH=/bin\0container=lxc\0TERM=linux\0"}, "lxc"),
        ({"/proc/1/environ": b"PATH=/bin\0NOT_container=lxc\0"}, None),
        ({"/.dockerenv": ""}, "docker"),
        ({"/run/.containerenv": ""}, "podman"),
        ({"/proc/1/cgroup": "0::/kubepods/besteffort/pod1/docker\n"}, "kubernetes"),
        ({"/proc/1/cgroup": "1:name=systemd:/lxc/200/init.scope\n"}, "lxc"),
        ({"/proc/1/cgroup": "0::/init.scope\n"}, None),
    ],
)
def test_container(tmp_path: Path, files: dict[str, str | bytes], kind: str | None) -> None:
    assert system.container(tree(tmp_path, files)) == kind


@pytest.mark.parametrize(
    ("vendor", "product", "cpuinfo", "kind"),
    [
        ("QEMU", "Standard PC (i440FX + PIIX, 1996)", "", "kvm"),
        ("Microsoft Corporation", "Virtual Machine", "", "hyper-v"),
        ("Microsoft Corporation", "Surface", "", None),
        ("Supermicro", "SYS-421GE-TNRT", "flags\t\t: fpu vme de\n", None),
        ("", "", "processor\t: 0\nflags\t\t: fpu hypervisor lahf\n", "unknown hypervisor"),
        ("", "", "model name\t: hypervisor\n", None),
    ],
)
def test_virtualisation(vendor: str, product: str, cpuinfo: str, kind: str | None) -> None:
    assert system.virtualisation(vendor, product, cpuinfo) == kind


def test_facts_of_a_machine(tmp_path: Path) -> None:
    files = tree(
        tmp_path,
        {
            "/etc/os-release": DEBIAN,
            "/proc/uptime": "3600.00 1.00\n",
            "/proc/sys/kernel/random/boot_id": "5c7e8b1a-0000-4000-8000-000000000000\n",
            "/proc/cpuinfo": "processor : 0\nmodel name\t: AMD EPYC 9654\nprocessor : 1\nmodel name\t: AMD EPYC 9654\n",
            "/proc/loadavg": "0.10 0.20 0.30 1/2 3\n",
            "/proc/self/cgroup": "0::/\n",
            "/sys/fs/cgroup/cpu.max": "250000 100000\n",
        },
    )
    facts = system.collect(files)
    assert facts["distribution"] == "Debian GNU/Linux 12 (bookworm)"
    assert facts["uptime_s"] == 3600.0
    assert facts["boot_id"] == "5c7e8b1a-0000-4000-8000-000000000000"
    processors = system.processors(files, parse_mountinfo(GROUP))
    assert (processors["model"], processors["quota"], processors["load"]) == ("AMD EPYC 9654", 2.5, [0.1, 0.2, 0.3])
    assert files.unread == []


def test_a_machine_that_tells_nothing_is_described_all_the_same(tmp_path: Path) -> None:
    facts = system.collect(Files(str(tmp_path)))
    assert facts["distribution"] is None
    assert facts["container"] is None
    assert system.names() == {
        "hostname": os.uname().nodename,
        "kernel": os.uname().release,
        "arch": os.uname().machine,
    }


def test_files_that_cant_be_read_are_remembered(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    files = tree(tmp_path, {"/text": b"ok \xff\n"})
    assert files.text("/folder") is None
    assert files.names("/text") == []
    assert files.text("/missing") is None
    assert files.line("/text") == "ok �"
    assert files.unread == ["/folder: Is a directory"]


def test_settings_of_the_running_kernel_can_be_read() -> None:
    if not Path("/proc/sys/kernel/ostype").exists():
        pytest.skip("no /proc/sys here")
    files = Files()
    assert files.line("/proc/sys/kernel/ostype") == "Linux"
    assert files.unread == []


def test_paths_that_are_no_utf8_become_printable() -> None:
    assert printable("/a/\udcff/ü") == "/a/�/ü"


# --- torch by its files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (
            "from typing import Optional\n__all__ = ['__version__']\n__version__ = '2.13.0+cpu'\ndebug = False\n"
            "cuda: Optional[str] = None\ngit_version = 'abc'\nhip: Optional[str] = None\n",
            {"__version__": "2.13.0+cpu", "git_version": "abc"},
        ),
        (
            "__version__ = '2.3.0+cu121'\ncuda: Optional[str] = '12.1'\nhip: Optional[str] = None\n",
            {"__version__": "2.3.0+cu121", "cuda": "12.1"},
        ),
        ("__version__ = '1.8.0'\ncuda = '11.1'\nhip = None\n", {"__version__": "1.8.0", "cuda": "11.1"}),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.0.32830'\n", {"hip": "6.0.32830"}),
        ("", {}),
    ],
)
def test_version_py(text: str, values: dict[str, str]) -> None:
    assert python.parse_version_py(text) == values


def test_what_is_not_installed_has_no_version() -> None:
    assert python.installed("no-such-distribution") is None
