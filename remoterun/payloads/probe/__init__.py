"""Probe a target: facts about it in one record, and findings where the facts are trouble."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Tuple, cast

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
    """Return the record and what of it is trouble.

    Whatever may hang is asked of children; what of it gets no answer is missing in the record.
    """
    started = time.monotonic()
    mounts = storage.parse_mountinfo(files.text("/proc/self/mountinfo", "surrogateescape") or "")
    asked = storage.worth_asking(mounts)
    answers = _ask(params, files, mounts, asked[: storage.MOST_MOUNTS])
    facts = _Facts(answers)
    rooms = [storage.room(mount, answers["mount " + mount.point]) for mount in asked[: storage.MOST_MOUNTS]]
    torch = cast("Optional[Dict[str, Optional[str]]]", facts.python.get("torch"))
    troubles = judge.storage(
        rooms,
        min_free_pct=params.min_free_pct,
        min_free=params.min_free,
        limit_s=params.answer_within,
        torch=torch is not None,
    )
    troubles += judge.memory(*memory.to_judge(facts.memory))
    gpu_record = None
    if params.gpu:
        container = facts.system.get("container") is not None
        gpu_record, gpu_troubles = _gpu(answers, params, facts.library, container=container, torch=torch)
        troubles += gpu_troubles
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
        "unchecked": files.unread + facts.unread + _unanswered(answers, len(asked)),
        "findings": sorted({trouble.rule for trouble in troubles}),
        "verdict": judge.worst(troubles),
        "seconds": round(time.monotonic() - started, 3),
    }
    return record, troubles


def _ask(params: Params, files: Files, mounts: List[storage.Mount], asked: List[storage.Mount]) -> Dict[str, Answer]:
    """Ask everything at once."""
    children, limit_s = Children(), params.answer_within
    for mount in asked:
        children.ask("mount " + mount.point, partial(storage.ask, files.path(mount.point)), limit_s)
    children.ask("processes", partial(memory.biggest_processes, Files(files.root)), limit_s)
    looks: List[Tuple[str, Callable[[Files], Dict[str, object]]]] = [
        ("system", system.collect),
        ("python packages", python.packages),
        ("cpu", partial(system.processors, mounts=mounts)),
        ("memory", partial(memory.collect, mounts=mounts)),
    ]
    if params.gpu:
        looks.append(("library", gpu.library))
        children.ask("driver", partial(gpu.look, Files(files.root)), limit_s)
        for name, what, fields in (
            ("gpus", "gpu", gpu.GPU_FIELDS),
            ("gpu processes", "compute-apps", gpu.PROCESS_FIELDS),
        ):
            children.ask(name, partial(gpu.query, what, fields), limit_s * gpu.SMI_PATIENCE)
    for name, look in looks:
        children.ask(name, partial(_facts, look, Files(files.root)), limit_s)
    return children.answers()


def _facts(look: Callable[[Files], Dict[str, object]], files: Files) -> bytes:
    return json.dumps({"facts": look(files), "unread": files.unread}).encode()


class _Facts:
    """Bring together what is known at once and what children found out."""

    def __init__(self, answers: Dict[str, Answer]) -> None:
        self._answers = answers
        self.unread: List[str] = []
        self.system = dict(system.names(), **self._found("system"))
        self.python = dict(python.running(), **self._found("python packages"))
        self.cpu = dict(system.affinity(), **self._found("cpu"))
        self.memory = self._found("memory")
        self.library = self._found("library")

    def _found(self, name: str) -> Dict[str, Any]:
        said = cast("Optional[Dict[str, Any]]", _json(self._answers[name])) if name in self._answers else None
        if said is None:
            return {}
        self.unread += [each for each in said["unread"] if each not in self.unread]
        return cast("Dict[str, Any]", said["facts"])


def _gpu(
    answers: Dict[str, Answer],
    params: Params,
    library: Dict[str, Any],
    *,
    container: bool,
    torch: Optional[Dict[str, Optional[str]]],
) -> Tuple[Dict[str, object], List[judge.Trouble]]:
    looked, smi = answers["driver"], answers["gpus"]
    seen = (gpu.parse_driver(looked.data) if looked.status == 0 else gpu.Driver())._replace(**library)
    is_there, text = gpu.parse_answer(smi)
    processes = gpu.parse_processes(gpu.parse_answer(answers["gpu processes"])[1])
    gpus = [each._replace(processes=processes.get(each.uuid, [])) for each in gpu.parse_gpus(text)]
    said = None
    # Some versions find no devices and call that a success.
    if is_there and (smi.status != 0 or not gpus):
        said = "" if smi.status is None else text or "nothing (exit status %d)" % smi.status
    troubles = judge.gpu(
        None if looked.status is None else seen,
        gpus,
        said,
        limit_s=params.answer_within,
        container=container,
        torch=torch is not None,
        torch_cuda=bool(torch and (torch["cuda"] or torch["hip"])),
    )
    missing = "not installed" if smi.status == 0 else "no answer"
    driver = {"driver": seen.version, "nodes": [node._asdict() for node in seen.nodes]} if looked.status == 0 else {}
    return {
        **driver,
        **library,
        "nvidia_smi": missing if not is_there else "ok" if said is None else said or "no answer",
        "gpus": [each._asdict() for each in gpus],
    }, troubles


def _unanswered(answers: Dict[str, Answer], mounts: int) -> List[str]:
    """Name what is missing in the record, and what the children could not read."""
    missing = ["%s: no answer" % name for name, answer in sorted(answers.items()) if answer.status is None]
    missing += ["%s: %s" % (name, _text(answer)) for name, answer in sorted(answers.items()) if _failed(name, answer)]
    if mounts > storage.MOST_MOUNTS:
        missing.append("%d more mounts" % (mounts - storage.MOST_MOUNTS))
    driver = answers.get("driver")
    if driver and driver.status == 0:
        missing += json.loads(driver.data)["unread"]
    return missing


def _failed(name: str, answer: Answer) -> bool:
    """Tell whether a look went wrong; of mounts and nvidia-smi, the record itself tells."""
    told = name.startswith("mount ") or answer.data.startswith(gpu.FOUND)
    return not told and answer.status not in (0, None)


def _json(answer: Answer) -> object:
    return json.loads(answer.data) if answer.status == 0 else None


def _text(answer: Answer) -> str:
    return answer.data.decode("utf-8", "replace")
