"""A reader of a store waits for its logs, and does not read an idle topic again and again."""

import threading

import pytest

from tests.support.topics_bench import StoreBench
from varve.commit_log import Log
from varve.records import Producer, build_batch, stamp_producer
from varve.records.batch import Record
from varve.topics import Position
from varve.topics.store_cluster import StoreReader

READ_BYTES = 1 << 20


def test_an_idle_topic_is_looked_at_twice_however_long_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = StoreBench()
    bench.virtual.store.create_topic("orders", partitions=4)
    looks: list[int] = []
    fetch_all = StoreReader._fetch_all

    def count(reader: StoreReader, *arguments: object) -> object:
        looks.append(1)
        return fetch_all(reader, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(StoreReader, "_fetch_all", count)
    reader = bench.cluster.reader("orders")
    positions = {number: Position(0) for number in range(4)}
    assert reader.fetch(positions, max_bytes=READ_BYTES, wait_ms=300) == {}
    assert len(looks) == 2
    bench.close()


def test_the_end_of_a_transaction_wakes_a_reader_of_committed_records() -> None:
    bench = StoreBench()
    topic = bench.virtual.store.create_topic("orders", partitions=1)
    log: Log = topic.partition(0).log
    batch = build_batch([Record(key=b"a", value=b"1", timestamp=1)])
    log.append(stamp_producer(batch, Producer(7, 0), 0))
    reader = bench.cluster.reader("orders")
    assert reader.fetch({0: Position(0)}, max_bytes=READ_BYTES, wait_ms=0) == {}

    def commit() -> None:
        log.end_transaction(producer_id=7, producer_epoch=0, committed=True)

    timer = threading.Timer(0.1, commit)
    timer.start()
    found = reader.fetch({0: Position(0)}, max_bytes=READ_BYTES, wait_ms=15_000)
    assert [record.key for batch in found[0] for record in batch.records()] == [b"a"]
    timer.join()
    bench.close()
