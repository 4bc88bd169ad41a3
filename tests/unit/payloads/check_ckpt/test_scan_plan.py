"""What workers take at a time: everything once, and as little as possible in two parts."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from remoterun.payloads.check_ckpt.model import Region
from remoterun.payloads.check_ckpt.scan.plan import tasks
from remoterun.payloads.check_ckpt.scan.window import ALIGN

LEAST = 1 << 16
SIZES = st.one_of(st.integers(0, 100), st.integers(0, 4 * LEAST))


def regions(sizes: list[int], gaps: list[int]) -> list[Region]:
    """Lay regions out in one file, each some bytes behind the one before."""
    ends = itertools.accumulate(size + gap for size, gap in zip(sizes, gaps, strict=True))
    return [Region(0, end - size, size, "r") for end, size in zip(ends, sizes, strict=True)]


@given(st.lists(st.tuples(SIZES, st.integers(0, 100)), max_size=40))
def test_every_byte_is_taken_once_and_only_long_regions_are_cut(laid: list[tuple[int, int]]) -> None:
    whole = regions([size for size, _ in laid], [gap for _, gap in laid])
    taken: dict[int, list[tuple[int, int]]] = {}
    for task in tasks(whole, LEAST):
        assert sum(part.stop - part.start for part in task) <= LEAST + ALIGN
        for part in task:
            taken.setdefault(part.region, []).append((part.start, part.stop))
    for index, region in enumerate(whole):
        parts = taken.get(index, [])
        assert sum(stop - start for start, stop in parts) == region.size
        assert all(one[1] == other[0] for one, other in itertools.pairwise(parts))
        assert len(parts) <= 1 or region.size > LEAST


def test_many_small_regions_are_several_tasks() -> None:
    """What is known of their tensors takes more memory than they do."""
    counts = [len(task) for task in tasks(regions([4] * 10_000, [60] * 10_000))]
    assert sum(counts) == 10_000
    assert max(counts) == 4_096
