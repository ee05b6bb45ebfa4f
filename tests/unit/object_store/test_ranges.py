"""Ranges fetched together and cut apart again."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from varve.object_store.ranges import cut_ranges, merge_ranges

DATA = bytes(range(256)) * 2


def test_near_ranges_are_one_and_far_ones_are_not() -> None:
    assert merge_ranges([(10, 20), (0, 5)], gap_bytes=5) == [(0, 20)]
    assert merge_ranges([(10, 20), (0, 5)], gap_bytes=4) == [(0, 5), (10, 20)]
    assert merge_ranges([(0, 50), (10, 20), (3, 3)], gap_bytes=0) == [(0, 50)]
    assert merge_ranges([(3, 3)]) == merge_ranges([]) == []


@given(
    st.lists(st.tuples(st.integers(0, 600), st.integers(0, 40)), max_size=12),
    st.integers(0, 50),
)
def test_what_is_cut_is_what_was_wanted(starts: list[tuple[int, int]], gap_bytes: int) -> None:
    ranges = [(start, start + size) for start, size in starts]
    merged = merge_ranges(ranges, gap_bytes=gap_bytes)
    assert all(end + gap_bytes < start for (_, end), (start, _) in pairwise(merged))
    fetched = [memoryview(DATA[start:end]) for start, end in merged]
    cut = cut_ranges(ranges, merged, fetched)
    assert [bytes(view) for view in cut] == [DATA[start:end] for start, end in ranges]
