"""What the tests of check-ckpt share: a context that keeps what it is told, and checkpoints made by the real torch."""

from __future__ import annotations

import io
import json
import os
import struct
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch

from remoterun.payloads.check_ckpt import run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from remoterun.remote.runtime import Context

ENGINES = ("stdlib", "numpy")
LONG_AGO = 1_700_000_000


class NothingError(Exception):
    """Be what ctx.nothing() raises."""


class FailedError(Exception):
    """Be what ctx.fail() raises."""


@dataclass
class Heard:
    """Keep everything that a payload says, as the runtime's context would send it."""

    params: dict[str, object]
    emitted: list[dict[str, Any]] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)
    steps: list[tuple[float, float | None, str, str]] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)
    nothing_judged: str = ""
    hint: str | None = None

    def emit(self, record: dict[str, Any]) -> None:
        """Take a record that is strict JSON."""
        self.emitted.append(json.loads(json.dumps(record, allow_nan=False, ensure_ascii=True)))

    def finding(
        self,
        rule: str,
        severity: str,
        subject: str,
        message: str,
        next_step: str = "",
        evidence: object = None,
        **data: object,
    ) -> None:
        """Take a finding that is strict JSON."""
        assert severity in {"info", "suspect", "bad"}
        finding = {
            "rule": rule,
            "severity": severity,
            "subject": subject,
            "message": message,
            "next_step": next_step,
            "evidence": evidence,
            "data": data,
        }
        self.findings.append(json.loads(json.dumps(finding, allow_nan=False)))

    def progress(self, done: float, total: float | None = None, unit: str = "", what: str = "") -> None:
        """Take a step of progress."""
        self.steps.append((done, total, unit, what))

    def log(self, text: str) -> None:
        """Take a word to the person who watches."""
        self.logged.append(text)

    def nothing(self, message: str, hint: str | None = None) -> NoReturn:
        """End the step."""
        self.hint = hint
        raise NothingError(message)

    def fail(self, message: str) -> NoReturn:
        """End the step."""
        raise FailedError(message)

    # --- what tests ask ----------------------------------------------------------------------------------------------

    @property
    def records(self) -> list[dict[str, Any]]:
        """Return the records of checkpoints, in order."""
        return [record for record in self.emitted if record["kind"] == "checkpoint"]

    @property
    def record(self) -> dict[str, Any]:
        """Return the only record."""
        (record,) = self.records
        return record

    def record_of(self, name: str) -> dict[str, Any]:
        """Return the record of a checkpoint."""
        (record,) = [record for record in self.records if record["name"] == name]
        return record

    @property
    def summary(self) -> dict[str, Any]:
        """Return the summary, which comes last."""
        assert self.emitted[-1]["kind"] == "summary"
        return self.emitted[-1]

    def rules(self, *, above_info: bool = False) -> set[str]:
        """Return the ids of the findings."""
        return {each["rule"] for each in self.findings if not above_info or each["severity"] != "info"}

    def of(self, rule: str) -> dict[str, Any]:
        """Return the first finding of a rule."""
        return next(each for each in self.findings if each["rule"] == rule)


def audit(root: Path | str, *, later: float = 0, **params: object) -> Heard:
    """Run the payload on a file or folder, as the supervisor would call it, so many seconds from now."""
    heard = Heard({"root": str(root), "depth": 6, "engine": "auto", **params})
    hear(heard, later=later)
    return heard


def hear(heard: Heard, *, later: float = 0) -> None:
    """Run the payload. That nothing was judged does not take back what it said before: it is in `nothing_judged`."""
    try:
        run(cast("Context", heard), lambda: time.time() + later)
    except NothingError as error:
        if not heard.emitted:
            raise
        heard.nothing_judged = str(error)


# --- checkpoints made by torch --------------------------------------------------------------------------------------


def network(seed: int = 0, width: int = 64, layers: int = 4) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Make a small network that AdamW has trained for one step."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, width)).pow(2).mean().backward()
    optimizer.step()
    return model, optimizer


def training_state(seed: int = 0, **more: object) -> dict[str, Any]:
    """Return what training scripts save: model, optimizer, step and epoch."""
    model, optimizer = network(seed)
    return {
        "model_state_dict": model.state_dict(),
        "optimizer_state_dict": optimizer.state_dict(),
        "global_step": 2000,
        "epoch": 1,
        **more,
    }


def save(value: object, path: Path, *, fresh: bool = False, **options: Any) -> Path:
    """Save with torch, as a file that was last written long ago unless it is to be fresh."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(value, path, **options)
    if not fresh:
        settle(path)
    return path


def settle(path: Path) -> Path:
    """Make a file one that was last written long ago."""
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


def write(path: Path, data: bytes) -> Path:
    """Write a file that was last written long ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return settle(path)


def place_of(path: Path, name: str) -> tuple[int, int]:
    """Return where the data of a zip's record lies: offset and size."""
    with zipfile.ZipFile(path) as archive:
        info = next(info for info in archive.infolist() if info.filename.endswith(name))
    with path.open("rb") as file:
        file.seek(info.header_offset + 26)
        name_size, extra = struct.unpack("<HH", file.read(4))
    return info.header_offset + 30 + name_size + extra, info.file_size


def overwrite(path: Path, offset: int, data: bytes) -> Path:
    """Change bytes in place."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
    return settle(path)


def stored_zip(members: Mapping[str, bytes]) -> bytes:
    """Make a zip of stored records, as others than torch would."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def tensors_of(value: object) -> Iterator[torch.Tensor]:
    """Yield every tensor inside mappings and lists."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_of(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_of(each)


def count_with_torch(value: object) -> tuple[int, int]:
    """Let torch count NaN and infinite elements of everything inside; formats it can't test are widened first."""
    nan = inf = 0
    for tensor in tensors_of(value):
        if tensor.is_floating_point() or tensor.is_complex():
            wide = tensor.float() if tensor.element_size() == 1 else tensor
            nan += int(torch.isnan(wide).sum())
            inf += int(torch.isinf(wide).sum())
    return nan, inf
