"""States and their order, and what a segment may be."""

from dataclasses import replace

import pytest

from tests.support.remote_builder import make_segment
from varve.foundation.errors import InvalidRequest
from varve.tiering.manifest.segment import ObjectPart, SegmentState, check_segment, check_transition

STARTED, FINISHED, DELETING = SegmentState
ALLOWED = {
    (None, None),
    (None, STARTED),
    (STARTED, STARTED),
    (STARTED, FINISHED),
    (STARTED, DELETING),
    (FINISHED, FINISHED),
    (FINISHED, DELETING),
    (DELETING, DELETING),
    (DELETING, None),
}


@pytest.mark.parametrize("old", [None, *SegmentState])
@pytest.mark.parametrize("new", [None, *SegmentState])
def test_states_follow_each_other_as_kafka_allows(
    old: SegmentState | None, new: SegmentState | None
) -> None:
    before = None if old is None else make_segment(1, old)
    after = None if new is None else make_segment(1, new)
    if (old, new) in ALLOWED:
        check_transition(before, after)
    else:
        with pytest.raises(InvalidRequest, match="cannot be followed by"):
            check_transition(before, after)


def test_a_segment_keeps_its_offsets() -> None:
    with pytest.raises(InvalidRequest, match="other offsets are another segment"):
        check_transition(make_segment(1), make_segment(2, id="segment-1"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"end_offset": 99}, "base offset"),
        ({"base_offset": -1}, "base offset"),
        ({"size": -1}, "size -1"),
        ({"epochs": ()}, "must not be empty"),
        ({"epochs": ((1, 100), (1, 120))}, "ascend"),
        ({"epochs": ((1, 120), (2, 110))}, "ascend"),
        ({"epochs": ((1, 99),)}, "begin within"),
        ({"epochs": ((1, 100), (2, 201))}, "begin within"),
        ({"parts": (ObjectPart("log", 1, 1), ObjectPart("log", 2, 2))}, "repeat a name"),
    ],
)
def test_a_segment_that_contradicts_itself_is_refused(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        check_segment(replace(make_segment(1), **changes))  # type: ignore[arg-type]  # on purpose


def test_a_segments_parts_are_found_by_name_and_add_up() -> None:
    segment = make_segment(1)
    assert segment.find_part("index") == ObjectPart("index", 80, 9)
    assert segment.find_part("txnindex") is None
    assert segment.stored_bytes == 1_080
