"""A shard of an older save among those of a newer one, where nothing but the parts of the weights tells."""

from __future__ import annotations

import hashlib

import pytest
import torch

from remoterun.payloads.check_ckpt.model import MODEL, Found
from remoterun.payloads.check_ckpt.series import chain
from remoterun.payloads.check_ckpt.series.profile import Card, Mark, Profile

pytestmark = pytest.mark.torch

_RANKS = 4


def _part(name: str, tensor: torch.Tensor, number: int) -> Mark:
    """Remember one rank's part of a tensor as the scan would; what is smaller than all ranks is whole."""
    parts = tensor.chunk(_RANKS) if tensor.dim() > 1 else (tensor,)
    part = parts[number].contiguous()
    digest = int.from_bytes(hashlib.sha256(part.numpy().tobytes()).digest()[:8], "big")
    ends = float(part.min()), float(part.max())
    offsets = (number * len(part), 0) if len(parts) > 1 else ()
    squares = float(part.double().square().sum())
    return Mark(name, MODEL, "", "float32", tuple(tensor.shape), offsets, part.numel(), digest, squares, *ends)


def _profile(order: int, shards: list[dict[str, torch.Tensor]]) -> Profile:
    """Sum up a checkpoint of which each rank has saved its part of this state."""
    marks = [
        _part(name, tensor, rank if tensor.dim() > 1 else 0)
        for rank, state in enumerate(shards)
        for name, tensor in state.items()
        if tensor.dim() > 1 or rank == 0
    ]
    return Profile(Card("step_#", order, f"step_{order}", f"/c/step_{order}", order, step=order), lambda: marks)


def _states(*steps: int) -> list[dict[str, torch.Tensor]]:
    """Train without anything that the optimizer would keep, and copy the weights after so many steps each."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    states = []
    for count in steps:
        for _ in range(count):
            optimizer.zero_grad()
            model(torch.randn(8, 16)).square().mean().backward()
            optimizer.step()
        states.append({name: value.clone() for name, value in model.state_dict().items()})
    return states


def _compare(older: Profile, younger: Profile) -> list[Found]:
    found = chain.compare(older, younger)
    assert found is not None
    return found


@pytest.mark.parametrize("stale", [(0,), (3,), (1, 2)])
def test_a_shard_of_the_save_before_is_suspect(stale: tuple[int, ...]) -> None:
    old, new = _states(5, 5)
    mixed = [old if rank in stale else new for rank in range(_RANKS)]
    (found,) = _compare(_profile(5, [old] * _RANKS), _profile(10, mixed))
    assert (found.rule, found.severity) == ("CK080", None)
    text = "of 4 weights that lie in parts, the same parts are as in step_5, and the others are not"
    assert found.message == f"{text}: a shard is of that save"
    assert (found.next_step or "").startswith("Do not resume from it")


def test_frozen_weights_hide_no_stale_shard() -> None:
    old, new = _states(5, 5)
    new["2.weight"] = old["2.weight"]
    mixed = [old, new, new, new]
    (found,) = _compare(_profile(5, [old] * _RANKS), _profile(10, mixed))
    assert found.message.startswith("of 3 weights that lie in parts, the same parts are as in step_5")
    assert _compare(_profile(5, [old] * _RANKS), _profile(10, [new] * _RANKS)) == []


def test_shards_that_all_moved_are_quiet() -> None:
    old, new = _states(5, 5)
    assert _compare(_profile(5, [old] * _RANKS), _profile(10, [new] * _RANKS)) == []


def test_rows_that_nobody_used_are_quiet() -> None:
    """An embedding's words may all be of some ranks, and experts of others may not have been asked."""
    old, new = _states(5, 5)
    for number, rows in (("0", slice(0, 4)), ("2", slice(8, 12))):
        new[f"{number}.weight"][rows] = old[f"{number}.weight"][rows]
    assert _compare(_profile(5, [old] * _RANKS), _profile(10, [new] * _RANKS)) == []
