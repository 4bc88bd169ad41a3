"""Which bytes belong to which tensor: against torch's own strides, over random views."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from remoterun.payloads.check_ckpt.dtypes import DTYPES
from remoterun.payloads.check_ckpt.model import MODEL, OTHER, Tensor
from remoterun.payloads.check_ckpt.scan.spans import claim, overlapping, pieces

pytestmark = pytest.mark.torch


def tensor_of(view: torch.Tensor, role: str = MODEL, region: int = 0) -> Tensor:
    """Describe a view the way a pickle does."""
    start = int(view.storage_offset()) * 4
    return Tensor("t", role, DTYPES["float32"], tuple(view.shape), view.stride(), region, start)


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """Draw a view of 720 numbers: sliced, stepped, transposed, expanded."""
    view = torch.arange(720, dtype=torch.float32).reshape(draw(st.sampled_from([(720,), (24, 30), (6, 10, 12)])))
    for _ in range(draw(st.integers(0, 3))):
        dimension = draw(st.integers(0, view.dim() - 1))
        low = draw(st.integers(0, view.shape[dimension] - 1))
        high = draw(st.integers(low + 1, view.shape[dimension]))
        view = view[(slice(None),) * dimension + (slice(low, high, draw(st.integers(1, 3))),)]
    if draw(st.booleans()) and view.dim() > 1:
        view = view.transpose(0, draw(st.integers(0, view.dim() - 1)))
    if draw(st.booleans()):
        view = view.unsqueeze(0).expand(3, *view.shape)
    return view


def elements(runs: list[tuple[int, int]]) -> set[int]:
    """Return the indices of the floats in runs of bytes."""
    return {index for start, stop in runs for index in range(start // 4, stop // 4)}


@given(views())
def test_pieces_are_the_elements_that_torch_sees(view: torch.Tensor) -> None:
    runs = pieces(tensor_of(view))
    assert elements(runs) == {int(value) for value in view.flatten()}
    assert runs == sorted(runs)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(runs))


@given(st.lists(views(), min_size=1, max_size=6))
def test_every_element_belongs_to_the_first_that_has_it(drawn: list[torch.Tensor]) -> None:
    claims = claim([tensor_of(view) for view in drawn])
    owners: dict[int, int] = {}
    for index, view in enumerate(drawn):
        for value in view.flatten():
            owners.setdefault(int(value), index)
    (seen,) = claims.views[0]
    found = {element: span.tensor for span in seen.spans for element in range(span.start // 4, span.stop // 4)}
    assert found == owners
    assert claims.params == len(owners)
    assert claims.listed == sum(view.numel() for view in drawn)


@given(st.lists(views(), min_size=1, max_size=4), st.integers(0, 2880), st.integers(0, 2880))
def test_overlapping_cuts_at_both_ends(drawn: list[torch.Tensor], one: int, other: int) -> None:
    low, high = sorted((one // 4 * 4, other // 4 * 4))
    (seen,) = claim([tensor_of(view) for view in drawn]).views[0]
    inside = {element for span in seen.spans for element in range(span.start, span.stop) if low <= element < high}
    found = [(start, stop) for start, stop, _ in overlapping(seen.spans, low, high)]
    assert {element for start, stop in found for element in range(start, stop)} == inside


def test_a_role_has_its_own_claim_on_shared_bytes() -> None:
    whole = torch.arange(10, dtype=torch.float32)
    claims = claim([tensor_of(whole), tensor_of(whole[:5], OTHER), tensor_of(whole[2:4])])
    assert sorted(len(view.spans) for view in claims.views[0]) == [1, 1]
    assert claims.params == 10


def test_views_in_very_many_pieces_cost_little() -> None:
    """Beyond the limit, the bytes from the first to the last element are taken."""
    tensors = [Tensor(str(index), MODEL, DTYPES["float32"], (60_000,), (2,), index, 0) for index in range(20)]
    claims = claim(tensors)
    assert sum(len(view.spans) for region in claims.views.values() for view in region) < 250_000
    assert claims.params >= 20 * 60_000


def test_no_elements_no_pieces() -> None:
    assert pieces(tensor_of(torch.empty(0, 5))) == []
    claims = claim([tensor_of(torch.empty(3, 0))])
    assert (claims.params, claims.listed) == (0, 0)
