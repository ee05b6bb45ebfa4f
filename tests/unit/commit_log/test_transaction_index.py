"""The transaction index lists aborted transactions so that readers can leave them out."""

import struct

import pytest

from varve.commit_log.transaction_index import AbortedTransaction, TransactionIndex
from varve.foundation.errors import Corrupt, InvalidOffset, UnsupportedFormat

A = AbortedTransaction(producer_id=1, first_offset=0, last_offset=10, last_stable_offset=5)
B = AbortedTransaction(producer_id=2, first_offset=5, last_offset=20, last_stable_offset=18)
C = AbortedTransaction(producer_id=1, first_offset=18, last_offset=30, last_stable_offset=31)


def index_of(*entries: AbortedTransaction) -> TransactionIndex:
    index = TransactionIndex(0)
    for entry in entries:
        index.append(entry)
    return index


def test_entries_are_thirty_four_bytes() -> None:
    data = struct.pack(">hqqqq", 0, 1, 0, 10, 5) + struct.pack(">hqqqq", 0, 2, 5, 20, 18)
    index = index_of(A, B)
    assert index.encode() == data
    assert (index.count, index.size_bytes) == (2, 68)
    assert TransactionIndex.decode(data, 0, "x").entries() == (A, B)


def test_markers_must_ascend() -> None:
    index = index_of(B)
    for again in (B, A):
        with pytest.raises(InvalidOffset, match=str(again.last_offset)):
            index.append(again)
    assert index.entries() == (B,)


@pytest.mark.parametrize(
    ("fetch_offset", "upper_bound", "found", "is_complete"),
    [
        (0, 5, [A], True),
        (0, 6, [A, B], True),
        (11, 18, [B], True),
        (11, 19, [B, C], True),
        (21, 31, [C], True),
        (0, 32, [A, B, C], False),
        (31, 40, [], False),
    ],
)
def test_collect_finds_the_transactions_that_touch_a_range(
    fetch_offset: int, upper_bound: int, found: list[AbortedTransaction], is_complete: bool
) -> None:
    assert index_of(A, B, C).collect(fetch_offset, upper_bound) == (found, is_complete)


@pytest.mark.parametrize("version", [1, -1, 32767])
def test_unknown_version_is_refused(version: int) -> None:
    data = index_of(A).encode() + struct.pack(">hqqqq", version, 2, 5, 20, 18)
    with pytest.raises(UnsupportedFormat, match="some/file: entry at position 34"):
        TransactionIndex.decode(data, 0, "some/file")


def test_torn_entry_is_refused() -> None:
    with pytest.raises(Corrupt, match="some/file: 67 bytes"):
        TransactionIndex.decode(index_of(A, B).encode()[:-1], 0, "some/file")


def test_check_refuses_a_marker_below_the_base() -> None:
    index = TransactionIndex.decode(index_of(A, B).encode(), 11, "x")
    with pytest.raises(Corrupt, match="marker offset 10"):
        index.check("x")
    TransactionIndex.decode(index_of(A, B).encode(), 10, "x").check("x")
