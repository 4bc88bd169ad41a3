"""The demo's story: three containers of a training host, their checkpoints, and what is to come out."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from remoterun.errors import ConfigError
from remoterun.lab.pct import Guest
from remoterun.model import Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remoterun.model import Run

HOST: Final = "kpro6"
PLAYBOOK: Final = "check-ckpt"

_PLAYBOOK_TEXT: Final = """\
description: Audit every checkpoint of the training containers
targets: "tag:training"
steps:
  - payload: check-ckpt@1
    params: {root: {var: checkpoints}}      # the guest's variable of that name, from the inventory
    fail_on: suspect
"""
_DATA: Final = Path(__file__).with_name("data")
_AGE_S: Final = 600.0

_TOLD: Final[Mapping[str, tuple[Status, str | None]]] = MappingProxyType(
    {
        f"{HOST}/200": (Status.FINDINGS, None),
        f"{HOST}/201": (Status.OK, None),
        f"{HOST}/202": (Status.FAILED, "guest_stopped"),
    }
)


def lay_out(folder: Path) -> tuple[Guest, ...]:
    """Write the playbook and the guests' checkpoints into an empty folder, and return the guests.

    Raises:
        ConfigError: they can't be written.
    """
    try:
        playbooks = folder / "playbooks"
        playbooks.mkdir(parents=True)
        (playbooks / f"{PLAYBOOK}.yaml").write_text(_PLAYBOOK_TEXT, encoding="utf-8")
        return (
            _guest(folder, 200, "dflash-train"),
            _guest(folder, 201, "small-run"),
            _guest(folder, 202, "old-run", running=False),
        )
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(f"the demo's files can't be written to {folder}: {why}; name another one by --dir") from error


def _guest(folder: Path, vmid: int, name: str, *, running: bool = True) -> Guest:
    checkpoints = folder / "guests" / str(vmid) / "checkpoints"
    if running:
        _copy(_DATA / str(vmid), checkpoints)
        _age(checkpoints)
    return Guest(id=vmid, name=name, running=running, vars={"checkpoints": str(checkpoints)}, tags=("training",))


def _copy(source: Path, place: Path) -> None:
    """Copy a folder; not by shutil, whose error is that of each file in one, without a number."""
    place.mkdir(parents=True)
    for path in source.iterdir():
        copied = place / path.name
        if path.is_dir():
            _copy(path, copied)
        else:
            copied.write_bytes(path.read_bytes())


def _age(checkpoints: Path) -> None:
    """Give checkpoints the times at which a training would have written them: no package keeps the files' own."""
    newest_first = sorted(checkpoints.iterdir(), key=lambda path: _numbers(path.name), reverse=True)
    now = time.time()
    for index, path in enumerate(newest_first):
        when = now - _AGE_S * (index + 1)
        for part in (*path.rglob("*"), path):
            os.utime(part, (when, when))


def _numbers(name: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", name)]


def departures(run: Run) -> list[str]:
    """Return what became of the story otherwise than told; nothing when all went well."""
    came = {outcome.target: (outcome.status, outcome.error.code if outcome.error else None) for outcome in run.outcomes}
    return [
        f"{target} should have ended as {_words(told)}, and ended as {_words(came.get(target))}"
        for target, told in _TOLD.items()
        if came.get(target) != told
    ]


def _words(end: tuple[Status, str | None] | None) -> str:
    return " ".join(word for word in end if word) if end else "nothing at all"
