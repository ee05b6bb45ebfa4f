"""The leader epoch history stays strictly ascending and answers as KIP-101 asks."""

import pytest

from varve.commit_log.leader_epochs import LeaderEpochs
from varve.foundation.errors import Corrupt, InvalidRequest


def epochs_of(*entries: tuple[int, int]) -> LeaderEpochs:
    epochs = LeaderEpochs()
    for epoch, start_offset in entries:
        epochs.assign(epoch, start_offset)
    return epochs


@pytest.mark.parametrize(("epoch", "start"), [(-1, 0), (0, -1)])
def test_negative_values_are_refused(epoch: int, start: int) -> None:
    with pytest.raises(InvalidRequest):
        LeaderEpochs().assign(epoch, start)


def test_latest_and_clear() -> None:
    epochs = epochs_of((1, 5), (3, 10))
    assert epochs.latest == (3, 10)
    assert epochs.clear()
    assert epochs.latest is None
    assert not epochs.clear()
    assert epochs.encode() == b"0\n0\n"


def test_history_is_written_as_text_and_read_back() -> None:
    epochs = epochs_of((0, 0), (2, 67))
    assert epochs.encode() == b"0\n2\n0 0\n2 67\n"
    assert LeaderEpochs.decode(epochs.encode(), "x").entries == epochs.entries
    assert LeaderEpochs.decode(b"", "x").entries == ()


def test_entries_out_of_order_are_brought_into_order() -> None:
    assert list(LeaderEpochs.decode(b"0\n3\n0 0\n4 50\n2 20\n", "x").entries) == [(0, 0), (2, 20)]


@pytest.mark.parametrize("line", [b"1", b"1 2 3", b"a 1", b"-1 5", b"1 -5", b"2147483648 1", b""])
def test_bad_line_is_refused_with_its_place(line: bytes) -> None:
    with pytest.raises(Corrupt, match="some/file: line 4"):
        LeaderEpochs.decode(b"0\n2\n0 0\n" + line + b"\n", "some/file")
