"""A feed notices that its topic lost its end and grew again: rows of lost records do not stay.

Carries S1.
"""

from pathlib import Path

import pytest

from tests.support.feed_bench import BenchMaker, FeedBench, build_feed, row_key_of
from tests.support.shape_engine import Follower, StageMaker
from varve.foundation.clock import ManualClock
from varve.kafka_client.address import parse_cluster_address
from varve.records import Producer, build_batch, stamp_producer
from varve.records.batch import Record
from varve.testing import KafkaKit
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem
from varve.topics import KafkaCluster


def _regrow(bench: FeedBench, *, to: int, count: int, partition: int = 0) -> None:
    """Cuts the log, and appends other records of other keys."""
    bench.topic.partition(partition).log.truncate_to(to)
    for number in range(count):
        bench.put(f"other{number}", {"n": 100 + number}, partition=partition)


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_table_of_records_that_the_log_lost_is_loaded_again(
    make_bench: BenchMaker, partitions: int
) -> None:
    bench = make_bench(partitions=partitions)
    bench.open()
    for number in range(5):
        bench.put(f"k{number}", {"n": number}, partition=0)
    bench.poll_all()
    bench.feed.checkpoint(bench.feed.mark())
    bench.feed.close()
    _regrow(bench, to=2, count=6)
    reason = bench.crash()
    assert reason is not None
    assert "partition 0 lost records that were read" in reason
    expected = ["k0", "k1", *(f"other{number}" for number in range(6))]
    assert bench.rows().keys() == {row_key_of(key) for key in expected}


@pytest.mark.parametrize("partitions", [1, 3])
def test_records_lost_behind_the_checkpoint_are_noticed(
    make_bench: BenchMaker, partitions: int
) -> None:
    bench = make_bench(partitions=partitions)
    bench.open()
    bench.put("a", {"n": 1}, partition=0)
    bench.poll_all()
    bench.feed.checkpoint(bench.feed.mark())
    for number in range(3):
        bench.put(f"k{number}", {"n": number}, partition=0)
    assert len(bench.changes()) == 3
    bench.feed.close()
    _regrow(bench, to=2, count=6)
    reason = bench.crash()
    assert reason is not None
    assert "lost records that were read" in reason


def test_records_read_before_a_mark_are_known_after_a_power_loss(make_bench: BenchMaker) -> None:
    """Shapes are flushed after the mark, so they may hold records that the table does not."""
    disk = FaultyFileSystem(ManualClock())
    bench = make_bench(fs=disk)
    bench.open()
    bench.put("a", {"n": 1})
    assert len(bench.changes()) == 1
    bench.feed.mark()
    bench.feed.close()
    bench.fs = disk.after_crash(CrashMode.LOSE_UNSYNCED)
    _regrow(bench, to=0, count=3)
    assert "lost records that were read" in (bench.crash() or "")


def test_a_new_table_knows_the_batch_that_it_was_loaded_up_to(bench: FeedBench) -> None:
    for number in range(5):
        bench.put(f"k{number}", {"n": number})
    bench.open()
    bench.feed.close()
    _regrow(bench, to=4, count=3)
    assert "lost records" in (bench.crash() or "")


def test_a_log_that_only_grew_or_was_compacted_is_read_on(make_bench: BenchMaker) -> None:
    bench = make_bench(settings={"cleanup.policy": "compact"})
    bench.open()
    bench.topic.append_many([(b"a", b'{"n":1}'), (b"b", b'{"n":2}'), (b"a", b'{"n":3}')])
    bench.poll_all()
    bench.feed.checkpoint(bench.feed.mark())
    bench.put("c", {"n": 4})
    bench.poll_all()
    bench.store.clean("orders", roll=True, at_once=True)
    bench.put("d", {"n": 5})
    assert bench.crash() is None
    bench.poll_all()
    assert bench.rows().keys() == {row_key_of(key) for key in "abcd"}


def test_control_batches_in_front_of_the_position_are_marks_as_well(bench: FeedBench) -> None:
    bench.open()
    log = bench.topic.partition(0).log
    batch = build_batch([Record(key=b"a", value=b'{"n":1}', timestamp=1)])
    log.append(stamp_producer(batch, Producer(7, 0), 0))
    log.end_transaction(producer_id=7, producer_epoch=0, committed=True)
    bench.poll_all()
    bench.feed.checkpoint(bench.feed.mark())
    assert bench.crash() is None
    bench.feed.close()
    log.truncate_to(0)
    for number in range(3):
        bench.put(f"k{number}", {"n": number})
    assert "lost records" in (bench.crash() or "")


def test_shapes_that_hold_lost_records_are_dropped(make_stage: StageMaker) -> None:
    stage = make_stage()
    stage.put("t", "a", {"n": 1})
    client = Follower(stage, "t")
    client.catch_up()
    stage.engine.checkpoint()
    for number in range(3):
        stage.put("t", f"k{number}", {"n": number})
    assert client.catch_up().keys() == {"a", "k0", "k1", "k2"}
    stage.engine.abandon()
    log = stage.store.topic("t").partition(0).log
    log.truncate_to(2)
    for number in range(4):
        stage.put("t", f"other{number}", {"n": number})
    stage.engine = stage._open()
    expected = {"a", "k0", *(f"other{number}" for number in range(4))}
    assert client.catch_up().keys() == expected
    assert client.refetches == 1


def test_a_server_that_loses_its_end_while_it_is_read_resets_the_shapes(tmp_path: Path) -> None:
    with KafkaKit() as kit:
        address = parse_cluster_address({"bootstrap.servers": kit.bootstrap})
        assert address is not None
        cluster = KafkaCluster(address)
        cluster.find_or_create("orders", partitions=1, settings={})
        topic = kit.store.topic("orders")
        topic.append(key=b"a", value=b'{"n":1}')
        topic.flush()
        reader = cluster.reader("orders")
        feed = build_feed(reader, tmp_path)
        feed.open()
        feed.checkpoint(feed.mark())
        for number in range(3):
            topic.append(key=b"k%d" % number, value=b'{"n":2}')
        assert len(feed.poll(max_records=100, wait_ms=1000)) == 3
        kit.restart(crash=True)
        assert kit.store.topic("orders").offsets().end == 1
        for number in range(6):
            kit.store.topic("orders").append(key=b"other%d" % number, value=b'{"n":3}')
        (only,) = feed.poll(max_records=100, wait_ms=1)
        assert only.reset is not None
        assert "lost records that were read" in only.reset.text
        feed.open()
        with feed.view() as view:
            rows = {key for key, _ in view.rows()}
        expected = ["a", *(f"other{number}" for number in range(6))]
        assert rows == {row_key_of(key) for key in expected}
        feed.close()
        cluster.close()
