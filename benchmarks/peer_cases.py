"""Small checkpoints, sound ones and damaged ones, to hold tools against each other; with torch and safetensors.

The base is a network of four linear layers that AdamW has trained, saved as training scripts save.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

_LONG_AGO = 1_700_000_000
# Sound files of each kind with nothing special in them.
PLAIN = ("clean", "safetensors")
_PAGE = 4096
_NAN = float("nan")
_WIDTH, _LAYERS, _STEPS = 64, 4, 20
_SOUND, _BAD, _HARD = "sound", "bad", "hard"
_Build = Callable[[Path], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Describe one file: whether it is sound, and what there is to see in it.

    `hard` says that it lies beyond the comparison's set: damage that no checksum and no number that isn't finite gives
    away. `marker` is a file that the case's code makes where it is executed.
    """

    name: str
    path: Path
    what: str
    sound: bool = False
    hard: bool = False
    marker: Path | None = None


class _Attack:
    """Make a file where it is unpickled for real: harmless, and seen."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {shlex.quote(str(self._marker))}",)


def make(folder: Path) -> Iterator[Case]:
    """Make all files, one after the other, in folders whose names tell nothing."""
    for file, kinds in (("checkpoint.pt", _PICKLED), ("model.safetensors", _SAFE)):
        for number, (name, (kind, what, build)) in enumerate(kinds.items()):
            path = folder / f"{number:02}" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            build(path)
            os.utime(path, (_LONG_AGO, _LONG_AGO))
            marker = _marker(path) if build is _with_code else None
            yield Case(name=name, path=path, what=what, sound=kind == _SOUND, hard=kind == _HARD, marker=marker)


# --- torch ----------------------------------------------------------------------------------------


def _state() -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(_STEPS):
        optimizer.zero_grad()
        model(torch.randn(8, _WIDTH)).pow(2).mean().backward()
        optimizer.step()
    return {
        "model_state_dict": model.state_dict(),
        "optimizer_state_dict": optimizer.state_dict(),
        "global_step": _STEPS,
        "epoch": 1,
    }


def _edited(change: Callable[[dict[str, Any]], object], **options: Any) -> _Build:
    """Return what saves a state that was changed before, so that its checksums agree with it."""

    def build(path: Path) -> None:
        state = _state()
        change(state)
        torch.save(state, path, **options)

    return build


def _nothing(_: dict[str, Any]) -> None:
    """Change nothing."""


def _weight(state: dict[str, Any], layer: int = 1) -> torch.Tensor:
    weight: torch.Tensor = state["model_state_dict"][f"{layer}.weight"]
    return weight


def _moment(state: dict[str, Any], name: str) -> torch.Tensor:
    moment: torch.Tensor = state["optimizer_state_dict"]["state"][2][name]
    return moment


def _put(tensor: torch.Tensor, value: float) -> None:
    tensor[3, 4] = value


def _swap(state: dict[str, Any]) -> None:
    model = state["model_state_dict"]
    model["1.weight"], model["2.weight"] = model["2.weight"], model["1.weight"]


def _ahead(state: dict[str, Any]) -> None:
    _moment(state, "step").add_(1)


def _second_moment(value: float) -> Callable[[dict[str, Any]], None]:
    return lambda state: _put(_moment(state, "exp_avg_sq"), value)


def _flip(bit: int) -> Callable[[dict[str, Any]], None]:
    def change(state: dict[str, Any]) -> None:
        _weight(state).view(torch.int32)[3, 4] ^= 1 << bit

    return change


def _zeroed_page(path: Path) -> None:
    _edited(_nothing)(path)
    offset, _ = _record(path, "data/2")
    _overwrite(path, -(-offset // _PAGE) * _PAGE, bytes(_PAGE))


def _flipped_on_disk(path: Path) -> None:
    """Flip a bit of an exponent, under the checksum that was written."""
    _edited(_nothing)(path)
    offset, _ = _record(path, "data/2")
    at = offset + 4 * 200 + 3
    _overwrite(path, at, bytes([path.read_bytes()[at] ^ 0x02]))


def _cut(path: Path) -> None:
    _edited(_nothing)(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def _record(path: Path, name: str) -> tuple[int, int]:
    with zipfile.ZipFile(path) as archive:
        info = next(info for info in archive.infolist() if info.filename.endswith(name))
    head = path.read_bytes()[info.header_offset + 26 : info.header_offset + 30]
    name_size, extra = struct.unpack("<HH", head)
    return info.header_offset + 30 + name_size + extra, info.file_size


def _overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def _marker(path: Path) -> Path:
    return path.with_name("executed")


def _with_code(path: Path) -> None:
    torch.save({**_state(), "extra": _Attack(_marker(path))}, path)


def _refused_by_torch(state: dict[str, Any]) -> None:
    state.update(args=argparse.Namespace(lr=1e-3, warmup=100), best_loss=np.float64(0.25))


_PICKLED: dict[str, tuple[str, str, _Build]] = {
    "clean": (_SOUND, "nothing", _edited(_nothing)),
    "nan-weight": (_BAD, "one NaN in a weight", _edited(lambda state: _put(_weight(state), _NAN))),
    "inf-moment": (_BAD, "one Inf in `exp_avg`", _edited(lambda state: _put(_moment(state, "exp_avg"), math.inf))),
    "torn-step": (_BAD, "Adam's `step` of one parameter is ahead by 1", _edited(_ahead)),
    "negative-moment": (_BAD, "one element of `exp_avg_sq` is negative", _edited(_second_moment(-1.0))),
    "zero-weight": (_BAD, "a weight is all zero", _edited(lambda state: _weight(state).zero_())),
    "zero-page": (_BAD, "4 KiB of the file are zero", _zeroed_page),
    "bit-flip": (_BAD, "a bit of an exponent is flipped in the file", _flipped_on_disk),
    "truncated": (_BAD, "the last third is missing", _cut),
    "namespace": (_SOUND, "nothing: a `Namespace` and a `np.float64` in it", _edited(_refused_by_torch)),
    "code": (_BAD, "code that runs where it is unpickled", _with_code),
    "legacy": (_SOUND, "nothing: the format before torch 1.6", _edited(_nothing, _use_new_zipfile_serialization=False)),
    "flip-before-save": (_HARD, "bit 30 of a weight is flipped before the save", _edited(_flip(30))),
    "small-flip": (_HARD, "bit 25 of a weight is flipped before the save", _edited(_flip(25))),
    "zero-moment": (_HARD, "one element of `exp_avg_sq` is zero", _edited(_second_moment(0.0))),
    "swapped": (_HARD, "two weights of one shape changed places", _edited(_swap)),
}


# --- safetensors ----------------------------------------------------------------------------------


def _safe(dtype: torch.dtype, value: float | None = None) -> _Build:
    def build(path: Path) -> None:
        tensors = {name: tensor.to(dtype) for name, tensor in _state()["model_state_dict"].items()}
        if value is not None:
            wide = tensors["1.weight"].float()
            _put(wide, value)
            tensors["1.weight"] = wide.to(dtype)
        save_file(tensors, path, metadata={"format": "pt"})

    return build


def _safe_cut(path: Path) -> None:
    _safe(torch.float32)(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def _safe_flip(path: Path) -> None:
    """Flip a bit of an exponent in the file: a weight below 1 doubles or quarters or so."""
    _safe(torch.float32)(path)
    data = path.read_bytes()
    at = 8 + struct.unpack("<Q", data[:8])[0] + 4 * 5000 + 3
    _overwrite(path, at, bytes([data[at] ^ 0x02]))


def _safe_page(path: Path) -> None:
    _safe(torch.float32)(path)
    _overwrite(path, 5 * _PAGE, bytes(_PAGE))


_SAFE: dict[str, tuple[str, str, _Build]] = {
    "safetensors": (_SOUND, "nothing", _safe(torch.float32)),
    "safetensors-truncated": (_BAD, "the last third is missing", _safe_cut),
    "bf16-nan": (_BAD, "one NaN, in bfloat16", _safe(torch.bfloat16, _NAN)),
    "fp8-nan": (_BAD, "one NaN, in float8_e4m3fn", _safe(torch.float8_e4m3fn, _NAN)),
    "safetensors-page": (_HARD, "4 KiB of the file are zero", _safe_page),
    "safetensors-flip": (_HARD, "a bit of an exponent is flipped in the file", _safe_flip),
}
