"""Probe a target: facts about it in one record, and findings where the facts are trouble."""

from __future__ import annotations

import json
import shutil
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Tuple, cast

from . import gpu, judge, memory, python, storage, system
from .files import Files
from .guard import Answer, Children

if TYPE_CHECKING:
    from remoterun.remote.runtime import Context


class Params(NamedTuple):
    """Hold the parameters of payload.toml: bytes and seconds."""

    gpu: bool
    min_free_pct: float
    min_free: int
    answer_within: float


def run(ctx: Context) -> None:
    """Emit one record, and a finding for each trouble."""
    record, troubles = probe(Params(**cast("Dict[str, Any]", ctx.params)), Files())
    for trouble in troubles:
        ctx.finding(**trouble._asdict())
    ctx.emit(record)


def probe(params: Params, files: Files) -> Tuple[Dict[str, object], List[judge.Trouble]]:
    """Return the record and what of it is trouble. What may hang is asked of children while the rest is read."""
    started = time.monotonic()
    children = Children()
    mounts = storage.parse_mountinfo(files.text("/proc/self/mountinfo", "surrogateescape") or "")
    asked = storage.worth_asking(mounts)
    for mount in asked[: storage.MOST_MOUNTS]:
        children.ask("mount " + mount.point, partial(storage.ask, files.path(mount.point)), params.answer_within)
    children.ask("processes", partial(memory.biggest_processes, Files(files.root)), params.answer_within)
    if params.gpu:
        _ask_gpu(children, files, params.answer_within)

    facts = _Facts(files, mounts)
    answers = children.answers()

    rooms = [storage.room(mount, answers["mount " + mount.point]) for mount in asked[: storage.MOST_MOUNTS]]
    torch = cast("Optional[Dict[str, Optional[str]]]", facts.python["torch"])
    troubles = judge.storage(
        rooms,
        min_free_pct=params.min_free_pct,
        min_free=params.min_free,
        limit_s=params.answer_within,
        torch=torch is not None,
    )
    troubles += judge.memory(facts.machine_memory, facts.group_memory)
    gpu_record = None
    if params.gpu:
        gpu_record, gpu_troubles = _gpu(answers, params, container=facts.system["container"] is not None, torch=torch)
        troubles += gpu_troubles
    unchecked = files.unread + _unanswered(answers, len(asked))
    record: Dict[str, object] = {
        "kind": "probe",
        "name": facts.system["hostname"],
        "system": facts.system,
        "python": facts.python,
        "cpu": facts.cpu,
        "memory": facts.memory,
        "limits": memory.limits(),
        "processes": _json(answers["processes"]),
        "mounts": [room._asdict() for room in rooms],
        "gpu": gpu_record,
        "unchecked": unchecked,
        "findings": sorted({trouble.rule for trouble in troubles}),
        "verdict": judge.worst(troubles),
        "seconds": round(time.monotonic() - started, 3),
    }
    return record, troubles


class _Facts:
    """Read what never hangs."""

    def __init__(self, files: Files, mounts: List[storage.Mount]) -> None:
        own = files.text("/proc/self/cgroup") or ""
        meminfo = memory.parse_meminfo(files.text("/proc/meminfo") or "")
        self.machine_memory = memory.machine_memory(meminfo)
        self.group_memory = memory.group_memory(files, *memory.group_folders(mounts, own, "memory"))
        self.system = system.collect(files)
        self.python = python.collect(files)
        self.cpu = system.processors(files, memory.quota(files, *memory.group_folders(mounts, own, "cpu")))
        self.memory = {
            "total": meminfo.get("MemTotal"),
            "available": meminfo.get("MemAvailable"),
            "swap_total": meminfo.get("SwapTotal"),
            "swap_free": meminfo.get("SwapFree"),
            "dirty": meminfo.get("Dirty"),
            "group": self.group_memory._asdict() if self.group_memory else None,
        }


def _ask_gpu(children: Children, files: Files, limit_s: float) -> None:
    children.ask("driver", partial(gpu.look, Files(files.root)), limit_s)
    program = shutil.which("nvidia-smi")
    if program:
        children.ask("gpus", partial(gpu.query, program, "gpu", gpu.GPU_FIELDS), limit_s * gpu.SMI_PATIENCE)
        apps = partial(gpu.query, program, "compute-apps", gpu.PROCESS_FIELDS)
        children.ask("gpu processes", apps, limit_s * gpu.SMI_PATIENCE)


def _gpu(
    answers: Dict[str, Answer], params: Params, *, container: bool, torch: Optional[Dict[str, Optional[str]]]
) -> Tuple[Dict[str, object], List[judge.Trouble]]:
    looked = answers["driver"]
    seen = gpu.parse_driver(looked.data) if looked.status == 0 else gpu.Driver()
    smi = answers.get("gpus")
    processes = gpu.parse_processes(_text(answers.get("gpu processes")))
    gpus = [each._replace(processes=processes.get(each.uuid, [])) for each in gpu.parse_gpus(_text(smi))]
    said = None
    # Some versions find no devices and call that a success.
    if smi is not None and (smi.status != 0 or not gpus):
        said = "" if smi.status is None else _text(smi) or "nothing (exit status %d)" % smi.status
    troubles = judge.gpu(
        None if looked.status is None else seen,
        gpus,
        said,
        limit_s=params.answer_within,
        container=container,
        torch=torch is not None,
        torch_cuda=bool(torch and (torch["cuda"] or torch["hip"])),
    )
    return {
        "driver": seen.version,
        "library": seen.library,
        "library_path": seen.library_path,
        "nodes": [node._asdict() for node in seen.nodes],
        "nvidia_smi": "not installed" if smi is None else "ok" if said is None else said or "no answer",
        "gpus": [each._asdict() for each in gpus],
    }, troubles


def _unanswered(answers: Dict[str, Answer], mounts: int) -> List[str]:
    """Name what is missing in the record, and what the children could not read."""
    missing = ["%s: no answer" % name for name, answer in sorted(answers.items()) if answer.status is None]
    missing += [
        "%s: %s" % (name, _text(answers[name])) for name in ("driver", "processes") if _failed(answers.get(name))
    ]
    if mounts > storage.MOST_MOUNTS:
        missing.append("%d more mounts" % (mounts - storage.MOST_MOUNTS))
    driver = answers.get("driver")
    if driver and driver.status == 0:
        missing += json.loads(driver.data)["unread"]
    return missing


def _failed(answer: Optional[Answer]) -> bool:
    return answer is not None and answer.status not in (0, None)


def _json(answer: Answer) -> object:
    return json.loads(answer.data) if answer.status == 0 else None


def _text(answer: Optional[Answer]) -> str:
    return answer.data.decode("utf-8", "replace") if answer else ""
