"""Number formats without NaN and infinities: engines have nothing to look at, and nothing is said of that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.unit.payloads.check_ckpt.support import ENGINES, audit, save

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("engine", ENGINES)
def test_four_bits_are_not_called_skimmed(tmp_path: Path, engine: str) -> None:
    packed = torch.arange(256, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    heard = audit(save({"w": packed, "scale": torch.ones(16)}, tmp_path / "c.pt"), engine=engine)
    assert (heard.record["verdict"], heard.rules()) == ("ok", set())


def test_what_is_too_large_for_the_standard_library_is(tmp_path: Path) -> None:
    packed = torch.arange(256, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    heard = audit(save({"w": packed, "large": torch.randn(1_100, 1_000)}, tmp_path / "c.pt"), engine="stdlib")
    assert heard.of("CK126")["data"]["tensors"] == ["large"]
