"""Which segments belong to a log's history: the rules of Kafka, one by one."""

from dataclasses import replace

import pytest

from tests.support.remote_builder import make_segment
from varve.tiering.manifest.segment import Epochs, is_in_lineage, restrict_epochs

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
