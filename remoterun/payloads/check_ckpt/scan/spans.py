"""Which bytes of a region belong to which tensor: each byte to one tensor of a role, however many views there are."""

from __future__ import annotations

import bisect
import functools
import heapq
from typing import TYPE_CHECKING, Dict, Iterator, List, Sequence, Tuple

from ..model import MODEL, Tensor, product
from ..records import Record

if TYPE_CHECKING:
    from ..dtypes import Dtype
    from ..model import Region

# What is made of every tensor takes half the time so.
_new = tuple.__new__
PAGE = 4096
# What the views of one checkpoint may fall into; beyond, a view counts as all bytes from its first to its last element.
MAX_PIECES = 200_000


class Span(Record):
    """Give the bytes from `start` to `stop` of a region to a tensor, by its index; so many it has `before` these."""

    start: int
    stop: int
    tensor: int
    before: int = 0


class Place(Record):
    """Say where the bytes of one tensor lie, as spans of a region that begins at `offset` of a file."""

    dtype: Dtype
    file: int
    offset: int
    spans: List[Span]

    @property
    def size(self) -> int:
        """Count the bytes."""
        return self.spans[-1].before + self.spans[-1].stop - self.spans[-1].start

    @property
    def elements(self) -> int:
        """Count the elements."""
        return self.size * 8 // self.dtype.bits

    @property
    def pages(self) -> int:
        """Count the whole pages of the file that belong to the tensor."""
        ends = (whole_pages(self.offset + span.start, self.offset + span.stop) for span in self.spans)
        return sum(stop - start for start, stop in ends) // PAGE

    def locate(self, position: int) -> int:
        """Return where in the file a byte of the tensor is."""
        span = next(span for span in reversed(self.spans) if span.before <= position)
        return self.offset + span.start + position - span.before


class View(Record):
    """Hold spans of one region, ascending and apart from each other, that are read as one number format."""

    dtype: Dtype
    spans: List[Span]


class Claims(Record):
    """Say whose bytes are whose.

    `views`: per region, what is to be looked at. `params`: floating-point and quantised elements of the model, each
    stored one once; `listed`: the plain sum over its tensors.
    """

    views: Dict[int, List[View]]
    params: int
    listed: int


def claim(tensors: List[Tensor]) -> Claims:
    """Share out the bytes of all regions among the floating-point tensors; where they overlap, the first gets them."""
    regions: Dict[int, List[int]] = {}
    integers = []
    for index, tensor in enumerate(tensors):
        if tensor.dtype.floating:
            regions.setdefault(tensor.region, []).append(index)
        elif tensor.role == MODEL and tensor.shape:
            integers.append(index)
    params, listed = _quantised(tensors, integers)
    views: Dict[int, List[View]] = {}
    left = MAX_PIECES
    for region, members in regions.items():
        _, role, dtype, shape, stride, _, start, _, _ = tensors[members[0]]
        elements = _in_one_row(shape, stride) if len(members) == 1 else 0
        if elements:
            stop = start + (elements * dtype.bits + 7) // 8
            views[region] = [_new(View, (dtype, [_new(Span, (start, stop, members[0], 0))]))]
            params += elements if role == MODEL else 0
            listed += elements if role == MODEL else 0
            continue
        groups: Dict[Tuple[str, str], List[int]] = {}
        for index in members:
            groups.setdefault((tensors[index].dtype.name, tensors[index].role), []).append(index)
        for (_, role), group in groups.items():
            spans, left = _shared_out(tensors, group, left)
            dtype = tensors[group[0]].dtype
            if role == MODEL:
                params += sum(span.stop - span.start for span in spans) * 8 // dtype.bits
                listed += sum(tensors[index].numel for index in group)
            if spans:
                views.setdefault(region, []).append(View(dtype, _numbered(spans)))
    return Claims(views, params, listed)


def _quantised(tensors: List[Tensor], integers: List[int]) -> Tuple[int, int]:
    if not integers:
        return 0, 0
    from .coded import coded

    return coded(tensors, integers)


def _shared_out(tensors: List[Tensor], group: List[int], left: int) -> Tuple[List[Span], int]:
    """Return the spans of tensors of one region, format and role, and how many more pieces there may be."""
    claimed = []
    for index in group:
        runs = pieces(tensors[index], left)
        left -= len(runs) - 1
        claimed += [Span(start, stop, index) for start, stop in runs]
    return (claimed if len(group) == 1 else _swept(claimed)), left


@functools.lru_cache(maxsize=1024)
def _in_one_row(shape: Tuple[int, ...], stride: Tuple[int, ...]) -> int:
    """Return how many elements lie one after the other; 0 when they do not, or there are none."""
    return product(shape) if _is_row_major(shape, stride) else 0


def places_of(views: Dict[int, List[View]], regions: Sequence[Region]) -> Dict[int, Place]:
    """Return where each tensor lies that has any bytes of its own."""
    places: Dict[int, Place] = {}
    for region, seen in views.items():
        for view in seen:
            for span in view.spans:
                place = places.get(span.tensor)
                if place is None:
                    places[span.tensor] = Place(view.dtype, regions[region].file, regions[region].offset, [span])
                else:
                    place.spans.append(span)
    return places


def overlapping(spans: List[Span], start: int, stop: int) -> Iterator[Tuple[int, int, Span]]:
    """Yield what of ascending spans lies between two places, as (start, stop, span)."""
    at = max(0, bisect.bisect_right(spans, (start,)) - 1)
    while at < len(spans) and spans[at].start < stop:
        span = spans[at]
        if span.stop > start:
            yield max(span.start, start), min(span.stop, stop), span
        at += 1


def _numbered(spans: List[Span]) -> List[Span]:
    """Tell every span how many bytes its tensor has in those before it."""
    if len(spans) == 1:
        return spans
    before: Dict[int, int] = {}
    numbered = []
    for span in spans:
        known = before.get(span.tensor, 0)
        before[span.tensor] = known + span.stop - span.start
        numbered.append(span._replace(before=known) if known else span)
    return numbered


def _swept(claimed: List[Span]) -> List[Span]:
    """Cut overlapping claims so that every byte belongs to the tensor that was listed first."""
    edges = sorted({edge for span in claimed for edge in span[:2]})
    coming = sorted(claimed, reverse=True)
    spans: List[Span] = []
    active: List[Tuple[int, int]] = []
    for start, stop in zip(edges, edges[1:]):
        while coming and coming[-1].start <= start:
            begun = coming.pop()
            heapq.heappush(active, (begun.tensor, begun.stop))
        while active and active[0][1] <= start:
            heapq.heappop(active)
        if not active:
            continue
        owner = active[0][0]
        if spans and spans[-1].tensor == owner and spans[-1].stop == start:
            spans[-1] = spans[-1]._replace(stop=stop)
        else:
            spans.append(Span(start, stop, owner))
    return spans


def whole_pages(start: int, stop: int) -> Tuple[int, int]:
    """Return what whole pages there are between two places in a file, as (start, stop); empty when none is."""
    first = -(-start // PAGE) * PAGE
    return first, max(first, stop // PAGE * PAGE)


def pieces(tensor: Tensor, limit: int = MAX_PIECES) -> List[Tuple[int, int]]:
    """Return the runs of bytes that a tensor's elements lie in, ascending, as (start, stop) in its region."""
    size = tensor.dtype.size
    if not size:
        return [(tensor.start, tensor.start + (tensor.numel * tensor.dtype.bits + 7) // 8)]
    runs = _runs(tensor.shape, tensor.stride, limit)
    return [(tensor.start + start * size, tensor.start + stop * size) for start, stop in runs]


def _runs(shape: Tuple[int, ...], stride: Tuple[int, ...], limit: int) -> List[Tuple[int, int]]:
    if 0 in shape:
        return []
    if _is_row_major(shape, stride):
        return [(0, product(shape))]
    # A dimension of stride 0 repeats the same elements; one of size 1 moves nothing.
    moves = sorted((step, size) for step, size in zip(stride, shape) if size > 1 and step > 0)
    length = 1
    while moves and moves[0][0] <= length:
        step, size = moves.pop(0)
        length += step * (size - 1)
    if product(tuple(size for _, size in moves)) > max(1, limit):
        return [(0, length + sum(step * (size - 1) for step, size in moves))]
    starts = [0]
    for step, size in reversed(moves):
        starts = [start + step * index for start in starts for index in range(size)]
    return _merged([(start, start + length) for start in sorted(starts)])


def _is_row_major(shape: Tuple[int, ...], stride: Tuple[int, ...]) -> bool:
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride)):
        if step != expected and size != 1:
            return False
        expected *= size
    return True


def _merged(runs: List[Tuple[int, int]]) -> List[Tuple[int, int]]:
    merged = runs[:1]
    for start, stop in runs[1:]:
        if start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged
