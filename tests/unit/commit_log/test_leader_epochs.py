"""The leader epoch history stays strictly ascending and answers as KIP-101 asks."""

import pytest

from varve.commit_log.leader_epochs import LeaderEpochs
from varve.foundation.errors import Corrupt, InvalidRequest


def epochs_of(*entries: tuple[int, int]) -> LeaderEpochs:
    epochs = LeaderEpochs()
    for epoch, start_offset in entries:
        epochs.assign(epoch, start_offset)
    return epochs


@pytest.mark.parametrize(
    ("epoch", "start", "is_changed", "expected"),
    [
        (5, 30, True, [(1, 0), (3, 10), (4, 20), (5, 30)]),
        (4, 20, False, [(1, 0), (3, 10), (4, 20)]),
        (4, 25, False, [(1, 0), (3, 10), (4, 20)]),
        (4, 15, True, [(1, 0), (3, 10), (4, 15)]),
        (5, 20, True, [(1, 0), (3, 10), (5, 20)]),
        (5, 10, True, [(1, 0), (5, 10)]),
        (3, 40, True, [(1, 0), (3, 40)]),
        (2, 40, True, [(1, 0), (2, 40)]),
        (0, 0, True, [(0, 0)]),
    ],
)
def test_assign_drops_what_it_contradicts(
    epoch: int, start: int, is_changed: bool, expected: list[tuple[int, int]]
) -> None:
    epochs = epochs_of((1, 0), (3, 10), (4, 20))
    assert epochs.assign(epoch, start) is is_changed
    assert list(epochs.entries) == expected


@pytest.mark.parametrize(("epoch", "start"), [(-1, 0), (0, -1)])
def test_negative_values_are_refused(epoch: int, start: int) -> None:
    with pytest.raises(InvalidRequest):
        LeaderEpochs().assign(epoch, start)


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (4, [(1, 5), (3, 10), (4, 20)]),
        (5, [(1, 5), (3, 10), (4, 20)]),
        (7, [(1, 7), (3, 10), (4, 20)]),
        (10, [(3, 10), (4, 20)]),
        (15, [(3, 15), (4, 20)]),
        (99, [(4, 99)]),
    ],
)
def test_truncation_from_the_start(offset: int, expected: list[tuple[int, int]]) -> None:
    epochs = epochs_of((1, 5), (3, 10), (4, 20))
    assert epochs.truncate_from_start(offset) is (offset > 5)
    assert list(epochs.entries) == expected


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [
        (-1, None),
        (0, (0, 5)),
        (1, (1, 10)),
        (2, (1, 10)),
        (3, (3, 20)),
        (4, (4, 77)),
        (5, None),
    ],
)
def test_end_offset_for_an_epoch(epoch: int, answer: tuple[int, int] | None) -> None:
    assert epochs_of((1, 5), (3, 10), (4, 20)).end_offset_for(epoch, 77) == answer


def test_the_latest_is_the_last() -> None:
    assert epochs_of((1, 5), (3, 10)).latest == (3, 10)
    assert epochs_of().latest is None


def test_history_is_written_as_text_and_read_back() -> None:
    epochs = epochs_of((0, 0), (2, 67))
    assert epochs.encode() == b"0\n2\n0 0\n2 67\n"
    assert LeaderEpochs.decode(epochs.encode(), "x").entries == epochs.entries
    assert LeaderEpochs.decode(b"", "x").entries == ()
    assert LeaderEpochs().encode() == b"0\n0\n"


def test_entries_out_of_order_are_brought_into_order() -> None:
    assert list(LeaderEpochs.decode(b"0\n3\n0 0\n4 50\n2 20\n", "x").entries) == [(0, 0), (2, 20)]


@pytest.mark.parametrize("line", [b"1", b"1 2 3", b"a 1", b"-1 5", b"1 -5", b"2147483648 1", b""])
def test_bad_line_is_refused_with_its_place(line: bytes) -> None:
    with pytest.raises(Corrupt, match="some/file: line 4"):
        LeaderEpochs.decode(b"0\n2\n0 0\n" + line + b"\n", "some/file")
