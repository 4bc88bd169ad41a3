"""Inventory: which hosts and guests there are, how they are reached and entered, and which of them a selection means.

Importing this package is cheap: PyYAML and pydantic are imported when a file is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from remoterun.inventory.inventory import Inventory
from remoterun.inventory.overrides import Overrides
from remoterun.inventory.project import FILE_NAME, find_project

if TYPE_CHECKING:
    from remoterun.model import Json

__all__ = ["FILE_NAME", "Inventory", "Overrides", "find_project", "inventory_schema"]


def inventory_schema() -> dict[str, Json]:
    """Return the JSON Schema of inventory.yaml (draft 2020-12)."""
    from remoterun.inventory.schema import InventoryFile, json_schema

    return json_schema(InventoryFile, "remoterun inventory")
