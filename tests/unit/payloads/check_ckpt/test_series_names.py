"""Which checkpoints follow each other, by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoterun.payloads.check_ckpt.series.naming import EPOCH, Place, place_of
from tests.unit.payloads.check_ckpt.support import audit, save, training_state

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("relative", "series", "order"),
    [
        ("step_100.pt", "step_#.pt", 100),
        ("run/step_0000100/checkpoint.pt", "run/step_#/checkpoint.pt", 100),
        ("run2/step_100/checkpoint.pt", "run2/step_#/checkpoint.pt", 100),
        ("iter_0000100/model_0000100.pt", "iter_#/model_#.pt", 100),
        ("step_100/mp_rank_00_model_states.pt", "step_#/mp_rank_00_model_states.pt", 100),
        ("checkpoint-100", "checkpoint-#", 100),
        ("nano/000100", "nano/#", 100),
        ("epoch=3-step=1000-val_loss=0.25.ckpt", "epoch=#-step=#-val_loss=#.ckpt", 3 * EPOCH + 1000),
        ("step_1000_loss_0.25.pt", "step_#_loss_#.pt", 1000),
        ("ema_0.9999_step_100.pt", "ema_0.9999_step_#.pt", 100),
        ("ema_0.9999_010000.pt", "ema_0.9999_#.pt", None),
        ("best_step_400.pt", "best_step_#.pt", 400),
        ("best.pt", "best.pt", None),
        ("epoch_3.pt", "epoch_#.pt", 3),
        ("epoch_3/rank0.pt", "epoch_#/rank0.pt", 3),
        ("model_000100.pt", "model_#.pt", None),
        ("exp7/last.pt", "exp7/last.pt", None),
        ("", "", None),
    ],
)
def test_the_series_of_a_checkpoint_is_its_name_without_what_moves_on(
    relative: str, series: str, order: int | None
) -> None:
    assert place_of(relative) == Place(series, order)


@given(st.text(max_size=60))
def test_any_name_has_a_place(relative: str) -> None:
    place = place_of(relative)
    assert place.order is None or place.order >= 0
    assert place.series.count("/") == relative.count("/")


@pytest.mark.torch
@pytest.mark.parametrize("unit", [10, 250_000_000, 1_000_000_000])
def test_a_missing_one_is_told_where_steps_count_tokens(tmp_path: Path, unit: int) -> None:
    for number in range(1, 12):
        if number != 9:
            save(training_state(number, global_step=number * unit), tmp_path / f"step_{number * unit}.pt")
    (gap,) = [each for each in audit(tmp_path).findings if each["rule"] == "CK086"]
    expected = f"it follows step_{8 * unit}.pt by {2 * unit}, where {unit} is usual: some in between are missing"
    assert (gap["subject"], gap["message"]) == (f"step_{10 * unit}.pt", expected)
