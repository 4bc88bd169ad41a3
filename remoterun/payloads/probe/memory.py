"""Memory of the machine and of the control groups around this process, processor quotas, processes, and ulimits."""

from __future__ import annotations

import json
import os
import posixpath
import re
import resource
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from .files import Files, number
from .storage import Mount

TOP = 5
# cgroup v1 says "no limit" with the largest multiple of the page size; nothing real comes near.
_NO_LIMIT = 1 << 60
_LIMITS = ("nofile", "memlock", "nproc", "stack", "core")


class Memory(NamedTuple):
    """Tell how much memory there is and how much a program may still get, in bytes.

    `where` is "machine" or "control group"; `oom_kills` counts what the kernel killed there for want of memory, None
    when unknown.
    """

    where: str
    total: int
    available: int
    oom_kills: Optional[int] = None


def parse_meminfo(text: str) -> Dict[str, int]:
    """Read /proc/meminfo; sizes in bytes."""
    pairs = re.findall(r"^([\w()]+):\s+(\d{1,18})( kB)?$", text, re.MULTILINE | re.ASCII)
    return {name: int(value) * (1024 if unit else 1) for name, value, unit in pairs}


def collect(files: Files, mounts: List[Mount]) -> Dict[str, object]:
    """Return the facts of the record's `memory`; ask this of a child: in a container, the files are lxcfs's."""
    meminfo = parse_meminfo(files.text("/proc/meminfo") or "")
    group = group_memory(files, *group_folders(mounts, files.text("/proc/self/cgroup") or "", "memory"))
    return {
        "total": meminfo.get("MemTotal"),
        "available": meminfo.get("MemAvailable"),
        "swap_total": meminfo.get("SwapTotal"),
        "swap_free": meminfo.get("SwapFree"),
        "dirty": meminfo.get("Dirty"),
        "group": group._asdict() if group else None,
    }


def to_judge(facts: Mapping[str, Any]) -> Tuple[Optional[Memory], Optional[Memory]]:
    """Return the memory of the machine and of the control group, as far as they are among the facts of `collect`."""
    total, available, group = facts.get("total"), facts.get("available"), facts.get("group")
    # Some kernels do not say what is available.
    machine = Memory("machine", total, available) if total and available is not None else None
    return machine, Memory(**group) if group else None


# --- control groups ---------------------------------------------------------------------------------------------------


def group_folders(mounts: List[Mount], own: str, controller: str) -> Tuple[int, List[str]]:
    """Return the version of the hierarchy that holds a controller, and the folders of our own group and all above it.

    `own` is the text of /proc/self/cgroup. Version 1 wins where both are mounted, because a controller is in one only.
    Version 0 with no folders: there is none.
    """
    paths = {}
    for line in own.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for name in controllers.split(",") if controllers else [""]:
            paths[name] = path
    for mount in mounts:
        if mount.fstype == "cgroup" and controller in mount.super_options and controller in paths:
            return 1, _folders(mount, paths[controller])
    for mount in mounts:
        if mount.fstype == "cgroup2" and "" in paths:
            return 2, _folders(mount, paths[""])
    return 0, []


def _folders(mount: Mount, path: str) -> List[str]:
    # Without a cgroup namespace, a container sees its group at the mount point under the path it has outside.
    if mount.root != "/":
        path = path[len(mount.root) :] if (path + "/").startswith(mount.root + "/") else "/"
    # A process that was put in from outside sees its own group by a way up (/../..), which does not lead there.
    folders = [posixpath.normpath(mount.point + ("" if ".." in path.split("/") else "/" + path))]
    while len(folders[-1]) > len(mount.point):
        folders.append(posixpath.dirname(folders[-1]))
    return folders


def group_memory(files: Files, version: int, folders: List[str]) -> Optional[Memory]:
    """Return the memory of the group with the least room; None without any limit."""
    groups = [_group_memory(files, version, folder) for folder in folders]
    return min((group for group in groups if group), key=lambda group: group.available, default=None)


def _group_memory(files: Files, version: int, folder: str) -> Optional[Memory]:
    limit_file, used_file = (
        ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    limit, used = number(files.text(folder + "/" + limit_file)), number(files.text(folder + "/" + used_file))
    if limit is None or used is None or limit >= _NO_LIMIT:
        return None
    stat = parse_pairs(files.text(folder + "/memory.stat") or "")
    cache, shared = ("file", "shmem") if version == 2 else ("total_cache", "total_shmem")
    # The page cache counts as used, but gives way; what lies in tmpfs is part of it and does not.
    reclaimable = max(0, stat.get(cache, 0) - stat.get(shared, 0))
    events = parse_pairs(files.text(folder + "/" + ("memory.events" if version == 2 else "memory.oom_control")) or "")
    available = limit - max(0, used - reclaimable)
    return Memory("control group", limit, max(0, min(limit, available)), events.get("oom_kill"))


def parse_pairs(text: str) -> Dict[str, int]:
    """Read lines of a name and a whole number."""
    return {name: int(value) for name, value in re.findall(r"^(\S+) (\d{1,20})$", text, re.MULTILINE | re.ASCII)}


def quota(files: Files, version: int, folders: List[str]) -> Optional[float]:
    """Return how many processors the tightest group allows, None without a quota."""
    quotas = [_quota(files, version, folder) for folder in folders]
    return min((each for each in quotas if each is not None), default=None)


def _quota(files: Files, version: int, folder: str) -> Optional[float]:
    if version == 2:
        words = (files.text(folder + "/cpu.max") or "").split()
    else:
        words = [files.line(folder + "/cpu.cfs_%s_us" % name) or "" for name in ("quota", "period")]
    allowed, period = (number(words[0]), number(words[1])) if len(words) == 2 else (None, None)
    return round(allowed / period, 3) if allowed is not None and period else None


# --- processes and limits ---------------------------------------------------------------------------------------------


def biggest_processes(files: Files) -> bytes:
    """Return as JSON how many processes there are, and those that hold the most memory.

    Ask this of a child: reading a command line waits for the process's memory map, which one that hangs may hold.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    ours = (str(os.getpid()), str(os.getppid()))
    pids = [name for name in files.names("/proc") if name.isdigit() and name not in ours]
    sizes = [((number(_word(files.text("/proc/%s/statm" % pid), 1)) or 0) * page, pid) for pid in pids]
    biggest = [_process(files, pid, size) for size, pid in sorted(sizes, reverse=True)[:TOP] if size]
    return json.dumps({"count": len(pids), "biggest": biggest}).encode()


def _process(files: Files, pid: str, size: int) -> Dict[str, object]:
    name, state = parse_stat(files.text("/proc/%s/stat" % pid) or "")
    command = describe((files.text("/proc/%s/cmdline" % pid) or "").split("\0"))
    return {"pid": int(pid), "name": name, "command": command, "state": state, "rss": size}


def _word(text: Optional[str], at: int) -> str:
    words = (text or "").split()
    return words[at] if len(words) > at else ""


def parse_stat(text: str) -> Tuple[str, str]:
    """Return name and state from /proc/PID/stat; the name may hold spaces and brackets itself."""
    match = re.match(r"\d+ \((.*)\) (\S)", text, re.DOTALL)
    return (match.group(1), match.group(2)) if match else ("", "")


def describe(argv: List[str]) -> str:
    """Say what a command line runs: the program, and the script or module; nothing else, for it may hold secrets."""
    program = posixpath.basename(argv[0])[:64] if argv else ""
    for at, word in enumerate(argv[1:], 1):
        if re.fullmatch(r"[\w./@+-]{1,200}\.(py|sh|pl|jar|js)", word):
            return "%s %s" % (program, word)
        if word == "-m" and re.fullmatch(r"[\w.]{1,100}", "".join(argv[at + 1 : at + 2])):
            return "%s -m %s" % (program, argv[at + 1])
    return program


def limits() -> Dict[str, Dict[str, object]]:
    """Return the soft and hard ulimits that this process has; "unlimited" where there is none."""
    found: Dict[str, Dict[str, object]] = {}
    for name in _LIMITS:
        kind = getattr(resource, "RLIMIT_" + name.upper(), None)
        if kind is not None:
            soft, hard = resource.getrlimit(kind)
            found[name] = {"soft": _limit(soft), "hard": _limit(hard)}
    return found


def _limit(value: int) -> object:
    return "unlimited" if value == resource.RLIM_INFINITY else value
