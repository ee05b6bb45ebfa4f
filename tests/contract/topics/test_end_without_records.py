"""Reading to the end of a log whose last offsets have no record."""

import pytest

from tests.support.topics_bench import ServerBench, StoreBench, batch_of
from varve.records import Record
from varve.testing import VirtualStore
from varve.topics import Position, StoreCluster, TopicReader, read_last, read_range

READ_BYTES = 1 << 20


def _read_values(reader: TopicReader, *, start: int) -> list[bytes | None]:
    end = reader.offsets(0).end
    return [
        record.value
        for fetched in read_range(reader, 0, start=start, end=end)
        for batch in fetched
        for record in batch.records()
    ]


@pytest.mark.parametrize("bench_class", [StoreBench, ServerBench], ids=["store", "server"])
def test_compaction_leaves_an_empty_batch_at_the_end(
    bench_class: type[StoreBench | ServerBench],
) -> None:
    bench = bench_class()
    kit = bench.virtual if isinstance(bench, StoreBench) else bench.kit
    settings = {"cleanup.policy": "compact", "delete.retention.ms": "0"}
    bench.cluster.find_or_create("orders", partitions=1, settings=settings)
    bench.append("orders", 0, Record(b"kept", b"1", timestamp=1))
    for _ in range(3):
        bench.append("orders", 0, Record(b"deleted", None, timestamp=1))
    for _ in range(2):  # the first run sets the delete horizon
        kit.clean_now("orders")
        kit.advance(days=1)
    reader = bench.cluster.reader("orders")
    assert reader.offsets(0) == (0, 4)
    assert _read_values(reader, start=0) == [b"1"]
    assert _read_values(reader, start=1) == []
    assert read_last(reader, 0, key=b"deleted") is None
    reader.close()
    bench.close()


def test_a_store_whose_last_segment_was_lost_is_read_to_its_end() -> None:
    kit = VirtualStore()
    kit.store.create_topic("orders", partitions=1)
    for value in (b"1", b"2"):
        log = kit.store.topic("orders").partition(0).log
        log.append(batch_of(value))
        log.roll()
    kit.store.close()
    for name in kit.fs.names(f"{kit.path}/orders-0"):
        if name.startswith(f"{1:020}."):
            kit.fs.remove(f"{kit.path}/orders-0/{name}")
    reader = StoreCluster(kit.reopen()).reader("orders")
    assert reader.offsets(0) == (0, 2)
    assert _read_values(reader, start=0) == [b"1"]
    fetched = reader.fetch({0: Position(1)}, max_bytes=READ_BYTES, wait_ms=0)
    assert fetched[0].next_offset == 2
    kit.store.close()
