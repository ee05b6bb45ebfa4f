"""The state of a bucket: what is written, read, removed, and refused."""

import numpy as np
import pytest

from tests.support.dedup_bench import MemoryChunks
from varve.foundation.errors import Corrupt
from varve.spark.deduplication.state import (
    CHUNK_BYTES,
    ENTRY_BYTES,
    DedupWindow,
    FoldedIds,
    IdSet,
    decode_chunk,
    decode_head,
)

REACH = DedupWindow(before_ms=10, after_ms=10, is_refreshing=False, secret=(1, 2))
FULL = CHUNK_BYTES // ENTRY_BYTES + 1


def make_ids(start: int, count: int, time: int) -> FoldedIds:
    words = np.zeros((count, 2), np.uint64)
    words[:, 0] = np.arange(start, start + count)
    return FoldedIds(words, np.full(count, 16, np.uint8), np.full(count, time, np.int64))


def keep(window: IdSet, store: MemoryChunks, ids: FoldedIds, *, floor_ms: int = -1) -> int:
    """One batch; gives how many were duplicates."""
    window.catch_up(store, floor_ms=floor_ms)
    is_duplicate, is_news = window.check(ids)
    window.save(store, ids.take(is_news))
    return int(is_duplicate.sum())


def test_a_batch_writes_only_what_is_new_and_fills_the_last_chunk() -> None:
    window, store = IdSet(REACH), MemoryChunks()
    keep(window, store, make_ids(0, 10, 0))
    keep(window, store, make_ids(5, 10, 0))
    assert [decode_chunk(data).count for data in store.chunks.values()] == [15]
    keep(window, store, make_ids(100, FULL, 0))
    keep(window, store, make_ids(1_000_000, 3, 0))
    assert [decode_chunk(data).count for data in store.chunks.values()] == [15 + FULL, 3]
    assert store.read_count == 0


def test_a_batch_of_duplicates_writes_nothing() -> None:
    window, store = IdSet(REACH), MemoryChunks()
    keep(window, store, make_ids(0, 10, 0))
    before = store.copy()
    assert keep(window, store, make_ids(0, 10, 3)) == 10
    assert (store.head, store.chunks) == (before.head, before.chunks)


def test_expired_chunks_go_whole_and_their_rows_with_the_next_growth() -> None:
    window, store = IdSet(REACH), MemoryChunks()
    unexpired, all_chunks = IdSet(REACH), MemoryChunks()
    for step in range(20):
        ids = make_ids(step * FULL, FULL, step * 100)
        keep(window, store, ids, floor_ms=step * 100 - 10)
        keep(unexpired, all_chunks, ids)
    assert len(store.chunks) == 1
    assert window.size * 3 < unexpired.size
    assert keep(window, store, make_ids(19 * FULL, FULL, 1_905), floor_ms=1_880) == FULL


def test_a_window_that_is_behind_reads_only_what_it_lacks() -> None:
    ahead, behind, store = IdSet(REACH), IdSet(REACH), MemoryChunks()
    keep(ahead, store, make_ids(0, FULL, 0))
    assert behind.catch_up(store, floor_ms=-1) == FULL
    keep(ahead, store, make_ids(FULL, 7, 0))
    keep(ahead, store, make_ids(2 * FULL, 5, 0))
    assert behind.catch_up(store, floor_ms=-1) == 12
    assert keep(behind, store, make_ids(2 * FULL, 5, 0)) == 5


@pytest.mark.parametrize("lost", ["entry", "chunk", "everything"])
def test_a_window_that_is_ahead_of_the_store_is_read_anew(lost: str) -> None:
    window, store = IdSet(REACH), MemoryChunks()
    if lost != "everything":
        keep(window, store, make_ids(0, 5 if lost == "entry" else FULL, 0))
    saved = store.copy()
    keep(window, store, make_ids(2 * FULL, 4, 0))
    assert keep(window, saved, make_ids(2 * FULL, 4, 0)) == 0


def test_another_history_with_the_same_last_chunk_is_not_taken_for_ours() -> None:
    ours, store = IdSet(REACH), MemoryChunks()
    theirs, other = IdSet(REACH), MemoryChunks()
    keep(ours, store, make_ids(0, FULL, 0))
    keep(theirs, other, make_ids(FULL, FULL, 0))
    for window, chunks in ((ours, store), (theirs, other)):
        keep(window, chunks, make_ids(2 * FULL, 9, 50))
    assert store.chunks[1] == other.chunks[1]
    assert ours.catch_up(other, floor_ms=-1) == FULL + 9
    assert keep(ours, other, make_ids(0, FULL, 0)) == 0


def test_a_stream_that_begins_again_is_not_judged_by_the_floor_it_had() -> None:
    window = IdSet(REACH)
    for store in (MemoryChunks(), MemoryChunks()):
        for step in range(20):
            ids = make_ids(step * FULL, FULL, step * 100)
            assert keep(window, store, ids, floor_ms=step * 100 - 10) == 0
            assert keep(window, store, ids, floor_ms=step * 100 - 10) == FULL


def test_a_window_whose_floor_goes_back_is_read_anew() -> None:
    window, store = IdSet(REACH), MemoryChunks()
    keep(window, store, make_ids(0, 10, 0))
    saved = store.copy()
    keep(window, store, make_ids(0, 10, 0), floor_ms=500)
    assert window.catch_up(saved, floor_ms=-1) == 10


def test_damage_is_told_and_not_read() -> None:
    window, store = IdSet(REACH), MemoryChunks()
    keep(window, store, make_ids(0, 10, 0))
    store.chunks[0] = store.chunks[0][:-1] + b"\0"
    with pytest.raises(Corrupt, match="chunk 0 has 250 bytes that do not match its digest"):
        IdSet(REACH).catch_up(store, floor_ms=-1)
    del store.chunks[0]
    with pytest.raises(Corrupt, match="chunk 0 is missing"):
        IdSet(REACH).catch_up(store, floor_ms=-1)
    for head in (b"", b"\x02", b"\x01short"):
        with pytest.raises(Corrupt, match="this varve reads format 1"):
            decode_head(head)
