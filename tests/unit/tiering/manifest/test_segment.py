"""States and their order, and what a segment may be."""

from dataclasses import replace

import pytest

from tests.support.remote_builder import make_segment
from varve.foundation.errors import InvalidRequest
from varve.tiering.manifest.segment import (
    Epochs,
    ObjectPart,
    SegmentState,
    check_segment,
    check_transition,
    is_in_lineage,
    restrict_epochs,
)

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


# Which segments belong to a log's history: the rules of Kafka, one by one


HISTORY = ((1, 0), (3, 150), (4, 300), (7, 300), (9, 500))


@pytest.mark.parametrize(
    ("base_offset", "end_offset", "expected"),
    [
        (0, 99, ((1, 0),)),
        (100, 149, ((1, 100),)),
        (100, 150, ((1, 100), (3, 150))),
        (150, 299, ((3, 150),)),
        (200, 300, ((3, 200), (4, 300), (7, 300))),
        (300, 499, ((7, 300),)),
        (900, 950, ((9, 900),)),
    ],
)
def test_a_segments_epochs_are_its_part_of_the_history(
    base_offset: int, end_offset: int, expected: Epochs
) -> None:
    found = restrict_epochs(HISTORY, base_offset=base_offset, end_offset=end_offset)
    assert found == expected


@pytest.mark.parametrize(
    ("epochs", "history", "log_end_offset", "expected"),
    [
        pytest.param(((1, 100),), HISTORY, 900, False, id="ends in the next epoch of the log"),
        pytest.param(((1, 100), (3, 150)), HISTORY, 900, True, id="same history"),
        pytest.param(((1, 100), (3, 150)), HISTORY, 199, False, id="ends behind the log"),
        pytest.param(((1, 100), (3, 150)), HISTORY, 200, True, id="ends with the log"),
        pytest.param(((1, 100), (3, 160)), HISTORY, 900, False, id="epoch begins elsewhere"),
        pytest.param(((1, 100), (2, 150)), HISTORY, 900, False, id="epoch the log never had"),
        pytest.param(((1, 100), (10, 150)), HISTORY, 900, False, id="epoch behind the last"),
        pytest.param(((0, 100),), HISTORY, 900, False, id="epoch before the first"),
        pytest.param(((0, 100), (1, 150)), ((1, 150),), 900, True, id="older ones passed over"),
        pytest.param(((1, 100),), ((1, 150),), 900, True, id="the log begins within its epoch"),
        pytest.param(((3, 100),), ((1, 0), (3, 150)), 900, False, id="begins before its epoch"),
        pytest.param(((3, 150),), ((1, 0), (3, 150)), 900, True, id="begins with its epoch"),
        pytest.param(
            ((1, 100), (2, 150), (3, 150)),
            HISTORY,
            900,
            True,
            id="epochs without data do not count",
        ),
        pytest.param(((1, 100),), (), 900, False, id="no history"),
    ],
)
def test_lineage(epochs: Epochs, history: Epochs, log_end_offset: int, expected: bool) -> None:
    segment = replace(make_segment(1), epochs=tuple(epochs))
    assert is_in_lineage(segment, history, log_end_offset=log_end_offset) is expected
