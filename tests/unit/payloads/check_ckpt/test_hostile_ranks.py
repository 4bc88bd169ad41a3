"""Files that say absurd numbers of ranks, shards and parts: each costs little time and memory, and is judged."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

from remoterun.payloads.check_ckpt.find.pointers import Pointer, judge_pointers
from remoterun.payloads.check_ckpt.readers.folder import Folder, Seen
from remoterun.payloads.check_ckpt.readers.hf_weights import find_weights
from tests.unit.payloads.check_ckpt.support import audit, save, write
from tests.unit.payloads.check_ckpt.test_hostile_files import watched
from tests.unit.payloads.check_ckpt.test_megatron import legacy
from tests.unit.payloads.check_ckpt.zero_layout import Training, save_zero_3

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.torch

HUGE = 2**61


def model_states(**more: Any) -> dict[str, Any]:
    """Return what DeepSpeed saves of a model."""
    return {"module": {"w": torch.ones(4, 4)}, "dp_world_size": 1, "mp_world_size": 1, "global_steps": 5, **more}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mp_rank_00_model_states.pt", {"dp_world_size": HUGE}),
        ("mp_rank_00_model_states.pt", {"mp_world_size": HUGE}),
        ("mp_rank_00_model_states.pt", {"dp_world_size": HUGE, "param_shapes": [{"w": torch.Size([4, 4])}]}),
        ("zero_pp_rank_0_mp_rank_00_model_states.pt", {"mp_world_size": HUGE, "dp_world_size": None}),
        ("zero_pp_rank_0_mp_rank_00_model_states.pt", {"mp_world_size": HUGE, "dp_world_size": HUGE}),
    ],
)
def test_ranks_without_number_are_not_counted_one_by_one(tmp_path: Path, name: str, said: dict[str, Any]) -> None:
    save(model_states(**said), tmp_path / "global_step5" / name)
    verdict, _ = watched(tmp_path / "global_step5")
    assert verdict in {"ok", "bad"}


def test_shares_for_no_rank_are_no_fault_of_the_program(tmp_path: Path) -> None:
    path = save_zero_3(tmp_path / "global_step100", Training())
    for share in path.glob("*optim_states.pt"):
        state = torch.load(share, weights_only=False)
        state["optimizer_state_dict"]["partition_count"] = 0
        save(state, share)
    heard = audit(path)
    assert heard.record["verdict"] != "unsupported"
    assert "CK030" not in heard.rules()


@pytest.mark.parametrize("size", [HUGE, math.nan, -5, "two"])
def test_arguments_that_ask_for_any_number_of_ranks(tmp_path: Path, size: Any) -> None:
    path = legacy(tmp_path / "iter_0000100", ["mp_rank_00"], tensor_model_parallel_size=size)
    verdict, rules = watched(path)
    assert "CK030" not in rules
    assert (verdict, "CK060" in rules) == (("bad", True) if size == HUGE else ("ok", False))


@pytest.mark.parametrize(
    "name",
    [
        "layer_{0:05d}-model_{0:05d}-model_states.pt",
        "zero/p{0}/k{0}.pt",
        "mp_rank_{0:04d}/layer_wise_optimizer_{0}.pt",
    ],
)
def test_parts_of_which_each_has_another_are_not_multiplied(tmp_path: Path, name: str) -> None:
    for number in range(1200):
        write(tmp_path / "c" / name.format(number), b"")
    if name.startswith("zero"):
        write(tmp_path / "c/zero/p0/fp32.pt", b"")
    heard = audit(tmp_path / "c")
    assert heard.record["verdict"] == "bad"
    assert heard.of("CK060")["message"].startswith("at least 100,000 files of a")


def _takes(act: Callable[[int], object], size: int) -> float:
    spent = []
    for _ in range(3):
        start = time.process_time()
        act(size)
        spent.append(time.process_time() - start)
    return min(spent)


def _shards(count: int) -> None:
    seen = Seen("", 1, 1)
    names = [f"model-{number:05d}-of-{count:05d}.bin" for number in range(count)]
    (weights,) = find_weights(Folder("/c", dict.fromkeys(names, seen)))
    assert (weights.promised, len(weights.files)) == (count, count)


def _pointers(count: int) -> None:
    verdicts = {f"/c/step_{number}/model.pt": "bad" for number in range(count)}
    pointers = [Pointer(f"best_{number}", f"/c/best_{number}", "x", f"/c/step_{number}") for number in range(count)]
    assert len(list(judge_pointers(pointers, verdicts))) == count


@pytest.mark.parametrize(("act", "few"), [(_shards, 2_500), (_pointers, 250)])
def test_ten_times_as_many_take_about_ten_times_as_long(act: Callable[[int], object], few: int) -> None:
    assert _takes(act, 16 * few) < 60 * _takes(act, few)
