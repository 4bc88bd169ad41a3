"""Inventories for tests, from the text of a file."""

from __future__ import annotations

from pathlib import Path

from remoterun.inventory import Inventory
from remoterun.model import Target

FINGERPRINT = "SHA256:" + "a" * 43


def load(file: Path, text: str) -> Inventory:
    """Write an inventory file and load it."""
    file.write_text(text, encoding="utf-8")
    return Inventory.load(file)


def target(inventory: Inventory, id_: str) -> Target:
    """Return the one target of an id."""
    return next(target for target in inventory if target.id == id_)
