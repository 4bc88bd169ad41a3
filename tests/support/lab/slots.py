"""Places for labs on this machine: each a number, a folder and a lock; what a killed lab left in one is removed."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.lab import machine

FOLDER = Path("/run/remoterun-lab")
"""Holds one numbered folder per lab; the lock of a living lab is held by the process that made it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Own everything that carries the slot's number: folder, bridge and cgroups."""

    number: int
    lock: int

    @property
    def folder(self) -> Path:
        """Return the folder for keys, seeds and whatever else is on disk."""
        return FOLDER / str(self.number)

    @property
    def bridge(self) -> str:
        """Name the bridge, and with a suffix its ports."""
        return f"rrlab{self.number}"

    @property
    def cgroup(self) -> str:
        """Name the cgroup above those of all guests; it is also in the command line of every host's init."""
        return f"remoterun-lab-{self.number}"

    @property
    def inner_prefix(self) -> str:
        """Return the first three numbers of addresses behind jump hosts."""
        return f"10.214.{self.number}"

    def close(self) -> None:
        """Remove all of it and give the number back."""
        with _gate():
            _clean(self)
            os.close(self.lock)


def take() -> Slot:
    """Remove what dead labs left, then take the first free number.

    Raises:
        LabError: when 250 labs are alive.
    """
    with _gate():
        for entry in sorted(FOLDER.iterdir()):
            slot = _claim(int(entry.name)) if entry.name.isdigit() else None
            if slot is not None:
                _clean(slot)
                os.close(slot.lock)
        for number in range(1, 251):
            slot = _claim(number)
            if slot is not None:
                _clean(slot, keep_folder=True)
                return slot
    raise machine.LabError("250 labs are alive on this machine")


@contextmanager
def _gate() -> Iterator[None]:
    """Let one process at a time hand out or take back numbers."""
    FOLDER.mkdir(mode=0o700, exist_ok=True)
    handle = os.open(FOLDER / "gate", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _claim(number: int) -> Slot | None:
    """Take the lock of a number; None when a living lab holds it."""
    folder = FOLDER / str(number)
    folder.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return Slot(number=number, lock=lock)


def _clean(slot: Slot, *, keep_folder: bool = False) -> None:
    """Remove a lab's processes, cgroups, links, routes and folder; what is not there is fine."""
    machine.thaw(slot.cgroup)
    for pid in machine.inits(slot.cgroup):
        machine.kill(pid)
    machine.wait_for(lambda: not list(machine.inits(slot.cgroup)), "the lab's hosts to end")
    machine.remove_cgroups(slot.cgroup)
    for name in sorted(path.name for path in Path("/sys/class/net").iterdir()):
        if name == slot.bridge or name.startswith(f"{slot.bridge}h"):
            machine.run(["ip", "link", "del", name], check=False)
    machine.run(["ip", "route", "del", "unreachable", f"{slot.inner_prefix}.0/24"], check=False)
    if not keep_folder:
        shutil.rmtree(slot.folder)
