"""Rules: what of the facts is trouble. Each has guards, because an alarm that is often false is soon not read."""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, NamedTuple, Optional

from .gpu import SMI_PATIENCE, Driver, Gpu
from .memory import Memory
from .storage import Room

MIB, GIB = 1 << 20, 1 << 30
SEVERITIES = ("info", "suspect", "bad")

# Errors of statvfs that tell of trouble; others (no permission, gone meanwhile) tell of nothing.
_BROKEN = frozenset(("EIO", "ESTALE", "ENOTCONN", "EREMOTEIO", "ENODEV", "ENXIO", "ETIMEDOUT", "EHOSTDOWN", "EUCLEAN"))
_TURNS_READ_ONLY = frozenset(("ext2", "ext3", "ext4", "btrfs", "f2fs"))


class Trouble(NamedTuple):
    """Hold one finding before it is reported."""

    rule: str
    severity: str
    subject: str
    message: str
    next_step: str
    evidence: Mapping[str, object]


def worst(troubles: List[Trouble]) -> str:
    """Return the verdict: ok, or that of the highest finding above info."""
    rank = max((SEVERITIES.index(trouble.severity) for trouble in troubles), default=0)
    return SEVERITIES[rank] if rank else "ok"


def size(count: int) -> str:
    """Write bytes in the unit that people compare."""
    return "%.1f GiB" % (count / GIB) if count >= GIB else "%.0f MiB" % (count / MIB)


# --- storage ----------------------------------------------------------------------------------------------------------


def storage(rooms: List[Room], *, min_free_pct: float, min_free: int, limit_s: float, torch: bool) -> List[Trouble]:
    """Judge every mount."""
    troubles: List[Optional[Trouble]] = []
    full: Dict[object, Trouble] = {}
    for room in rooms:
        if room.point == "/dev/shm":
            troubles.append(_shared_memory(room, min_free_pct, torch))
        elif room.state == "ok":
            troubles += [_turned_read_only(room), _out_of_inodes(room)]
            trouble = _full(room, min_free_pct, min_free)
            if trouble:
                full.setdefault(_shared_room(room), trouble)
        else:
            troubles.append(_not_answering(room, limit_s) if room.state == "no answer" else _broken(room))
    return [trouble for trouble in troubles if trouble] + list(full.values())


def _shared_room(room: Room) -> object:
    """Return what is equal for data sets of one ZFS pool or subvolumes of one disk that share the same free room."""
    pool = room.source.partition("/")[0] if room.fstype == "zfs" else room.source
    return room.fstype, pool, (room.available or 0) // (128 * MIB)


def _full(room: Room, min_free_pct: float, min_free: int) -> Optional[Trouble]:
    if room.read_only or room.total is None or room.available is None or room.free_pct is None:
        return None
    if room.free_pct >= min_free_pct or room.available >= min_free:
        return None
    severity = "info" if room.total < GIB else "bad" if room.free_pct < 1 or room.available < GIB else "suspect"
    message = "only %.1f %% (%s) is free" % (room.free_pct, size(room.available))
    next_step = "Free space there, or save checkpoints elsewhere: a save that runs out of room leaves a torn file."
    evidence = {"available": room.available, "total": room.total, "free_pct": room.free_pct}
    return Trouble("PR001", severity, room.point, message, next_step, evidence)


def _out_of_inodes(room: Room) -> Optional[Trouble]:
    if room.read_only or room.inodes_free_pct is None or room.inodes_free_pct >= 1:
        return None
    message = "only %.2f %% of its inodes are free: no more files can be made there" % room.inodes_free_pct
    return Trouble("PR002", "suspect", room.point, message, "Remove files there.", {"free_pct": room.inodes_free_pct})


def _not_answering(room: Room, limit_s: float) -> Trouble:
    message = "the mount (%s from %s) did not answer within %g s" % (room.fstype, room.source, limit_s)
    next_step = "Check its server and network: whatever touches the mount hangs until it answers."
    return Trouble("PR003", "bad", room.point, message, next_step, {"fstype": room.fstype, "source": room.source})


def _broken(room: Room) -> Optional[Trouble]:
    if room.error not in _BROKEN:
        return None
    message = "the mount (%s from %s) answers with the error %s" % (room.fstype, room.source, room.error)
    next_step = "Look at the kernel's log (`dmesg`) for this file system, then mount it anew."
    return Trouble("PR004", "bad", room.point, message, next_step, {"error": room.error, "fstype": room.fstype})


def _turned_read_only(room: Room) -> Optional[Trouble]:
    if not room.turned_read_only or room.fstype not in _TURNS_READ_ONLY:
        return None
    message = (
        "the mount is writable, but its file system (%s) is read-only: the kernel does that after an error"
        % room.fstype
    )
    next_step = "Look at the kernel's log (`dmesg`) for this file system; nothing can be saved there."
    return Trouble("PR005", "suspect", room.point, message, next_step, {"fstype": room.fstype, "source": room.source})


def _shared_memory(room: Room, min_free_pct: float, torch: bool) -> Optional[Trouble]:
    if not torch or room.total is None or room.available is None or room.free_pct is None:
        return None
    evidence = {"available": room.available, "total": room.total}
    next_step = (
        "Give the container a bigger one (a tmpfs mount with size=...); data loader workers share batches there."
    )
    if room.total < 256 * MIB:
        message = "is only %s: data loaders of torch die there with a bus error" % size(room.total)
        return Trouble("PR006", "suspect", room.point, message, next_step, evidence)
    if room.free_pct < min_free_pct and room.available < 256 * MIB:
        message = "only %s of %s is free" % (size(room.available), size(room.total))
        return Trouble("PR006", "suspect", room.point, message, "Remove what dead processes left there.", evidence)
    return None


# --- memory -----------------------------------------------------------------------------------------------------------


def memory(machine: Optional[Memory], group: Optional[Memory]) -> List[Trouble]:
    """Judge the memory that is tighter: the machine's or the control group's."""
    troubles = []
    tightest = min((each for each in (machine, group) if each), key=lambda each: each.available, default=None)
    if tightest and tightest.total:
        free_pct = 100.0 * tightest.available / tightest.total
        severity = ""
        if free_pct < 5 and tightest.available < 4 * GIB:
            severity = "bad" if free_pct < 2 and tightest.available < GIB else "suspect"
        if severity:
            message = "only %s of the %s's %s is available" % (
                size(tightest.available),
                tightest.where,
                size(tightest.total),
            )
            evidence: Dict[str, object] = {"available": tightest.available, "total": tightest.total}
            next_step = "See the record's `processes` for what holds it; the kernel will soon kill one of them."
            troubles.append(Trouble("PR007", severity, "memory", message, next_step, evidence))
    if group and group.oom_kills:
        message = "the kernel has killed %d processes of this control group for want of memory" % group.oom_kills
        next_step = "Compare with when training died; `dmesg` on the host says which and when."
        troubles.append(Trouble("PR012", "info", "memory", message, next_step, {"oom_kills": group.oom_kills}))
    return troubles


# --- GPU --------------------------------------------------------------------------------------------------------------


def gpu(
    driver: Optional[Driver],
    gpus: List[Gpu],
    smi: Optional[str],
    *,
    limit_s: float,
    container: bool,
    torch: bool,
    torch_cuda: bool,
) -> List[Trouble]:
    """Judge driver, nodes and GPUs.

    `driver` is None when looking at it took longer than `limit_s`. `smi` is what nvidia-smi said when it failed or
    found no GPU, "" when it did not answer, None when it worked or there is none.
    """
    if driver is None:
        return [_hangs("the files of the driver in /proc/driver/nvidia", limit_s)]
    if driver.version is None and not driver.nodes:
        return []
    mismatch = _mismatch(driver, smi)
    nodes = _missing_nodes(driver, container=container, torch_cuda=torch_cuda) + _refused_nodes(driver)
    troubles = [mismatch] if mismatch else []
    troubles += nodes
    if smi is not None and not mismatch and not nodes:
        troubles.append(_hangs("nvidia-smi", limit_s * SMI_PATIENCE) if smi == "" else _smi_failed(smi))
    if gpus and torch and not torch_cuda:
        message = "GPUs are there, but the torch of this interpreter is built without CUDA and ROCm"
        next_step = "Is this the environment you train with? Set `venv` for this target."
        troubles.append(Trouble("PR013", "info", "torch", message, next_step, {"gpus": len(gpus)}))
    return troubles + [trouble for trouble in map(_ecc, gpus) if trouble]


def _hangs(what: str, limit_s: float) -> Trouble:
    message = "%s did not answer within %g s" % (what, limit_s)
    next_step = "Look for `NVRM: Xid` in the host's `dmesg`; a GPU that fell off the bus needs the host to restart."
    return Trouble("PR011", "bad", "nvidia driver", message, next_step, {"limit_s": limit_s})


def _smi_failed(said: str) -> Trouble:
    complaints = [line.strip() for line in said.splitlines() if line.strip() and ", GPU-" not in line]
    first = complaints[0] if complaints else "nothing"
    message = "nvidia-smi found no GPU or failed, and said: %s" % first[:300]
    next_step = "Run it by hand there; look for `NVRM` in the host's `dmesg`."
    return Trouble("PR011", "suspect", "nvidia driver", message, next_step, {"said": said[:2000]})


def _mismatch(driver: Driver, smi: Optional[str]) -> Optional[Trouble]:
    told = re.search(r"driver/library version mismatch", smi or "", re.IGNORECASE)
    differ = driver.version and driver.library and driver.version != driver.library
    if not told and not differ:
        return None
    if differ:
        message = "the kernel module is %s, the CUDA library %s: CUDA can't start" % (driver.version, driver.library)
    else:
        message = "nvidia-smi finds its library of another version than the kernel module (%s)" % driver.version
    next_step = (
        "Install the library of the module's version in the container, or restart the host after its driver update."
    )
    evidence = {"module": driver.version, "library": driver.library, "library_path": driver.library_path}
    return Trouble("PR008", "bad" if told else "suspect", "nvidia driver", message, next_step, evidence)


def _missing_nodes(driver: Driver, *, container: bool, torch_cuda: bool) -> List[Trouble]:
    """Look for nodes in containers only, for a host makes them when they are first used.

    A container that has none at all may be meant to have none: without a torch that wants CUDA it is not suspect.
    """
    if not container or driver.version is None:
        return []
    names = {node.path for node in driver.nodes}
    evidence: Dict[str, object] = {"nodes": sorted(names), "minors": driver.minors}
    if not any(re.fullmatch(r"/dev/nvidia\d+", name) for name in names):
        message = "the host's driver %s is loaded, but no GPU's device node is in this container" % driver.version
        next_step = (
            "Pass the GPUs through (`dev0: /dev/nvidia0`, ...) in the container's configuration, then restart it."
        )
        return [Trouble("PR009", "suspect" if torch_cuda else "info", "/dev/nvidia0", message, next_step, evidence)]
    missing = [name for name in ("/dev/nvidiactl", "/dev/nvidia-uvm") if name not in names]
    message = "a GPU's node is in this container, but this one is missing: CUDA can't start"
    next_step = "Run `nvidia-modprobe -u -c 0` on the host, pass the node through, then restart the container."
    return [Trouble("PR009", "suspect", name, message, next_step, evidence) for name in missing]


def _refused_nodes(driver: Driver) -> List[Trouble]:
    next_step = "Allow the device in the container's configuration (`dev0: ...` does node and permission at once)."
    return [
        Trouble(
            "PR010",
            "suspect",
            node.path,
            "the node is there, but opening it fails with %s" % node.opens,
            next_step,
            {"major": node.major, "minor": node.minor, "mode": node.mode, "error": node.opens},
        )
        for node in driver.nodes
        if node.opens not in (None, "yes", "EBUSY")
    ]


def _ecc(gpu: Gpu) -> Optional[Trouble]:
    if not gpu.uncorrected_ecc:
        return None
    message = "%s has had %d uncorrectable memory errors since its driver was loaded" % (gpu.name, gpu.uncorrected_ecc)
    next_step = "Take it out of use, and see `nvidia-smi -q -d ECC,ROW_REMAPPER` on the host."
    evidence = {"uuid": gpu.uuid, "errors": gpu.uncorrected_ecc}
    return Trouble("PR014", "suspect", "GPU %s" % gpu.number, message, next_step, evidence)
