"""Packs with modules that this Python can't compile: nobody pays for that who does not import them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from remoterun.model import Limits, Status
from tests.faults.test_target_cache import _make_home
from tests.support.here import ENDS, packed, play

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("python", ENDS)
@pytest.mark.parametrize(
    "source", ["X = " + "+".join("1" * 20_000), "X = " + "-" * 100_000 + "1"], ids=["deep", "long"]
)
def test_what_is_nested_too_deep_stays_source(python: str, source: str, tmp_path: Path) -> None:
    home = _make_home(tmp_path, python)
    work = packed({
        "look/__init__.py": b"def run(ctx):\n  ctx.emit({'from': run.__code__.co_filename})\n",
        "look/deep.py": f"{source}\n{'#' * 20_000}".encode(),
        "look/data": random.Random(source).randbytes(60_000),
    })  # fmt: skip
    # Without a lease, nobody takes up again what a leg dropped.
    outcomes = [play(work, home.wrapper, use_cache=True, limits=Limits(lease=None)) for _ in range(2)]
    assert [(each.status, each.error) for each in outcomes] == 2 * [(Status.OK, None)]
    # From its compiled form, as all else of the pack is.
    assert list(outcomes[1].records) == [{"from": "look/__init__.py"}]
