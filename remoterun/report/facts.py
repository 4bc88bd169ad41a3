"""What matters of a probe's record, in the words and units that people use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from remoterun.errors import clean
from remoterun.report.documents import plain
from remoterun.report.text import clip, human_bytes, human_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remoterun.model import Json

_SIZES: Final = frozenset(
    {"total", "available", "swap_total", "swap_free", "dirty", "rss", "memory", "memory_total", "memory_used"}
)
_SIZED_LIMITS: Final = frozenset({"memlock", "stack", "core"})
_POINT: Final = 24
"""Cells for the place of a mount, so that its row fits 80 columns; -v tells it whole."""
_NOTES: Final = 60
"""Cells for what is the matter with it; likewise."""


def is_probe(record: Mapping[str, Json]) -> bool:
    """Tell whether a record is that of the payload `probe`."""
    return record.get("kind") == "probe"


def digest(record: Mapping[str, Json]) -> dict[str, Json]:
    """Shorten a probe's record to what fits a screen; facts that the target could not tell are left out."""
    python, gpu = _part(record, "python"), _part(record, "gpu")
    short: dict[str, Json] = {
        "kind": "probe",
        "system": _system(_part(record, "system")),
        "python": _python(python),
        "cpu": _cpu(_part(record, "cpu")),
        "memory": _memory(_part(record, "memory")),
        "gpu": _gpu(gpu),
        "gpus": _filled([_one_gpu(item) for item in _parts(gpu, "gpus")]),
        "disks": _filled([_disk(item) for item in _parts(record, "mounts")]),
        "unchecked": record.get("unchecked"),
    }
    return {key: value for key, value in short.items() if value not in (None, "", [])}


def measured(record: Mapping[str, Json]) -> dict[str, Json]:
    """Return a probe's record whole, as strict JSON, with its sizes in the units that people use."""
    return {key: _measured(key, plain(value)) for key, value in record.items()}


def _measured(key: str, value: Json) -> Json:
    if isinstance(value, list):
        return [_measured("", item) for item in value]
    if isinstance(value, dict):
        return {name: _measured(key if key in _SIZED_LIMITS else name, item) for name, item in value.items()}
    is_size = key in _SIZES or key in _SIZED_LIMITS
    return human_bytes(value) if is_size and isinstance(value, (int, float)) else value


def _system(system: Mapping[str, Json]) -> str:
    kernel = _worded("kernel ", system.get("kernel"))
    uptime = system.get("uptime_s")
    up = f"up {human_seconds(uptime)}" if isinstance(uptime, (int, float)) else ""
    return _listed(
        system.get("hostname"),
        system.get("distribution"),
        kernel,
        system.get("arch"),
        _worded("in ", system.get("container")),
        up,
    )


def _python(python: Mapping[str, Json]) -> str:
    torch = _part(python, "torch")
    # No torch is a fact only where the probe looked for it.
    has_torch = _worded("torch ", torch.get("version")) or ("no torch" if python.get("torch", "") is None else None)
    cuda = (
        _worded("CUDA ", torch.get("cuda")) or _worded("ROCm ", torch.get("hip")) or ("without CUDA" if torch else None)
    )
    numpy = _worded("numpy ", python.get("numpy"))
    return _listed(python.get("version"), python.get("executable"), has_torch, cuda, numpy)


def _cpu(cpu: Mapping[str, Json]) -> str:
    count, quota, load = cpu.get("affinity") or cpu.get("count"), cpu.get("quota"), cpu.get("load")
    loads = (
        " ".join(str(value) for value in load if isinstance(value, (int, float))) if isinstance(load, list) else None
    )
    cores = f"{count} cores" if isinstance(count, int) else None
    return _listed(cpu.get("model"), cores, _worded("limited to ", quota), _worded("load ", loads))


def _memory(memory: Mapping[str, Json]) -> str:
    return _listed(_of(memory.get("available"), memory.get("total"), "available"))


def _gpu(gpu: Mapping[str, Json]) -> str:
    said = gpu.get("nvidia_smi")
    trouble = None if said == "ok" else _worded("nvidia-smi: ", said)
    return _listed(_worded("driver ", gpu.get("driver")) or ("no driver" if gpu else None), trouble)


def _one_gpu(gpu: Mapping[str, Json]) -> dict[str, Json]:
    name, processes = gpu.get("name"), gpu.get("processes")
    return {
        "number": gpu.get("number"),
        "name": name.removeprefix("NVIDIA ") if isinstance(name, str) else name,
        "used": _size(gpu.get("memory_used")),
        "memory": _size(gpu.get("memory_total")),
        "busy": _worded("", gpu.get("utilisation_pct"), " %"),
        "heat": _worded("", gpu.get("temperature_c"), " C"),
        "processes": len(processes) if isinstance(processes, list) else None,
    }


def _disk(mount: Mapping[str, Json]) -> dict[str, Json]:
    point, state = mount.get("point"), mount.get("state")
    if isinstance(point, str) and len(point) > _POINT:
        point = f"...{point[3 - _POINT :]}"
    notes = _listed(
        None if state == "ok" else state, "read-only" if mount.get("read_only") else None, mount.get("error")
    )
    return {
        "point": point,
        "type": mount.get("fstype"),
        "free": _size(mount.get("available")),
        "size": _size(mount.get("total")),
        "notes": clip(clean(notes), _NOTES) or None,
    }


def _filled(items: list[dict[str, Json]]) -> list[Json]:
    """Leave out what none of these can tell."""
    told = {key for item in items for key, value in item.items() if value is not None}
    return [{key: value for key, value in item.items() if key in told} for item in items]


def _part(record: Mapping[str, Json], key: str) -> dict[str, Json]:
    value = record.get(key)
    return value if isinstance(value, dict) else {}


def _parts(record: Mapping[str, Json], key: str) -> list[dict[str, Json]]:
    value = record.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _size(value: Json) -> str | None:
    return human_bytes(value) if isinstance(value, (int, float)) else None


def _of(part: Json, whole: Json, what: str) -> str | None:
    """Write ``83.0 GB of 270.6 GB free``."""
    if not isinstance(part, (int, float)) or not isinstance(whole, (int, float)):
        return None
    return f"{human_bytes(part)} of {human_bytes(whole)} {what}"


def _worded(before: str, value: Json, after: str = "") -> str | None:
    return f"{before}{value}{after}" if isinstance(value, (str, int, float)) and value != "" else None


def _listed(*texts: object) -> str:
    return ", ".join(text for text in texts if isinstance(text, str) and text)
