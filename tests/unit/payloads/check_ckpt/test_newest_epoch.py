"""The newest where nothing but epochs tell: copies of files have any time."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.unit.payloads.check_ckpt.support import LONG_AGO, audit, network, save

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


def test_the_highest_epoch_is_the_newest_whatever_the_times_of_copies_say(tmp_path: Path) -> None:
    """Ultralytics saves epoch0.pt, best.pt and last.pt without a step."""
    for age, (name, epoch) in enumerate([("last", 2), ("epoch2", 2), ("epoch1", 1), ("best", 1), ("epoch0", 0)]):
        model, optimizer = network(epoch)
        save(
            {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / f"{name}.pt"
        )
        os.utime(tmp_path / f"{name}.pt", (LONG_AGO + age, LONG_AGO + age))
    assert audit(tmp_path).summary["resume_from"] == "epoch2.pt"
