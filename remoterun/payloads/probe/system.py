"""What machine this is: kernel, distribution, container, virtualisation, processors."""

from __future__ import annotations

import os
import re
import shlex
import socket
from typing import Dict, List, Optional

from .files import Files
from .memory import group_folders, quota
from .storage import Mount

_CONTAINER_HINTS = (("kubepods", "kubernetes"), ("docker", "docker"), ("libpod", "podman"), ("lxc", "lxc"))
_HYPERVISORS = (
    ("QEMU", "kvm"),
    ("KVM", "kvm"),
    ("VMware", "vmware"),
    ("VirtualBox", "virtualbox"),
    ("innotek", "virtualbox"),
    ("Xen", "xen"),
    ("Amazon EC2", "amazon"),
    ("Google Compute Engine", "google"),
    ("Virtual Machine", "hyper-v"),
)


def names() -> Dict[str, object]:
    """Return what the kernel says of itself at once."""
    uname = os.uname()
    return {"hostname": socket.gethostname(), "kernel": uname.release, "arch": uname.machine}


def collect(files: Files) -> Dict[str, object]:
    """Return the other facts of the record's `system`; ask this of a child.

    In a container, files of /proc are lxcfs's, which may hang; those of a process hang with its memory map.
    """
    release = parse_os_release(files.text("/etc/os-release") or files.text("/usr/lib/os-release") or "")
    return {
        "distribution": release.get("PRETTY_NAME") or release.get("NAME"),
        "distribution_id": release.get("ID"),
        "distribution_version": release.get("VERSION_ID"),
        "uptime_s": parse_uptime(files.text("/proc/uptime") or ""),
        "boot_id": files.line("/proc/sys/kernel/random/boot_id"),
        "container": container(files),
        "virtualisation": virtualisation(
            files.line("/sys/class/dmi/id/sys_vendor") or "",
            files.line("/sys/class/dmi/id/product_name") or "",
            files.text("/proc/cpuinfo") or "",
        ),
    }


def processors(files: Files, mounts: List[Mount]) -> Dict[str, object]:
    """Return the facts of the record's `cpu`; its `quota` is what the control groups allow, in processors.

    Ask this of a child: in a container, the files are lxcfs's, also that in which Python counts processors.
    """
    model = re.search(r"^model name\s*:\s*(.+)$", files.text("/proc/cpuinfo") or "", re.MULTILINE)
    return {
        "model": model.group(1).strip() if model else None,
        "count": os.cpu_count(),
        **affinity(),
        "quota": quota(files, *group_folders(mounts, files.text("/proc/self/cgroup") or "", "cpu")),
        "load": parse_load(files.text("/proc/loadavg") or ""),
    }


def affinity() -> Dict[str, object]:
    """Return how many processors this process may run on, which the kernel says at once."""
    return {"affinity": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None}


def parse_os_release(text: str) -> Dict[str, str]:
    """Read os-release: shell-like assignments, one a line."""
    values = {}
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and not key.startswith("#"):
            values[key] = _unquoted(value)
    return values


def _unquoted(value: str) -> str:
    try:
        return "".join(shlex.split(value)[:1])
    except ValueError:  # a quote that is not closed
        return value


def parse_uptime(text: str) -> Optional[float]:
    """Return the seconds since boot from /proc/uptime."""
    match = re.match(r"\d{1,15}(\.\d{1,6})?", text, re.ASCII)
    return float(match.group()) if match else None


def parse_load(text: str) -> Optional[List[float]]:
    """Return the three load averages from /proc/loadavg."""
    match = re.match(r"(\d{1,9}\.\d\d) (\d{1,9}\.\d\d) (\d{1,9}\.\d\d) ", text, re.ASCII)
    return [float(value) for value in match.groups()] if match else None


def container(files: Files) -> Optional[str]:
    """Name the kind of container this is, None when nothing tells of one."""
    told = files.line("/run/systemd/container") or parse_environ(files.text("/proc/1/environ") or "").get("container")
    if told:
        return told
    if os.path.exists(files.path("/.dockerenv")):
        return "docker"
    if os.path.exists(files.path("/run/.containerenv")):
        return "podman"
    groups = files.text("/proc/1/cgroup") or ""
    return next((kind for hint, kind in _CONTAINER_HINTS if hint in groups), None)


def parse_environ(text: str) -> Dict[str, str]:
    """Read /proc/PID/environ."""
    pairs = (word.partition("=") for word in text.split("\0"))
    return {key: value for key, equals, value in pairs if equals}


def virtualisation(vendor: str, product: str, cpuinfo: str) -> Optional[str]:
    """Name the hypervisor by the DMI names and the processor's flag; None on bare metal."""
    names = "%s %s" % (vendor, product)
    known = next((kind for hint, kind in _HYPERVISORS if hint in names), None)
    if known:
        return known
    flagged = re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.MULTILINE)
    return "unknown hypervisor" if flagged else None
