"""The facts that a probe's record tells of a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from remoterun.model import Json

# Where each fact stands. What is null there is known to be missing; what is not there is not known.
_PLACES: Final = (
    ("distribution", ("system", "distribution")),
    ("container", ("system", "container")),
    ("torch", ("python", "torch", "version")),
    ("cuda", ("python", "torch", "cuda")),
    ("rocm", ("python", "torch", "hip")),
    ("numpy", ("python", "numpy")),
    ("safetensors", ("python", "safetensors")),
    ("gpu driver", ("gpu", "driver")),
    ("nvidia-smi", ("gpu", "nvidia_smi")),
    ("cpu", ("cpu", "model")),
)


def probe_facts(record: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """Yield facts by name: versions, drivers, devices, and the state of disks."""
    for name, path in _PLACES:
        found, value = _at(record, path)
        if found and (value is None or isinstance(value, str)):
            yield name, value or "none"
    gpus = _at(record, ("gpu", "gpus"))[1]
    if isinstance(gpus, list):
        names = [str(gpu.get("name")) for gpu in _list(gpus)]
        yield "gpus", ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "none"
    for mount in _list(record.get("mounts")):
        point, state = mount.get("point"), mount.get("state")
        if isinstance(point, str) and isinstance(state, str):
            yield f"disk {point}", f"{state}, read-only" if mount.get("read_only") is True else state


def _at(record: Mapping[str, Json], path: tuple[str, ...]) -> tuple[bool, Json]:
    value: Json = dict(record)
    for index, key in enumerate(path):
        if value is None and index:
            return True, None
        if not isinstance(value, dict) or key not in value:
            return False, None
        value = value[key]
    return True, value


def _list(value: Json) -> list[dict[str, Json]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
