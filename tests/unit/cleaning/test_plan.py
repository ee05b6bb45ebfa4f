"""Which segments a run rewrites together."""

from dataclasses import dataclass

import pytest

from varve.cleaning.compaction.plan import group_segments
from varve.commit_log import LogSettings

LARGE = 1 << 20


@dataclass(frozen=True)
class Planned:
    """What grouping asks of a segment."""

    base_offset: int
    size: int

    @property
    def next_offset(self) -> int:
        return self.base_offset + 1

    @property
    def planned_bytes(self) -> int:
        return self.size


def groups(sizes: list[int], *chosen: int) -> list[list[int]]:
    plans = [Planned(number, size) for number, size in enumerate(sizes)]
    found = group_segments(plans, set(chosen), LogSettings(segment_bytes=LARGE))  # type: ignore[type-var]
    return [[plan.base_offset for plan in group] for group in found]


def test_emptied_segments_between_large_ones_are_merged_with_each_other() -> None:
    """So there are never more of them than large ones, and none is copied for it."""
    assert groups([LARGE, 0, 0, LARGE, 0, 0, 0, LARGE, 0]) == [[1, 2], [4, 5, 6]]


@pytest.mark.parametrize("number", [1, 3])
def test_a_large_segment_that_is_rewritten_takes_the_empty_ones_beside_it(number: int) -> None:
    assert groups([0, LARGE, 0, LARGE, 0], number) == [[number - 1, number, number + 1]]


def test_nothing_is_rewritten_for_a_single_empty_segment() -> None:
    assert groups([LARGE, 0, LARGE, 0, LARGE]) == []
