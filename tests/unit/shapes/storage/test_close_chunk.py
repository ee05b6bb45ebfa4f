"""A chunk that is closed before it is full."""

from tests.support.compaction_bench import CompactionBench
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.shapes.offset import SNAPSHOT_END, ShapeOffset


def _bench() -> CompactionBench:
    return CompactionBench(MemoryFileSystem(ManualClock()))


def test_an_open_chunk_is_closed_behind_the_last_entry_and_durable() -> None:
    bench = _bench()
    bench.put("row", a=1)
    assert bench.storage.chunk_end(SNAPSHOT_END) is None
    bench.storage.close_chunk()
    assert bench.storage.chunk_end(SNAPSHOT_END) == ShapeOffset(1, 0)
    assert bench.storage.persisted == ShapeOffset(1, 0)
    assert bench.storage.compaction_target(0) == (ShapeOffset(1, 0), bench.storage.live_bytes)
    bench.check()


def test_a_chunk_is_closed_when_all_its_entries_are_flushed() -> None:
    bench = _bench()
    bench.put("row", a=1)
    bench.storage.flush()
    bench.storage.close_chunk()
    bench.storage.close_chunk()
    bench.put("row", a=2)
    bench.storage.flush()
    assert bench.storage.chunk_end(SNAPSHOT_END) == ShapeOffset(1, 0)
    assert bench.storage.chunk_end(ShapeOffset(1, 0)) is None
    bench.check()
    bench.storage.close()
    reopened = bench.reopen(bench.fs)
    assert reopened.chunk_end(SNAPSHOT_END) == ShapeOffset(1, 0)
    bench.check(reopened)


def test_nothing_is_closed_where_there_is_nothing() -> None:
    bench = _bench()
    bench.storage.close_chunk()
    assert bench.storage.compaction_target(0) is None
