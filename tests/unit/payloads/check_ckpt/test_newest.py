"""How many checkpoints `newest` asks for: what only goes with them is none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch

from tests.unit.payloads.check_ckpt.support import LONG_AGO, audit, save, training_state

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


def folder(path: Path) -> Path:
    """Lay out two checkpoints, and beside them what a plain training loop saves after each."""
    files: dict[str, object] = {"epoch_1.pt": training_state(), "epoch_2.pt": training_state(1)}
    files |= {"scheduler.pt": {"last_epoch": 2}, "rng_state.pth": torch.get_rng_state()}
    files |= {"training_args.bin": {"lr": 0.1}}
    for number, (name, value) in enumerate(files.items()):
        os.utime(save(value, path / name), (LONG_AGO + number,) * 2)
    return path


@pytest.mark.parametrize(("newest", "names"), [(1, ["epoch_2.pt"]), (2, ["epoch_2.pt", "epoch_1.pt"])])
def test_what_goes_with_checkpoints_is_not_counted(tmp_path: Path, newest: int, names: list[str]) -> None:
    heard = audit(folder(tmp_path), newest=newest)
    assert [record["name"] for record in heard.records] == names
    assert heard.nothing_judged == ""
