"""NVIDIA: the driver in the kernel, its device nodes, the library beside it, and the GPUs by nvidia-smi."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
from typing import Dict, List, NamedTuple, Optional, Tuple

from .files import Files, number
from .guard import Answer

_VERSION = r"(\d{2,4}\.\d{1,4}(?:\.\d{1,4})?)"
_LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
)
# Fields that nvidia-smi has known for ten years: an unknown one fails the whole query.
GPU_FIELDS = (
    "index,uuid,name,pci.bus_id,driver_version,memory.total,memory.used,utilization.gpu,temperature.gpu,"
    "ecc.errors.uncorrected.volatile.total"
)
# A GPU without persistence mode takes seconds to wake, and nvidia-smi wakes them all.
SMI_PATIENCE = 4
FOUND = b"nvidia-smi:\n"
PROCESS_FIELDS = "gpu_uuid,pid,process_name,used_memory"


class Node(NamedTuple):
    """Describe a device node; `opens` is "yes", the name of the error, or None when it was not tried."""

    path: str
    major: int
    minor: int
    mode: str
    opens: Optional[str] = None


class Driver(NamedTuple):
    """Tell what is seen of the driver without asking it anything.

    `version` is the kernel module's, None when it is not loaded. `library` is the version in the file name of the first
    libcuda.so.1 that a program would load. `minors` are those of the GPUs the driver knows.
    """

    version: Optional[str] = None
    library: Optional[str] = None
    library_path: Optional[str] = None
    minors: List[int] = []  # noqa: RUF012 - a NamedTuple's default, never changed
    nodes: List[Node] = []  # noqa: RUF012


class Gpu(NamedTuple):
    """Hold one line of nvidia-smi: sizes in bytes; None where it says N/A or worse."""

    number: Optional[int]
    uuid: str
    name: str
    bus_id: str
    driver: str
    memory_total: Optional[int]
    memory_used: Optional[int]
    utilisation_pct: Optional[int]
    temperature_c: Optional[int]
    uncorrected_ecc: Optional[int]
    processes: List[Dict[str, object]] = []  # noqa: RUF012


# --- what is seen without asking the driver ---------------------------------------------------------------------------


def look(files: Files) -> bytes:
    """Return a `Driver` as JSON; the driver's files in /proc may hang with a broken GPU: ask this of a child.

    Nothing else is looked at here, so that it is the driver that hangs.
    """
    version = parse_driver_version(files.text("/proc/driver/nvidia/version") or "")
    gpus = files.names("/proc/driver/nvidia/gpus")
    minors = [parse_minor(files.text("/proc/driver/nvidia/gpus/%s/information" % gpu) or "") for gpu in gpus]
    found = [minor for minor in minors if minor is not None]
    driver = Driver(version, minors=found, nodes=device_nodes(files))
    nodes = [node._asdict() for node in driver.nodes]
    return json.dumps(dict(driver._asdict(), nodes=nodes, unread=files.unread)).encode()


def library(files: Files) -> Dict[str, object]:
    """Return `library` and `library_path` of a `Driver`; ask this of a child: the loader's folders may be anywhere."""
    path, version = find_library(files, os.environ.get("LD_LIBRARY_PATH", ""))
    return {"library": version, "library_path": path}


def parse_driver(data: bytes) -> Driver:
    """Read what `look` wrote."""
    said = json.loads(data)
    said.pop("unread")
    return Driver(**dict(said, nodes=[Node(**node) for node in said["nodes"]]))


def parse_driver_version(text: str) -> Optional[str]:
    """Return the version from /proc/driver/nvidia/version, of the closed or the open kernel module."""
    match = re.search(r"Kernel Module\b.*?\s" + _VERSION + r"\s", text)
    return match.group(1) if match else None


def parse_minor(text: str) -> Optional[int]:
    """Return the minor number from /proc/driver/nvidia/gpus/*/information."""
    match = re.search(r"^Device Minor:\s*(\d{1,4})\s*$", text, re.MULTILINE | re.ASCII)
    return int(match.group(1)) if match else None


def find_library(files: Files, search: str) -> Tuple[Optional[str], Optional[str]]:
    """Return path and version of the libcuda that the loader would take; forward-compatibility ones are passed over."""
    for folder in [each for each in search.split(":") if each.startswith("/")] + list(_LIBRARY_FOLDERS):
        path = os.path.realpath(files.path(folder + "/libcuda.so.1"))
        version = re.fullmatch(r"libcuda\.so\." + _VERSION, os.path.basename(path))
        if version and "compat" not in path and os.path.isfile(path):
            return path, version.group(1)
    return None, None


def device_nodes(files: Files) -> List[Node]:
    """Return the NVIDIA device nodes; the two that open without waking a GPU are tried."""
    nodes = []
    names = ["/dev/" + name for name in files.names("/dev") if name.startswith("nvidia")]
    names += ["/dev/nvidia-caps/" + name for name in files.names("/dev/nvidia-caps")]
    for name in names:
        try:
            status = os.lstat(files.path(name))
        except OSError:  # gone between listing and looking
            continue
        if stat.S_ISCHR(status.st_mode):
            opens = _opens(files.path(name)) if name in ("/dev/nvidiactl", "/dev/nvidia-uvm") else None
            mode = "%04o" % stat.S_IMODE(status.st_mode)
            nodes.append(Node(name, os.major(status.st_rdev), os.minor(status.st_rdev), mode, opens))
    return nodes


def _opens(path: str) -> str:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "unknown")
    return "yes"


# --- nvidia-smi -------------------------------------------------------------------------------------------------------


def query(what: str, fields: str) -> bytes:
    """Say that nvidia-smi is there and become it; ask this of a child: the search may hang as well."""
    program = shutil.which("nvidia-smi")
    if program is not None:
        os.write(1, FOUND)
        os.execv(program, [program, "--query-%s=%s" % (what, fields), "--format=csv,noheader,nounits"])
    return b""


def parse_answer(answer: Answer) -> Tuple[bool, str]:
    """Tell whether nvidia-smi was found, and what it said then."""
    found = answer.data.startswith(FOUND)
    return found, answer.data[len(FOUND) if found else 0 :].decode("utf-8", "replace")


def parse_gpus(text: str) -> List[Gpu]:
    """Read the answer to `GPU_FIELDS`; lines of another form (warnings, errors) are left out."""
    gpus = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == 10 and words[1].startswith("GPU-"):
            numbers = [number(word) for word in words]
            gpus.append(
                Gpu(
                    number=numbers[0],
                    uuid=words[1],
                    name=words[2],
                    bus_id=words[3],
                    driver=words[4],
                    memory_total=_mebibytes(numbers[5]),
                    memory_used=_mebibytes(numbers[6]),
                    utilisation_pct=numbers[7],
                    temperature_c=numbers[8],
                    uncorrected_ecc=numbers[9],
                )
            )
    return gpus


def parse_processes(text: str) -> Dict[str, List[Dict[str, object]]]:
    """Read the answer to `PROCESS_FIELDS`, by GPU. A name may hold commas; process numbers are those of the host."""
    by_gpu: Dict[str, List[Dict[str, object]]] = {}
    for line in text.splitlines():
        match = re.fullmatch(r"(GPU-[\w-]+), *(\d{1,9}), *(.*), *([^,]*)", line.strip(), re.ASCII)
        if match:
            uuid, pid, name, used = match.groups()
            process = {"pid": int(pid), "name": name, "memory": _mebibytes(number(used))}
            by_gpu.setdefault(uuid, []).append(process)
    return by_gpu


def _mebibytes(value: Optional[int]) -> Optional[int]:
    return None if value is None else value << 20
